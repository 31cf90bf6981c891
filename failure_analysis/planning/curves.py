"""How far demonstrations fix a dimension: a learning curve with its uncertainty.

Of the failures that a dimension causes, n takes fix the share r(n) = a (1 - exp(-n / tau)). The
posterior of (a, tau) lives on a grid, with a lump at a = 0 for "demonstrations don't fix this". It
starts from `responses.json`: what takes brought at sites of the embedded cell, and how much that
differed between sites (predictive recursion: Newton, Sankhya A 64, 2002). Every campaign's rollouts
before and after move it on, and are kept from plan to plan in `curves.json`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import FloatArray
from gaploop.core.plan import Plan
from gaploop.core.vocabulary import GapDimension, dimension

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

SCHEMA: Final = "gaploop.curves.v1"
SHOWN_TAKES: Final = (5, 10, 20, 50, 100)
"""Numbers of takes for which `curves.json` spells out what is expected."""
RESPONSES: Final = Path(__file__).with_name("responses.json")


@dataclass(frozen=True)
class Trial:
    """Success before and after a campaign, which counts once; by dimension its takes and share.

    `before` and `after` are successes and rollouts.
    """

    id: str
    takes: Mapping[GapDimension, int]
    shares: Mapping[GapDimension, float]
    before: tuple[int, int]
    after: tuple[int, int]


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

    def interval(self, takes: int) -> tuple[float, float]:
        """Return the central 95 % interval of the share fixed by that many takes."""
        values = fixed_shares(np.array([float(takes)]))[0]
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(self.probability.ravel()[order])
        low, high = np.searchsorted(reached, (0.025, 0.975))
        last = len(order) - 1
        return float(values[order[min(low, last)]]), float(values[order[min(high, last)]])


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
    """Return the trials behind the prior as `responses.json` holds them."""
    return list(_responses()["trials"])


def prior_curves(
    entries: Iterable[Mapping[str, Any]], image_policy: bool = False
) -> dict[GapDimension, Curve]:
    """Return what is believed of the next cell before any campaign there.

    Sites differ in what they respond to takes; the next one is drawn from where the sites tried
    were drawn from. That is estimated site by site, each with its own curve. Entries are as of
    `responses.json`. Those of policies that see pictures tell of their kind alone; where there are
    none, those of policies that see tracked poses stand in.
    """
    curves = {d: flat_curve(no_response(d, image_policy)[0]) for d in GapDimension}
    entries = sorted(entries, key=lambda entry: str(entry["id"]))
    own = set(_responses()["no_response_of_image_policies"]) if image_policy else set()
    own |= {e["dimension"] for e in entries if _sees_pictures(e) and image_policy}
    sites: dict[tuple[str, str], list[Trial]] = {}
    for entry in entries:
        if _sees_pictures(entry) == (entry["dimension"] in own):
            d = GapDimension(entry["dimension"])
            before, after = tuple(entry["before"]), tuple(entry["after"])
            trial = Trial(entry["id"], {d: entry["takes"]}, {d: 1.0}, before, after)
            sites.setdefault((entry["dimension"], entry["site"]), []).append(trial)
    seen = Counter[GapDimension]()
    for (name, _), trials in sites.items():
        d = GapDimension(name)
        site = reduce(updated, trials, {d: curves[d]})[d]
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


def learn(trials: Iterable[Trial] = (), *, image_policy: bool = False) -> dict[GapDimension, Curve]:
    """Return every dimension's curve, from the prior and these trials.

    Trials are taken in order of their ids, each id once: neither order nor repetition matters.
    """
    curves = prior_curves(prior_entries(), image_policy)
    every = {trial.id: trial for trial in trials}
    for name in sorted(every):
        curves |= updated(curves, every[name])
    return curves


def updated(curves: Mapping[GapDimension, Curve], trial: Trial) -> dict[GapDimension, Curve]:
    """Return the curves that a trial tells about, moved by it.

    Where a campaign recorded takes for several dimensions, each is judged with the others'
    contribution drawn from their own curves. Rollouts of one trained policy aren't independent
    samples of what training gives: they count as many as n / (1 + (n - 1) rho) would (Kish's
    design effect).
    """
    from scipy.stats import beta  # here: `--help` needs no statistics

    told = [d for d, n in sorted(trial.takes.items()) if n and trial.shares.get(d, 0.0) > 0]
    rng = np.random.default_rng(0)
    gains = {}
    for d in told:
        a, tau = curves[d].draw(rng, DRAWS)
        gains[d] = trial.shares[d] * fixed_share(a, tau, np.asarray(float(trial.takes[d])))
    # 15 equally likely values of the rate before (Jeffreys' prior).
    done, n = trial.before
    before = beta.ppf((np.arange(15) + 0.5) / 15, done + 0.5, n - done + 0.5)
    done, n = trial.after
    weight = 1.0 / (1.0 + (n - 1) * TRAINING_CORRELATION)
    moved = {}
    for d in told:
        rest = [gains[o] for o in told if o != d]
        others = np.sum(rest, axis=0) if rest else np.zeros(1)
        own = trial.shares[d] * fixed_shares(np.array([float(trial.takes[d])]))[0]
        fixed = np.minimum(own[:, None] + others[None, :], 1.0)  # (grid, draws)
        rate = np.clip(before + (1.0 - before) * fixed[:, :, None], CLIP, 1.0 - CLIP)
        log_likelihood = weight * (done * np.log(rate) + (n - done) * np.log1p(-rate))
        likelihood = np.exp(log_likelihood).mean(axis=(1, 2))
        posterior = curves[d].probability * likelihood.reshape(curves[d].probability.shape)
        moved[d] = Curve(posterior / posterior.sum())
    return moved


@dataclass(frozen=True)
class RolloutCounts:
    """Rollouts of one policy."""

    successes: int
    trials: int
    policy: str = ""


def campaign_trial(
    plan: Plan,
    before: RolloutCounts,
    after: RolloutCounts,
    recorded: Mapping[str, int] | None = None,
) -> Trial:
    """Return what a campaign's result says about the curves.

    From rollouts of the policy that the plan was made for, and of the one adapted with its takes,
    in the same cell. What was `recorded` by item is what the plan asked for unless given.

    Raises:
        UnusableInputError: nothing was recorded, or nothing rolled out.
    """
    if not before.trials or not after.trials:
        raise UnusableInputError(f"Plan {plan.id}: no judged rollouts before or after it.")
    takes: dict[GapDimension, int] = {}
    shares: dict[GapDimension, float] = {}
    for item in plan.items:
        n = item.takes if recorded is None else recorded.get(item.id, 0)
        if n:
            takes[item.dimension] = takes.get(item.dimension, 0) + n
            shares[item.dimension] = item.share
    if not takes:
        raise UnusableInputError(
            f"Plan {plan.id}: no takes were recorded for it, so its result doesn't show what "
            "demonstrations bring. Name the folder of a campaign that recorded some."
        )
    return Trial(
        f"{plan.id}/{after.policy}",
        takes,
        shares,
        (before.successes, before.trials),
        (after.successes, after.trials),
    )


def save_curves(
    path: Path,
    id_: str,
    curves: Mapping[GapDimension, Curve],
    trials: Iterable[Trial],
    inputs: Sequence[Mapping[str, Any]],
) -> None:
    """Write `curves.json`: every campaign so far, what it came from, and what is believed now."""
    by_id = {trial.id: trial for trial in trials}
    write_json(
        path,
        {
            "schema": SCHEMA,
            "id": id_,
            "inputs": list(inputs),
            "trials": [
                {
                    "id": trial.id,
                    "takes": {d.value: n for d, n in trial.takes.items()},
                    "shares": {d.value: share for d, share in trial.shares.items()},
                    "before": list(trial.before),
                    "after": list(trial.after),
                }
                for _, trial in sorted(by_id.items())
            ],
            "believed": {d.value: believed(curve) for d, curve in curves.items()},
        },
    )


def believed(curve: Curve) -> dict[str, Any]:
    """Return a curve in numbers that people read: shares of failures fixed by n takes."""
    means = curve.fixed(np.array(SHOWN_TAKES, dtype=float))
    return {
        "responds": round(curve.responds, 4),
        "mended": {
            str(n): [round(float(v), 4) for v in (mean, *curve.interval(n))]
            for n, mean in zip(SHOWN_TAKES, means, strict=True)
        },
    }


def load_trials(path: Path) -> tuple[Trial, ...]:
    """Read the campaigns that a `curves.json` holds.

    Raises:
        UnusableInputError: it is missing, of another kind, or damaged.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{path} is not a {SCHEMA} file. Name the curves.json of an earlier gaploop plan."
        )
    try:
        found = []
        for entry in value["trials"]:
            before, after = ((int(done), int(n)) for done, n in (entry["before"], entry["after"]))
            if not (0 <= before[0] <= before[1] and 0 <= after[0] <= after[1]):
                raise ValueError(f"{entry['id']}: more successes than rollouts")
            takes = {dimension(d, str(path)): int(n) for d, n in entry["takes"].items()}
            shares = {dimension(d, str(path)): float(s) for d, s in entry["shares"].items()}
            found.append(Trial(str(entry["id"]), takes, shares, before, after))
        return tuple(found)
    except DAMAGE as error:
        raise UnusableInputError(
            f"{path} is damaged ({error!r}). Make it again with gaploop plan --results."
        ) from None
