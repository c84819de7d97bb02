# SPDX-License-Identifier: Apache-2.0
"""Peers as child processes: bench/peers/NAME_worker.py, started with the interpreter that has the peer."""

import json
import pathlib
import subprocess

FOLDER = pathlib.Path(__file__).parent / "peers"


class PeerFailed(Exception):
    """The peer isn't installed, or died; the message is the end of what it said."""


class Peer:
    def __init__(self, name: str, python: str, model: str, threads: int, environment: dict | None = None):
        self.name = name
        self.process = subprocess.Popen(
            [python, FOLDER / f"{name}_worker.py", "--model", model, "--threads", str(threads)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.versions = self._answer()["versions"]

    def ask(self, request: dict) -> dict:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        self.process.communicate()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            _, said = self.process.communicate()
            raise PeerFailed((said.strip().splitlines() or ["it said nothing"])[-1])
        return json.loads(line)
