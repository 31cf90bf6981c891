"""The page of `gaploop identify`: what differs at a station, how sure that is, what is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from markupsafe import Markup

from gaploop.core.twin import Twin, TwinParameter
from gaploop.failure_analysis.report import page as html
from gaploop.failure_analysis.report.report import SIM_TO_SIM
from gaploop.failure_analysis.station import words

if TYPE_CHECKING:
    from gaploop.sim.identification.drives import OpenLoopCurve

LONGEST_S: Final = 15.0
"""Of a longer piece, so much is drawn [s]."""


def residual_lines(twin: Twin) -> list[str]:
    """Return what the fit leaves open: joints unlike their model, and what explains as much."""
    lines = [
        f"{joint} is {_degrees(error)} off its model on held-out motion: something there wasn't "
        "measured, such as lost goals, a loose joint or contact"
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


def twin_page(
    twin: Twin,
    joints: Sequence[str],
    steps: Sequence[dict[str, Any]],
    curves: Sequence[OpenLoopCurve],
    is_real: bool = True,
) -> str:
    """Return the page of the joints that are fitted, and of motion that was held out.

    `steps` say what each parameter that was added brought, as of `FittedDrives`.
    """
    differs = [p for p in twin.parameters if p.differs]
    open_ = [p for p in twin.parameters if not p.excited]
    same = [p for p in twin.parameters if p.excited and not p.differs]
    before, after = (twin.fit[f"open_loop_error_{when}"] for when in ("before", "after"))
    sure = [
        ("Differs", "; ".join(describe(p) for p in differs) or "Nothing."),
        ("Error", f"{_degrees(before)} on motion that was held out; fitted {_degrees(after)}."),
        (
            "Open",
            f"{len(open_)} of {len(twin.parameters)} parameters: not shown by these episodes.",
        ),
    ]
    blocks: list[Markup] = [html.answers(sure)]
    if not is_real:
        blocks.insert(0, html.notice(SIM_TO_SIM))
    if not twin.fit.get("explained", True):
        blocks.append(html.notice(UNEXPLAINED, "bad"))
    blocks += [html.notice(line.capitalize()) for line in residual_lines(twin)]
    sections = [html.section("In a minute", "", blocks)]
    if differs:
        lead = "Estimates with 90 % intervals, and the nominal cell's value."
        estimates = html.table(_HEAD, [_row(p) for p in differs], numbers=(1, 2, 3))
        sections.append(html.section("What differs", lead, [estimates]))
    if curves:
        lead = "From its goals alone, open loop: the nominal arm and the fitted one."
        caption = "Error of the simulated arms against the readings, joint by joint."
        drawn = html.figure(curves_png(curves, joints), caption)
        sections.append(html.section("Held-out motion", lead, [drawn]))
    if len(steps) > 1:
        rows = [
            (_title(s["added"], s["joint"]) if s["added"] else "nominal", _degrees(s["error_rad"]),
             f"{s['bic_drop']:.0f}" if s["added"] else "")
            for s in steps
        ]  # fmt: skip
        lead = "Parameters as they were added, each lowering the criterion (BIC) most."
        head = ("added", "mean error", "BIC falls by")
        sections.append(
            html.section("How it was found", lead, [html.table(head, rows, numbers=(1, 2))])
        )
    rest: list[Markup] = []
    if open_:
        rest.append(html.more(f"{len(open_)} that the episodes don't show", [
            html.text("A change that would matter moves no reading, or others move it alike."),
            html.table(_HEAD[::3], [_row(p)[::3] for p in open_]),
        ]))  # fmt: skip
    if same:
        title = f"{len(same)} that don't differ from nominal"
        rest.append(
            html.more(title, [html.table(_HEAD, [_row(p) for p in same], numbers=(1, 2, 3))])
        )
    sections.append(html.section("Everything else", "", rest))
    made = ", ".join(str(source.get("id", "")) for source in twin.made_from)
    fit = twin.fit
    return html.page(
        f"The twin of {twin.station}",
        sections,
        subtitle=f"{twin.arm}, from {fit['takes']} episodes with {fit['motion_s']:.0f} s of motion",
        footer=f"Made from {made} by gaploop identify.",
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
    name, estimate, _, _ = _row(parameter)
    low, high = parameter.interval
    return f"{name} {estimate} [{_bare(low)}, {_bare(high)}]"


_HEAD: Final = ("parameter", "estimate", "90 % interval", "nominal")


def _row(p: TwinParameter) -> tuple[str, str, str, str]:
    low, high = p.interval
    span, nominal = f"{_bare(low)} to {_bare(high)}", _number(p.nominal, p.unit)
    return _title(p.name, p.joint), _number(p.estimate, p.unit), span, nominal


def _title(name: str, joint: str = "") -> str:
    """Return what a parameter is called for people, without its unit."""
    dimension, mechanism, parameter = name.split(".")
    what = parameter
    for unit in ("_rad_s", "_rad", "_nm", "_s", "_m", "_n"):
        what = what.removesuffix(unit)
    if dimension == "actuator_response":
        return f"{words(joint) or 'all joints'}: {words(what)}"
    title = words(mechanism) if mechanism == what else f"{words(mechanism)}: {words(what)}"
    return f"{words(joint)}, {title}" if joint else title


def _bare(value: float) -> str:
    return "∞" if value == np.inf else f"{value:.4g}"


def _number(value: float, unit: str) -> str:
    shown = "none" if value == np.inf else f"{value:.4g}"
    return shown if unit == "1" or value == np.inf else f"{shown} {unit}"


def _degrees(rad: float) -> str:
    return f"{np.degrees(rad):.2f}°"
