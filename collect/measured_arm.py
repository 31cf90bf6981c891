"""What one arm does, measured by `gaploop doctor --measure`: a file to send to others.

It names the kind of arm and nobody's: no serial number, port, path, name or picture, and of the
date only the month. docs/figures/real_arms.md collects such files.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from gaploop.collect.mornings import MotionLog
from gaploop.core.files import write_json
from gaploop.core.protocols import Follower
from gaploop.datasets.absolute.findings import Figure
from gaploop.teleop.checks.arm import DAMPING, ESTOP, MEASURE
from gaploop.teleop.checks.result import CheckResult, Level

SCHEMA: Final = "gaploop.real_arm.v1"
PER_JOINT: Final = {
    "delay": "delay_ms", "dead band": "play_deg", "gain": "gain", "offset": "offset_deg",
    "noise at rest": "noise_deg",
}  # fmt: skip
"""Figures of the test motions to their keys in the file."""
WANTED: Final = ("delay_ms", "play_deg", "gain", "stop", "drop_deg", "fall", "bus_errors")


def write_measured(
    path: Path,
    follower: Follower,
    log: MotionLog,
    results: Sequence[CheckResult],
    figures: Sequence[Figure],
) -> CheckResult:
    """Write what was measured; say what couldn't be.

    Args:
        log: every turn in which the arm was held.
        results: of `check_moving`.
        figures: of the test motions and of the cameras.
    """
    joints: dict[str, dict[str, Any]] = {}
    for figure in figures:
        if (key := PER_JOINT.get(figure.what)) is not None:
            size = figure.size
            values = [round(v, 4) for v in (size.value, size.low, size.high)]
            joints.setdefault(key, {})[figure.about] = values
    said = {name: [r.data for r in results if r.check == name] for name in (ESTOP, DAMPING)}
    ended: Mapping[str, Any] = next((d for d in said[ESTOP] if "took_s" in d), {})
    stop = ended.get("stop")
    speeds = next((d["deg_s"] for d in said[DAMPING] if "deg_s" in d), None)
    device: Any = follower
    counts = device.fault_counts() if hasattr(device, "fault_counts") else {}
    ports = [Path(port).resolve() for port in getattr(device, "ports", ())]
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "arm": getattr(device, "robot_type", ""),
        "month": f"{datetime.now(UTC):%Y-%m}",
        "emulated": any(port.is_relative_to("/dev/pts") for port in ports),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in ("gaploop", "lerobot")},
        **joints,
        "stop": stop and {**stop, "held_after_ms": round(1e3 * ended["took_s"], 1)},
        "drop_deg": ended.get("drop_deg"),
        "fall": speeds and {"braked_deg_s": round(speeds[0], 1), "free_deg_s": round(speeds[1], 1)},
        "bus_errors": {"turns": len(log.turns), **{k: n for k, n in counts.items() if n}},
        "cameras": _cameras(figures),
    }
    missing = [key for key in WANTED if found.get(key) in (None, {})]
    write_json(path, found)
    kept = f"kept in {path}, to be sent to others: it names the kind of arm, and nobody"
    if not missing:
        return CheckResult(MEASURE, Level.OK, kept, data=found)
    fix = "Begin with the arm in the middle of its range, say yes to the fall, and measure again."
    return CheckResult(
        MEASURE, Level.WARN, f"{kept}; not measured: {', '.join(missing)}", fix, found
    )


def _cameras(figures: Sequence[Figure]) -> list[dict[str, float]]:
    kinds = {"new pictures a second": ("rate_hz", 1.0), "age": ("age_p99_ms", 1e3)}
    seen: dict[str, dict[str, float]] = {}
    for figure in figures:
        if figure.what in kinds:
            key, scale = kinds[figure.what]
            seen.setdefault(figure.about, {})[key] = round(scale * figure.size.value, 1)
    return list(seen.values())  # without their names


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
