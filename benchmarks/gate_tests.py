"""The tests that `benchmarks gate` compares, each over many comparisons at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gaploop.core.suite import Rules

    type Flags = npt.NDArray[np.bool_]
    type Numbers = npt.NDArray[np.float64]

LOOKS: Final = 10
"""Looks of the sequential Barnard test."""
NUISANCE: Final = 33
"""Success rates over which Barnard's test takes the worst case."""


@dataclass(frozen=True)
class ComparisonsEnded:
    """How comparisons ended: whether each promoted, and after how many pairs."""

    promoted: Flags
    pairs: Numbers


type Test = Callable[[Flags, Flags], ComparisonsEnded]
"""From outcomes of baseline and candidate, shape (draws, pairs), to how each comparison ended."""


def gate(old: Flags, new: Flags, rules: Rules, margin: float, most: int) -> ComparisonsEnded:
    """The gate's comparison of one task."""
    import numpy as np

    x = (new[:, :most].astype(np.float64) - old[:, :most])[..., None]
    better, futile = stops(x, rules, margin)
    return ComparisonsEnded(
        (better < futile) & np.isfinite(better), np.minimum(np.minimum(better, futile), most)
    )


def stops(x: Numbers, rules: Rules, margin: float) -> tuple[Numbers, Numbers]:
    """Return the round, from 1, at which each comparison promotes, and at which it gives up.

    Infinite where it never does; the smaller of the two is what happens.

    Args:
        x: candidate minus baseline, each -1, 0 or 1, shape (..., rounds, kinds).
        rules: error rates and margins.
        margin: of `GateDesign`.
    """
    import numpy as np

    from gaploop.finetune.gate.judge import comparison

    def first(reached: Flags) -> Numbers:
        at: Numbers = np.where(reached.any(-1), reached.argmax(-1) + 1.0, np.inf)
        return at

    better, futile = comparison(x, rules, margin)
    bounds = math.log(1 / rules.alpha), math.log(1 / (1 - rules.power))
    return first(better >= bounds[0]), first(futile >= bounds[1])


def fixed(old: Flags, new: Flags, pairs: int, margin: float, alpha: float) -> ComparisonsEnded:
    """One look: exact McNemar, or Wald's test of the paired difference against a margin."""
    import numpy as np
    from scipy.stats import binom, norm

    old, new = old[:, :pairs], new[:, :pairs]
    gained, lost = (new & ~old).sum(1), (old & ~new).sum(1)
    if margin:
        value = (gained - lost) / pairs
        spread = np.maximum((gained + lost) / pairs - value**2, 1e-9)
        promoted = (value - margin) / np.sqrt(spread / pairs) >= norm.isf(alpha)
    else:
        promoted = binom.sf(gained - 1, gained + lost, 0.5) <= alpha
    return ComparisonsEnded(promoted, np.full(len(old), float(pairs)))


def peeking(old: Flags, new: Flags, pairs: int, alpha: float) -> ComparisonsEnded:
    """What people do: the fixed test after every pair, until it says yes."""
    import numpy as np
    from scipy.stats import binom

    old, new = old[:, :pairs], new[:, :pairs]
    gained, lost = (new & ~old).cumsum(1), (old & ~new).cumsum(1)
    yes = binom.sf(gained - 1, gained + lost, 0.5) <= alpha
    return ComparisonsEnded(yes.any(1), np.where(yes.any(1), yes.argmax(1) + 1.0, pairs))


def barnard(old: Flags, new: Flags, pairs: int, alpha: float) -> ComparisonsEnded:
    """Barnard's exact test at a few looks, each at its share of alpha; no stop for futility.

    The procedure of `BarnardSequentialTest` in sequentialized-barnard-tests, with alpha shared
    evenly; that package is licensed for non-commercial use only and isn't used here.
    """
    import numpy as np

    at: Numbers = np.full(len(old), np.inf)
    for look in range(1, LOOKS + 1):
        n = look * pairs // LOOKS
        table = barnard_rejects(n, alpha / LOOKS)
        yes = table[old[:, :n].sum(1), new[:, :n].sum(1)]
        at = np.where(yes & np.isinf(at), n, at)
    return ComparisonsEnded(np.isfinite(at), np.minimum(at, pairs))


def barnard_rejects(n: int, alpha: float) -> Flags:
    """Return where Barnard's test of two rates, one-sided, rejects at `alpha`.

    Tables are ordered by the pooled Wald statistic (Barnard 1947); the worst case is taken over
    a grid of common rates.

    Args:
        n: attempts of each.
        alpha: level.

    Returns:
        shape (n + 1, n + 1), by successes of the first and the second.
    """
    import numpy as np
    from scipy.stats import binom

    first, second = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    pooled = (first + second) / (2 * n)
    spread = np.sqrt(np.maximum(pooled * (1 - pooled) * 2 / n, 1e-12))
    statistic = np.round((second - first) / n / spread, 9).ravel()
    values, place = np.unique(-statistic, return_inverse=True)
    worst = np.zeros(len(values))
    for rate in np.linspace(0, 1, NUISANCE + 2)[1:-1]:
        mass = binom.pmf(np.arange(n + 1), n, rate)
        chance = np.bincount(place, np.outer(mass, mass).ravel(), len(values))
        worst = np.maximum(worst, chance.cumsum())
    rejects: Flags = ((worst <= alpha) & (values < 0))[place].reshape(n + 1, n + 1)
    return rejects
