"""What takes against each cause are expected to bring, and which to record with a budget.

Of the failures that a dimension causes, n takes fix the share r(n) = a (1 - exp(-n / tau)). The
posterior of (a, tau) lives on a grid, with a lump at a = 0 for "demonstrations don't fix this". It
comes from `responses.json`: what takes brought at sites of the embedded cell, and how much that
differed between sites (predictive recursion: Newton, Sankhya A 64, 2002).

The expected gain of a plan is the sum over dimensions of (failure rate x share x fixed share), each
concave in its takes. So taking the best next take until the budget is spent, or the next one brings
less than is worth it, is the best plan (Fox, Operations Research 14, 1966). Everything that is
uncertain is drawn, the same draws for every part of a plan.
"""

from __future__ import annotations

import bisect
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate
from gaploop.core.vocabulary import GapDimension, Outcome

if TYPE_CHECKING:
    from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis

MOST_TAKES: Final = 500
"""Takes of one dimension that a plan may ask for."""
RECOVERABLE: Final[FloatArray] = np.asarray(np.linspace(0.0, 1.0, 21), dtype=np.float64)
"""Grid of `a`; the first entry is "no response"."""
TAKES_NEEDED: Final[FloatArray] = np.asarray(np.geomspace(2.0, 200.0, 13), dtype=np.float64)
"""Grid of `tau` [takes]."""
TAU_MEDIAN: Final = 15.0
TAU_LOG_SD: Final = 1.0
"""Before any trial, tau lies within a factor of e of 15 episodes in two cases of three: assumed."""
TRAINING_CORRELATION: Final = 0.02
"""Between rollouts of one trained policy: retraining moves a rate of 50 % by some 7 points.
Assumed; two training seeds of the embedded cell differed by about as much."""
CLIP: Final = 1e-3
"""Rates are kept this far from 0 and 1, so that a single rollout refutes nothing for good."""
BEFORE_ANY_SITE: Final = 2.0
"""What is believed before any site was tried counts as much as this many sites. Assumed."""
RESPONSES: Final = Path(__file__).with_name("responses.json")


@dataclass(frozen=True)
class Curve:
    """What is believed of one dimension's response: the probability of each (a, tau), summing to 1.

    Shape (len(RECOVERABLE), len(TAKES_NEEDED)).
    """

    probability: FloatArray

    @property
    def responds(self) -> float:
        """Probability that demonstrations fix anything at all."""
        return float(1.0 - self.probability[0].sum())

    def fixed(self, takes: FloatArray) -> FloatArray:
        """Return the expected share of failures fixed, for each number of takes."""
        return fixed_shares(takes) @ self.probability.ravel()

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[FloatArray, FloatArray]:
        """Return draws of `a` and `tau`, shape (draws,) each."""
        flat = np.cumsum(self.probability.ravel())
        places = np.minimum(np.searchsorted(flat, rng.random(draws)), len(flat) - 1)
        rows, columns = np.unravel_index(places, self.probability.shape)
        return np.asarray(RECOVERABLE[rows]), np.asarray(TAKES_NEEDED[columns])


NO_RESPONSE: Final = Curve(np.eye(1, len(RECOVERABLE) * len(TAKES_NEEDED)).reshape(
    len(RECOVERABLE), len(TAKES_NEEDED)
))  # fmt: skip
"""Of a policy that episodes can't teach."""


def fixed_share(a: FloatArray, tau: FloatArray, takes: FloatArray) -> FloatArray:
    """Return r(n) = a (1 - exp(-n / tau))."""
    return np.asarray(a * -np.expm1(-takes / tau))


def fixed_shares(takes: FloatArray) -> FloatArray:
    """Return r(n) on the grid, shape (len(takes), grid points)."""
    a, tau = np.meshgrid(RECOVERABLE, TAKES_NEEDED, indexing="ij")
    return fixed_share(a.ravel(), tau.ravel(), np.asarray(takes, dtype=float)[:, None])


@cache
def _responses() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESPONSES.read_text())
    return found


def recorded_before(dimension: GapDimension) -> tuple[float, float]:
    """Return how many demonstrations succeeded and failed under a dimension's gaps, down-weighted.

    They are of another cell: a stand-in for the station's own count.
    """
    value = _responses()["recorded"]
    done, tried = value[dimension.value]
    return value["weight"] * done, value["weight"] * (tried - done)


def no_response(dimension: GapDimension, image_policy: bool) -> tuple[float, str]:
    """Return the chance that demonstrations don't fix a dimension, before any, and why."""
    value = _responses()
    own = value["no_response_of_image_policies"] if image_policy else {}
    chance, why = {**value["no_response"], **own}[dimension.value]
    return float(chance), str(why)


def prior_entries() -> list[dict[str, Any]]:
    """Return the trials behind the curves as `responses.json` holds them."""
    return list(_responses()["trials"])


def expected_curves(*, image_policy: bool = False) -> dict[GapDimension, Curve]:
    """Return every dimension's curve for the next cell, by what was tried so far."""
    return curves_of(prior_entries(), image_policy)


def curves_of(
    entries: Iterable[Mapping[str, Any]], image_policy: bool = False
) -> dict[GapDimension, Curve]:
    """Return the curves that trials, as of `responses.json`, let expect of the next cell.

    Sites differ in what they respond to takes; the next one is drawn from where the sites tried
    were drawn from. That is estimated site by site, each with its own curve. Entries of policies
    that see pictures tell of their kind alone; where there are none, those of policies that see
    tracked poses stand in.
    """
    curves = {d: flat_curve(no_response(d, image_policy)[0]) for d in GapDimension}
    entries = sorted(entries, key=lambda entry: str(entry["id"]))
    own = set(_responses()["no_response_of_image_policies"]) if image_policy else set()
    own |= {e["dimension"] for e in entries if _sees_pictures(e) and image_policy}
    sites: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        if _sees_pictures(entry) == (entry["dimension"] in own):
            sites.setdefault((entry["dimension"], entry["site"]), []).append(entry)
    seen = Counter[GapDimension]()
    for (name, _), trials in sites.items():
        d = GapDimension(name)
        site = curves[d]
        for entry in trials:
            site = updated(site, entry["takes"], tuple(entry["before"]), tuple(entry["after"]))
        seen[d] += 1
        weight = 1.0 / (BEFORE_ANY_SITE + seen[d])
        curves[d] = Curve((1.0 - weight) * curves[d].probability + weight * site.probability)
    return curves


def _sees_pictures(entry: Mapping[str, Any]) -> bool:
    return entry.get("sees") == "pictures"


def flat_curve(fixes_nothing: float) -> Curve:
    """Return what is believed before any trial, with this chance that demonstrations fail."""
    weights = np.exp(-0.5 * (np.log(TAKES_NEEDED / TAU_MEDIAN) / TAU_LOG_SD) ** 2)
    weights /= weights.sum()
    shares = np.full(len(RECOVERABLE), (1.0 - fixes_nothing) / (len(RECOVERABLE) - 1))
    shares[0] = fixes_nothing
    return Curve(np.outer(shares, weights))


def updated(curve: Curve, takes: int, before: tuple[int, int], after: tuple[int, int]) -> Curve:
    """Return a curve moved by successes of rollouts (k, n) before and after a campaign of takes.

    Rollouts of one trained policy aren't independent samples of what training gives: they count as
    many as n / (1 + (n - 1) rho) would (Kish's design effect).
    """
    from scipy.stats import beta  # here: `--help` needs no statistics

    # 15 equally likely values of the rate before (Jeffreys' prior).
    done, n = before
    rate = beta.ppf((np.arange(15) + 0.5) / 15, done + 0.5, n - done + 0.5)
    done, n = after
    weight = 1.0 / (1.0 + (n - 1) * TRAINING_CORRELATION)
    fixed = fixed_shares(np.array([float(takes)]))[0][:, None]
    rate = np.clip(rate + (1.0 - rate) * fixed, CLIP, 1.0 - CLIP)  # (grid, 15)
    likelihood = np.exp(weight * (done * np.log(rate) + (n - done) * np.log1p(-rate))).mean(axis=1)
    posterior = curve.probability * likelihood.reshape(curve.probability.shape)
    return Curve(posterior / posterior.sum())


CAUSES: Final = (*GapDimension, None)
"""Columns of shares: the nine dimensions, then "none of these"."""
PSEUDO_TAKES: Final = 1.0
"""Prior of the shares: one episode, spread evenly over the causes (Perks 1947). Three failures of
one cause don't show that all have it."""
SHARED_ERRORS: Final = 0.5
"""Share of what the diagnosis is unsure of that goes wrong on all episodes of a station together.
Assumed: with none of it ten episodes at 60 % would make 60 % all but certain."""
DRAWS: Final = 4000
"""For intervals: their ends move by about a point between sets of as many draws."""


@dataclass(frozen=True)
class Failures:
    """What is known of a policy's failures, in an order of their own: that given doesn't matter.

    `measured` is the share of all rollouts that a dimension costs, where they were reproduced in
    the station's twin and it fails as the station does; `by_station` what all failures together
    name.
    """

    takes: tuple[TakeDiagnosis, ...]
    failed: int
    succeeded: int
    measured: Mapping[GapDimension, Estimate] = field(default_factory=dict)
    by_station: frozenset[GapDimension] = frozenset()

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> Failures:
        """Return the failures that a diagnosis is about."""
        outcomes: Mapping[str, int] = diagnosis.summary.get("outcomes", {})
        failed = max(int(outcomes.get(Outcome.FAILURE.value, 0)), len(diagnosis.takes))
        reproduction = diagnosis.summary.get("reproduction", {})
        alike = reproduction.get("reproduces") and reproduction["failing"]["station"] is not None
        measured: dict[GapDimension, Estimate] = {}
        for row in reproduction["costs"] if alike else ():
            if row["cause"] in set(GapDimension):  # its mechanisms' errors add up
                value, low, high = row["points"]
                d = GapDimension(row["cause"])
                so_far = measured.get(d, Estimate(0.0, 0.0, 0.0))
                below = math.hypot(so_far.value - so_far.low, value - low)
                above = math.hypot(so_far.high - so_far.value, high - value)
                mean = so_far.value + value
                measured[d] = Estimate(mean, mean - below, mean + above)
        told = diagnosis.summary.get("station", {}).get("named", ())
        return cls(
            tuple(sorted(diagnosis.takes, key=lambda t: (posterior(t), t.uid))),
            failed,
            int(outcomes.get(Outcome.SUCCESS.value, 0)),
            measured,
            frozenset(d for d in GapDimension if d.value in told),
        )

    @property
    def named(self) -> tuple[TakeDiagnosis, ...]:
        """Failures whose cause was named."""
        return tuple(t for t in self.takes if not t.abstained)

    @property
    def causes(self) -> frozenset[GapDimension]:
        """What was named, by a take of its own or by all together."""
        own = [t.named or ([t.top] if t.top else []) for t in self.named]
        return self.by_station | {GapDimension(c) for causes in own for c in causes}

    @property
    def rate_known(self) -> bool:
        """Whether successes were among what was diagnosed, so that points of success are known."""
        return self.succeeded > 0

    @cached_property
    def posteriors(self) -> FloatArray:
        """Each failure's posterior, shape (failures, len(CAUSES)); rows sum to 1."""
        found = np.array([posterior(t) for t in self.takes]).reshape(-1, len(CAUSES))
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    @cached_property
    def shares(self) -> FloatArray:
        """Expected share of the failures of each cause, shape (len(CAUSES),)."""
        counts = self.posteriors.sum(axis=0) + PSEUDO_TAKES / len(CAUSES)
        return np.asarray(counts / counts.sum())

    @property
    def rate(self) -> float:
        """Expected share of rollouts that fail; 1 where points are of the failures alone."""
        if not self.rate_known:
            return 1.0
        return (self.failed + 0.5) / (self.failed + self.succeeded + 1.0)

    def cost(self, dimension: GapDimension) -> float:
        """Return the expected share of all rollouts that fail for a dimension."""
        if dimension in self.measured:
            return max(0.0, self.measured[dimension].value)
        return self.rate * float(self.shares[CAUSES.index(dimension)])

    def draw_shares(self, rng: np.random.Generator, draws: int) -> FloatArray:
        """Return draws of the causes' shares, shape (draws, len(CAUSES)).

        A diagnosis that errs on one take of a station errs on the next for the same reason: part of
        the weight goes to causes drawn for all failures with one random number. Which failures were
        seen at all is drawn too (a Dirichlet posterior).
        """
        # How many failures have each cause where each is at quantile u of its posterior.
        u, last = rng.random(draws), len(CAUSES) - 1
        edges = np.sort(np.cumsum(self.posteriors, axis=1), axis=0)  # each column sorted
        upto = [len(edges) - np.searchsorted(edges[:, k], u, side="right") for k in range(last)]
        reached = np.stack([*upto, np.full(draws, len(edges))], axis=1).astype(float)
        shared = SHARED_ERRORS * np.diff(reached, axis=1, prepend=0.0)
        counts = shared + (1.0 - SHARED_ERRORS) * self.posteriors.sum(axis=0)
        weights = rng.standard_gamma(counts + PSEUDO_TAKES / len(CAUSES))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def posterior(take: TakeDiagnosis) -> tuple[float, ...]:
    """Return a take's shares in the order of `CAUSES`; all on "none" where nothing was found."""
    found = [take.dimensions.get(d.value, 0.0) for d in GapDimension]
    rest = max(take.none, 0.0)
    return (*found, rest if sum(found) + rest > 0 else 1.0)


class GainModel:
    """The same draws, shape (DRAWS,), for every part of a plan, so that parts and whole agree.

    `rate` is the share of rollouts that fail.
    """

    def __init__(self, failures: Failures, curves: Mapping[GapDimension, Curve]) -> None:
        self.rate: FloatArray = np.ones(DRAWS)
        if failures.rate_known:  # by Jeffreys' prior
            failed, succeeded = failures.failed + 0.5, failures.succeeded + 0.5
            self.rate = np.random.default_rng(0).beta(failed, succeeded, DRAWS)
        shares = failures.draw_shares(np.random.default_rng(1), DRAWS)
        self._lost = {d: self.rate * shares[:, CAUSES.index(d)] for d in GapDimension}
        spread = np.random.default_rng(6).standard_normal(DRAWS)
        for d, cost in failures.measured.items():
            below, above = (cost.value - cost.low) / 1.96, (cost.high - cost.value) / 1.96
            drawn = cost.value + spread * np.where(spread < 0, below, above)
            self._lost[d] = np.clip(drawn, 0.0, self.rate)
        rng = np.random.default_rng(2)
        self._curves = {d: curves[d].draw(rng, DRAWS) for d in GapDimension}

    def gain(self, dimension: GapDimension, takes: float) -> FloatArray:
        """Return draws of the percentage points that takes bring, shape (DRAWS,)."""
        return self.gain_of(dimension, self.fixed(dimension, takes))

    def gain_of(self, dimension: GapDimension, fixed: FloatArray) -> FloatArray:
        """Return draws of the points that fixing a share of a dimension's failures brings."""
        return 100.0 * self._lost[dimension] * fixed

    def fixed(self, dimension: GapDimension, takes: float) -> FloatArray:
        """Return draws of the share of its failures that takes fix, shape (DRAWS,)."""
        return fixed_share(*self._curves[dimension], np.asarray(float(takes)))


LEAST_GAIN: Final = 0.1
"""Percentage points of success that an episode must be expected to bring: assumed. Fifty episodes
for five points are hardly worth an afternoon."""
OPEN_RESPONSE: Final = 0.8
"""Probability that demonstrations help, below which the plan says that it is open."""


@dataclass(frozen=True)
class Budget:
    """What may be spent; every limit that is given holds."""

    takes: int | None = None
    """How many demonstrations may be recorded at most; 50 where no limit is given."""
    hours: float | None = None
    """How long recording may be expected to take [h]."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UnusableInputError(f"--budget.{name} is {value}: give 0 or more.")


class Decision(StrEnum):
    """What becomes of a dimension."""

    RECORD = "record"
    """Its episodes are worth their time."""
    UNCLEAR = "unclear"
    """Too few failures have a named cause."""
    NO_BUDGET = "no_budget"
    """Takes would be worth their time; the budget goes elsewhere."""
    NOT_WORTH = "not_worth"
    """The first episode brings too little."""
    NOT_FIXED = "not_fixed"
    """Demonstrations hardly ever fix it."""
    INSTEAD = "instead"
    """Another remedy brings more for an hour of an operator."""

    @property
    def demonstrate(self) -> bool:
        """Whether demonstrations are the remedy, now or later."""
        return self not in (Decision.NOT_WORTH, Decision.NOT_FIXED, Decision.INSTEAD)


@dataclass(frozen=True)
class DimensionQuota:
    """Takes of one dimension; `next_gain` is what one more is expected to bring [points]."""

    decision: Decision
    takes: int = 0
    next_gain: float = 0.0


def next_gains(
    curves: Mapping[GapDimension, Curve], points: Mapping[GapDimension, float]
) -> dict[GapDimension, FloatArray]:
    """Return what each dimension's 1st, 2nd, … take is expected to bring [points], (MOST_TAKES,).

    `points` are those of success that its failures cost.
    """
    takes = np.arange(MOST_TAKES + 1, dtype=float)
    return {d: np.diff(worth * curves[d].fixed(takes)) for d, worth in points.items()}


def best_order(
    gains: Mapping[GapDimension, FloatArray], price: Mapping[GapDimension, float], least_gain: float
) -> list[GapDimension]:
    """Return takes in the order in which to buy them: most of `next_gains` for its price first.

    Those that bring less than `least_gain` [points] are left out.
    """
    names = list(GapDimension)
    offers = [
        (-gain / price[d], place, names.index(d))
        for d, line in gains.items()
        for place, gain in enumerate(line)
        if gain > 0 and gain >= least_gain
    ]
    return [names[index] for _, _, index in sorted(offers)]


def affordable(
    order: Sequence[GapDimension],
    budget: Budget,
    hours: Callable[[Mapping[GapDimension, int]], float],
) -> dict[GapDimension, int]:
    """Return how many takes of each dimension the budget pays for: the longest part of `order`.

    `hours` are those that an allocation is expected to need; they grow with it.
    """
    limit_h = math.inf if budget.hours is None else budget.hours

    def first(takes: int) -> dict[GapDimension, int]:
        bought = order[:takes]
        return {d: bought.count(d) for d in GapDimension if d in bought}

    most = len(order) if budget.takes is None else min(len(order), budget.takes)
    paid = bisect.bisect_right(range(1, most + 1), limit_h, key=lambda n: hours(first(n)))
    return first(paid)


def split_takes(takes: int, masses: Sequence[float], curve: Curve) -> list[int]:
    """Share takes out among conditions, of which `masses` are the failures' shares, to fix most.

    Takes under one condition are assumed to fix failures under that condition. An even split
    among C equal conditions fixes what the dimension's own curve says: n takes under one of them
    count as C n.
    """
    each = np.minimum(np.arange(takes + 1) * len(masses), MOST_TAKES).astype(float)
    gains = np.diff(curve.fixed(each))
    got = [0] * len(masses)
    for _ in range(takes):
        best = max(range(len(masses)), key=lambda c: (masses[c] * gains[got[c]], -c))
        got[best] += 1
    return got
