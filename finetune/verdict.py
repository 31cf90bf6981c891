"""Is the adapted policy better? A paired comparison on the same seeds, and what it cost.

Both policies are tried on the same scenes, so only scenes where exactly one succeeds tell
them apart: McNemar's test in its exact form (a binomial test on those discordant pairs). The
interval of the difference is Newcombe's method 10 for paired proportions (Newcombe 1998,
Statistics in Medicine 17:2635-2650), which keeps its coverage at small n and rates near 0 or 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from gaploop.core import statistics
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.finetune.evaluation import Evaluation, Rollout, evidence

SCHEMA: Final = "gaploop.verdict.v1"
ALPHA: Final = 0.05
RETENTION_MARGIN: Final = 0.10
"""Largest loss of nominal success, as a fraction of rollouts, that an improvement may cost."""


class Answer(StrEnum):
    """What to do with the candidate."""

    PROMOTE = "promote"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Difference:
    """Paired difference of two success rates, candidate minus baseline.

    Attributes:
        value: difference of the rates.
        interval: its interval at 95 %.
        p: two-sided p of the exact McNemar test.
        pairs: scenes tried by both.
        gained: scenes only the candidate solved.
        lost: scenes only the baseline solved.
    """

    value: float
    interval: tuple[float, float]
    p: float
    pairs: int
    gained: int
    lost: int


@dataclass(frozen=True)
class Verdict:
    """The answer and what it rests on.

    Attributes:
        verdict: promote, reject or inconclusive.
        difference: candidate minus baseline on the target cell.
        retention: candidate minus baseline in nominal simulation, if it was measured.
        says: the reason, in words.
        domain: where the difference was measured.
    """

    verdict: Answer
    before: float
    after: float
    difference: Difference
    retention: Difference | None
    says: str
    domain: Domain

    @property
    def exit_code(self) -> int:
        """0 promote, 1 reject, 3 inconclusive."""
        return {Answer.PROMOTE: 0, Answer.REJECT: 1, Answer.INCONCLUSIVE: 3}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return what `verdict.json` holds."""
        return {"schema": SCHEMA, "evidence": evidence(self.domain), **asdict(self)}


def compare(
    before: Evaluation,
    after: Evaluation,
    *,
    retention_before: Evaluation | None = None,
    retention_after: Evaluation | None = None,
    margin: float = RETENTION_MARGIN,
    alpha: float = ALPHA,
) -> Verdict:
    """Judge a candidate against a baseline.

    Promote where it is better on the target (exact McNemar p < `alpha`) and its loss in nominal
    simulation is not shown to exceed `margin`; reject where it is worse, or forgets more than
    `margin`; inconclusive otherwise.

    Args:
        before: the baseline on the target cell.
        after: the candidate on the same seeds and conditions.
        retention_before: the baseline in nominal simulation.
        retention_after: the candidate there, on the same seeds.
        margin: largest acceptable loss of nominal success, as a fraction.
        alpha: two-sided level.

    Raises:
        UnusableInputError: the rollouts don't pair up, or only one retention is given.
    """
    if (retention_before is None) != (retention_after is None):
        raise UnusableInputError("Retention needs both policies in nominal simulation, or neither.")
    change = paired_difference(before.outcomes, after.outcomes)
    kept = None
    if retention_before is not None and retention_after is not None:
        kept = paired_difference(retention_before.outcomes, retention_after.outcomes)
    answer, why = _answer(change, kept, margin, alpha)
    prefix = "Sim-to-sim: " if after.domain is Domain.SIM_TARGET else ""
    rates = f"{before.rate:.0%} → {after.rate:.0%} over {change.pairs} paired rollouts"
    low, high = change.interval
    says = f"{prefix}{rates}, {change.value:+.0%} [{low:+.0%}, {high:+.0%}], p = {change.p:.3g}"
    return Verdict(answer, before.rate, after.rate, change, kept, f"{says}: {why}", after.domain)


def paired_difference(
    before: tuple[Rollout, ...], after: tuple[Rollout, ...], confidence: float = 0.95
) -> Difference:
    """Compare two policies' rollouts of the same scenes.

    Raises:
        UnusableInputError: seeds and conditions differ, or there are none.
    """
    old, new = _keyed(before), _keyed(after)
    if old.keys() != new.keys() or not old:
        odd = len(old.keys() ^ new.keys())
        raise UnusableInputError(
            f"{odd} of {len(old.keys() | new.keys())} scenes were tried by one policy only. "
            "Evaluate both with the same --n, --seed and --env.conditions."
        )
    both = sum(old[k] and new[k] for k in old)
    lost = sum(old[k] and not new[k] for k in old)
    gained = sum(new[k] and not old[k] for k in old)
    neither = len(old) - both - lost - gained
    difference = statistics.paired_difference(both, gained, lost, neither, confidence)
    return Difference(
        value=difference.value,
        interval=(difference.low, difference.high),
        p=statistics.mcnemar_p(gained, lost),
        pairs=len(old),
        gained=gained,
        lost=lost,
    )


def _answer(
    change: Difference, kept: Difference | None, margin: float, alpha: float
) -> tuple[Answer, str]:
    if change.p < alpha and change.value < 0:
        return Answer.REJECT, "worse than before."
    if kept is not None and kept.value < -margin and kept.p < alpha:
        return Answer.REJECT, f"nominal success fell by {-kept.value:.0%}, over {margin:.0%}."
    if change.p >= alpha:
        return Answer.INCONCLUSIVE, "not shown to differ; roll out more."
    if kept is not None and kept.value < -margin:
        return Answer.INCONCLUSIVE, (
            f"better, but nominal success fell by {-kept.value:.0%}, over {margin:.0%}, in too few "
            "rollouts to be sure."
        )
    cost = "" if kept is None else f" Nominal success changed by {kept.value:+.0%}."
    return Answer.PROMOTE, f"better.{cost}"


def _keyed(rollouts: tuple[Rollout, ...]) -> Mapping[tuple[str, int], bool]:
    return {(r.condition, r.seed): r.success for r in rollouts}
