"""Makes `makers.py` importable: under importlib mode pytest puts no folder on the path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAME = "calibration_makers"

if NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(NAME, Path(__file__).with_name("makers.py"))
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[NAME] = _module
    _spec.loader.exec_module(_module)
