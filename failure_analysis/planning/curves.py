"""How far demonstrations fix a dimension: a learning curve with its uncertainty.

Of the failures that a dimension causes, n takes fix the share r(n) = a (1 - exp(-n / tau)): `a` is
what can be fixed at all, `tau` how many takes it needs. The posterior of (a, tau) lives on a grid,
with a lump at a = 0 for "demonstrations don't fix this". It starts from `responses.json`: what
takes brought at sites of the embedded cell, and how much that differed between sites (predictive
recursion: Newton, Sankhya A 64, 2002). Every campaign's result, rollouts before and after, moves
it on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import GapDimension

MOST_TAKES: Final = 500
"""Takes of one dimension that a plan may ask for."""
RECOVERABLE: Final[FloatArray] = np.asarray(np.linspace(0.0, 1.0, 21), dtype=np.float64)
"""Grid of `a`; the first entry is "no response"."""
TAKES_NEEDED: Final[FloatArray] = np.asarray(np.geomspace(2.0, 200.0, 13), dtype=np.float64)
"""Grid of `tau` [takes]."""
TAU_MEDIAN: Final = 15.0
TAU_LOG_SD: Final = 1.0
"""Before any trial, tau lies within a factor of e of 15 takes in two cases of three: assumed."""
TRAINING_CORRELATION: Final = 0.02
"""Between rollouts of one trained policy: retraining moves a rate of 50 % by some 7 points.
Assumed; two training seeds of the embedded cell differed by about as much."""
CLIP: Final = 1e-3
"""Rates are kept this far from 0 and 1, so that a single rollout refutes nothing for good."""
BEFORE_ANY_SITE: Final = 2.0
"""What is believed before any site was tried counts as much as this many sites. Assumed."""
DRAWS: Final = 64
"""Of the other dimensions' curves, where one campaign fixed several."""

RESPONSES: Final = Path(__file__).with_name("responses.json")


@dataclass(frozen=True)
class Trial:
    """Success before and after a campaign.

    Attributes:
        id: names it; a trial counts once.
        takes: dimension to takes recorded for it.
        shares: dimension to its share of the failures before, 0 to 1.
        before: successes and rollouts before.
        after: successes and rollouts after.
    """

    id: str
    takes: Mapping[GapDimension, int]
    shares: Mapping[GapDimension, float]
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass(frozen=True)
class Curve:
    """What is believed of one dimension's response.

    Attributes:
        probability: of each (a, tau), shape (len(RECOVERABLE), len(TAKES_NEEDED)); sums to 1.
    """

    probability: FloatArray

    @property
    def responds(self) -> float:
        """Probability that demonstrations fix anything at all."""
        return float(1.0 - self.probability[0].sum())

    def mended(self, takes: FloatArray) -> FloatArray:
        """Return the expected share of failures fixed, for each number of takes."""
        return shares_mended(takes) @ self.probability.ravel()

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[FloatArray, FloatArray]:
        """Return draws of `a` and `tau`, shape (draws,) each."""
        flat = np.cumsum(self.probability.ravel())
        places = np.minimum(np.searchsorted(flat, rng.random(draws)), len(flat) - 1)
        rows, columns = np.unravel_index(places, self.probability.shape)
        return np.asarray(RECOVERABLE[rows]), np.asarray(TAKES_NEEDED[columns])

    def interval(self, takes: int) -> tuple[float, float]:
        """Return the central 95 % interval of the share fixed by that many takes."""
        values = shares_mended(np.array([float(takes)]))[0]
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(self.probability.ravel()[order])
        low, high = np.searchsorted(reached, (0.025, 0.975))
        last = len(order) - 1
        return float(values[order[min(low, last)]]), float(values[order[min(high, last)]])


def mended_share(a: FloatArray, tau: FloatArray, takes: FloatArray) -> FloatArray:
    """Return r(n) = a (1 - exp(-n / tau))."""
    return np.asarray(a * -np.expm1(-takes / tau))


def shares_mended(takes: FloatArray) -> FloatArray:
    """Return r(n) on the grid, shape (len(takes), grid points)."""
    a, tau = np.meshgrid(RECOVERABLE, TAKES_NEEDED, indexing="ij")
    return mended_share(a.ravel(), tau.ravel(), np.asarray(takes, dtype=float)[:, None])


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


def why_no_response(dimension: GapDimension, image_policy: bool = False) -> str:
    """Return why demonstrations may not fix a dimension, in words."""
    return str(_no_response(dimension, image_policy)[1])


def _no_response(dimension: GapDimension, image_policy: bool) -> tuple[float, str]:
    value = _responses()
    table = value["no_response"]
    if image_policy:
        table = table | value["no_response_of_image_policies"]
    chance, why = table[dimension.value]
    return float(chance), str(why)


def prior_entries() -> list[dict[str, Any]]:
    """Return the trials behind the prior as `responses.json` holds them."""
    return list(_responses()["trials"])


def prior_curves(
    entries: Iterable[Mapping[str, Any]], image_policy: bool = False
) -> dict[GapDimension, Curve]:
    """Return what is believed of the next cell before any campaign there.

    Sites differ in what they respond to takes; the next one is drawn from where the sites tried
    were drawn from. That is estimated site by site, each with its own curve.

    Args:
        entries: trials as `responses.json` holds them.
        image_policy: the policy sees pictures. The trials are of one that sees tracked poses, and
            tell nothing of light and clutter for another.
    """
    curves = {d: flat_curve(_no_response(d, image_policy)[0]) for d in GapDimension}
    unlike = _responses()["no_response_of_image_policies"] if image_policy else ()
    sites: dict[tuple[str, str], list[Trial]] = {}
    for entry in sorted(entries, key=lambda entry: str(entry["id"])):
        if entry["dimension"] not in unlike:
            sites.setdefault((entry["dimension"], entry["site"]), []).append(_trial(entry))
    seen = Counter[GapDimension]()
    for (name, _), trials in sites.items():
        d = GapDimension(name)
        site = reduce(updated, trials, {d: curves[d]})[d]
        seen[d] += 1
        weight = 1.0 / (BEFORE_ANY_SITE + seen[d])
        curves[d] = Curve((1.0 - weight) * curves[d].probability + weight * site.probability)
    return curves


def _trial(entry: Mapping[str, Any]) -> Trial:
    d = GapDimension(entry["dimension"])
    return Trial(
        entry["id"], {d: entry["takes"]}, {d: 1.0}, tuple(entry["before"]), tuple(entry["after"])
    )


def flat_curve(no_response: float) -> Curve:
    """Return what is believed before any trial.

    Args:
        no_response: probability that demonstrations fix nothing.
    """
    weights = np.exp(-0.5 * (np.log(TAKES_NEEDED / TAU_MEDIAN) / TAU_LOG_SD) ** 2)
    weights /= weights.sum()
    shares = np.full(len(RECOVERABLE), (1.0 - no_response) / (len(RECOVERABLE) - 1))
    shares[0] = no_response
    return Curve(np.outer(shares, weights))


def learn(trials: Iterable[Trial] = (), *, image_policy: bool = False) -> dict[GapDimension, Curve]:
    """Return every dimension's curve, from the prior and these trials.

    Trials are taken in order of their ids, each id once: neither order nor repetition matters.

    Args:
        trials: results of campaigns.
        image_policy: the policy sees pictures rather than tracked poses.
    """
    curves = prior_curves(prior_entries(), image_policy)
    every = {trial.id: trial for trial in trials}
    for name in sorted(every):
        curves |= updated(curves, every[name])
    return curves


def updated(curves: Mapping[GapDimension, Curve], trial: Trial) -> dict[GapDimension, Curve]:
    """Return the curves that a trial tells about, moved by it.

    Where a campaign recorded takes for several dimensions, each is judged with the others'
    contribution drawn from their own curves.
    """
    told = [d for d, n in sorted(trial.takes.items()) if n and trial.shares.get(d, 0.0) > 0]
    rng = np.random.default_rng(0)
    gains = {d: _gain_draws(curves[d], trial, d, rng) for d in told}
    moved = {}
    for d in told:
        rest = [gains[o] for o in told if o != d]
        moved[d] = _moved(curves[d], trial, d, np.sum(rest, axis=0) if rest else np.zeros(1))
    return moved


def _gain_draws(
    curve: Curve, trial: Trial, dimension: GapDimension, rng: np.random.Generator
) -> FloatArray:
    a, tau = curve.draw(rng, DRAWS)
    share = trial.shares[dimension]
    return share * mended_share(a, tau, np.asarray(float(trial.takes[dimension])))


def _moved(curve: Curve, trial: Trial, dimension: GapDimension, others: FloatArray) -> Curve:
    """Return the posterior of one curve; `others` are draws of what other dimensions fixed."""
    own = trial.shares[dimension] * shares_mended(np.array([float(trial.takes[dimension])]))[0]
    mended = np.minimum(own[:, None] + others[None, :], 1.0)  # (grid, draws)
    before = _rate_points(trial.before)  # (points,)
    after = before + (1.0 - before) * mended[:, :, None]
    likelihood = np.exp(_log_likelihood(after, trial)).mean(axis=(1, 2))
    posterior = curve.probability * likelihood.reshape(curve.probability.shape)
    return Curve(posterior / posterior.sum())


def _log_likelihood(rate: FloatArray, trial: Trial) -> FloatArray:
    """Return the log likelihood of the rollouts after, up to a constant.

    Rollouts of one trained policy aren't independent samples of what training gives: they count
    as many as n / (1 + (n - 1) rho) would (Kish's design effect).
    """
    done, n = trial.after
    weight = 1.0 / (1.0 + (n - 1) * TRAINING_CORRELATION)
    rate = np.clip(rate, CLIP, 1.0 - CLIP)
    return np.asarray(weight * (done * np.log(rate) + (n - done) * np.log1p(-rate)))


def _rate_points(counts: tuple[int, int]) -> FloatArray:
    """Return 15 equally likely values of a rate seen as `counts` (Jeffreys' prior)."""
    from scipy.stats import beta  # here: `--help` needs no statistics

    done, n = counts
    return np.asarray(beta.ppf((np.arange(15) + 0.5) / 15, done + 0.5, n - done + 0.5))
