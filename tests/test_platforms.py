"""gaploop on macOS and Windows, tried on this machine by taking away what those don't have."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import quick_imports
import systems

from gaploop.datasets import layout

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "core", "sim", "teleop", "datasets", "collect", "failure_analysis", "finetune", "scripts",
)  # fmt: skip
PLATFORM_CALLS = "core/platform_calls.py"
HELD = {
    "teleop/servos/port.py": {"select.poll"},  # `open` refuses first where there is none
    "teleop/servos/exchange.py": {"select.poll"},  # only on open ports
    "collect/operator/keys.py": {"select.select"},  # only on a terminal that gives key by key
    "teleop/emulator/bus.py": {"select.select"},  # only on open pseudo-terminals
    "teleop/supervisor.py": {"select.poll"},  # only with open ports
    "collect/encoder.py": {"pass_fds="},  # only where HANDLES_CAN_BE_PASSED
}
"""Module to the calls that it makes nevertheless, because it is only reached where they are."""
KEYWORDS = {"pass_fds", "preexec_fn", "start_new_session", "process_group", "creationflags"}


def modules() -> list[Path]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(p.relative_to(ROOT) for p in found)


def uses(tree: ast.AST) -> Iterator[str]:
    """Yield the calls and names in a module that not every system has."""
    names = {
        "os": systems.OS,
        "select": systems.SELECT | {"select"},
        "signal": systems.SIGNALS | systems.SIGNAL_CALLS,
        "ctypes": {"CDLL", "cdll", "windll"},
        "socket": {"AF_UNIX"},
        "time": {"clock_gettime", "clock_settime", "tzset", "pthread_getcpuclockid"},
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots = {alias.name.split(".")[0] for alias in node.names}
            yield from roots & (systems.MODULES | systems.ELSEWHERE)
        elif isinstance(node, ast.ImportFrom):
            root = (node.module or "").split(".")[0]
            if root in systems.MODULES | systems.ELSEWHERE:
                yield root
            taken = {alias.name for alias in node.names} & names.get(root, set())
            yield from (f"{root}.{name}" for name in taken)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in names.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in KEYWORDS:
            yield f"{node.arg}="
        elif isinstance(node, ast.Constant) and node.value in ("fork", "forkserver"):
            yield repr(node.value)


def test_what_not_every_system_has_is_called_in_one_module() -> None:
    """`os.fdatasync` ended both sync threads on macOS, `import fcntl` even `check` on Windows."""
    found = {
        str(path): set(uses(ast.parse((ROOT / path).read_text()))) - HELD.get(str(path), set())
        for path in modules()
        if str(path) != PLATFORM_CALLS
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_the_search_finds_such_calls() -> None:
    code = """
import fcntl, os, signal, subprocess
from os import fdatasync
def f():
    import resource
    os.nice(3); signal.SIGUSR1; subprocess.run([], start_new_session=True)
"""
    found = set(uses(ast.parse(code)))
    assert found == {
        "fcntl", "os.fdatasync", "resource", "os.nice", "signal.SIGUSR1", "start_new_session=",
    }  # fmt: skip
    assert set(uses(ast.parse((ROOT / PLATFORM_CALLS).read_text()))) >= {"fcntl", "os.preadv"}
    for path, names in HELD.items():
        assert names <= set(uses(ast.parse((ROOT / path).read_text()))), (
            f"{path}: not used any more"
        )


def run(system: str, folder: Path, code: str, *arguments: object) -> str:
    """Run code as on another system; return what it prints."""
    program = f"{quick_imports.FIRST}__package__ = 'gaploop'\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=systems.environment(system, folder / "site"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(params=sorted(systems.SYSTEMS))
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_taken_away_is_gone(system: str, tmp_path: Path) -> None:
    code = """
import os, sys
from gaploop.core import platform_calls as p
print(sys.platform, hasattr(os, "fdatasync"), hasattr(os, "sched_setscheduler"), p.fcntl is None,
      p.HANDLES_CAN_BE_PASSED, p.HAS_SERIAL_HANDLES, len(p.signals("SIGINT", "SIGTERM", "SIGHUP")))
"""
    said = run(system, tmp_path, code).split()
    assert (
        said
        == {
            "macos": ["darwin", "False", "False", "False", "True", "True", "3"],
            "windows": ["win32", "False", "False", "True", "False", "False", "2"],
        }[system]
    )


RECORD = """
import json, sys
from pathlib import Path
import numpy as np
from gaploop.collect.encoder import Encoder
from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.collect.recovery import held_take, recover
from gaploop.core import platform_calls
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome

journal = Path(sys.argv[1])
spec = {"width": 64, "height": 48, "fps": 50.0, "codec": "h264"}
said = {"synced": 0}
sync = platform_calls.sync
def counted(handle, **given):
    sync(handle, **given)
    said["synced"] += 1
platform_calls.sync = counted

def take(seal):
    info = TakeInfo(uuid7(), task="t", joint_names=("a",), fps=50.0)
    header = TakeHeader(info, (), {"top": spec}, {"arm.a.position_rad": "rad"})
    with JournalWriter(journal, header, encoder=encoder, waits=True) as writer:
        for k in range(40):
            one = np.full(1, float(k))
            writer.telemetry(k * 20_000_000, one)
            picture = np.full((48, 64, 3), 5 * k, dtype=np.uint8)
            writer.frame(FrameRow(k / 50, one, one, one, pictures={"top": picture}))
        with held_take(writer.folder) as is_ours:
            assert not is_ours, "somebody else could take the take while it is written"
        if seal:
            said["sealed"] = str(writer.seal(Outcome.SUCCESS))

with Encoder() as encoder:
    take(True)
    take(False)
    said["apart"] = bool(encoder.pid)
said["recovered"] = len(recover(journal).recovered)
Path(sys.argv[2]).write_text(json.dumps(said))
"""

COMMANDS = """
from gaploop.scripts.cli import main
for words in json.loads(sys.argv[3]):
    assert main(words) == 0, words
"""

IMPORT_ALL = """
import importlib
failed = {}
for name in sys.argv[4:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = repr(error)
assert not failed, failed
"""


def test_takes_are_recorded_synced_published_checked_and_labelled_and_all_can_be_imported(
    system: str, tmp_path: Path
) -> None:
    """On macOS both sync threads ended with the first call, and takes weren't synced any more.

    On Windows `gaploop check` ended with "No module named 'fcntl'". All in one process: importing
    LeRobot is most of what this costs.
    """
    journal, root, answer = tmp_path / "journal", tmp_path / "set", tmp_path / "said.json"
    commands = (
        f"check {journal}",
        f"publish --journal={journal} --dataset.root={root} --dataset.repo_id=me/x",
        f"label {root} --episode=0 --outcome=failure --author=a",
        f"label {root} --episodes=0: --outcome=success --phase=approach --author=b",
        f"check {root}",
        f"repair {root}",
    )
    words = json.dumps([command.split() for command in commands])
    names = [
        ".".join(("gaploop", *path.with_suffix("").parts))
        for path in modules()
        if path.name not in ("__init__.py", "__main__.py")
    ]
    assert len(names) > 300
    run(system, tmp_path, RECORD + COMMANDS + IMPORT_ALL, journal, answer, words, *names)
    said = json.loads(answer.read_text())
    assert said["synced"] >= 5
    assert said["recovered"] == 1
    assert said["apart"] == (system == "macos")
    labels = (root / layout.LABELS).read_bytes()
    assert b"failure" in labels
    assert b"\r" not in labels


LOCKS = """
import os, sys
from pathlib import Path
from gaploop.core import platform_calls
path = Path(sys.argv[1])
path.write_bytes(b"held")
def opened():
    return os.open(path, os.O_RDWR | os.O_CREAT)
def can(shared):
    handle = opened()
    try:
        platform_calls.lock(handle, shared=shared, wait=False)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
assert can(True) and can(False)
readers = [opened() for _ in range(20)]
for reader in readers:
    platform_calls.lock(reader, shared=True)
assert all(can(True) for _ in range(200)), "a byte that another reader holds was taken for a writer"
assert not can(False)
for reader in readers[1:]:
    os.close(reader)
assert not can(False)
os.close(readers[0])
writer = opened()
platform_calls.lock(writer)
assert not can(True) and not can(False)
assert os.read(writer, 9) == b"held", "the lock moved the file's place"
os.close(writer)
assert can(True) and can(False)
"""


def test_a_lock_is_one_writers_or_many_readers(system: str, tmp_path: Path) -> None:
    run(system, tmp_path, LOCKS, tmp_path / "file")


def test_arms_and_emulated_ones_are_refused_in_one_line_on_windows(tmp_path: Path) -> None:
    code = """
import sys
from gaploop.core.errors import GaploopError
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.emulator.port import PseudoTerminal
for refused in (lambda: SerialPort("COM3").open(), lambda: PseudoTerminal()):
    try:
        refused()
    except GaploopError as error:
        print(error)
"""
    lines = run("windows", tmp_path, code).splitlines()
    assert len(lines) == 2
    assert all("Use Linux" in line for line in lines)
