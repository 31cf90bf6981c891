"""How far apart trainings on identical data end up, as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.gate_tests import Flags

DOT: Final = "#1a73e8"
SHARED: Final = "#9aa0a6"


def picture(stored: Flags) -> bytes:
    """Return each retrain's success, and how often each scene was solved, as a PNG.

    Args:
        stored: success of the retrains, shape (retrains, scenes).
    """
    import numpy as np

    from gaploop.failure_analysis.report.page import figure_png, new_figure
    from gaploop.finetune.evaluation import wilson

    retrains, scenes = stored.shape
    rates = [wilson(int(row.sum()), scenes) for row in stored]
    with new_figure(8.4, 3.0) as (figure, axes):
        axes.remove()
        left, right = figure.subplots(1, 2)
        spans = [[r.rate - r.interval[0] for r in rates], [r.interval[1] - r.rate for r in rates]]
        places = np.arange(1, retrains + 1)
        left.errorbar(places, [r.rate for r in rates], yerr=spans, fmt="o", ms=4, lw=1, color=DOT)
        left.set_xlabel("trainings on the same data, other seeds")
        left.set_ylabel(f"success in {scenes} scenes")
        left.set_ylim(0, 1)
        right.hist(stored.sum(0), bins=np.arange(retrains + 2) - 0.5, color=SHARED)
        right.set_xlabel(f"how many of {retrains} trainings solve a scene")
        right.set_ylabel("scenes")
        left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        return figure_png(figure)
