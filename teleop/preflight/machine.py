"""Has this machine memory and disk enough for a session?"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gaploop.teleop.doctor import host
from gaploop.teleop.doctor.finding import Level
from gaploop.teleop.preflight.item import By, Item, Result

LOW_GB: Final = 2.0
"""A session with two encoders and a policy of a few MB holds about 1 GB; less than this left, and
pictures may be lost where something else grows [GB]."""
LEAST_GB: Final = 0.5
_RESULT: Final = {Level.OK: Result.OK, Level.WARN: Result.WARN, Level.FAIL: Result.FAIL}


def check_memory(root: Path = Path("/")) -> Item:
    """Return whether memory is left, with the policy loaded.

    Args:
        root: where `/proc` is looked for.
    """
    values = _meminfo(root / "proc" / "meminfo")
    if "MemAvailable" not in values:
        return Item("memory", Result.WARN, By.MACHINE, "this system doesn't say what is left")
    free_gb, whole_gb = (values[key] * 1024 / 1e9 for key in ("MemAvailable", "MemTotal"))
    found = f"{free_gb:.1f} of {whole_gb:.1f} GB left with the policy loaded"
    data = {"free_gb": free_gb, "total_gb": whole_gb}
    if free_gb >= LOW_GB:
        return Item("memory", Result.OK, By.MACHINE, found, data=data)
    result = Result.WARN if free_gb >= LEAST_GB else Result.FAIL
    return Item("memory", result, By.MACHINE, found, "End other programs.", data)


def check_disk(journal: Path) -> Item:
    """Return whether takes fit onto the disk of `journal`, which need not exist."""
    found = host.disk(journal)
    result = _RESULT[found.level]
    return Item("disk", result, By.MACHINE, found.found, found.mend, found.data)


def _meminfo(file: Path) -> dict[str, int]:
    """Return what the kernel says about memory [KiB]."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) for name, _, rest in pairs if rest.split()}
