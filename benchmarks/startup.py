"""`benchmarks startup`: how long until a command answers, from the moment it is entered.

Help of every command; `check` of 50 episodes until it says what is wrong with the files; `review`
of 1,000 until its page is there; `record` on an emulated pair until it is READY, and from the key
that begins an episode until its first row is on the disk.
"""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.review import serving
from benchmarks.review_dataset import write_dataset
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import FRAMES, read_stream
from gaploop.scripts import cli, options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

REPEATS: Final = 3
CHECKED, REVIEWED = 50, 1_000
PATIENCE_S: Final = 120.0
GAPLOOP: Final = (sys.executable, "-m", "gaploop.scripts.cli")
LIMITS_S: Final = {"--help": 0.3, "check": 3.0, "review": 2.0, "key to first row": 3.0}


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Time every command `--n` times."""
    data, found = folder.absolute() / "data", dict[str, list[float]]()
    shutil.rmtree(data, ignore_errors=True)
    for episodes in (CHECKED, REVIEWED):
        write_dataset(data / str(episodes), episodes, config.seed)
    helps = [["--help"], *([name, "--help"] for names in cli.GROUPS.values() for name in names)]
    repeats = config.n or REPEATS
    with options.progress("Commands", repeats * (len(helps) + 3)) as advance:

        def took(name: str, seconds: float) -> None:
            found.setdefault(name, []).append(round(seconds, 3))
            advance()

        for _ in range(repeats):
            for words in helps:
                took(" ".join(words), _first_words(*words))
            took("check", _first_words("check", str(data / str(CHECKED))))
            began_s = time.monotonic()
            review = serving(data / str(REVIEWED), "--author=bench", "--suggestions=false")
            with review as address, urllib.request.urlopen(address) as page:
                page.read()
                took("review", time.monotonic() - began_s)
            ready_s, row_s = _record(data / "pair")
            found.setdefault("record until READY", []).append(round(ready_s, 3))
            took("key to first row", row_s)
    return {"seconds": found, "limits_s": LIMITS_S, "episodes": [CHECKED, REVIEWED]}


def _first_words(*words: str) -> float:
    """Return when a command first prints [s]; it is let come to its end."""
    began_s, silent = time.monotonic(), subprocess.DEVNULL
    with subprocess.Popen([*GAPLOOP, *words], stdout=subprocess.PIPE, stderr=silent) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        said_s = time.monotonic() - began_s
        process.stdout.read()
    return said_s


def _record(folder: Path) -> tuple[float, float]:
    """Return when `record` on an emulated pair is READY, and the first row after a key [s]."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    words = ["record", "--display=terminal", "--dataset.num_episodes=1", "--dataset.single_task=x"]
    words += [f"--dataset.root={folder / 'set'}", "--dataset.episode_time_s=30"]
    with contextlib.ExitStack() as stack:
        for option, role in (("robot", "follower"), ("teleop", "leader")):
            link, file = folder / role, folder / f"of_{role}" / "x.json"
            emulate = ["emulate", f"--role={role}", f"--link={link}", f"--calibration={file}"]
            stack.enter_context(_in_terminal(*emulate, "--hand=still"))
            while not (link.exists() and file.exists()):
                time.sleep(0.01)
            words += [f"--{option}.type=so101_{role}", f"--{option}.port={link}"]
            words += [f"--{option}.id=x", f"--{option}.calibration_dir={file.parent}"]
        entered_s = time.monotonic()
        terminal, has_said = stack.enter_context(_in_terminal(*words))
        while not has_said(b"READY"):
            pass
        ready_s = time.monotonic()
        os.write(terminal, b"\x1b[C")  # the key →
        while not any(len(read_stream(p)) for p in folder.glob(f"set_journal/*/{FRAMES}")):
            has_said(b"")
        return ready_s - entered_s, time.monotonic() - ready_s


@contextlib.contextmanager
def _in_terminal(*words: str) -> Iterator[tuple[int, Callable[[bytes], bool]]]:
    """Run a command in a terminal; yield that, and whether it has printed something so far."""
    outer, inner = pty.openpty()
    os.set_blocking(outer, False)
    tall = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "50"}
    process = subprocess.Popen(
        [*GAPLOOP, *words], stdin=inner, stdout=inner, stderr=inner, env=tall
    )
    said, until_s = bytearray(), time.monotonic() + PATIENCE_S

    def has_said(text: bytes) -> bool:
        time.sleep(0.005)
        with contextlib.suppress(BlockingIOError):
            said.extend(os.read(outer, 1 << 20))
        if process.poll() is not None or time.monotonic() > until_s:
            raise UnusableInputError(f"{words[0]} ended or hangs: {said[-800:].decode()}")
        return text in said

    try:
        yield outer, has_said
    finally:
        process.terminate()
        with contextlib.suppress(UnusableInputError):
            while True:  # what it prints has to be read, or it waits for that
                has_said(b"")
        process.kill()
        process.wait()
        os.close(inner)
        os.close(outer)


def table(result: Mapping[str, Any]) -> str:
    """Return the medians, and the limits where there is one."""
    return "\n".join(
        f"{name}: {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
        + (f"; asked are {result['limits_s'][name]:g} s" if name in result["limits_s"] else "")
        for name, seconds in result["seconds"].items()
    )
