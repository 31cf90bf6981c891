"""How far a campaign has come, from the takes that the journal holds, and how long it will take."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from gaploop.collect.campaign import Quota, changed
from gaploop.core import journal_format, labels
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome, TakeKind

TAKE_S: Final = 15.0
RESET_S: Final = 30.0
SETUP_S: Final = 60.0
"""Before any take: a take, putting things back, and what a change of set-up adds [s]. Assumed."""
PAUSE_S: Final = 600.0
"""A longer gap between two takes is a pause, and no measure of anything [s]."""


@dataclass(frozen=True)
class LoggedTake:
    """A sealed take of the journal, as a campaign counts it.

    Attributes:
        counts: whether it counts towards a quota.
        duration_s: frames divided by rate [s].
    """

    info: TakeInfo
    counts: bool
    duration_s: float


@dataclass(frozen=True)
class SetupProgress:
    """One set-up of a plan: what is there and what is wanted."""

    plan: str
    dimensions: Mapping[str, float]
    conditions: Mapping[str, Any]
    have: int
    wanted: int


@dataclass(frozen=True)
class CampaignProgress:
    """How far a campaign has come.

    Attributes:
        setups: every set-up, in the plan's order.
        left: what is still to be recorded, in order; one quota for each stretch of takes.
        take_s: median length of a take [s].
        reset_s: median time from the end of a take to the next one's start [s].
        setup_s: what a change of set-up adds to that [s].
        attempts_per_take: attempts for each take that counts.
        left_s: estimated time for what is left [s].
        measured: takes behind the estimate; 0 where it is assumed.
    """

    setups: tuple[SetupProgress, ...]
    left: tuple[Quota, ...]
    take_s: float
    reset_s: float
    setup_s: float
    attempts_per_take: float
    left_s: float
    measured: int

    @property
    def have(self) -> int:
        """Takes that count, no more than wanted of each set-up."""
        return sum(min(s.have, s.wanted) for s in self.setups)

    @property
    def wanted(self) -> int:
        """Takes that are wanted in all."""
        return sum(s.wanted for s in self.setups)


def counts(kind: TakeKind, outcome: Outcome, taken_back: bool = False) -> bool:
    """Say whether a sealed take counts: a rollout always, a demonstration unless it failed.

    Args:
        kind: what it is for.
        outcome: as it stands.
        taken_back: it had a label, which was taken back: a demonstration counts once it has one
            again. One that was passed over counts.
    """
    if outcome in (Outcome.DISCARDED, Outcome.INTERRUPTED):
        return False
    if kind is not TakeKind.DEMONSTRATION:
        return True
    return outcome is not Outcome.FAILURE and not taken_back


def sealed_takes(journal: Path, kind: TakeKind) -> Iterator[LoggedTake]:
    """Yield the sealed takes of one kind, oldest first, with the labels that stand now."""
    said = labels.current(labels.read(journal / journal_format.LABELS))
    for folder in journal_format.take_folders(journal):
        info, end = journal_format.read_header(folder).info, journal_format.read_end(folder)
        if end is not None and info.kind is kind:
            label = said.get(info.uid, {}).get("outcome")
            outcome = end.outcome if label is None else Outcome(label)
            taken_back = label is not None and outcome is Outcome.UNLABELLED
            yield LoggedTake(info, counts(kind, outcome, taken_back), end.frames / info.fps)


def held(
    journal: Path, kind: TakeKind, quotas: Sequence[Quota], *, resume: bool = True
) -> Counter[str]:
    """Return how many takes that count the journal holds, by the key of their quota.

    Args:
        journal: folder of takes; it need not exist.
        kind: what the takes are for.
        quotas: what is asked for; takes that belong to none are left out.
        resume: count takes without a plan item; those of a plan item always count.
    """
    found = Counter[str]()
    for take in sealed_takes(journal, kind):
        if take.counts and (take.info.plan or resume):
            quota = _quota_of(take.info, quotas)
            if quota is not None:
                found[quota.key] += 1
    return found


def missing(quotas: Sequence[Quota], have: Mapping[str, int]) -> list[int]:
    """Return what each quota still lacks; takes that are there fill the first quotas of their key.

    So an order that was begun goes on where it ended.
    """
    rest = Counter(have)
    lacking = []
    for quota in quotas:
        used = min(rest[quota.key], quota.takes)
        rest[quota.key] -= used
        lacking.append(quota.takes - used)
    return lacking


def _quota_of(info: TakeInfo, quotas: Sequence[Quota]) -> Quota | None:
    """Return the quota that a take was recorded for: of its plan item, with the most in common."""
    fits = [q for q in quotas if q.plan == info.plan and _covers(info.conditions, q.conditions)]
    return max(fits, key=lambda q: len(q.conditions), default=None)


def _covers(had: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    def plain(value: Any) -> str:
        return json.dumps(value, default=str)

    return all(n in had and plain(had[n]) == plain(value) for n, value in asked.items())


def campaign_progress(
    journal: Path, quotas: Sequence[Quota], kind: TakeKind = TakeKind.DEMONSTRATION
) -> CampaignProgress:
    """Return how far a campaign has come.

    Args:
        journal: folder of takes; it need not exist.
        quotas: the campaign's order.
        kind: what the takes are for.
    """
    have = held(journal, kind, quotas)
    lacking = missing(quotas, have)
    left = tuple(
        Quota(n, q.plan, q.dimensions, q.conditions)
        for n, q in zip(lacking, quotas, strict=True)
        if n
    )
    plans = {quota.plan for quota in quotas}
    takes = [t for t in sealed_takes(journal, kind) if t.info.plan in plans]
    take_s, reset_s, setup_s = _times(takes)
    per_take = len(takes) / max(1, sum(t.counts for t in takes)) if takes else 1.0
    moves = sum(bool(changed(a.conditions, b.conditions)) for a, b in itertools.pairwise(left))
    left_s = sum(lacking) * per_take * (take_s + reset_s) + moves * setup_s
    timing = (take_s, reset_s, setup_s, per_take, left_s)
    return CampaignProgress(_setups(quotas, have), left, *timing, measured=len(takes))


def _setups(quotas: Sequence[Quota], have: Mapping[str, int]) -> tuple[SetupProgress, ...]:
    wanted = Counter[str]()
    for quota in quotas:
        wanted[quota.key] += quota.takes
    first = {quota.key: quota for quota in reversed(quotas)}
    return tuple(
        SetupProgress(q.plan, q.dimensions, q.conditions, have.get(key, 0), wanted[key])
        for key, q in sorted(first.items())
    )


def _times(takes: Sequence[LoggedTake]) -> tuple[float, float, float]:
    """Return the medians of take, reset and change of set-up [s]; assumed where none was seen."""
    if not takes:
        return TAKE_S, RESET_S, SETUP_S
    lengths, resets, moves = intervals(takes)
    reset_s = median(resets) if resets else RESET_S
    setup_s = max(0.0, median(moves) - reset_s) if moves else SETUP_S
    return median(lengths), reset_s, setup_s


def intervals(takes: Sequence[LoggedTake]) -> tuple[list[float], list[float], list[float]]:
    """Return lengths of takes, and times between takes of one set-up and of two set-ups [s].

    Pauses are left out. Where simulated time runs faster than the clock, a take's length is what
    the clock says.

    Args:
        takes: oldest first.
    """
    resets: list[float] = []
    moves: list[float] = []
    lengths = [take.duration_s for take in takes]
    for place, (a, b) in enumerate(itertools.pairwise(takes)):
        between_s = (b.info.t0_ns - a.info.t0_ns) / 1e9
        rest_s = between_s - a.duration_s
        if a.info.session != b.info.session or between_s <= 0 or rest_s > PAUSE_S:
            continue
        if rest_s < 0:
            lengths[place], rest_s = between_s, 0.0
        same = not changed(a.info.conditions, b.info.conditions)
        (resets if same else moves).append(rest_s)
    return lengths, resets, moves
