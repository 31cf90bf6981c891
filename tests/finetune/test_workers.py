"""Workers do what they are told, and don't outlive whoever told them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WITHIN_S = 120.0
PARENT = """
import pathlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
sys.path.insert(0, sys.argv[1])
import test_workers
from gaploop.finetune.workers import run_jobs
if __name__ == "__main__":
    list(run_jobs(test_workers.work_for_ever, [pathlib.Path(sys.argv[2])] * 2, 2))
"""


def work_for_ever(folder: Path) -> None:
    (folder / f"{os.getpid()}.pid").touch()
    while True:
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().split()[2] != "Z"


@pytest.mark.members(1)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_a_program_that_is_stopped(tmp_path: Path, how: signal.Signals) -> None:
    """A killed benchmark once left two workers behind that rolled out for another half hour.

    One that was interrupted waited for them, instead: minutes for a site of the study.
    """
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script, Path(__file__).parent, tmp_path])
    try:
        until_s = time.monotonic() + WITHIN_S
        while len(pids := [int(p.stem) for p in tmp_path.glob("*.pid")]) < 2:
            assert time.monotonic() < until_s
            time.sleep(0.02)
    finally:
        parent.send_signal(how)
        try:
            parent.wait(WITHIN_S)
        finally:
            parent.kill()
    while any(map(is_running, pids)):
        assert time.monotonic() < until_s
        time.sleep(0.02)
