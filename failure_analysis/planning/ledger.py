"""What recording costs at a station, and what remedies brought there beside what was expected.

Hours and money have an interval, and are measured where takes are there already. `ledger.jsonl`
lies beside the station's file, or its twin, or its diagnoses: a line for each plan that was carried
out, never changed. The station's next plans start from it: what helped here is likelier to help
here again than what helped at made-up stations.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.collect.campaign import (
    BLOCK_TAKES,
    RESET_S,
    SETUP_EFFORT,
    SETUP_S,
    TAKE_S,
    LoggedTake,
    counts,
    intervals,
)
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_lines, json_lines
from gaploop.core.messages import FloatArray
from gaploop.core.plan import EXPECTED_CONFIDENCE, load_plan
from gaploop.core.schema import ranged, read_as
from gaploop.core.station import Costs
from gaploop.core.statistics import CONFIDENCE, Estimate, TrialCounts, points, weighted_sum
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.diagnosis import Diagnosis
from gaploop.failure_analysis.planning.gains import Curve, Failures, recorded_before, updated
from gaploop.failure_analysis.station import words

ASSUMED_SD: Final = 0.4
"""Relative standard deviation of a time that nobody measured: within a factor of two or so."""
DAY_SD: Final = 0.1
"""The same of a measured mean: people and days differ. Assumed."""
STATED_SD: Final = 0.1
"""The same of a time that somebody wrote down."""


@dataclass(frozen=True)
class SeenTake:
    """A take as planning needs it: no signals."""

    info: TakeInfo
    outcome: Outcome
    duration_s: float


@dataclass(frozen=True)
class Duration:
    """A mean time, "measured", "stated" or "assumed", with its standard deviation."""

    mean_s: float
    sd_s: float
    basis: str

    def draw(self, rng: np.random.Generator, draws: int) -> FloatArray:
        """Return log-normal draws of the mean [s], shape (draws,)."""
        if self.mean_s <= 0:
            return np.zeros(draws)
        log_var = math.log1p((self.sd_s / self.mean_s) ** 2)
        return rng.lognormal(math.log(self.mean_s) - log_var / 2, math.sqrt(log_var), draws)


@dataclass(frozen=True)
class RecordingEffort:
    """What recording takes at a station.

    Attributes:
        reset: from the end of an attempt to the next one's start.
        setup: what a change of set-up of effort 1 adds.
        recorded: demonstrations that succeeded and that failed, of those at hand.
        rate_per_hour: operator and station; None where nobody said.
        measured: takes behind the measured times.
    """

    take: Duration
    reset: Duration
    setup: Duration
    recorded: tuple[int, int] = (0, 0)
    rate_per_hour: float | None = None
    currency: str = field(default=Costs.currency)
    measured: int = 0

    def success(self, dimension: GapDimension) -> tuple[float, float]:
        """Return the parameters of the Beta distribution of "an attempt is a good take"."""
        done, failed = recorded_before(dimension)
        return done + self.recorded[0] + 0.5, failed + self.recorded[1] + 0.5

    def hours_per_take(self, dimension: GapDimension) -> float:
        """Return the expected hours for one more take, without changes of set-up [h]."""
        done, failed = self.success(dimension)
        attempts = (done + failed) / done
        return attempts * (self.take.mean_s + self.reset.mean_s) / 3600.0

    def draw_hours(
        self,
        takes: Mapping[GapDimension, int],
        changes: float,
        rng: np.random.Generator,
        draws: int,
    ) -> FloatArray:
        """Return draws of the hours that takes need, shape (draws,)."""
        each_s = self.take.draw(rng, draws) + self.reset.draw(rng, draws)
        total_s = changes * self.setup.draw(rng, draws)
        for dimension, n in takes.items():
            if n:
                good = np.maximum(rng.beta(*self.success(dimension), draws), 0.02)
                attempts = n + rng.negative_binomial(n, good)
                total_s += attempts * each_s
        return np.asarray(total_s / 3600.0)


def effort_from(
    takes: Iterable[SeenTake] = (),
    stated: Costs = Costs(),  # noqa: B008  frozen
) -> RecordingEffort:
    """Return what recording takes.

    Demonstrations, oldest first, say how many attempts a take needs; lengths and resets come from
    them, too, or from rollouts where there is no demonstration. What a station file states counts
    more than takes do.
    """
    every = [take for take in takes if take.duration_s > 0]
    shown = [take for take in every if take.info.kind is TakeKind.DEMONSTRATION]
    logged = [
        LoggedTake(t.info, counts(t.info.kind, t.outcome), t.duration_s) for t in shown or every
    ]
    lengths, resets, moves = intervals(logged) if logged else ([], [], [])
    reset = _duration(resets, stated.reset_s, RESET_S)
    extra = [max(0.0, move_s - reset.mean_s) for move_s in moves]
    done = sum(t.outcome is Outcome.SUCCESS for t in shown)
    failed = sum(t.outcome is Outcome.FAILURE for t in shown)
    return RecordingEffort(
        _duration(lengths, stated.take_s, TAKE_S),
        reset,
        _duration(extra, stated.setup_s, SETUP_S),
        (done, failed),
        stated.rate_per_hour,
        stated.currency,
        len(logged),
    )


def _duration(seen_s: Sequence[float], stated_s: float | None, assumed_s: float) -> Duration:
    if stated_s is not None:
        return Duration(stated_s, STATED_SD * stated_s, "stated")
    if len(seen_s) < 3:  # of two, the spread can't be told
        return Duration(assumed_s, ASSUMED_SD * assumed_s, "assumed")
    mean, sd = float(np.mean(seen_s)), float(np.std(seen_s, ddof=1))
    return Duration(mean, math.hypot(sd / math.sqrt(len(seen_s)), DAY_SD * mean), "measured")


def setup_changes(takes: int, setups: Sequence[Mapping[str, object]]) -> float:
    """Return about how many changes of set-up a campaign has, weighted by their effort.

    Takes come in blocks that each visit most set-ups (`collect.campaign`).
    """
    if not takes or len(setups) < 2:
        return 0.0
    blocks = max(2, math.ceil(takes / BLOCK_TAKES))
    names = {n for s in setups for n in s if any(s.get(n) != o.get(n) for o in setups)}
    each = max((SETUP_EFFORT.get(name, 1.0) for name in names), default=0.0)
    return min(takes, blocks * len(setups)) * each


def estimate(draws: FloatArray, digits: int = 2, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean and central interval of draws."""
    low, high = np.quantile(draws, (0.5 - 0.5 * confidence, 0.5 + 0.5 * confidence))
    return Estimate(*(round(float(v), digits) for v in (draws.mean(), low, high)))


LEDGER: Final = "ledger.jsonl"
LEAST_SHARE: Final = 0.5
"""Of the failures that takes were recorded against: below it success tells little of them."""
SHOWN: Final = 5


@dataclass(frozen=True)
class LedgerRemedy:
    """A remedy that was carried out, against a dimension with this share of the failures."""

    remedy: str
    dimension: GapDimension
    takes: int
    share: float = ranged(1.0, 0, 1)


@dataclass(frozen=True)
class LedgerEntry:
    """A plan that was carried out.

    Attributes:
        plan: its id.
        diagnosis: id of the diagnosis of the rollouts after it.
        date: when it was written, such as 2026-11-27.
        expected: gain in success, -1 to 1, and a 90 % interval; None of a plan in words.
        before: rollouts that the plan rests on, and how many went well.
        after: the same of the rollouts after it.
    """

    plan: str
    diagnosis: str
    date: str
    expected: Estimate | None
    before: TrialCounts
    after: TrialCounts
    remedies: tuple[LedgerRemedy, ...]

    @property
    def came(self) -> Estimate:
        """Success after minus success before, with a 90 % interval."""
        return weighted_sum([(1.0, [self.after]), (-1.0, [self.before])], EXPECTED_CONFIDENCE)

    @property
    def is_inside(self) -> bool:
        """Whether what came lies where it was expected, allowing for how few rollouts count it.

        Both errors are squared and added, each side for itself (Zou and Donner 2008).
        """
        e, came = self.expected, self.came
        if e is None:
            return False
        below = math.hypot(e.value - e.low, came.high - came.value)
        above = math.hypot(e.high - e.value, came.value - came.low)
        return e.value - below <= came.value <= e.value + above

    @property
    def fixed(self) -> float:
        """Share of the failures it was meant for that went, 0 to 1."""
        lost = 1.0 - self.before.successes / self.before.trials
        meant = lost * min(1.0, sum(r.share for r in self.remedies))
        return min(max(self.came.value / max(meant, 1e-9), 0.0), 1.0)

    @property
    def message(self) -> str:
        """The entry in words."""
        done = " and ".join(dict.fromkeys(words(r.remedy) for r in self.remedies))
        against = ", ".join(words(r.dimension) for r in self.remedies)
        what = f"to {done} ({against})" if done else "what the plan said"
        expected = "; nothing was promised"
        if self.expected is not None:
            expected = f", expected {points(self.expected)}"
            expected += "" if self.is_inside else ": outside"
        return (
            f"{self.date}: {what} brought {points(self.came)} ({self.before.successes} of "
            f"{self.before.trials} rollouts before, {self.after.successes} of "
            f"{self.after.trials} after){expected}."
        )


def read_ledger(path: Path) -> tuple[LedgerEntry, ...]:
    """Return a ledger's entries, oldest first; none without a file.

    Raises:
        UnusableInputError: a line isn't one.
    """

    def read(value: object, where: str) -> LedgerEntry:
        found = read_as(LedgerEntry, value, where)
        for trials in (found.before, found.after):
            if not 0 <= trials.successes <= trials.trials or not trials.trials:
                raise ValueError(f"{trials.successes} of {trials.trials} rollouts")
        return found

    return tuple(json_lines(path, "a plan that was carried out", read))


def note_carried_out(path: Path, plan_file: Path, after: Diagnosis) -> LedgerEntry:
    """Append what came of a plan to a ledger, once; return it.

    Args:
        path: the ledger.
        plan_file: the plan.yaml that was carried out.
        after: diagnosis of rollouts made after it, successes among them.

    Raises:
        UnusableInputError: plan or diagnosis can't say what came of it.
    """
    plan, found = load_plan(plan_file, None), Failures.of(after)
    n = found.failed + found.succeeded
    if after.id == plan.diagnosis:
        raise UnusableInputError(
            f"{plan_file} was made from this diagnosis. Carry it out, roll out again, diagnose "
            "these rollouts and name that diagnosis."
        )
    if plan.before is None or not plan.before.trials:
        raise UnusableInputError(
            f"{plan_file} doesn't name the rollouts that it rests on, so nothing can be compared. "
            "Leave --carried_out out."
        )
    if not n:
        raise UnusableInputError(
            "No rollout of this diagnosis has an outcome: label them with gaploop review first."
        )
    promised = [i for i in plan.items if i.gain_points is not None]
    done = tuple(
        LedgerRemedy(i.remedy, i.dimension, i.takes, i.share) for i in promised or plan.items
    )
    today, counts = datetime.now(UTC).date().isoformat(), TrialCounts(found.succeeded, n)
    entry = LedgerEntry(plan.id, after.id, today, plan.expected, plan.before, counts, done)
    same = [e for e in read_ledger(path) if (e.plan, e.diagnosis) == (plan.id, after.id)]
    if not same:
        append_lines(path, [json.dumps(asdict(entry))])
    return same[0] if same else entry


def ledger_lines(entries: Sequence[LedgerEntry]) -> list[str]:
    """Return how far plans could be trusted here, and the newest entries, for people."""
    promised, said = [e for e in entries if e.expected is not None], list[str]()
    if promised:
        inside = sum(e.is_inside for e in promised)
        said.append(
            f"Of plans carried out here, {inside} of {len(promised)} brought what was expected "
            "(90 % intervals)."
        )
    return [*said, *(e.message for e in entries[-SHOWN:])]


def brought_here(
    entries: Sequence[LedgerEntry], remedy: str, dimension: GapDimension
) -> list[tuple[float, int]]:
    """Return the share that a remedy alone fixed each time, and of how many failures."""
    return [
        (e.fixed, e.before.trials - e.before.successes)
        for e in entries
        if {r.remedy for r in e.remedies} == {remedy}
        and dimension in {r.dimension for r in e.remedies}
    ]


def curves_here(
    curves: Mapping[GapDimension, Curve], entries: Sequence[LedgerEntry]
) -> dict[GapDimension, Curve]:
    """Return the curves of demonstrations with what these brought at the station."""
    found = dict(curves)
    for e in entries:
        dimensions = {r.dimension for r in e.remedies}
        takes = sum(r.takes for r in e.remedies)
        meant = max((r.share for r in e.remedies), default=0.0)
        if takes and len(dimensions) == 1 and meant >= LEAST_SHARE:
            (d,) = dimensions
            rates = [(c.successes, c.trials) for c in (e.before, e.after)]
            found[d] = updated(found[d], takes, *rates)
    return found
