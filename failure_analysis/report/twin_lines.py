"""What `gaploop identify` shows of a twin: parameters in words, held-out motion as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from gaploop.core.twin import Twin, TwinParameter
from gaploop.failure_analysis.report import page as html
from gaploop.failure_analysis.station import words

if TYPE_CHECKING:
    from gaploop.sim.identification.drives import OpenLoopCurve

LONGEST_S: Final = 15.0
"""Of a longer piece, so much is drawn [s]."""


def residual_lines(twin: Twin) -> list[str]:
    """Return what the fit leaves open: joints unlike their model, and what explains as much."""
    lines = [
        f"{joint} is {np.degrees(error):.2f}° off its model on held-out motion: something there "
        "wasn't measured, such as lost goals, a loose joint or contact"
        for joint, error in twin.fit.get("unlike", {}).items()
    ]
    if instead := twin.fit.get("instead"):
        found = [p.name for p in twin.parameters if p.differs and p.mechanism.startswith(_DRIVES)]
        lines.append(
            f"one of these two: {', '.join(found) or 'nothing'}; or {', '.join(instead)}, which "
            "explains these episodes nearly as well"
        )
    return lines


_DRIVES: Final = "actuator_response"
UNEXPLAINED: Final = (
    "The simulated arm still moves differently from the station's: something was not measured, "
    "such as contact, a loose joint or lost goals."
)


def curves_png(curves: Sequence[OpenLoopCurve], joints: Sequence[str]) -> bytes:
    """Return the figure of held-out motion as PNG, of the piece in which fitting changes most.

    Each joint's readings beside the simulated ones, and their errors.
    """
    curve = max(curves, key=lambda c: np.abs(c.before_rad - c.after_rad).mean())
    rows = curve.t_s <= LONGEST_S
    t_s, read = curve.t_s[rows], np.degrees(curve.read_rad[rows])
    drawn = (
        ("nominal", np.degrees(curve.before_rad[rows]), html.VERDICT["costs"], 1.4),
        ("fitted", np.degrees(curve.after_rad[rows]), html.ACCENT, 1.4),
    )
    grid = {"nrows": len(joints), "ncols": 2, "sharex": True, "squeeze": False}
    with html.new_figure(10.4, 1.75 * len(joints) + 0.5, **grid) as (made, axes):
        for k, joint in enumerate(joints):
            path, error = axes[k]
            path.plot(t_s, read[:, k], color=html.PALE, lw=5, label="station")
            error.axhline(0, color=html.SOFT, lw=0.8)
            for name, simulated, colour, width in drawn:
                path.plot(t_s, simulated[:, k], color=colour, lw=width, label=name)
                error.plot(t_s, simulated[:, k] - read[:, k], color=colour, lw=width)
            most = np.abs([s[:, k] - read[:, k] for _, s, _, _ in drawn]).max()
            error.set_ylim(-1.1 * max(most, 0.3), 1.1 * max(most, 0.3))
            path.set_ylabel(words(joint), color=html.INK)
        axes[0, 0].set_title("position [deg]", fontsize=10, color=html.SOFT, loc="left")
        axes[0, 1].set_title("simulated minus read [deg]", fontsize=10, color=html.SOFT, loc="left")
        for last in axes[-1]:
            last.set_xlabel("time [s]")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        made.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False)
    return html.figure_png(made)


def describe(parameter: TwinParameter) -> str:
    """Return a parameter with its estimate and interval, for people."""
    dimension, mechanism, what = parameter.name.split(".")
    for unit in ("_rad_s", "_rad", "_nm", "_s", "_m", "_n"):
        what = what.removesuffix(unit)
    joint = words(parameter.joint)
    if dimension == _DRIVES:
        title = f"{joint or 'all joints'}: {words(what)}"
    else:
        title = words(mechanism) if mechanism == what else f"{words(mechanism)}: {words(what)}"
        title = f"{joint}, {title}" if joint else title
    low, high = ("∞" if v == np.inf else f"{v:.4g}" for v in parameter.interval)
    if parameter.estimate == np.inf:
        return f"{title} none [{low}, {high}]"
    unit = "" if parameter.unit == "1" else f" {parameter.unit}"
    return f"{title} {parameter.estimate:.4g}{unit} [{low}, {high}]"
