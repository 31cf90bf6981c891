"""LeRobot imported in half the time, for tests and the programs that they start.

Sets something right as it is imported; before anything large is.
"""

from __future__ import annotations

import functools
import gc
import importlib.metadata as metadata
import inspect
from pathlib import Path

FIRST = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import quick_imports
sys.path.pop()
"""
"""What a short program of a test begins with that imports LeRobot."""
thorough = metadata.packages_distributions


@functools.cache
def packages_distributions() -> dict[str, list[str]]:
    """Return all that `importlib.metadata`'s returns, in a tenth of the time.

    That one makes an object of every file of every wheel, and reads a wheel's description anew for
    every package in it. Both transformers and diffusers ask as they are imported.
    """
    found: dict[str, list[str]] = {}
    for wheel in metadata.distributions():
        packages = set((wheel.read_text("top_level.txt") or "").split())
        for line in () if packages else (wheel.read_text("RECORD") or "").splitlines():
            first, in_folder, _ = line.partition(",")[0].strip('"').partition("/")
            packages.add(first if in_folder else inspect.getmodulename(first) or ".")
        about = wheel.read_text("METADATA") or wheel.read_text("PKG-INFO") or ""
        name = about[about.find("Name: ") + 6 :].partition("\n")[0]
        for package in packages:
            if "." not in package:
                found.setdefault(package, []).append(name)
    return found


metadata.packages_distributions = packages_distributions
gc.disable()  # what is imported stays; it was looked at again and again
