"""Evidence that grows with every attempt and may be looked at after any: bets against a hypothesis.

Against "the mean of x is at most m" a gambler stakes a share of the wealth on x > m before every
round. Where the hypothesis holds the wealth can't be expected to grow, whatever the stakes, so it
reaches 1/alpha with a chance of at most alpha, however often one looks and whenever one stops
(Ville's inequality). Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables
by betting", JRSS-B 86(1); with a fixed stake on pairs of successes it is Wald's likelihood ratio.

A round holds one value per kind of attempt, in any order, at one stake. Kinds have to be
independent of each other, so each has scenes of its own. The product over a round can then be
expected to be at most what equal means would give (arithmetic over geometric mean), so the
hypothesis is about the mean over the kinds and the evidence counts at the end of each round.

What a comparison costs and finds is planned with it. Two policies trained on the same data with
other seeds differ in their true success. A test that compares two given policies finds that
difference, and would promote every lucky retrain. So the candidate has to be better by more than a
margin, chosen so that a mere retrain is promoted in at most alpha of all cases, luck of training
and luck of attempts taken together.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import norm

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.suite import Rules, Suite

PRIOR: Final = 20.0
"""The planned mean and spread count as this many values when stakes are adapted."""
CAP: Final = 0.9
"""Largest share of the wealth that one value may cost."""
GRID: Final = np.linspace(-0.995, 0.995, 200)
"""Differences that a confidence sequence is searched on: steps of a point."""
NEAR: Final = 0.1
"""Stakes of a confidence sequence are best for a mean that differs by this much."""


def log_evidence(
    x: FloatArray, null: float, target: float, spread: float, *,
    low: float | FloatArray = -1.0, prior: float = PRIOR,
) -> FloatArray:  # fmt: skip
    """Return the log of the wealth after every round, against "the mean is at most `null`".

    Args:
        x: values, shape (..., rounds, kinds).
        target: mean that the stakes are best for; larger ones are learned on the way.
        spread: second moment about `null` that is expected.
        low: no value is lower; an array has shape (..., 1).
        prior: how many values `target` and `spread` count as; infinite keeps the stake as it is.

    Returns:
        shape (..., rounds).
    """
    x = np.asarray(x, dtype=np.float64)
    past = np.arange(x.shape[-2], dtype=np.float64) * x.shape[-1]
    trust, count = past / (past + prior), np.maximum(past, 1.0)
    gained, total, squares = x - null, _before(x), _before((x - null) ** 2)
    second = spread + trust * (squares / count - spread)
    mean = target + trust * (total / count - target)
    gain = np.maximum(target, mean) - null
    stake = np.minimum(gain / np.maximum(second, gain**2), CAP / (null - low))
    wealth: FloatArray = np.log1p(stake[..., None] * gained).sum(-1).cumsum(-1)
    return wealth


def rate_evidence(successes: npt.ArrayLike, null: float, target: float) -> FloatArray:
    """Return the log of the wealth against "the rate is at most `null`", after every attempt.

    Args:
        successes: 0 or 1, shape (..., attempts).
        target: rate that the stake is best for, above `null`.
    """
    x = np.asarray(successes, dtype=np.float64)[..., None]
    # With this spread the stake is the one that makes the wealth the likelihood ratio.
    return log_evidence(x, null, target, null * (1 - null), low=0.0, prior=math.inf)


@dataclass(eq=False)
class Wealth:
    """The wealth of `log_evidence` for rounds of one value, as they come in one by one.

    Attributes:
        evidence: what it is against; returns the log after every value, shape (n,).
        log_e: as it is now.
        peak: the most that it ever was.
    """

    evidence: Callable[[FloatArray], FloatArray]
    log_e: float = 0.0
    peak: float = 0.0
    _values: list[float] = field(default_factory=list)

    def add(self, x: float) -> None:
        """Take a value in."""
        self._values.append(x)
        self.log_e = float(self.evidence(np.array(self._values, dtype=np.float64))[-1])
        self.peak = max(self.peak, self.log_e)


def discordance(one: float, other: float) -> float:
    """Return how often exactly one of two independent attempts succeeds, given their rates."""
    return one * (1 - other) + other * (1 - one)


def difference_interval(x: FloatArray, alpha: float, spread: float) -> tuple[float, float]:
    """Return an interval for the mean of `x` that holds at all rounds together.

    Args:
        x: differences in [-1, 1], shape (rounds, kinds).
        alpha: chance that it misses the mean at any round, at most.
        spread: second moment that is expected.
    """
    bound = math.log(2 / alpha)
    above = _peaks(x, spread) < bound
    below = _peaks(-x, spread)[::-1] < bound
    low = _edge(GRID[above.argmax()]) if above.any() else 1.0
    high = _edge(GRID[::-1][below[::-1].argmax()]) if below.any() else -1.0
    return low, high


def _edge(value: float) -> float:
    """Return an end of the grid as the end of what is possible."""
    return float(np.sign(value)) if abs(value) >= GRID[-1] else float(value)


def _peaks(x: FloatArray, spread: float) -> FloatArray:
    """Return the most evidence ever against "the mean is at most m", for each m of the grid."""
    nulls = GRID[:, None]
    shifted = x[None] - nulls[..., None]  # a mean of m is one of 0 here
    low: FloatArray = np.subtract(-1.0, nulls, dtype=np.float64)
    log_e = log_evidence(shifted, 0.0, NEAR, spread, low=low)
    peaks: FloatArray = log_e.max(-1, initial=0.0)
    return peaks


def _before(x: FloatArray) -> FloatArray:
    """Return the sum of all values of the rounds before, shape (..., rounds)."""
    sums = x.sum(-1)
    before: FloatArray = sums.cumsum(-1) - sums
    return before


LONGEST: Final = 2.6
"""A comparison may take this many times the pairs of a fixed one: it then keeps its power, as its
stopping early for want of a gain takes a part of the permitted misses."""
MOST_PAIRS: Final = 5_000
"""A fixed comparison of more pairs than this is refused."""
LUCK_SHARE: Final = 0.9
"""Of alpha, what retrains may take by plan; the rest is for power curves not being quite normal."""


@dataclass(frozen=True)
class PowerPoint:
    """What the comparison does where the candidate differs by `difference`.

    Attributes:
        promoted: share of comparisons that promote it.
        pairs: pairs of attempts needed on average.
    """

    difference: float
    promoted: float
    pairs: float


@dataclass(frozen=True)
class GateDesign:
    """A comparison, planned.

    Attributes:
        gain: smallest improvement that is worth finding.
        margin: the candidate has to be better by more than this, in success.
        max_pairs: pairs of attempts after which it ends without an answer.
        fixed_pairs: pairs that a test of fixed size with the same errors needs.
        curve: power and mean pairs by true difference, once simulated; see `power_curve`.
    """

    gain: float
    margin: float
    max_pairs: int
    fixed_pairs: int
    curve: tuple[PowerPoint, ...] = ()


def as_told(suite: Suite, false_success: float, false_failure: float) -> Suite:
    """Return a suite as labels show it that are wrong in these shares of failures and successes.

    A rate p shows as false_success + (1 - false_success - false_failure) p, whichever policy
    drove; so all differences shrink alike, and what the rules promise of true ones holds.
    """
    shown = 1.0 - false_success - false_failure
    rules = suite.rules
    return replace(
        suite,
        rules=replace(
            rules,
            gain=shown * rules.gain,
            retrain_sd=shown * rules.retrain_sd,
            baseline_rate=false_success + shown * rules.baseline_rate,
            non_inferiority_margin=shown * rules.non_inferiority_margin,
        ),
        tasks=tuple(
            replace(t, min_pass_rate=false_success + shown * t.min_pass_rate)
            if t.min_pass_rate
            else t
            for t in suite.tasks
        ),
    )


def make_design(rules: Rules, kinds: int = 1) -> GateDesign:
    """Plan a comparison.

    Args:
        kinds: tasks of the suite; evidence counts once all of them were tried.

    Raises:
        UnusableInputError: retrains differ so much that no gain of this size can be told apart.
    """
    margin = retrain_margin(rules)
    fixed = fixed_pairs(rules, margin)
    if fixed > MOST_PAIRS and not rules.max_pairs:
        raise UnusableInputError(
            f"rules: a gain of {rules.gain:g} over a margin of {margin:.3f} (from retrain_sd "
            f"{rules.retrain_sd:g}) takes {fixed} pairs even at a fixed size. Raise gain, or set "
            "max_pairs to have less power."
        )
    most = math.ceil((rules.max_pairs or LONGEST * fixed) / kinds) * kinds
    return GateDesign(rules.gain, margin, most, fixed)


def retrain_margin(rules: Rules) -> float:
    """Return the margin that keeps promotions of mere retrains at `alpha`.

    Retrains differ by luck with a variance of 2 retrain_sd². The power curve of a test that
    holds alpha at the margin and `power` at the gain is taken as normal; averaged over that luck
    it has to be alpha at most.

    Raises:
        UnusableInputError: no margin below the gain does it.
    """
    if rules.retrain_sd == 0:
        return 0.0
    best = rules.gain / (math.sqrt(2) * norm.isf(LUCK_SHARE * rules.alpha))
    if rules.retrain_sd >= 0.99 * best:
        raise UnusableInputError(
            f"rules: retrain_sd {rules.retrain_sd:g} hides a gain of {rules.gain:g}: trainings on "
            f"the same data differ as much. Raise gain, or bring retrain_sd under {best:.3f} by "
            "training more evenly, such as for longer or by averaging weights."
        )
    z, luck = float(norm.isf(rules.alpha)), float(norm.isf(LUCK_SHARE * rules.alpha))

    def excess(margin: float) -> float:
        """Return by how much the middle of the power curve falls short of what retrains need."""
        slope = (rules.gain - margin) / (z + float(norm.ppf(rules.power)))
        return margin + z * slope - luck * math.sqrt(slope**2 + 2 * rules.retrain_sd**2)

    return float(brentq(excess, 0.0, rules.gain * (1 - 1e-6)))


def fixed_pairs(rules: Rules, margin: float) -> int:
    """Return the pairs that a one-sided test of fixed size needs for the same errors.

    Normal approximation for the difference of paired proportions (Connor 1987, Biometrics
    43:207-211), with independent attempts.
    """
    base = rules.baseline_rate
    null, gain = min(base + margin, 1.0), base + rules.gain
    false = norm.isf(rules.alpha) * math.sqrt(discordance(base, null) - margin**2)
    missed = norm.ppf(rules.power) * math.sqrt(discordance(base, gain) - rules.gain**2)
    return math.ceil(((false + missed) / (rules.gain - margin)) ** 2)
