"""The signals as options for ECharts: strips one below the other over one time axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.review.curves import CurveLine, Curves, MarkedSpan, Strip

COLOURS: Final = ("#2563eb", "#ea7317", "#16924e", "#a33ea1", "#8a6d3b", "#0e8fa8")
PHASE_COLOURS: Final = {
    "approach": "#dbe7fb",
    "grasp": "#fdebc8",
    "transport": "#d9f2e3",
    "place": "#f4defa",
    "retreat": "#e6e8ec",
}
SPAN_COLOURS: Final = {"intervention": "rgba(234,115,23,.16)", "safety": "rgba(220,38,38,.16)"}
_TEXT: Final = "#4b5563"


def options(curves: Curves) -> dict[str, Any]:
    """Return ECharts options, but for where the strips stand: the player knows how much room is."""
    strips = curves.strips
    axes = [_x_axis(n, curves.end_s, last=n == len(strips)) for n in range(len(strips) + 1)]
    scales = [{"gridIndex": 0, "show": False, "min": 0, "max": 1, "type": "value"}]
    scales += [_y_axis(n, strip) for n, strip in enumerate(strips, 1)]
    series = [_band(curves.spans)]
    for n, strip in enumerate(strips, 1):
        marks = [s for s in curves.spans if s.kind in SPAN_COLOURS]
        for k, line in enumerate(strip.lines):
            series.append(_series(n, k, line, strip.unit, marks if k == 0 else ()))
    return {
        "animation": False,
        "grid": [{} for _ in axes],
        "xAxis": axes,
        "yAxis": scales,
        "series": series,
        "tooltip": _tooltip(),
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
    }


def _tooltip() -> dict[str, Any]:
    return {
        "trigger": "axis",
        "confine": True,
        "transitionDuration": 0,
        "textStyle": {"fontSize": 11},
        "padding": 5,
        "axisPointer": {"type": "line", "lineStyle": {"color": "#9ca3af"}},
    }


def _x_axis(n: int, end_s: float, *, last: bool) -> dict[str, Any]:
    return {
        "gridIndex": n,
        "type": "value",
        "min": 0,
        "max": round(max(end_s, 0.1), 3),
        "axisLabel": {"show": last, "fontSize": 10, "color": _TEXT, "formatter": "{value} s"},
        "axisTick": {"show": last},
        "splitLine": {"show": n > 0, "lineStyle": {"color": "#eef0f3"}},
        "axisLine": {"lineStyle": {"color": "#cbd2da"}, "onZero": False},
        "axisPointer": {"label": {"show": False}},
    }


def _y_axis(n: int, strip: Strip) -> dict[str, Any]:
    return {
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


def _band(spans: Sequence[MarkedSpan]) -> dict[str, Any]:
    """Return the band of phases at the top, as marked areas of a line without points."""
    areas = [
        [
            {
                "xAxis": round(s.start_s, 3),
                "name": s.says,
                "itemStyle": {"color": PHASE_COLOURS[s.says]},
                "label": {"position": "inside", "fontSize": 10, "color": "#374151"},
            },
            {"xAxis": round(s.end_s, 3)},
        ]
        for s in spans
        if s.kind == "phase"
    ]
    return {
        "type": "line",
        "xAxisIndex": 0,
        "yAxisIndex": 0,
        "data": [],
        "silent": True,
        "markArea": {"silent": True, "data": areas},
    }


def _series(
    n: int, k: int, line: CurveLine, unit: str, marks: Sequence[MarkedSpan]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "line",
        "name": f"{line.name} [{unit}]",
        "xAxisIndex": n,
        "yAxisIndex": n,
        "showSymbol": False,
        "silent": True,
        "lineStyle": {"width": 1.3},
        "color": COLOURS[k % len(COLOURS)],
        "data": _points(line.t_s, line.values),
    }
    if marks:
        found["markArea"] = {"silent": True, "data": [_area(mark) for mark in marks]}
    return found


def _area(mark: MarkedSpan) -> list[dict[str, Any]]:
    start = {
        "xAxis": round(mark.start_s, 3),
        "name": mark.says,
        "itemStyle": {"color": SPAN_COLOURS[mark.kind]},
        "label": {"show": False},
    }
    return [start, {"xAxis": round(max(mark.end_s, mark.start_s + 0.02), 3)}]


def _points(t_s: FloatArray, values: FloatArray) -> list[list[float | None]]:
    return [
        [round(float(t), 3), None if math.isnan(v) else round(float(v), 3)]
        for t, v in zip(t_s, values, strict=True)
    ]
