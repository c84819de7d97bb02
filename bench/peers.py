# SPDX-License-Identifier: Apache-2.0
"""Peers as child processes: bench/peers/NAME_worker.py, started with the interpreter that has the peer."""

import json
import pathlib
import subprocess
import tempfile

FOLDER = pathlib.Path(__file__).parent / "peers"


class PeerFailed(Exception):
    """The peer isn't installed, or died; the message is the end of what it said."""


class Peer:
    def __init__(self, name: str, python: str, model: str, threads: int):
        self.name = name
        self.said = tempfile.TemporaryFile("w+")  # not a pipe: nobody reads it while the peer works
        command = [python, FOLDER / f"{name}_worker.py", "--model", model, "--threads", str(threads)]
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said,
                                            text=True)
        except OSError as error:
            raise PeerFailed(error) from error
        self.versions = self._answer()["versions"]

    def ask(self, request: dict) -> dict:
        """Throws PeerFailed."""
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # it died: no answer will come either
        return self._answer()

    def close(self) -> None:
        self.process.communicate()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.said.seek(0)
            raise PeerFailed((self.said.read().strip().splitlines() or ["it said nothing"])[-1])
        return json.loads(line)
