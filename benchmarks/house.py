"""`benchmarks house`: how large the product is, and how far one take travels through it.

Counted in the folders linked under `src/gaploop` of --root, any checkout of gaploop, so that two of
them can be compared; tests, examples and benchmarks don't count.

- lines, files: of Python, comments and empty lines too.
- classes: all of them. Duplicates: public names of classes that more than one module defines.
- private functions: functions and methods whose name begins with one underscore. Single use: the
  name stands once more beside its definition, in its own file or in an import of it elsewhere;
  their share is of all functions and methods.
- commands and options: what `gaploop --help` and each command's help list, without what only a
  chosen type of device adds; `--json` and `--config_path`, which every command has, count once.
  Shown: without `--help=all`.
- capabilities: what a user can do, the lines of the folders that do it, and what it would cost
  to be without; the largest ten.
- the way of one take: a take is recorded and published (`gaploop record`) with `sys.monitoring` on,
  from `record.run` until it returns; once of the embedded cell, and once of an emulated SO-101,
  which runs in processes of its own. Importing isn't counted, and what a second process does isn't
  seen. A *stay* is a run of first calls of functions in one file, thread by thread. A *climb* is a
  file that calls one in a layer above, as CONTRIBUTING.md orders layers: through a callback, for
  nothing there may be imported. *Both ways*: two files that call each other.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import GaploopError, UnusableInputError

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

LAYERS: Final = (
    ("scripts",),
    ("finetune",),
    ("failure_analysis",),
    ("collect",),
    ("teleop", "datasets", "sim"),
    ("core",),
)
"""Folders, from the top."""
FUNCTION: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
RECORD: Final = (
    "record", "--dataset.num_episodes=1", "--dataset.repo_id=me/house", "--json",
    "--dataset.single_task=Put the cube on the disc",
)  # fmt: skip
CELL: Final = ("--robot.type=so101_sim", "--teleop.type=scripted")
ARMS: Final = (
    "--robot.type=so101_follower", "--robot.port={}/follower", "--robot.id=follower",
    "--robot.calibration_dir={}", "--teleop.type=so101_leader", "--teleop.port={}/leader",
    "--teleop.id=leader", "--teleop.calibration_dir={}", "--display=none", "--auto_start",
    "--dataset.episode_time_s=3", "--dataset.reset_time_s=0",
)  # fmt: skip
CAPABILITIES: Final[Mapping[str, tuple[str, str]]] = {
    "findings on any dataset, without labels": (
        "datasets/absolute",
        "delays, offsets, swapped joints and faulty cameras of a foreign dataset stay unseen",
    ),
    "identification of a station's twin": (
        "sim/identification scripts/identify.py scripts/_identify.py collect/probe.py",
        "no figure of what differs at a station; no remedy can be tried before it is bought",
    ),
    "check and its fixes": (
        "datasets/check scripts/check.py scripts/_check.py",
        "damaged datasets fail in the middle of a training, and are recorded again",
    ),
    "simulations of one's own": (
        "sim/world.py sim/lerobot_worlds.py sim/scene_file.py sim/scene_world.py "
        "sim/scene_servos.py sim/demonstrators.py sim/roles.py sim/predicates.py "
        "finetune/lerobot_gym.py finetune/world_twin.py finetune/doctor.py",
        "everything in simulation works on the embedded cell alone",
    ),
    "gate and canary": (
        "finetune/gate scripts/gate.py scripts/_gate.py",
        "whether a policy is better is judged by eye; no roll-back on a fleet",
    ),
    "review page": (
        "failure_analysis/review scripts/review.py scripts/_review.py",
        "labels only by command; nobody sees an episode beside its signals",
    ),
    "edit, merge, harmonise": (
        "datasets/edit scripts/edit.py scripts/_edit.py",
        "datasets of several stations are put together by hand-written scripts",
    ),
    "gaps": ("sim/gaps", "no cell to try a diagnosis, a remedy or a base in"),
    "servo drivers": (
        "teleop/servos",
        "a turn takes longer than LeRobot's; a pulled cable ends the session",
    ),
    "signals and phases": (
        "failure_analysis/signals failure_analysis/views",
        "no failure mode, phase or evidence: diagnose has nothing to say",
    ),
    "doctor": (
        "teleop/checks scripts/doctor.py scripts/_doctor.py collect/preflight.py",
        "faults of an arm, a camera or a policy show in the first episode",
    ),
    "leaders": (
        "teleop/leaders teleop/link.py",
        "LeRobot's leaders alone: no keyboard, gamepad, browser or remote one",
    ),
    "emulator": ("teleop/emulator scripts/emulate.py", "nothing of an arm is tested without one"),
    "operator's window": ("collect/operator", "recording by LeRobot's three keys"),
    "adapting": (
        "finetune/tuning finetune/batches.py finetune/training.py finetune/adapt.py",
        "LoRA by LeRobot's own training alone: no mixture by cause, no held-out error",
    ),
    "planning": (
        "failure_analysis/planning scripts/plan.py scripts/_plan.py",
        "how much to record is guessed",
    ),
    "calibration": (
        "teleop/calibration scripts/calibrate.py scripts/_calibrate.py collect/calibration.py",
        "cameras stay where they are drawn: no metres in pictures",
    ),
}
"""What a user can do, the folders and files that do it, and what dropping it would cost."""
LARGEST: Final = 10
START_S: Final = 120.0
"""Emulated arms are there after this [s]."""

_COMMANDS: Final = r"""
import contextlib, io, json, re, sys
from gaploop.scripts import cli

def said(*argv):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        return out.getvalue() if cli.main(argv) == 0 else ""

def options(*argv):
    return set(re.findall(r"(?m)^  --(.+?)=", said(*argv))) - {"json", "config_path"}

found = {n: [len(options(n, "--help=all")), len(options(n, "--help"))] for n in cli.commands()}
print(json.dumps(found))
"""
_TRACE: Final = """
import functools, inspect, json, os, sys, threading
from gaploop.scripts import cli, record

root, out, argv = sys.argv[1] + os.sep, sys.argv[2], sys.argv[3:]
entered, calls, watch = {}, set(), sys.monitoring

@functools.cache
def place(code):
    path = os.path.realpath(code.co_filename)
    ours = path.startswith(root) and "site-packages" not in path
    # Bodies of modules and classes are run, not called.
    return path.removeprefix(root) if ours and code.co_flags & inspect.CO_OPTIMIZED else ""

def called(code, _):
    to = place(code)
    if not to:
        return watch.DISABLE
    frame = sys._getframe(2)
    while frame is not None and not place(frame.f_code):
        if frame.f_code.co_name == "<module>":
            return  # what a module's body calls while it is imported
        frame = frame.f_back
    entered.setdefault(threading.get_ident(), {}).setdefault((to, code.co_qualname))
    if frame is not None:
        calls.add((place(frame.f_code), to))

run = record.run
def traced(config):
    watch.set_events(watch.PROFILER_ID, watch.events.PY_START)
    try:
        return run(config)
    finally:
        watch.set_events(watch.PROFILER_ID, 0)

record.run = traced
watch.use_tool_id(watch.PROFILER_ID, "house")
watch.register_callback(watch.PROFILER_ID, watch.events.PY_START, called)
code = cli.main(argv)
with open(out, "w") as file:
    json.dump([[list(each) for each in entered.values()], sorted(calls)], file)
sys.exit(code)
"""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Count the tree of --root, or this one."""
    del folder
    root = (config.root or Path(__file__).parent.parent).resolve()
    package = root / "src" / "gaploop"
    if not package.is_dir():
        raise UnusableInputError(f"--root={root} is no checkout of gaploop: {package} is missing.")
    files = product_files(package)
    trees = {path: ast.parse(text) for path, text in files.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = sum(isinstance(node, FUNCTION) for node in nodes)
    repeated = duplicates(trees)
    private, once = private_functions(trees)
    commands = json.loads(_python(root, "-c", _COMMANDS))
    return {
        "root": str(root),
        "lines": sum(text.count("\n") for text in files.values()),
        "files": len(files),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "imports_in_functions": imports_in_functions(trees),
        "capabilities": sizes(root),
        "duplicate_names": len(repeated),
        "duplicates": repeated,
        "functions": functions,
        "private_functions": private,
        "private_single_use": once,
        "private_single_use_share": once / functions,
        "commands": len(commands),
        "options": 2 + sum(every for every, _ in commands.values()),
        "options_shown": 2 + sum(shown for _, shown in commands.values()),
        "options_by_command": commands,
        **way_of_a_take(root),
        "arm": way_of_a_take(root, with_arms=True),
    }


def product_files(package: Path) -> dict[Path, str]:
    """Return the modules of a package's linked folders, and their text."""
    links = (link for link in package.iterdir() if link.is_symlink())
    found = (p for link in links for p in link.resolve().rglob("*.py"))
    return {p: p.read_text() for p in sorted(found) if "__pycache__" not in p.parts}


def imports_in_functions(trees: Mapping[Path, ast.Module]) -> int:
    """Return how many import statements stand in functions."""
    return sum(
        len({n for f in ast.walk(t) if isinstance(f, FUNCTION) for n in ast.walk(f)
             if isinstance(n, ast.Import | ast.ImportFrom)})
        for t in trees.values()
    )  # fmt: skip


def sizes(root: Path) -> dict[str, int]:
    """Return the lines of each of `CAPABILITIES`, the largest first."""
    found = Counter[str]()
    for name, (places, _) in CAPABILITIES.items():
        for place in map(root.joinpath, places.split()):
            files = place.rglob("*.py") if place.is_dir() else [place]
            found[name] += sum(p.read_text().count("\n") for p in files if p.exists())
    return dict(found.most_common())


def duplicates(trees: Mapping[Path, ast.Module]) -> dict[str, int]:
    """Return public names of classes that more than one module defines, and how many do."""
    named = Counter(
        name
        for tree in trees.values()
        for name in {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        if not name.startswith("_")
    )
    return {name: count for name, count in named.most_common() if count > 1}


def private_functions(trees: Mapping[Path, ast.Module]) -> tuple[int, int]:
    """Return how many private functions there are, and how many are named just once more."""
    imported = Counter(
        alias.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )
    total = once = 0
    for tree in trees.values():
        named = Counter(_names(tree))
        for node in ast.walk(tree):
            if not isinstance(node, FUNCTION):
                continue
            if node.name.startswith("_") and not node.name.startswith("__"):
                total += 1
                once += named[node.name] + imported[node.name] == 1
    return total, once


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def way_of_a_take(root: Path, with_arms: bool = False) -> dict[str, Any]:
    """Record a take with the program of `root`; return what it says of the way of one take."""
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        out = Path(scratch) / "calls.json"
        options = [word.format(scratch) for word in (ARMS if with_arms else CELL)]
        for role in ("follower", "leader") if with_arms else ():
            _emulate(root, Path(scratch), role, stack)
        argv = [*RECORD, *options, f"--dataset.root={scratch}/takes"]
        try:
            _python(root, "-c", _TRACE, str(root), str(out), *argv)
        except GaploopError:
            # Traced, a loop is late: a bus that isn't confirmed limp in time is no matter here.
            if not (with_arms and out.exists()):
                raise
        threads, pairs = json.loads(out.read_text())
    walks = [stays([path for path, _ in entered]) for entered in threads]
    calls = {(caller, called) for caller, called in pairs if caller != called}
    return {
        "functions_entered": len({tuple(each) for entered in threads for each in entered}),
        "way_files": len({path for walk in walks for path in walk}),
        "stays": sum(map(len, walks)),
        "climbs": climbs(calls),
        "both_ways": both_ways(calls),
        "way": max(walks, key=len, default=[]),
    }


def _emulate(root: Path, scratch: Path, role: str, stack: contextlib.ExitStack) -> None:
    """Start an emulated arm, calibrated, whose port is `scratch/role`."""
    words = [f"--role={role}", f"--link={scratch / role}", f"--calibration={scratch / role}.json"]
    program = subprocess.Popen(
        [sys.executable, "-m", "gaploop.scripts.cli", "emulate", "--model=so101", *words],
        env=_environment(root),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    stack.callback(program.wait)
    stack.callback(program.terminate)
    until_s = time.monotonic() + START_S
    while not (scratch / role).exists():
        if program.poll() is not None or time.monotonic() > until_s:
            raise GaploopError(f"gaploop emulate --role={role} of {root} didn't start.")
        time.sleep(0.1)


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root / "src")}


def stays(paths: Sequence[str]) -> list[str]:
    """Return files in the order they were in, each run in one file once."""
    return [path for k, path in enumerate(paths) if k == 0 or paths[k - 1] != path]


def climbs(calls: Iterable[tuple[str, str]]) -> list[str]:
    """Return the calls from file to file that go to a layer above, as `caller -> called`."""
    up = (call for call in calls if _layer(call[1]) < _layer(call[0]))
    return [f"{caller} -> {called}" for caller, called in sorted(up)]


def both_ways(calls: Collection[tuple[str, str]]) -> list[str]:
    """Return the pairs of files that call each other, as `one <-> other`."""
    pairs = (c for c in calls if c[0] < c[1] and c[::-1] in calls)
    return [f"{one} <-> {other}" for one, other in sorted(pairs)]


def _layer(path: str) -> int:
    folder = Path(path).parts[0]
    return next((k for k, folders in enumerate(LAYERS) if folder in folders), len(LAYERS))


def _python(root: Path, *arguments: str) -> str:
    """Run Python on the package of `root`; return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=_environment(root),
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise GaploopError(f"The program of {root} ended with {done.returncode}: {last}")
    return done.stdout


def table(result: Mapping[str, Any]) -> str:
    """Return the counts as a Markdown table."""
    share = result["private_single_use_share"]
    rows = {
        "product lines": f"{result['lines']:,}",
        "product files": f"{result['files']:,}",
        "classes": f"{result['classes']:,}",
        "public class names defined more than once": result["duplicate_names"],
        "functions, of these private": (
            f"{result['functions']:,}, {result['private_functions']:,}"
        ),
        "private functions used once, share of all functions": (
            f"{result['private_single_use']:,}, {share:.1%}"
        ),
        "imports in functions": result["imports_in_functions"],
        "commands": result["commands"],
        "options, of these shown": f"{result['options']}, {result['options_shown']}",
        "one take: files": result["way_files"],
        "one take: stays": result["stays"],
        "one take: files that call one in a layer above": len(result["climbs"]),
        "one take: pairs of files that call each other": len(result["both_ways"]),
        "one take of an emulated arm: files": result["arm"]["way_files"],
        "one take of an emulated arm: files that call one in a layer above": len(
            result["arm"]["climbs"]
        ),
    }
    lines = [f"| {result['root']} | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items()]
    lines += ["", "| largest capabilities | lines | without it |", "|---|---|---|"]
    for name, count in [*result["capabilities"].items()][:LARGEST]:
        lines.append(f"| {name} | {count:,} | {CAPABILITIES[name][1]} |")
    return "\n".join(lines)
