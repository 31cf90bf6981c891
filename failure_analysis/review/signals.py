"""What is drawn under the video: a take's signals on its own clock, as options for ECharts."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gaploop.core.grippers import is_grip, sides_of
from gaploop.core.messages import FloatArray, SafetyReason
from gaploop.core.take import Take
from gaploop.core.vocabulary import named
from gaploop.failure_analysis.modes import spans
from gaploop.failure_analysis.views.phases import timeline
from gaploop.failure_analysis.views.view import GRIPPER_RAD, ArmMotion, TakeView

MOST_POINTS: Final = 400
"""Of one line: as many as a chart is pixels wide; highest and lowest of each column are kept."""
MOST_LINES: Final = 6
"""Of one strip of a robot with dozens of joints."""


@dataclass(frozen=True)
class CurveLine:
    """One curve over time since the take began, shape (n,), NaN where missing."""

    name: str
    t_s: FloatArray
    values: FloatArray


@dataclass(frozen=True)
class Strip:
    """Curves of one unit, drawn over each other."""

    title: str
    unit: str
    lines: tuple[CurveLine, ...]


@dataclass(frozen=True)
class MarkedSpan:
    """A stretch of time that is marked: a `phase`, an `intervention` or `safety`."""

    kind: str
    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True)
class Curves:
    """All that is drawn under a take's video: strips from top to bottom, up to `end_s`, and spans.

    Those are phases, interventions and what the safety filter did.
    """

    frame_t_s: FloatArray
    end_s: float
    strips: tuple[Strip, ...]
    spans: tuple[MarkedSpan, ...]


def curves(take: Take) -> Curves:
    """Return what is drawn under a take's video; what it has no channel for is left out."""
    view = TakeView(take, images=False)
    motion = view.motion
    found = list[Strip | None]()
    if motion is not None:
        t_s, joints, arm = motion.t_s, motion.joints, motion.arm_joints
        off_deg = np.degrees(np.abs(motion.position_rad - motion.sent_rad))
        lines = [_line(joints[j], t_s, off_deg[:, j]) for j in arm]
        lag_s = motion.lag_samples / motion.rate_hz
        lag = "" if np.isnan(lag_s) else f", lag {lag_s * 1000:.0f} ms"
        found.append(Strip(f"off command{lag}", "°", tuple(lines)))
        sides = sides_of(joints)
        of_grip = 100.0 / GRIPPER_RAD if motion.scaled else math.degrees(1.0)
        lines = [
            _line(f"{sides[k]} {name}".strip(), t_s, of_grip * v[:, k])
            for k in motion.grippers
            for name, v in (("command", motion.sent_rad), ("reading", motion.position_rad))
        ]
        found.append(Strip("gripper", "%" if motion.scaled else "°", tuple(lines)))
        speeds = {"command": motion.sent_velocity_rad_s, "reading": motion.velocity_rad_s}
        lines = [
            _line(name, t_s, np.degrees(np.abs(v[:, arm]).max(axis=1, initial=0.0)))
            for name, v in speeds.items()
        ]
        found.append(Strip("fastest joint", "°/s", tuple(lines)))
    if (wrench := view.wrench) is not None:
        force_n = np.linalg.norm(wrench[:, :3] - np.nanmedian(wrench[:5, :3], axis=0), axis=1)
        line = _line("change since the start", take.telemetry.t_s, force_n)
        found.append(Strip("force", "N", (line,)))
    found.append(_currents(take))
    # How late the control loop was, and how old each camera's picture.
    late_s = take.telemetry.columns.get("loop.lateness_s", np.empty(0))
    ages_s = {"loop": (take.telemetry.t_s, late_s)}
    for camera, age_s in take.frames.camera_age_s.items():
        ages_s[f"picture of {camera}"] = take.frames.t_s, age_s
    lines = [_line(n, t, v * 1000) for n, (t, v) in ages_s.items() if np.isfinite(v).any()]
    found.append(Strip("late", "ms", tuple(lines)))
    frames = take.frames
    if motion is None:
        found += _recorded(take)
    marked = [*_phases(motion)]
    for start_s, end_s in spans(frames.t_s, frames.intervention, bridge_s=0.1):
        marked.append(MarkedSpan("intervention", start_s, end_s, "a person drives"))
    for reason in SafetyReason:
        if reason:
            says = (reason.name or "").lower().replace("_", " ")
            hit = (frames.safety & int(reason)) != 0
            for start_s, end_s in spans(frames.t_s, hit, bridge_s=0.1):
                marked.append(MarkedSpan("safety", start_s, end_s, says))
    strips = tuple(strip for strip in found if strip is not None and strip.lines)
    return Curves(frames.t_s, take.duration_s, strips, tuple(marked))


def _recorded(take: Take) -> Iterator[Strip]:
    """Yield readings and commands as they stand in the rows, where they aren't known as angles."""
    names, said = take.info.joint_names, take.info.units
    unit = "as recorded" if said in ("", "unknown") else named(said)
    drawn: dict[str, list[tuple[float, CurveLine]]] = {"gripper": [], "reading": [], "command": []}
    for what, rows in (("reading", take.frames.state), ("command", take.frames.sent)):
        for k, values in enumerate(rows.T if rows.size else ()):
            name = names[k] if rows.shape[1] == len(names) else str(k)
            moves = float(np.ptp(values[np.isfinite(values)])) if np.isfinite(values).any() else 0.0
            line = _line(f"{name} {what}", take.frames.t_s, values)
            drawn["gripper" if is_grip(name) else what].append((moves, line))
    for title, lines in drawn.items():
        most = sorted(lines, key=lambda pair: -pair[0])[:MOST_LINES]
        if len(lines) > MOST_LINES:
            title += f" of the {MOST_LINES} of {len(lines)} that move most"
        yield Strip(title, unit, tuple(line for _, line in most))


def _currents(take: Take) -> Strip | None:
    """Return motor currents, or the drives' loads where they report those instead."""
    record = take.telemetry
    for quantity, title, unit in (("current_a", "current", "A"), ("load_pct", "load", "%")):
        lines = []
        for arm in record.arms():
            values = record.stack(arm, quantity)
            for joint, column in zip(record.joints(arm), values.T, strict=True):
                if np.isfinite(column).any() and np.nanmax(np.abs(column)) > 0:
                    name = joint if len(record.arms()) == 1 else f"{arm} {joint}"
                    lines.append(_line(name, record.t_s, np.abs(column)))
        if lines:
            return Strip(title, unit, tuple(lines))
    return None


def _line(name: str, t_s: FloatArray, values: FloatArray) -> CurveLine:
    """Return a curve thinned to `MOST_POINTS`, with the extremes of every column of pixels."""
    if (count := len(t_s)) > MOST_POINTS:
        edges = np.linspace(0, count, MOST_POINTS // 2 + 1).astype(int)
        kept = {0, count - 1}
        for first, last in itertools.pairwise(edges):
            part = values[first:last]
            if np.isfinite(part).any():
                kept |= {first + int(np.nanargmin(part)), first + int(np.nanargmax(part))}
            else:
                kept.add(int(first))
        t_s, values = t_s[sorted(kept)], values[sorted(kept)]
    return CurveLine(name.replace("_", " "), t_s, values)


def _phases(motion: ArmMotion | None) -> Iterator[MarkedSpan]:
    """Yield the phases one after the other; what is carried or empty-handed is one transport."""
    if motion is None or not motion.grippers:
        return
    for phase, found in itertools.groupby(timeline(motion), lambda stretch: stretch.phase):
        first, *_, last = [*found] * 2
        yield MarkedSpan("phase", first.start_s, last.end_s, phase.value)


COLOURS: Final = ("#2563eb", "#ea7317", "#16924e", "#a33ea1", "#8a6d3b", "#0e8fa8")
PHASE_COLOURS: Final = {
    "approach": "#dbe7fb",
    "grasp": "#fdebc8",
    "transport": "#d9f2e3",
    "place": "#f4defa",
    "retreat": "#e6e8ec",
}
SPAN_COLOURS: Final = {"intervention": "#ea7317", "safety": "#dc2626"}
SPAN_HEIGHTS: Final = {"intervention": (0.16, 0.32), "safety": (0.0, 0.16)}
"""From where to where in the phases' band, 0 to 1: lines below the phases, never over a plot."""
_TEXT: Final = "#4b5563"


def options(curves: Curves) -> dict[str, Any]:
    """Return ECharts options: strips one below the other over one time axis, phases on top.

    Where the strips stand is left out: the player knows how much room there is.
    """
    areas = []
    for s in curves.spans:
        begin: dict[str, Any] = {"xAxis": round(s.start_s, 3), "name": s.label}
        end: dict[str, Any] = {"xAxis": round(s.end_s, 3)}
        if s.kind == "phase":
            begin["itemStyle"] = {"color": PHASE_COLOURS[s.label]}
            begin["label"] = {"position": "inside", "fontSize": 10, "color": "#374151"}
        else:
            begin["yAxis"], end["yAxis"] = SPAN_HEIGHTS[s.kind]
            begin["itemStyle"] = {"color": SPAN_COLOURS[s.kind]}
            begin["label"] = {"show": False}
            end["xAxis"] = round(max(s.end_s, s.start_s + 0.02), 3)
        areas.append([begin, end])
    band = {
        "type": "line",
        "xAxisIndex": 0,
        "yAxisIndex": 0,
        "data": [],
        "silent": True,
        "markArea": {"silent": True, "data": areas},
    }
    scales: list[dict[str, Any]] = [
        {"gridIndex": 0, "show": False, "min": 0, "max": 1, "type": "value"}
    ]
    series: list[dict[str, Any]] = [band]
    for n, strip in enumerate(curves.strips, 1):
        scales.append(
            {
                "gridIndex": n,
                "type": "value",
                "scale": True,
                "splitNumber": 2,
                "name": f"{strip.title} [{strip.unit}]",
                "nameLocation": "end",
                "nameGap": 3,
                "nameTextStyle": {"align": "left", "fontSize": 11, "color": "#111827"},
                "axisLabel": {"fontSize": 10, "color": _TEXT},
                "splitLine": {"lineStyle": {"color": "#eef0f3"}},
            }
        )
        for k, line in enumerate(strip.lines):
            drawn = {
                "type": "line",
                "name": f"{line.name} [{strip.unit}]",
                "xAxisIndex": n,
                "yAxisIndex": n,
                "showSymbol": False,
                "silent": True,
                "lineStyle": {"width": 1.3},
                "color": COLOURS[k % len(COLOURS)],
                "data": [
                    [round(float(t), 3), None if math.isnan(v) else float(f"{v:.6g}")]
                    for t, v in zip(line.t_s, line.values, strict=True)
                ],
            }
            series.append(drawn)
    axes = [
        {
            "gridIndex": n,
            "type": "value",
            "min": 0,
            "max": round(max(curves.end_s, 0.1), 3),
            "axisLabel": {
                "show": n == len(curves.strips),
                "fontSize": 10,
                "color": _TEXT,
                "formatter": "{value} s",
            },
            "axisTick": {"show": n == len(curves.strips)},
            "splitLine": {"show": n > 0, "lineStyle": {"color": "#eef0f3"}},
            "axisLine": {"lineStyle": {"color": "#cbd2da"}, "onZero": False},
            "axisPointer": {"label": {"show": False}},
        }
        for n in range(len(curves.strips) + 1)
    ]
    return {
        "animation": False,
        "grid": [{} for _ in axes],
        "xAxis": axes,
        "yAxis": scales,
        "series": series,
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "transitionDuration": 0,
            "textStyle": {"fontSize": 11},
            "padding": 5,
            "axisPointer": {"type": "line", "lineStyle": {"color": "#9ca3af"}},
        },
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
    }
