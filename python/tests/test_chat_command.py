# SPDX-License-Identifier: Apache-2.0
"""`ops-transformer chat` as a person at a terminal and as a script at a pipe have it."""
import json
import os
import pty
import select
import signal
import subprocess
import time

import pytest
from command import command_path
from test_command import USAGE, run, run_json

SECONDS = 120  # for what should come at once


class Terminal:
    """A command whose standard streams are a terminal, but for standard output where `stdout` is given."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([command_path(), *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True, preexec_fn=self._own_terminal)
        os.close(slave)
        self.seen = ""

    @staticmethod
    def _own_terminal():
        import fcntl
        import termios
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def read_until(self, text):
        """What came up to and including `text`, which must come."""
        end = time.monotonic() + SECONDS
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self.seen!r}"
            try:
                piece = os.read(self.master, 4096)
            except OSError:
                piece = b""
            assert piece, f"ended without {text!r}: {self.seen!r}"
            self.seen += piece.decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        """The exit code; what is left of the output is read first."""
        while True:
            try:
                if not os.read(self.master, 4096):
                    break
            except OSError:
                break
        os.close(self.master)
        return self.process.wait(SECONDS)


@pytest.fixture
def talk(model_path):
    terminals = []

    def start(*arguments):
        terminals.append(Terminal("chat", "--model", model_path, *arguments))
        terminals[-1].read_until("> ")
        return terminals[-1]

    yield start
    for terminal in terminals:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def chat(model_path, lines, *arguments):
    return run_json("chat", "--model", model_path, *arguments, stdin="".join(line + "\n" for line in lines))["turns"]


def test_words_at_a_terminal(talk, tmp_path):
    saved = tmp_path / "talk.json"
    terminal = talk("--max-tokens", 12, "--system", "Be brief.")
    for typed, shown in [("/help", "/reset"), ("/nothing", "unknown word '/nothing'"), ("/reset now", "takes nothing"),
                         ("/save", "name of a file"), ("/save /", "regular file"), (f"/save {tmp_path}/none/x", "No such file"),
                         ("Remember the word apple.", "\n"), (f"/save {saved}", "3 messages saved"),
                         (f"/save {saved}", "3 messages saved"), ("/reset", "\n")]:
        terminal.type(typed + "\n")
        terminal.read_until(shown)
        terminal.read_until("> ")
    messages = json.loads(saved.read_text())["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert messages[0]["content"] == "Be brief." and messages[1]["content"] == "Remember the word apple."
    other = tmp_path / "other"
    other.write_text("mine")
    terminal.type(f"/save {other}\n")
    terminal.read_until(str(other))
    terminal.read_until("> ")
    assert other.read_text() == "mine"
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_interrupt_stops_the_answer_and_not_the_program(talk, tmp_path):
    saved = tmp_path / "talk.json"
    terminal = talk("--max-tokens", 4000, "--ignore-eos", "--context", 8000)
    terminal.type("Count from one to one thousand.\n")
    terminal.read_until("\n")
    terminal.read_until(" ")  # the answer has begun
    terminal.type("\x03")
    terminal.read_until("> ")
    terminal.type(f"/save {saved}\n")
    terminal.read_until("2 messages saved")
    answer = json.loads(saved.read_text())["messages"][1]["content"]
    assert 0 < len(answer.split()) < 3000
    terminal.read_until("> ")
    terminal.type("dropped\x03")
    terminal.read_until("> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_lines_are_joined_by_a_backslash(model_path):
    turns = chat(model_path, ["one\\", "two", "", "//three"], "--max-tokens", 2)
    assert [turn["user"] for turn in turns] == ["one\ntwo", "/three"]


def test_reset_forgets(model_path):
    question = "What is two plus two?"
    alone = chat(model_path, [question], "--max-tokens", 16, "--deterministic")
    turns = chat(model_path, ["My name is Ann.", "/reset", question], "--max-tokens", 16, "--deterministic")
    assert turns[1]["assistant"] == alone[0]["assistant"]


def test_a_script_ends_at_an_unknown_word(model_path):
    done = run("chat", "--model", model_path, "--max-tokens", 2, stdin="/nothing\nHello\n")
    assert done.returncode == USAGE and "unknown word '/nothing'" in done.stderr and not done.stdout


LONG = "word " * 60


def test_words_may_have_blanks_around_them(model_path, tmp_path):
    path = tmp_path / "a talk"
    done = run("chat", "--model", model_path, "--max-tokens", 2, stdin=f"Hello\n/save \t {path} \n/reset \n/quit\t\nHello\n")
    assert done.returncode == 0 and len(json.loads(path.read_text())["messages"]) == 2


def test_overflow_is_an_error(model_path):
    for lines in ([LONG * 3], [LONG, LONG, LONG]):
        done = run("chat", "--model", model_path, "--context", 160, "--max-tokens", 20, "--ignore-eos", stdin="\n".join(lines))
        assert done.returncode == USAGE and "the context holds 160" in done.stderr
    done = run("chat", "--model", model_path, "--context", 160, "--overflow", "other", stdin="x\n")
    assert done.returncode != 0 and "--overflow" in done.stderr


def test_overflow_undoes_the_turn_at_a_terminal(talk, tmp_path):
    saved = tmp_path / "talk.json"
    terminal = talk("--context", 160, "--max-tokens", 8)
    for typed, shown in [("Hello", "\n"), (LONG * 3, "the context holds 160"), (f"/save {saved}", "2 messages saved"),
                         ("Hello", "\n")]:
        terminal.type(typed + "\n")
        terminal.read_until(shown)
        terminal.read_until("> ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_overflow_cuts_the_answer(model_path):
    turns = chat(model_path, [LONG], "--context", 160, "--max-tokens", 1000, "--ignore-eos", "--overflow", "cut")
    assert turns[0]["context_full"] and turns[0]["finish"] == "length" and turns[0]["assistant"]


def test_overflow_forgets_the_oldest_turns(model_path):
    options = ["--context", 160, "--max-tokens", 20, "--ignore-eos", "--overflow", "shift", "--deterministic"]
    turns = chat(model_path, [LONG] * 4, *options)
    assert [turn["forgotten_turns"] for turn in turns] == [0, 1, 1, 1]
    assert not any(turn["context_full"] for turn in turns)
    alone = chat(model_path, [LONG], *options)
    assert [turn["assistant"] for turn in turns] == [alone[0]["assistant"]] * 4
    done = run("chat", "--model", model_path, *options, stdin=LONG * 3)
    assert done.returncode == USAGE and "the context holds 160" in done.stderr


def default_interrupt():
    """What a shell starts in the background would ignore the signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupt_ends_a_script(model_path):
    process = subprocess.Popen([command_path(), "chat", "--model", model_path, "--max-tokens", "4000", "--ignore-eos"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=default_interrupt)
    process.stdin.write(b"Count.\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == -signal.SIGINT
    process.stdin.close()
    process.stdout.close()
