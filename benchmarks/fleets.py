"""A simulated fleet for the canary: stations with true rates, late reports, lost connections.

Not a model of any real fleet: a place where the canary's promises can be broken if they break.
Stations differ in how well both policies do there. Each runs one episode after the other. It
hears of its lease and hands in its reports at the end of an episode, while it is connected; while
it isn't, reports wait, and the station goes by the lease that it has.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gaploop.core.suite import CanaryRules
from gaploop.finetune.gate.canary import Canary, CanaryPhase, Lease, Report, drives, replay

EPISODE_S: Final = (40.0, 90.0)
"""How long an episode takes [s], drawn evenly."""
STATION_SD: Final = 0.05
"""Stations differ by so much in success, the same for both policies."""


@dataclass(frozen=True)
class FleetSpec:
    """A fleet, and what is true in it.

    Attributes:
        stations: how many.
        baseline: the baseline's success.
        candidate: the candidate's success.
        baseline_safety: safety events per episode of the baseline.
        candidate_safety: the same for the candidate.
        late: share of reports that arrive late.
        late_s: how late, on average [s].
        silent: stations that lose their connection for good, at a time drawn.
        hours: when the simulation ends [h].
    """

    stations: int = 20
    baseline: float = 0.75
    candidate: float = 0.85
    baseline_safety: float = 0.001
    candidate_safety: float = 0.001
    late: float = 0.1
    late_s: float = 300.0
    silent: int = 2
    hours: float = 48.0


@dataclass(frozen=True)
class Start:
    """One episode as it began.

    Attributes:
        at_s: when [s].
        heard_s: when the station last heard of its lease [s].
    """

    at_s: float
    robot: str
    candidate: bool
    heard_s: float


@dataclass(frozen=True)
class FleetRun:
    """What happened.

    Attributes:
        ended_s: when the roll-out was decided [s], or when the simulation ended.
        starts: every episode.
        silent: when each silent station lost its connection [s].
    """

    canary: Canary
    ended_s: float
    starts: tuple[Start, ...]
    silent: dict[str, float]

    @property
    def exposed(self) -> int:
        """Episodes that the candidate drove, reported or not."""
        return sum(start.candidate for start in self.starts)


@dataclass(eq=False)
class _Station:
    name: str
    offset: float
    cut_s: float
    lease: Lease
    heard_s: float = 0.0
    episode: int = 0
    waiting: list[Report] = field(default_factory=list)

    def handed_in(self) -> tuple[Report, ...]:
        """Return the reports that waited; none waits any more."""
        reports = tuple(self.waiting)
        self.waiting.clear()
        return reports


def simulate(rules: CanaryRules, spec: FleetSpec, seed: int = 0) -> FleetRun:
    """Run a fleet until the roll-out is decided and every lease has run out after it.

    Args:
        rules: of the canary.
        spec: the fleet.
        seed: of everything that is drawn; equal seeds give equal runs.
    """
    rng = np.random.default_rng([seed, 5])
    names = tuple(f"station_{n:02d}" for n in range(spec.stations))
    canary = Canary(rules, names, seed)
    stations = _stations(names, canary, spec, rng)
    queue = [(float(rng.uniform(0, EPISODE_S[1])), n, "start") for n in range(spec.stations)]
    inbox: dict[int, tuple[Report, ...]] = {}
    heapq.heapify(queue)
    starts: list[Start] = []
    over_s, last_s = float("inf"), spec.hours * 3600
    while queue:
        now_s, n, what = heapq.heappop(queue)
        if now_s > min(over_s + 2 * rules.lease_s, last_s):
            break
        if what == "report":
            replay(canary, inbox.pop(n))
            if canary.phase not in (CanaryPhase.CANARY, CanaryPhase.FULL):
                over_s = min(over_s, now_s)
            continue
        starts.append(_episode(stations[n], canary, spec, now_s, rng))
        end_s = now_s + float(rng.uniform(*EPISODE_S))
        heapq.heappush(queue, (end_s, n, "start"))
        if end_s < stations[n].cut_s:
            late_s = float(rng.exponential(spec.late_s)) if rng.random() < spec.late else 0.0
            number = len(stations) + len(starts)
            inbox[number] = stations[n].handed_in()
            heapq.heappush(queue, (end_s + late_s, number, "report"))
    silent = {s.name: s.cut_s for s in stations if s.cut_s < float("inf")}
    return FleetRun(canary, min(over_s, last_s), tuple(starts), silent)


def _stations(
    names: Sequence[str], canary: Canary, spec: FleetSpec, rng: np.random.Generator
) -> list[_Station]:
    offsets = rng.normal(0, STATION_SD, len(names))
    silent = set(rng.permutation(len(names))[: spec.silent].tolist())
    return [
        _Station(
            name,
            float(offsets[n]),
            float(rng.uniform(600, 7200)) if n in silent else float("inf"),
            canary.lease(name, 0.0),
        )
        for n, name in enumerate(names)
    ]


def _episode(
    station: _Station, canary: Canary, spec: FleetSpec, now_s: float, rng: np.random.Generator
) -> Start:
    """Run an episode; return how it began. Its report waits at the station."""
    if now_s < station.cut_s:
        station.lease, station.heard_s = canary.lease(station.name, now_s), now_s
    new = drives(canary.seed, station.lease, station.name, station.episode, now_s)
    rate = (spec.candidate if new else spec.baseline) + station.offset
    danger = spec.candidate_safety if new else spec.baseline_safety
    unsafe = bool(rng.random() < danger)
    won = bool(rng.random() < min(max(rate, 0.0), 1.0)) and not unsafe
    station.waiting.append(Report(station.name, station.episode, new, won, unsafe))
    station.episode += 1
    return Start(now_s, station.name, new, station.heard_s)
