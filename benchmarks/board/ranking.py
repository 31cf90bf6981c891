"""Who is better than whom: paired differences on equal scenes, and what can't be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from string import ascii_lowercase
from typing import Any, Final

from gaploop.core.statistics import holm
from gaploop.finetune.evaluation import (
    FAMILY_ERROR,
    Difference,
    Rate,
    Rollout,
    paired_difference,
    wilson,
)

LETTERS: Final = (*ascii_lowercase, *(a + b for a in ascii_lowercase for b in ascii_lowercase))


@dataclass(frozen=True)
class Compared:
    """Two submissions on the same scenes.

    Attributes:
        difference: better minus other, with its interval and p for this pair alone.
        p_family: p that allows for all pairs (Holm 1979).
    """

    better: str
    other: str
    difference: Difference
    p_family: float

    @property
    def is_significant(self) -> bool:
        """The difference is shown, at 5 % for all pairs together."""
        return self.p_family <= FAMILY_ERROR


@dataclass(frozen=True)
class Ranking:
    """Submissions in the order of their success.

    Attributes:
        rates: submission to its rate over all scenes, best first.
        letters: submission to the groups that it is in, such as `ab`; who shares one can't be told
            apart.
    """

    rates: Mapping[str, Rate]
    letters: Mapping[str, str]
    pairs: Sequence[Compared]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "order": [
                {"submission": name, "group": self.letters[name], **asdict(rate)}
                for name, rate in self.rates.items()
            ],
            "differences": [
                {"better": p.better, "other": p.other, **asdict(p.difference),
                 "p_family": p.p_family, "told_apart": p.is_significant}
                for p in self.pairs
            ],
        }  # fmt: skip


def ranked(outcomes: Mapping[str, Sequence[Rollout]]) -> Ranking:
    """Rank submissions that tried the same scenes, each scene once and independent of the others.

    Groups are the longest runs of the order in which no two can be told apart.

    Args:
        outcomes: submission to its rollouts.

    Raises:
        UnusableInputError: one didn't try the scenes of another.
    """
    rates = {k: wilson(sum(r.success for r in rows), len(rows)) for k, rows in outcomes.items()}
    order = sorted(rates, key=lambda k: (-rates[k].rate, k))
    found = [(a, b, paired_difference(outcomes[b], outcomes[a])) for a, b in combinations(order, 2)]
    adjusted = holm([difference.p for _, _, difference in found])
    pairs = [Compared(*pair, p) for pair, p in zip(found, adjusted, strict=True)]
    apart = {(p.better, p.other) for p in pairs if p.is_significant}
    letters, last = dict.fromkeys(order, ""), -1
    used = iter(LETTERS)
    for first, _ in enumerate(order):
        end = first
        while end + 1 < len(order) and not any(
            (order[k], order[end + 1]) in apart for k in range(first, end + 1)
        ):
            end += 1
        if end > last:  # else it lies within the group before
            letter, last = next(used), end
            for name in order[first : end + 1]:
                letters[name] += letter
    return Ranking({name: rates[name] for name in order}, letters, pairs)
