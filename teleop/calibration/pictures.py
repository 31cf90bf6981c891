"""Pictures for people: where corners fell, how boards were tilted, which pictures fit badly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.teleop.calibration.board import BoardView
from gaploop.teleop.calibration.hand_eye import HandEyeResult
from gaploop.teleop.calibration.intrinsics import (
    CELLS,
    TILTED_DEG,
    IntrinsicsResult,
    most_rms_px,
)

INK: Final = "#222222"
FINE: Final = "#2a78b5"
BAD: Final = "#c8442c"
DULL: Final = "#b9c4cc"
SHOWN_BARS: Final = 30
"""More pictures than this are shown by their worst ones only."""


def coverage_picture(path: Path, views: Sequence[BoardView], result: IntrinsicsResult) -> None:
    """Write a PNG of where corners fell, how boards were tilted and how well pictures fit.

    `views` are those that `result` was made of.
    """
    from matplotlib.figure import Figure  # not pyplot: no global state, no display
    from matplotlib.patches import Rectangle

    figure: Any = Figure(figsize=(12.0, 5.6), facecolor="white")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.55, 1.0), hspace=0.55, wspace=0.22)
    axes = figure.add_subplot(grid[:, 0])
    width, height = result.intrinsics.width, result.intrinsics.height
    bad = {h.name for h in result.hurting}
    counts = result.coverage.counts
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(np.log1p(counts), extent=extent, cmap="Blues", alpha=0.45, vmin=0, aspect="equal")
    for view in views:
        colour = BAD if view.name in bad else FINE
        axes.scatter(*view.corners_px.T, s=5, color=colour, alpha=0.75, lw=0, zorder=3)
    wide, high = width / CELLS[1], height / CELLS[0]
    label = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.75}
    for (row, column), count in np.ndenumerate(counts):
        x, y = column * wide - 0.5, row * high - 0.5
        if count == 0:
            axes.add_patch(
                Rectangle((x, y), wide, high, fill=False, hatch="///", ec=BAD, lw=0.0, alpha=0.5)
            )
        ink = BAD if count == 0 else INK
        place = x + 0.04 * wide, y + 0.05 * high
        axes.text(*place, f"{count}", va="top", fontsize=8, color=ink, bbox=label, zorder=4)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    axes.set_title("Corners seen, and how many in each cell", fontsize=10, color=INK)
    axes.set_xlabel("x [px]", fontsize=9)
    axes.set_ylabel("y [px]", fontsize=9)
    if any(view.name in bad for view in views):
        axes.scatter([], [], s=14, color=BAD, label="pictures that hurt")
        axes.legend(loc="lower right", fontsize=8, framealpha=0.9)

    axes = figure.add_subplot(grid[0, 1])
    edges = np.arange(0, 75, 5)
    tilts, _ = np.histogram(result.coverage.tilt_deg, edges)
    colours = [FINE if edge >= TILTED_DEG else DULL for edge in edges[:-1]]
    axes.bar(edges[:-1] + 2.5, tilts, width=4.4, color=colours)
    axes.set_title("Tilt of the board (20 to 45° give the focal length)", fontsize=10, color=INK)
    axes.set_xlabel("tilt [°]", fontsize=9)
    axes.set_ylabel("pictures", fontsize=9)
    axes.yaxis.get_major_locator().set_params(integer=True)
    _plain(axes)

    errors = [(i.name, i.rms_px) for i in result.images]
    axes = figure.add_subplot(grid[1, 1])
    _draw_errors(axes, errors, {h.name for h in result.hurting}, "RMS error [px]")
    axes.axhline(most_rms_px(result.intrinsics.width), color=BAD, lw=0.8, ls="--")
    verdict = "refused" if result.refusals() else "accepted"
    figure.suptitle(
        f"RMS {result.rms_px:.3f} px ({verdict}), held out {result.held_out_px:.3f} px, "
        f"{len(result.images)} pictures, {result.coverage.share:.0%} of the cells covered",
        fontsize=11,
        color=INK,
    )
    figure.savefig(path, dpi=110, bbox_inches="tight")


def hand_eye_picture(path: Path, result: HandEyeResult) -> None:
    """Write a PNG of how far the board is off in each picture."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(8.0, 3.6), facecolor="white")
    errors = list(zip(result.names, result.errors_mm.tolist(), strict=True))
    worst = {name for name, _ in result.outliers()}
    _draw_errors(figure.add_subplot(), errors, worst, "board off by [mm]")
    setup = result.hand_eye.setup.replace("_", " ")
    figure.suptitle(
        f"Hand-eye ({setup}): {result.held_out.board_mm:.2f} mm and "
        f"{result.held_out.rotation_deg:.2f}° in held-out pictures",
        fontsize=11,
        color=INK,
        y=1.02,
    )
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _draw_errors(axes: Any, errors: Sequence[tuple[str, float]], bad: set[str], label: str) -> None:
    shown = list(errors)
    title = "Error of each picture"
    if len(shown) > SHOWN_BARS:
        shown = sorted(shown, key=lambda e: -e[1])[:SHOWN_BARS]
        title = f"The {SHOWN_BARS} pictures with the largest errors"
    colours = [BAD if name in bad else FINE for name, _ in shown]
    axes.bar(range(len(shown)), [value for _, value in shown], color=colours)
    names = [name.rpartition(".")[0] or name for name, _ in shown]
    axes.set_xticks(range(len(shown)), names, rotation=90, fontsize=6 if len(shown) > 15 else 7)
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_ylabel(label, fontsize=9)
    axes.margins(x=0.01)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
    for tick in axes.get_xticklabels():
        if tick.get_rotation() == 90:
            tick.set_fontsize(6)
