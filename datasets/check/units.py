"""Rules of `check` for units: one dataset holds its joints in one unit, stated or not."""

from __future__ import annotations

from gaploop.core.units import plainly_radians
from gaploop.datasets import layout
from gaploop.datasets.check.episodes import EpisodeTable
from gaploop.datasets.check.findings import Findings, numbers
from gaploop.datasets.check.frames import Scan
from gaploop.datasets.columns import STATE


def check_units(episodes: EpisodeTable, scan: Scan | None, findings: Findings) -> None:
    """Find episodes in other units than most: as their gap columns say, else as values do."""
    said: dict[str, list[int]] = {}
    if "gap_units" in episodes.table.column_names:
        units = episodes.table["gap_units"].to_pylist()
        for episode, unit in zip(episodes.index.tolist(), units, strict=True):
            if unit:
                said.setdefault(str(unit), []).append(episode)
    if len(said) > 1:
        most = max(said, key=lambda unit: len(said[unit]))
        others = sorted(e for unit, found in said.items() if unit != most for e in found)
        listed = "; ".join(f"{unit}: episodes {numbers(found)}" for unit, found in said.items())
        text = f"State and action are in several units ({listed}): no policy can learn from both."
        fix = (
            f"{findings.delete(others)}  # keeps {most}; or convert a part: gaploop edit harmonise"
        )
        findings.error("mixed_units", f"{layout.EPISODES}: gap_units", text, fix)
    moments = scan.moments.get(STATE) if scan is not None else None
    if said or scan is None or moments is None or len(moments.low) != len(scan.runs):
        return
    odd = [scan.runs[i].episode for i in plainly_radians(moments.low, moments.high)]
    text = "they look like radians, the others like degrees: no policy can learn from both."
    fix = f"{findings.delete(odd)}  # or convert a part: gaploop edit split, gaploop edit harmonise"
    findings.about(odd, "mixed_units", f"data: {STATE}", text, fix)
