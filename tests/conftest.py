"""Settings that every test runs with, also where pytest is called without make."""

from __future__ import annotations

import os

from hypothesis import settings

# Small models: on a shared machine more threads were 4 to 11 times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long one example takes says how busy the machine is, not whether a law holds.
settings.register_profile("gaploop", deadline=None)
settings.load_profile("gaploop")

