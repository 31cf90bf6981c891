"""docs/start/first_teleoperation.md, followed to the letter: its lines are read and typed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gaploop.scripts import cli
from gaploop.scripts._arguments import parse

PAGE = Path(__file__).parents[2] / "docs" / "start" / "first_teleoperation.md"
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Block:
    """What is typed into one terminal."""

    terminal: int
    lines: tuple[str, ...]


def blocks() -> list[Block]:
    found = re.findall(r"^```\w+ terminal=(\d)\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    return [
        Block(int(number), tuple(text.replace("\\\n", " ").strip().splitlines()))
        for number, text in found
    ]


def test_every_gaploop_command_on_the_page_is_understood() -> None:
    commands = [
        shlex.split(line)[1:] for b in blocks() for line in b.lines if line.startswith("gaploop ")
    ]
    assert [words[0] for words in commands] == ["emulate", "emulate", "doctor", "teleoperate"]
    for name, *options in commands:
        module = __import__(f"gaploop.scripts.{name}", fromlist=["run"])
        made = cli.config_class_of(module, name, options)
        parse(made, options, cli.positional(module), name)


class Terminal:
    """A program in a terminal of its own, 140 columns wide."""

    def __init__(self, line: str, folder: Path) -> None:
        words = shlex.split(line)
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HF_LEROBOT_CALIBRATION": str(folder / "calibration"),
            "TERM": "xterm-256color",
        }
        for name in ("COLUMNS", "LINES"):  # those of whoever runs the tests
            environment.pop(name, None)
        self.line, self.text = line, ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], words, environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 140, 0, 0))

    def read(self, timeout_s: float = 0.1) -> bool:
        """Take in what it says; False where it has ended."""
        ready, _, _ = select.select([self.fd], [], [], timeout_s)
        if not ready:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.text += data.decode(errors="ignore")
        return bool(data)

    def wait_for(self, words: str) -> None:
        """Wait until it says something new that holds `words`; forget all up to there."""
        until_s = time.monotonic() + PATIENCE_S
        while words not in self.text:
            alive = self.read()
            if words not in self.text and (not alive or time.monotonic() > until_s):
                raise AssertionError(f"{self.line}: never said {words!r}, but {self.text[-3000:]}")
        self.text = self.text.partition(words)[2]

    def wait_while(self, seconds: float) -> None:
        """Let it go on for a while."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.read()

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def end(self) -> int:
        """Wait for its end and return its exit code."""
        until_s = time.monotonic() + PATIENCE_S
        while self.read() and time.monotonic() < until_s:
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            self.end()
        os.close(self.fd)


@contextlib.contextmanager
def terminal(line: str, folder: Path) -> Iterator[Terminal]:
    made = Terminal(line, folder)
    try:
        yield made
    finally:
        made.close()


def calibrate(line: str, folder: Path) -> None:
    with terminal(line, folder) as program:
        program.wait_for("press ENTER")
        program.press("\n")
        program.wait_for("Press ENTER to stop")
        program.wait_while(7.0)  # "one round takes six seconds"
        program.press("\n")
        program.wait_for("Calibration saved")
        assert program.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["so101", "koch"])
def test_the_page_is_followed_to_the_letter(model: str, tmp_path: Path) -> None:
    lines = [(b.terminal, line.replace("so101", model)) for b in blocks() for line in b.lines]
    typed = iter(lines)
    emulators: dict[int, Terminal] = {}
    with contextlib.ExitStack() as stack:
        for number in (1, 2):
            terminal_, line = next(typed)
            assert terminal_ == number
            emulators[number] = stack.enter_context(terminal(line, tmp_path))
            emulators[number].wait_for("Type help")
        calibrate(next(typed)[1], tmp_path)
        calibrate(next(typed)[1], tmp_path)
        with terminal(next(typed)[1], tmp_path) as doctor:
            doctor.wait_for("all servos read in")
            assert doctor.end() == 0
        with terminal(next(typed)[1], tmp_path) as drive:
            drive.wait_for("DRIVING")
            drive.wait_while(3.0)
            drive.press(" ")
            drive.wait_for("KEEP CLEAR")
            drive.wait_for("The arm holds")
            drive.press("c")
            drive.wait_for("Press it again")
            drive.wait_while(0.5)  # "release the key in between"
            drive.press("c")
            drive.wait_for("DRIVING")
            number, fault = next(typed)
            emulators[number].press(f"{fault}\n")
            drive.wait_for("DEVICE LOST")
            drive.wait_for("elbow_flex")
            number, repaired = next(typed)
            emulators[number].press(f"{repaired}\n")
            drive.wait_for("FOUND AGAIN")
            drive.press("c")
            drive.wait_for("Press it again")
            drive.wait_while(0.5)  # "release the key in between"
            drive.press("c")
            drive.wait_for("DRIVING")
            for other in (1, 2):  # "a pulled cable is the same"
                emulators[other].press("fault unplug\n")
                drive.wait_for("DEVICE LOST")
                emulators[other].press("fault clear\n")
                drive.wait_for("FOUND AGAIN")
                drive.press("c")
                drive.wait_for("Press it again")
                drive.wait_while(0.5)
                drive.press("c")
                drive.wait_for("DRIVING")
            drive.press("q")
            drive.wait_for("trips")
            assert drive.end() == 0
    assert next(typed, None) is None
