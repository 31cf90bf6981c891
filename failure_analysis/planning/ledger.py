"""What remedies brought at a station, beside what its plans expected of them.

`ledger.jsonl` lies beside the station's file, or its twin, or its diagnoses: a line for each plan
that was carried out, never changed. The station's next plans start from it: what helped here is
likelier to help here again than what helped at made-up stations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_lines, json_lines
from gaploop.core.plan import EXPECTED_CONFIDENCE, load_plan
from gaploop.core.schema import ranged, read_as
from gaploop.core.statistics import Estimate, TrialCounts, points, weighted_sum
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis_record import Diagnosis
from gaploop.failure_analysis.planning.gains import Curve, Failures, updated
from gaploop.failure_analysis.station import words

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
        for counts in (found.before, found.after):
            if not 0 <= counts.successes <= counts.trials or not counts.trials:
                raise ValueError(f"{counts.successes} of {counts.trials} rollouts")
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
