"""Rendering without a display; must be imported before mujoco."""

from __future__ import annotations

import os
import sys

if sys.platform == "linux" and not os.environ.get("DISPLAY"):
    os.environ.setdefault("MUJOCO_GL", "egl")

# Mesa's software rasteriser spreads each small picture over all cores by default; on a machine
# that also runs a control loop, waiting for those threads costs more than drawing (measured:
# 27 ms against 7 ms a picture under load).
os.environ.setdefault("LP_NUM_THREADS", "0")
