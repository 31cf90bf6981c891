"""Settings that every test runs with, also where pytest is called without make."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

import quick_imports  # noqa: F401  before all else: others are imported with what it sets right
from lost_workers import pytest_handlecrashitem, pytest_xdist_make_scheduler
from patient_wire import loop_time, patient_sdks, patient_serial, until

from gaploop.core import platform_calls, progress

__all__ = ["loop_time", "patient_sdks", "patient_serial", "until"]
__all__ += ["pytest_handlecrashitem", "pytest_xdist_make_scheduler"]

# Hugging Face's `datasets` keeps a copy of every table it reads, and withdrawals look through them
# all: three thousand of tests' tables were in the user's own folder.
_tables = tempfile.TemporaryDirectory(prefix="gaploop_tables_", ignore_cleanup_errors=True)
os.environ["HF_DATASETS_CACHE"] = _tables.name

import datasets  # noqa: E402  it reads the folder as it is imported
from datasets.features import features  # noqa: E402
from draccus.wrappers import docstring  # noqa: E402


# `Features` looks at all columns again whenever one is set. An episodes table of LeRobot's has more
# than a hundred, and tests open hundreds of them.
def _set_column(columns: Any, name: str, feature: Any) -> None:
    dict.__setitem__(columns, name, feature)
    columns._column_requires_decoding[name] = features.require_decoding(feature)


features.Features.__setitem__ = _set_column

# It takes its descriptions of columns apart and copies them at every step, a hundred columns of
# them: an eighth of the time of tests that open LeRobot's datasets. Nobody changes one in place.
for _kind in (features.Value, features.List, datasets.Image, datasets.Video):
    _kind.__deepcopy__ = lambda self, _memo: self
_PLAIN = frozenset({str, int, float, bool, type(None)})
_fields = functools.cache(dataclasses.fields)


def _as_dict(value: Any) -> Any:
    """Return what `datasets.utils.py_utils.asdict` returns, in a third of the time."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = {}
        for spec in _fields(type(value)):
            entry = _as_dict(getattr(value, spec.name))
            always = spec.metadata.get("include_in_asdict_even_if_is_default", False)
            if not spec.init or entry != spec.default or always:
                made[spec.name] = entry
        return made
    if isinstance(value, dict):
        return {_as_dict(key): _as_dict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map(_as_dict, value))
    return copy.deepcopy(value)


for _module in (datasets.arrow_dataset, datasets.arrow_writer, datasets.info, features):
    _module.asdict = _as_dict

# LeRobot's train reads the comments of each of its options anew for every command line.
docstring.get_attribute_docstring = functools.cache(docstring.get_attribute_docstring)

# Small models: on a shared machine more threads were 4 to 11 times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _sync_nothing(handle: int) -> None:
    os.fstat(handle)  # what isn't open is an error all the same


# No test cuts the power, and a busy disk takes milliseconds for each of some ten thousand syncs.
# What is about kills and full disks runs in processes of its own, which wait for theirs.
for _name in ("fsync", "fdatasync"):
    if hasattr(os, _name):
        setattr(os, _name, _sync_nothing)

# How long one example takes says how busy the machine is, not whether a law holds. Other examples
# are drawn each time: `make test-all` draws as many as Hypothesis would, `make test` a tenth.
settings.register_profile("gaploop", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None)
settings.load_profile("gaploop")
MOST_EXAMPLES = 15
"""Of a test that asks for more, where it isn't `make test-all`."""


def pytest_configure(config: pytest.Config) -> None:
    if "slow or not slow" in config.option.markexpr:
        settings.load_profile("thorough")


def _draw_fewer(item: pytest.Item) -> None:
    """Let a test of Hypothesis' draw no more than `MOST_EXAMPLES`."""
    test = getattr(item, "obj", None)
    asked = getattr(test, "_hypothesis_internal_use_settings", None)
    if asked is not None and asked.max_examples > MOST_EXAMPLES:
        fewer = settings(asked, max_examples=MOST_EXAMPLES)
        getattr(test, "__func__", test)._hypothesis_internal_use_settings = fewer


# A line that tells what goes on, after two seconds, says how busy the machine is, too.
progress.FIRST_LINE_S = 1e6

# A shell has what it starts in the background ignore Ctrl-C and Ctrl-\, and that is inherited: laws
# of both failed where the tests ran behind an `&`.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGQUIT"):
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture
def signal_after_a_take() -> Iterator[Callable[[Path, signal.Signals], None]]:
    """Return a function that has this process signalled once a journal holds a finished take.

    A command in a process of its own would spend ten seconds on importing torch first.
    """
    from gaploop.core.journal_format import read_end, take_folders

    over, threads = threading.Event(), list[threading.Thread]()

    def begin(journal: Path, number: signal.Signals) -> None:
        def wait() -> None:
            while not any(read_end(folder) for folder in take_folders(journal)):
                if over.wait(0.02):
                    return
            os.kill(os.getpid(), number)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield begin
    over.set()
    for thread in threads:
        thread.join()


_freeze, _frozen = gc.freeze, 0
# A control loop freezes what there is and lets go of all in the end.
gc.freeze = gc.unfreeze = lambda: None


def _freeze_imports() -> None:
    """Leave imported modules out of garbage collections: half a million objects each time.

    Fewer than a hundred collections that looked at them were a twentieth of all processor time.
    """
    global _frozen
    if len(sys.modules) > _frozen + 100:
        _frozen = len(sys.modules)
        _freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    _freeze_imports()
    gc.enable()
    gc.set_threshold(20_000, 10, 10)  # each 700 objects was a twentieth of the processor time


# LeRobot's encoder raises it where root runs the tests: one worker kept the others, and all else,
# from a processor until the tests were over.
def pytest_runtest_call() -> None:
    platform_calls.no_highest_priority()


def pytest_runtest_teardown() -> None:
    platform_calls.no_highest_priority()
    _freeze_imports()


def pytest_collection() -> None:
    """Let one worker compile the tests before the others collect: each would do it for itself."""
    here, give_up_s = Path(__file__).parent, time.monotonic() + 90.0
    last = max(here.glob("test_*.py")).stem
    writes = not sys.dont_write_bytecode and sys.pycache_prefix is None
    waits = writes and os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0"
    while waits and time.monotonic() < give_up_s:
        if any(here.glob(f"__pycache__/{last}.*-pytest-*")):
            break
        time.sleep(0.2)


def _draw_members(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `members(n)` keep n: others with each commit, so that a run can be repeated.

    Tests with one `of` are one family. Where files are named, all of them run.
    """
    here = Path(__file__).parent
    if [Path(config.rootpath, name) for name in config.args] != [here]:
        return
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if mark := item.get_closest_marker("members"):
            family = mark.kwargs.get("of", item.nodeid.partition("[")[0])
            families.setdefault(family, []).append(item)
    left_out = set[pytest.Item]()
    for name, members in families.items():
        (most,) = next(members[0].iter_markers("members")).args
        random.Random(head.stdout + name).shuffle(members)
        left_out.update(members[most:])
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


@pytest.hookimpl(trylast=True)  # when those of `slow` are gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files and end with small ones: nobody waits for the last worker then."""
    place = {"tests": 0, "core": 2}
    if "slow or not slow" not in config.option.markexpr:
        _draw_members(config, items)
        for item in items:
            _draw_fewer(item)
    items.sort(key=lambda item: place.get(item.path.parent.name, 1))
