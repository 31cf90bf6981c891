"""Whether joints follow later, stand further off or pull harder as their servos warm.

Temperatures are in the control-rate records, so this is told of what gaploop recorded alone. Over
episodes, each figure is set against its joint's temperature: Kendall's tau for whether they go
together, the median of pairwise slopes (Theil 1950, Sen 1968) for by how much. A session warms
as it goes on, so whatever else changed with it looks the same, and the sentence says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.stats import kendalltau, theilslopes

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate
from gaploop.core.telemetry import Telemetry
from gaploop.datasets import layout
from gaploop.datasets.absolute.arm import MOVES_DEG, vertex
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.recording import MotionRecording
from gaploop.datasets.telemetry_zarr import read_telemetry, telemetry_path

LEADER: Final = "leader"
FEWEST: Final = 8
"""Episodes with temperatures, below which nothing is told."""
MOST: Final = 60
"""Episodes looked at, spread evenly: a record takes 20 ms to read."""
RISE_C: Final = 5.0
"""Servos report whole degrees."""
CHANCE: Final = 0.05
"""For all joints and figures together."""
LATEST_S: Final = 0.4
STILL_RAD: Final = math.radians(0.5)
"""A command that moves less over half a second rests."""


@dataclass(frozen=True)
class HeatFigure:
    """A figure of a joint that may change as it warms.

    Attributes:
        matters: a smaller change is none to speak of; a unit of it costs `cost_deg`.
        apart: what else would look the same.
    """

    sentence: str
    unit: str
    matters: float
    cost_deg: float
    apart: str = "whatever else changed over the session"


FIGURES: Final[Mapping[str, HeatFigure]] = {
    "late": HeatFigure("follows later", "ms", 8.0, 0.2),
    "off": HeatFigure("stands further off its command", "°", 1.0, 1.0),
    "load": HeatFigure(
        "pulls harder", "% of its stall load", 8.0, 0.1, "a harder task, which warms it, too"
    ),
}


@dataclass(frozen=True)
class WarmEpisode:
    """What one episode shows of one joint; NaN where it doesn't.

    Attributes:
        start_s: wall-clock start [s].
        values: figures by the names of `FIGURES`.
    """

    index: int
    start_s: float
    temperature_c: float
    values: Mapping[str, float]


def examine_heat(recording: MotionRecording, report: AbsoluteReport) -> None:
    """Add what changes with temperature to a report; nothing where no temperatures are recorded."""
    joints = _read(recording)
    joints = {n: e for n, e in joints.items() if len(e) >= FEWEST}
    if not joints:
        return
    found, spans = False, list[float]()
    for name, episodes in joints.items():
        warm = np.array([e.temperature_c for e in episodes])
        spans += [float(warm.min()), float(warm.max())]
        if np.ptp(warm) < RISE_C:
            continue
        for what, figure in FIGURES.items():
            y = np.array([e.values[what] for e in episodes])
            known = np.isfinite(y)
            change = _change(warm[known], y[known], CHANCE / (len(FIGURES) * len(joints)))
            if change is None or change.value < figure.matters:
                continue
            found = True
            order = [episodes[int(k)] for k in np.argsort(warm)]
            minutes = (order[-1].start_s - order[0].start_s) / 60.0
            after = f" (after {minutes:.0f} min)" if 1.0 <= minutes < 24 * 60 else ""
            text = f"As {name} warms from {warm.min():.0f} to {warm.max():.0f} °C{after}, it "
            hot = [e.index for e in episodes if e.temperature_c >= (warm.min() + warm.max()) / 2]
            report.add(
                "heat", name, f"{text}{figure.sentence}, by", hot, len(episodes),
                "Pause until it is cool, or record fewer episodes at a time; gaploop doctor shows "
                "each servo's temperature.",
                figure.cost_deg * change.value, unit=figure.unit, size=change,
                worst=order[-1].index, apart=figure.apart,
            )  # fmt: skip
    if not found and max(spans) - min(spans) >= RISE_C:
        report.good["heat"] = f"joints do the same from {min(spans):.0f} to {max(spans):.0f} °C"


def _change(warm: FloatArray, y: FloatArray, chance: float) -> Estimate | None:
    """Return by how much a figure rises over all temperatures, with its 95 % interval, or None."""
    if len(y) < FEWEST or np.ptp(warm) < RISE_C or np.ptp(y) == 0:
        return None
    tau, p = kendalltau(warm, y)
    if not (tau > 0 and p <= chance):
        return None
    slope, _, low, high = theilslopes(y, warm, 0.95)
    return Estimate(*(float(v * np.ptp(warm)) for v in (slope, low, high)))


def _read(recording: MotionRecording) -> dict[str, list[WarmEpisode]]:
    """Return each joint's episodes that have temperatures, in order."""
    info, rows = recording.info, layout.episode_rows(recording.info.root)
    there = [row for row in rows if row.get("gap_uid")]
    there = [row for row in there if telemetry_path(info.root, row["gap_uid"]).is_file()]
    if len(there) > MOST:
        there = [there[k] for k in np.linspace(0, len(there) - 1, MOST).astype(int)]
    found: dict[str, list[WarmEpisode]] = {}
    for row in there:
        try:
            record = read_telemetry(telemetry_path(info.root, row["gap_uid"]))
        except UnusableInputError:
            continue  # `gaploop check` names it
        start_s = 1e-9 * float(row.get("gap_t0_ns") or 0)
        for joint in (recording.joints[k].name for k in recording.arm):
            seen = _of_joint(record, joint)
            if seen is not None:
                one = WarmEpisode(int(row["episode_index"]), start_s, *seen)
                found.setdefault(joint, []).append(one)
    return found


def _of_joint(record: Telemetry, joint: str) -> tuple[float, dict[str, float]] | None:
    """Return a joint's temperature in an episode and its figures; None without temperature."""
    arm = next((a for a in record.arms() if a != LEADER and joint in record.joints(a)), None)
    if arm is None or len(record) < 20:
        return None
    missing = np.full(len(record), np.nan)
    of = {q: record.columns.get(f"{arm}.{joint}.{q}", missing)
          for q in ("temperature_c", "sent_rad", "position_rad", "load_pct")}  # fmt: skip
    warm = of["temperature_c"]
    if not np.isfinite(warm).any():
        return None
    step_s = float(np.median(np.diff(record.t_s)))
    known = np.isfinite(of["sent_rad"]) & np.isfinite(of["position_rad"])
    sent, read = of["sent_rad"][known], of["position_rad"][known]
    values = dict.fromkeys(FIGURES, math.nan)
    if len(sent) > 2.5 * LATEST_S / step_s:
        late = _late_rows(sent, read, round(LATEST_S / step_s))
        if np.ptp(sent) > math.radians(MOVES_DEG):
            values["late"] = 1e3 * late * step_s
        span = max(2, round(0.5 / step_s))
        windows = np.lib.stride_tricks.sliding_window_view(sent, span)
        still = np.r_[np.zeros(span - 1, dtype=bool), np.ptp(windows, axis=1) < STILL_RAD]
        if still.any():
            values["off"] = abs(math.degrees(float(np.median((read - sent)[still]))))
    load = np.abs(of["load_pct"])
    if np.isfinite(load).any():
        values["load"] = float(np.nanmedian(load))
    return float(np.nanmedian(warm)), values


def _late_rows(sent: FloatArray, read: FloatArray, latest: int) -> float:
    """Return the delay after which readings are nearest to commands, offset aside [rows]."""
    rest = read[latest:]
    left = np.array([np.var(rest - sent[latest - d : len(sent) - d]) for d in range(latest + 1)])
    d = int(left.argmin())
    if not 0 < d < latest:
        return float(d)
    return vertex(np.array([d - 1.0, d, d + 1.0]), left[d - 1 : d + 2])
