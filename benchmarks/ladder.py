"""`benchmarks ladder`: what randomisation, identification and demonstrations add, rung by rung.

The study's recipe at hidden stations, sim-to-sim, beside its published rates. The run is that of
`randomisation`, which says how it goes on, where it ends, and what is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.proof.rows import mean_of, won
from benchmarks.randomisation import EXERCISES, RUNGS, by_station, rows_of
from gaploop.core.files import write_atomically
from gaploop.core.statistics import percent, points

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

ROWS: Final = "ladder.parquet"
PICTURE: Final = "ladder.png"
PUBLISHED: Final = {
    "none": 34, "both_mild": 63, "randomised_identified": 72, "plus_100": 78, "plus_1000": 84,
    "real_1000": 81,
}  # fmt: skip
"""Success on a real robot [%]; its last rung had 10,000 demonstrations."""
ARMS: Final = ("none", "both_mild", "identified", *RUNGS[:2], "plus_1000", "real_100", "real_1000")
assert set(EXERCISES) < set(ARMS)


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run what isn't there yet, or read rows from --data; return the figures."""
    rows = rows_of(config, folder, ROWS, ARMS)
    by_arm = {a: {r["station"]: r for r in rows if r["arm"] == a} for a in ARMS}
    found = {}
    for arm, mine in by_arm.items():
        if not mine:
            continue
        over = [
            won(r["after"]) - won(by_arm["none"][s]["after"])
            for s, r in mine.items()
            if s in by_arm["none"]
        ]
        found[arm] = {
            "stations": len(mine),
            "success": mean_of([won(r["after"]) for r in mine.values()]),
            "over_none": mean_of(over),
            "nominal": mean_of([won(r["nominal_after"]) for r in mine.values()]),
            "published": PUBLISHED.get(arm),
            "processor_s": sum(r["processor_s"] for r in mine.values()) / len(mine),
        }
    write_atomically(folder / PICTURE, _picture(found))
    return {"evidence": "sim-to-sim", "rows": rows, "figures": found,
            "picture": str(folder / PICTURE)}  # fmt: skip


def _picture(found: Mapping[str, Any]) -> bytes:
    """Draw every rung's success at the stations, and the published one beside it."""
    from gaploop.failure_analysis.report.page import ACCENT, PALE, SOFT, figure_png, new_figure

    with new_figure(7.6, 0.6 + 0.42 * len(found)) as (drawn, axes):
        for y, of in enumerate(found.values()):
            e = of["success"]
            axes.barh(y - 0.18, e.value, 0.34, color=ACCENT)
            span = [[e.value - e.low], [e.high - e.value]]
            axes.errorbar(e.value, y - 0.18, xerr=span, color=SOFT, capsize=2, lw=1)
            axes.barh(y + 0.18, (of["published"] or 0) / 100, 0.34, color=PALE)
        axes.set_yticks(range(len(found)), [arm.replace("_", " ") for arm in found])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        for label, colour in (("here, sim-to-sim", ACCENT), ("published, real robot", PALE)):
            axes.barh(0, 0, color=colour, label=label)
        axes.legend(frameon=False, loc="lower right")
        return figure_png(drawn)


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        "Sim-to-sim; means over stations with 95 % intervals.",
        "",
        "| rung | stations | success | over none | nominal | published |",
        "|---" * 6 + "|",
    ]
    for arm, of in result["figures"].items():
        over = points(of["over_none"]) if of["over_none"] else ""
        nominal = percent(of["nominal"]) if of["nominal"] else ""
        published = f"{of['published']} %" if of["published"] else ""
        lines.append(
            f"| {arm} | {of['stations']} | {percent(of['success'])} | {over} | {nominal} | "
            f"{published} |"
        )
    return "\n".join([*lines, *by_station(result["rows"]), "", f"Picture: {result['picture']}"])
