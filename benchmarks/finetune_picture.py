"""Success of base, LoRA and all weights in every cell of `benchmarks finetune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

COLOURS: Final = {"before": "#9aa0a6", "sweep": "#1a73e8", "full": "#c8553d"}
WORDS: Final = {
    "before": "base",
    "sweep": "LoRA, by share of real takes",
    "full": "all weights",
}


def picture(cells: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a row for each cell, a dot with its 95 % interval for each policy, as a PNG."""

    from gaploop.failure_analysis.report.page import figure_png, new_figure

    with new_figure(8.4, 0.5 * len(cells) + 1.4) as (figure, axes):
        for place, cell in enumerate(cells):
            _row(axes, -place, cell, with_names=place == 0)
        names = [f"{cell['task']}, seed {cell['seed']}" for cell in cells]
        axes.set_yticks([-place for place in range(len(cells))], names)
        axes.set_xlim(-0.02, 1.02)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel("success on the changed cell after ten takes of it, 95 % intervals")
        axes.tick_params(length=0)
        axes.legend(frameon=False, fontsize=8, loc="lower center", ncols=3, bbox_to_anchor=(0.5, 1))
        return figure_png(figure)


def _row(axes: Any, place: float, cell: Mapping[str, Any], *, with_names: bool) -> None:
    rows = [("before", cell["before"]), *(("sweep", e) for e in cell["sweep"].values())]
    rows.append(("full", cell["full"]))
    named = set[str]()
    for number, (kind, rate) in enumerate(rows):
        height = place + 0.32 - 0.64 * number / (len(rows) - 1)
        label = WORDS[kind] if with_names and kind not in named else None
        named.add(kind)
        axes.plot(rate["interval"], [height, height], color=COLOURS[kind], lw=1.2)
        axes.plot(rate["rate"], height, "o", color=COLOURS[kind], ms=4, label=label)
