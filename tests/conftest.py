"""Settings that every test runs with, also where pytest is called without make."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import settings

# Small models: on a shared machine more threads were 4 to 11 times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long one example takes says how busy the machine is, not whether a law holds.
settings.register_profile("gaploop", deadline=None)
settings.load_profile("gaploop")


def pytest_configure(config: pytest.Config) -> None:
    """Keep neighbours from stopping the one process that emulated arms and their host share.

    A servo doesn't wait for the host's processor. An emulated one does: for the interpreter, which
    a test that was put off by the kernel may hold (380 ms were measured beside two busy programs).
    """
    shares = config.getoption("numprocesses", None) or hasattr(config, "workerinput")
    if shares or not hasattr(os, "sched_setscheduler"):
        return
    with contextlib.suppress(PermissionError):
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK  # what it starts runs as usual
        os.sched_setscheduler(0, policy, os.sched_param(1))  # as the emulated bus does
