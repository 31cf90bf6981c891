"""The station's verdict: one posterior over causes for all of its failures, beside the takes' own.

Takes of one station share its gaps, and the errors of a diagnosis too: their evidence is pooled as
a product of likelihoods (logarithmic opinion pool, Genest and Zidek 1986, Statistical Science
1:114) whose exponent counts n takes that err together as n / (1 + (n - 1) rho).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension

NONE: Final = "none"
POLICY: Final = "policy"
UNMEASURED: Final = "not_measured"
SAYS: Final[Mapping[str, str]] = {
    NONE: "nothing that these takes show",
    POLICY: "the policy itself",
    UNMEASURED: "something that was not measured",
}
"""What people read for a cause that is no dimension."""
NAMED_FROM: Final = 0.8
"""A wrong name costs four times what a right one is worth: from here on naming pays."""
SHARED_ERRORS: Final = 0.5
"""Of what a diagnosis is unsure of, the part that goes wrong on all takes of a station together."""
FLOOR: Final = 0.02
"""Least share of a cause in a take: no take alone rules a cause out."""
TOLD_FROM: Final = 0.2
"""Twice an even share: what leads with less doesn't lead."""
RUNNERS_UP: Final = 0.5
"""Causes with at least this part of the leading one's share are told beside it."""


@dataclass(frozen=True)
class StationVerdict:
    """What the failures of one station say together, in words and as causes.

    Attributes:
        posterior: cause to share: dimensions, and "none", or "policy" and "not_measured" where
            failures were reproduced; sums to 1; empty without failures.
        named: the causes that are named, likeliest first.
        leading: the likeliest cause, named or not; "" without failures.
    """

    posterior: Mapping[str, float]
    named: tuple[str, ...]
    takes: int
    message: str
    leading: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return `summary.station` of a diagnosis."""
        return {
            "posterior": {c: round(p, 6) for c, p in self.posterior.items()},
            "leading": self.leading,
            "named": list(self.named),
            "takes": self.takes,
            "says": self.message,
        }


def words(name: str) -> str:
    """Return a name of the vocabulary as people read it."""
    return name.replace("_", " ")


def cause_words(cause: str) -> str:
    """Return a cause as people read it."""
    return SAYS.get(cause, words(cause))


def pooled(takes: Sequence[tuple[Mapping[str, float], float]]) -> FloatArray:
    """Return the posterior of a station over the nine dimensions and "none", shape (10,).

    From each failure's shares of the dimensions, and of "none".
    """
    rows = np.array([[*(shares[d.value] for d in GapDimension), none] for shares, none in takes])
    n = len(rows)
    logs = np.log(np.maximum(rows, FLOOR)).sum(axis=0) / (1.0 + (n - 1) * SHARED_ERRORS)
    grown = np.exp(logs - logs.max())
    return np.asarray(grown / grown.sum())


def verdict(
    posterior: Mapping[str, float],
    takes: int,
    also: Mapping[str, float] | None = None,
    *,
    may_name: bool = True,
    hidden: bool = False,
) -> StationVerdict:
    """Return a posterior with what is named, and in words.

    Args:
        also: causes that are named whatever their share, because they were measured, to how
            likely each acts.
        may_name: nothing is named without.
        hidden: not everything could be seen: that nothing was is then no answer.
    """
    if not takes:
        return StationVerdict({}, (), 0, "Nothing failed: nothing to explain.")
    ranked = sorted(posterior, key=lambda c: (hidden and c == NONE, -posterior[c]))
    sure = [c for c in ranked if posterior[c] >= NAMED_FROM and c != NONE]
    acts = also or {}
    named = tuple(c for c in ranked if c in {*sure, *acts}) if may_name else ()
    top = posterior[ranked[0]]
    seen = [c for c in ranked if not (hidden and c == NONE)]
    told = named or [c for c in seen if posterior[c] >= RUNNERS_UP * top][:3]
    causes = ", ".join(f"{cause_words(c)} {max(acts.get(c, 0), posterior[c]):.0%}" for c in told)
    if top < TOLD_FROM:
        message = "Station: nothing in these takes tells the causes apart."
    elif named:
        message = f"Station: {causes}."
    else:
        why = f" (from {NAMED_FROM:.0%})" if may_name else " by this evidence"
        message = f"Station: leans to {causes}; too unsure to name{why}."
    return StationVerdict(dict(posterior), named, takes, message, ranked[0])


def hedged(
    shares: Mapping[str, float], none: float, hidden: Sequence[str], trust: float
) -> tuple[dict[str, float], float]:
    """Return a take's shares and "none" where what is usual holds the station's own gaps.

    Half of "nothing seen" goes to the causes that such a reference hides, and all of it is worth as
    much as it was right when that was tried: the share `trust`.
    """
    moved = 0.5 * none / len(hidden) if hidden else 0.0
    even = (1.0 - trust) / (len(shares) + 1)
    found = {d: trust * (s + moved * (d in hidden)) + even for d, s in shares.items()}
    return found, max(0.0, 1.0 - math.fsum(found.values()))
