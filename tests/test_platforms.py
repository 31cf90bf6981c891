"""gaploop on macOS and Windows, tried on this machine by taking away what those don't have."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import quick_imports
import systems

from gaploop.datasets import layout

type Run = Callable[..., str]

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "core", "sim", "teleop", "datasets", "collect", "failure_analysis", "finetune", "scripts",
)  # fmt: skip
PLATFORM_CALLS = "core/platform_calls.py"
HELD = {
    "collect/operator/keys.py": {"select.select"},  # on a terminal that gives key by key
    "teleop/emulator/bus.py": {"select.select"},  # on open pseudo-terminals
    "teleop/supervisor.py": {"select.poll", "start_new_session="},  # with open ports
    "collect/encoder.py": {"pass_fds=", "select.select", "start_new_session="},  # while recording
    "collect/encoder_process.py": {"os.sysconf"},
    "datasets/cache/folder.py": {"os.preadv"},  # training from the frame cache
    "scripts/emulate.py": {"select.select"},
}
"""Module to the calls that it makes nevertheless, because it is only reached where they are."""
KEYWORDS = {"pass_fds", "preexec_fn", "start_new_session", "process_group", "creationflags"}


CALLS = {
    "os": systems.OS,
    "select": systems.SELECT | {"select"},
    "signal": systems.SIGNALS | systems.SIGNAL_CALLS,
    "ctypes": {"CDLL", "cdll", "windll"},
    "socket": {"AF_UNIX"},
    "time": {"clock_gettime", "clock_settime", "tzset", "pthread_getcpuclockid"},
}
"""Module to what not every system has of it."""


def modules() -> list[Path]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(p.relative_to(ROOT) for p in found)


def uses(tree: ast.AST) -> Iterator[str]:
    """Yield the calls and names in a module that not every system has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots = {alias.name.split(".")[0] for alias in node.names}
            yield from roots & (systems.MODULES | systems.ELSEWHERE)
        elif isinstance(node, ast.ImportFrom):
            root = (node.module or "").split(".")[0]
            if root in systems.MODULES | systems.ELSEWHERE:
                yield root
            taken = {alias.name for alias in node.names} & CALLS.get(root, set())
            yield from (f"{root}.{name}" for name in taken)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in CALLS.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in KEYWORDS:
            yield f"{node.arg}="
        elif isinstance(node, ast.Constant) and node.value in ("fork", "forkserver"):
            yield repr(node.value)


def test_what_not_every_system_has_is_called_in_one_module() -> None:
    """`os.fdatasync` ended both sync threads on macOS, `import fcntl` even `check` on Windows."""
    words = {name for names in CALLS.values() for name in names} | KEYWORDS | {"fork", "forkserver"}
    words |= systems.MODULES | systems.ELSEWHERE
    some = re.compile(rf"\b({'|'.join(words)})\b")  # most modules name none: they aren't parsed
    texts = {str(p): text for p in modules() if some.search(text := (ROOT / p).read_text())}
    found = {
        path: set(uses(ast.parse(text))) - HELD.get(path, set())
        for path, text in texts.items()
        if path != PLATFORM_CALLS
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
    assert set(uses(ast.parse((ROOT / PLATFORM_CALLS).read_text()))) >= {"fcntl", "os.fdatasync"}
    for path, names in HELD.items():
        assert names <= set(uses(ast.parse((ROOT / path).read_text()))), (
            f"{path}: not used any more"
        )


LIBRARIES = f"""{quick_imports.FIRST}
import contextlib, importlib, json, os, traceback
for name in json.loads(sys.stdin.readline()):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(job["said"], os.O_WRONLY | os.O_CREAT, 0o600), 1)
        os.dup2(1, 2)
        os.environ.update(job["environment"])
        sys.path.append({str(Path(__file__).parent)!r})
        import systems
        systems.install(job["system"])
        sys.argv = ["-c", *job["arguments"]]
        code = 1
        try:
            exec(job["code"], {{"__name__": "__main__", "__package__": "gaploop"}})
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A program with all libraries that gaploop imports, which runs code in copies of itself."""


@pytest.fixture(scope="module")
def libraries() -> Iterator[subprocess.Popen[str]]:
    """Return that program; importing the libraries for each system took most of the time."""
    names = set[str]()
    for path in modules():
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
    theirs = sorted(n for n in names if n.partition(".")[0] not in ("gaploop", "__future__"))
    with subprocess.Popen(
        [sys.executable, "-c", LIBRARIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        print(json.dumps(theirs), file=program.stdin, flush=True)
        yield program
        program.kill()


@pytest.fixture
def run(libraries: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Return a function that runs code as on another system, and returns what it prints."""

    def on(system: str, code: str, *arguments: object) -> str:
        said = tmp_path / f"said_{len(list(tmp_path.glob('said_*')))}"
        job = {
            "system": system, "code": code, "said": str(said), "arguments": [*map(str, arguments)],
            "environment": systems.environment(system, tmp_path / f"site_{system}"),
        }  # fmt: skip
        print(json.dumps(job), file=libraries.stdin, flush=True)
        assert libraries.stdout is not None
        code_of_exit = libraries.stdout.readline().strip()
        assert code_of_exit == "0", said.read_text()[-4000:]
        return said.read_text()

    return on


@pytest.fixture(params=sorted(systems.SYSTEMS))
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_taken_away_is_gone(system: str, run: Run) -> None:
    code = """
import os, sys
from gaploop.core import platform_calls as p
print(sys.platform, hasattr(os, "fdatasync"), hasattr(os, "sched_setscheduler"), p.WINDOWS,
      len(p.signals("SIGINT", "SIGTERM", "SIGHUP")))
"""
    assert (
        run(system, code).split()
        == {
            "macos": ["darwin", "False", "False", "False", "3"],
            "windows": ["win32", "False", "False", "True", "2"],
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
            assert not is_ours, "somebody else could take the episode while it is written"
        if seal:
            said["sealed"] = str(writer.seal(Outcome.SUCCESS))

with Encoder() as encoder:
    take(True)
    take(False)
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
        if getattr(error, "name", "") != "rclpy":  # ROS 2 comes with the system
            failed[name] = repr(error)
assert not failed, failed
"""


@pytest.mark.members(1)
def test_takes_are_recorded_synced_published_checked_and_labelled_and_all_can_be_imported(
    system: str, run: Run, tmp_path: Path
) -> None:
    """On macOS both sync threads ended with the first call, and takes weren't synced any more.

    On Windows, whose takes are recorded elsewhere, `gaploop check` ended with "No module named
    'fcntl'".
    """
    journal, root, answer = tmp_path / "journal", tmp_path / "set", tmp_path / "said.json"
    commands = (
        f"check {journal}",
        f"publish --journal={journal} --dataset.root={root} --dataset.repo_id=me/x",
        f"label {root} --episodes=0 --outcome=failure --author=a",
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
    run("macos", RECORD, journal, answer)
    said = json.loads(answer.read_text())
    assert said["synced"] >= 5
    assert said["recovered"] == 1
    run(system, f"import json, sys\n{COMMANDS}{IMPORT_ALL}", "", "", words, *names)
    labels = (root / layout.LABELS).read_bytes()
    assert b"failure" in labels
    assert b"\r" not in labels


def test_arms_and_recording_are_refused_in_one_line_on_windows(run: Run) -> None:
    code = """
from pathlib import Path
from gaploop.collect.journal import JournalWriter
from gaploop.core.errors import GaploopError
from gaploop.core.journal_format import TakeHeader
from gaploop.core.take import TakeInfo
from gaploop.teleop.emulator.bus import PseudoTerminal
from gaploop.teleop.servos.port import SerialPort
header = TakeHeader(TakeInfo("u"), (), {}, {})
for refused in (
    SerialPort("COM3").open, PseudoTerminal, lambda: JournalWriter(Path("journal"), header)
):
    try:
        refused()
    except GaploopError as error:
        print(error)
"""
    lines = run("windows", code).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "An arm on COM3", "Emulated arms", "Recording"
    ]  # fmt: skip
    assert all("not supported on Windows" in line for line in lines)


def test_on_macos_whose_poll_takes_no_terminals_a_port_waits_and_a_servo_answers(run: Run) -> None:
    """Its poll() answers POLLNVAL at once: a bus would have read in a circle, a write failed."""
    code = """
import os, select, sys
sys.path += sys.argv[1:]
from fake_servos import FakeServos
from gaploop.core import platform_calls
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import BusLine, run
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.servos.registers import Protocol
ours, hosts, path = platform_calls.open_terminals()
wrong = select.poll()
wrong.register(hosts, select.POLLIN)
assert wrong.poll(1e6) == [(hosts, select.POLLNVAL)], "it is as on Linux"
os.set_blocking(hosts, False)
port = SerialPort.inherited(path, 1_000_000, hosts)
print(port.wait(0.01), port.read())
os.write(ours, b"servo")
print(port.wait(1e6), port.read(), port.discard())
data = bytes(100_000)
try:
    port.write(data)  # nobody takes it
except TimeoutError as error:
    print("takes no bytes" in str(error))
with FakeServos(Protocol.FEETECH, {1: "sts3215", 2: "sts3215"}) as fake:
    port = SerialPort(fake.path)
    port.open()
    bus = ServoBus(BusLine(port, Protocol.FEETECH), [1, 2], ["sts3215"] * 2)
    for _ in range(100):  # a machine that is busy answers late
        if not any(status := run([(bus.line, bus.read(0.0))])[0].status.tolist()):
            break
    print(status)
    port.close()
"""
    folders = (ROOT / "tests/teleop/servos", ROOT / "tests/teleop", ROOT / "tests")
    assert run("macos", code, *folders).splitlines() == [
        "False b''", "True b'servo' 0", "True", "[0, 0]"
    ]  # fmt: skip
