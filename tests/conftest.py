"""Settings that every test runs with, also where pytest is called without make."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from patient_wire import patient_sdks, patient_serial, patient_wire

__all__ = ["patient_sdks", "patient_serial", "patient_wire"]

# Small models: on a shared machine more threads were 4 to 11 times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long one example takes says how busy the machine is, not whether a law holds.
settings.register_profile("gaploop", deadline=None)
settings.load_profile("gaploop")

# A shell has what it starts in the background ignore Ctrl-C and Ctrl-\, and that is inherited: laws
# of both failed where the tests ran behind an `&`.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGQUIT"):
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
