"""Runs a scripted teleoperator through takes of a cell, to measure what a gap costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.sight import by_tracker
from gaploop.sim.cell import SimCell
from gaploop.sim.expert import ScriptedLeader

TIME_LIMIT_S = 8.0


@dataclass(frozen=True)
class GapCost:
    """Success of a controller under one gap.

    Attributes:
        gap: dimension, or "dimension.mechanism".
        severity: of the gap, 0 to 1.
        successes: successful takes.
        trials: all takes.
    """

    gap: str
    severity: float
    successes: int
    trials: int


def run_take(cell: SimCell, leader: ScriptedLeader, seed: int) -> bool:
    """Run one take in simulated time and say whether it succeeded within TIME_LIMIT_S."""
    cell.reset(seed)
    leader.reset()
    while cell.now_s < TIME_LIMIT_S and not leader.done():
        cell.command(leader.read(cell.now_s).q_rad)
        cell.advance(1.0 / cell.fps)
        if cell.success():
            return True
    for _ in range(10):  # the object may still be settling
        cell.advance(1.0 / cell.fps)
        if cell.success():
            return True
    return False


def gap_cost(
    gaps: Mapping[str, float],
    *,
    sees: Literal["tracker", "scene"] = "tracker",
    trials: int = 30,
    seeds_per_station: int = 3,
    first_seed: int = 0,
) -> GapCost:
    """Success of a scripted teleoperator under gaps, over several drawn stations.

    Args:
        gaps: dimension, or "dimension.mechanism", to severity.
        sees: "tracker" for a controller made in simulation, "scene" for a person.
        trials: takes in all.
        seeds_per_station: takes before the gap is drawn anew.
        first_seed: of the scenes.
    """
    successes = 0
    for station in range(0, trials, seeds_per_station):
        with SimCell(gaps=gaps, gap_seed=station) as cell:
            make = by_tracker if sees == "tracker" else ScriptedLeader
            leader = make(cell, station)
            seeds = range(station, min(station + seeds_per_station, trials))
            successes += sum(run_take(cell, leader, first_seed + seed) for seed in seeds)
    name = "+".join(gaps)
    return GapCost(name, max(gaps.values(), default=0.0), successes, trials)


def gap_cost_table(
    names: Iterable[str],
    severities: Iterable[float] = (0.5, 1.0),
    *,
    sees: Literal["tracker", "scene"] = "tracker",
    trials: int = 30,
) -> list[GapCost]:
    """Costs of several gaps at several severities, one after the other."""
    wanted = list(severities)
    return [
        gap_cost({name: severity}, sees=sees, trials=trials)
        for name in names
        for severity in wanted
    ]
