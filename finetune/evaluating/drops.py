"""What each setting costs against the base: points with intervals, and which are beyond chance.

On equal scenes only those tell anything that one of the two solved: the exact McNemar test (a
binomial test on them) and Newcombe's interval for paired rates (1998, method 10). Rollouts that
don't pair, such as recorded ones, are compared by Fisher's exact test and Newcombe's interval for
two rates. Each interval is a 95 % one of its own; `costs` and `helps` are said at 5 % for all
settings of a table together (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gaploop.core.statistics import (
    Estimate,
    TrialCounts,
    holm,
    mcnemar_p,
    paired_difference,
    weighted_sum,
)
from gaploop.finetune.evaluation import Evaluation, Rollout

FAMILY_ERROR: Final = 0.05
"""Chance that a table calls any setting a cost or a help that is none."""


@dataclass(frozen=True)
class Drop:
    """One setting beside the base.

    Attributes:
        condition: the setting.
        difference: its success minus the base's, -1 to 1.
        p: two-sided, for this setting alone.
        pairs: scenes tried under both; 0 where they don't pair up.
        lost: scenes that only the base solved; 0 likewise.
        gained: scenes that only this setting solved; 0 likewise.
        p_family: `p`, allowing for all settings of the table.
    """

    condition: str
    difference: Estimate
    p: float
    pairs: int = 0
    lost: int = 0
    gained: int = 0
    p_family: float = 1.0

    @property
    def verdict(self) -> str:
        """`costs`, `helps`, or `not shown`."""
        if self.p_family > FAMILY_ERROR:
            return "not shown"
        return "costs" if self.difference.value < 0 else "helps"


def drops(evaluation: Evaluation) -> tuple[Drop, ...]:
    """Return every setting beside the base, the costliest first; none without rollouts of it."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in evaluation.outcomes:
        groups.setdefault(rollout.condition, []).append(rollout)
    base = groups.pop(evaluation.base, None)
    if not base or not groups:
        return ()
    compare = _paired if evaluation.paired else _unpaired
    found = [compare(name, base, group) for name, group in groups.items()]
    adjusted = holm([d.p for d in found])
    told = [replace(d, p_family=p) for d, p in zip(found, adjusted, strict=True)]
    return tuple(sorted(told, key=lambda d: (d.difference.value, d.condition)))


def _paired(name: str, base: Sequence[Rollout], other: Sequence[Rollout]) -> Drop:
    before, after = _by_seed(base), _by_seed(other)
    seeds = before.keys() & after.keys()
    if not seeds:
        return _unpaired(name, base, other)
    both = sum(before[s] and after[s] for s in seeds)
    lost = sum(before[s] and not after[s] for s in seeds)
    gained = sum(after[s] and not before[s] for s in seeds)
    difference = paired_difference(both, gained, lost, len(seeds) - both - lost - gained)
    return Drop(name, difference, mcnemar_p(gained, lost), len(seeds), lost, gained)


def _unpaired(name: str, base: Sequence[Rollout], other: Sequence[Rollout]) -> Drop:
    from scipy.stats import fisher_exact

    counts = [(sum(r.success for r in group), len(group)) for group in (other, base)]
    difference = weighted_sum(
        [(sign, [TrialCounts(*count)]) for sign, count in zip((1.0, -1.0), counts, strict=True)]
    )
    table = [[won, tried - won] for won, tried in counts]
    return Drop(name, difference, float(fisher_exact(table).pvalue))


def _by_seed(rollouts: Sequence[Rollout]) -> Mapping[int, bool]:
    return {r.seed: r.success for r in rollouts}
