"""A worker that is ended costs no landing, and nothing waits for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DIES = """
import os, pathlib, time

def test_before():
    pass

def test_dies():
    time.sleep(0.2)  # until the others are done
    if {times} > len(list(pathlib.Path().glob("died_*"))):
        pathlib.Path(f"died_{{os.getpid()}}").touch()
        os.kill(os.getpid(), 9)

def test_after():
    pass
"""
PASSES = "def test_one(): pass\ndef test_two(): pass\n"


@pytest.mark.parametrize(
    ("times", "code", "closing"),
    [(1, 0, "9 passed, 1 rerun in"), (2, 1, "1 failed, 7 passed, 1 rerun in")],
    ids=["once", "twice"],
)
def test_what_a_worker_ran_that_was_ended_runs_again_once(
    tmp_path: Path, times: int, code: int, closing: str
) -> None:
    """It was the last but one of five thousand, and CI waited for an hour and a quarter."""
    for number in range(4):
        text = DIES.format(times=times) if number == 2 else PASSES
        (tmp_path / f"test_{number}.py").write_text(text)
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    (words,) = re.findall(r"SIDE_BY_SIDE := -n \$\(WORKERS\) (.*)", makefile)
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    plugins = ["-p", "xdist.plugin", "-p", "lost_workers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "-n2", *words.split(), "."],
        cwd=tmp_path, text=True, timeout=900, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert closing in done.stdout
    assert "test_2.py::test_dies: its worker was ended. Another" in done.stderr
    if times > 1:
        assert "crashed while running 'test_2.py::test_dies'" in done.stdout
