"""What a comparison will cost and find, worked out before it starts.

Two policies trained on the same data with other seeds differ in their true success. A test that
compares two given policies finds that difference, and would promote every lucky retrain. So the
candidate has to be better by more than a margin, chosen so that a mere retrain is promoted in at
most alpha of all cases, luck of training and luck of attempts taken together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from scipy.optimize import brentq
from scipy.stats import norm

from gaploop.core.errors import UnusableInputError
from gaploop.core.suite import Rules
from gaploop.finetune.gate.evidence import discordance

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
