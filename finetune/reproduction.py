"""Diagnosis by reproduction: do a station's failures come back in its twin, and what brings them?

The policy is rolled out on the same scenes in the nominal simulation, in the full twin, and with
each measured mechanism put in alone and taken out. What a mechanism costs is its Shapley value
(Shapley 1953) over success: exact over all subsets of up to three mechanisms; for more, the mean of
what it costs alone and what it costs beside all the others, which for two is the same. What fails
in the nominal simulation already is the policy's own; what fails at the station beyond the twin was
not measured. Together they are the station's failures, point for point.

Every scene has the twin drawn anew from its intervals, the same draw in all cells: costs are means
over what was left open, too. Their draws come from a Bayesian bootstrap over scenes (Rubin 1981),
with one scene's weight on the extremes, so that no interval closes where every scene ended alike.
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate, holm, percent, points, rate
from gaploop.core.take import Take
from gaploop.core.twin import Randomisation, Twin, TwinParameter, around_twin, as_yaml
from gaploop.core.vocabulary import GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.diagnosis import (
    Diagnosis,
    TakeDiagnosis,
    pooled_shares,
    summarise_causes,
)
from gaploop.failure_analysis.station import (
    FLOOR,
    NAMED_FROM,
    NONE,
    POLICY,
    UNMEASURED,
    StationVerdict,
    cause_words,
    verdict,
)
from gaploop.finetune.evaluate import attempt_s, category, evaluate
from gaploop.finetune.evaluation import Rollout
from gaploop.sim.catalogue import arm_named, find_task

SCENES: Final = 5_000
"""Scenes of reproductions begin here among those of evaluations."""
NEAREST: Final = 3
"""One draw in so many is near to nominal."""
EXACT: Final = 3
"""Up to so many mechanisms all subsets are tried: eight cells."""
DRAWS: Final = 4000
LEAST_FAILURES: Final = 5
"""On each side, before their modes are compared."""
FALSE_ALARM: Final = 0.01
"""Chance that a twin which is right is said not to reproduce the station, both tests together. At
5 % an exact twin was called wrong by one rare mode (p = 0.013): a station is asked many times."""
REPRODUCES: Final = 0.95
"""Prior that a twin whose rate fits fails for the right reasons."""
LEAST_SHARE: Final = 0.2
"""Of the failures: a cause that brings fewer isn't named beside another."""
SURE: Final = 0.9
"""Probability of that share from which on a measured cause is named beside another."""
UNHELD: Final = 0.5
"""How likely a dimension's gap is one that a twin doesn't hold, where another of it was measured:
about half of the mechanisms that were made up are such. Assumed."""
NEVER: Final = 0.005
"""Least likelihood of a cause: forty scenes rule nothing out for good."""
PERMUTATIONS: Final = 2000
OTHERS: Final = 2
"""Episodes of a station's check in which something pushed the arm, or moved beside it: people are
there. Once may be an accident."""
OTHERS_TELL: Final = 5.0
"""So many times as likely that is where people bring the failures. Assumed: at a fifth of other
stations something moves, too, and harms nothing."""
ALL_KEPT: Final = 0.5
"""How likely failures without a success are all the rollouts that there were, where nobody says
so. Assumed; else the station's rate may be any."""

type RollOut = Callable[[tuple[str, ...]], Sequence[Rollout]]
"""Rolls the policy out with some of the twin's mechanisms put in, on equal scenes each time."""


@dataclass(frozen=True)
class StationFailures:
    """What is known of a station's rollouts.

    Attributes:
        rate_known: whether all rollouts were kept, so that they tell how often it fails.
        replayed: failures whose commands were replayed in the twin.
        followed: those of them that the twin followed row for row to their end.
    """

    failed: int
    succeeded: int
    modes: tuple[str, ...]
    rate_known: bool
    replayed: int = 0
    followed: int = 0

    @classmethod
    def of(
        cls, takes: Sequence[Take], arm: str, sees: str, followed: Mapping[str, bool] | None = None
    ) -> Self:
        """Return what takes say of the station, by the same rules as rollouts in the cell.

        Args:
            takes: of the station; demonstrations among them say nothing of the policy.
            arm: the cell's arm that stands for its own; what is usual there holds for both. ""
                where there is none, as in a simulation of others: modes aren't told there.
            followed: by uid, whether a twin followed it, as its `fit` has them.
        """
        driven = [t for t in takes if t.info.kind is not TakeKind.DEMONSTRATION]
        won = sum(t.outcome is Outcome.SUCCESS for t in driven)
        lost = [t for t in driven if t.outcome is Outcome.FAILURE]
        modes = []
        for take in lost if arm else ():
            info = replace(take.info, robot_type=arm_named(arm, "The twin").robot_type)
            told = category(replace(take, info=info, failure_mode="", phase=""), sees)
            modes.append(_kind(*told))
        ours = all(t.info.kind is TakeKind.ROLLOUT for t in lost)
        rows = [followed[t.info.uid] for t in lost if t.info.uid in followed] if followed else []
        return cls(len(lost), won, tuple(modes), won > 0 or ours, len(rows), sum(rows))


def _kind(mode: str, phase: str) -> str:
    return " in ".join(filter(None, (mode, phase)))


@dataclass(frozen=True)
class CauseCost:
    """Points of success that one cause takes.

    Attributes:
        name: a mechanism, `POLICY` or `UNMEASURED`.
        cause: its dimension, or the name itself.
        cost: share of all rollouts that fail for it, -1 to 1.
    """

    name: str
    cause: str
    cost: Estimate


@dataclass(frozen=True)
class Reproduction:
    """What came of reproducing a station's failures.

    Attributes:
        n: scenes, the same in every cell.
        cells: mechanisms put in to how often the policy fails there.
        costs: each mechanism, the policy itself, and what was not measured where the station's
            rate is known.
        together: what the mechanisms cost together beyond the sum of their costs; 0 if exact.
        station: how often the station fails, or None where nobody knows.
        rate_p: probability of a rate as far from the twin's as the station's, if the twin is right;
            None where it can't be tested.
        modes_p: the same of its modes and phases.
        leads: cause to the probability that it brings most failures.
        shown: cause to the probability that it brings at least `LEAST_SHARE` of them.
        shares: cause to the expected share of the failures that it brings; sums to 1.
        replays: how many failures were replayed, and how many of them the twin follows row for
            row; (0, 0) where its rollouts fail too seldom or often for chance.
        others: episodes of the station's check in which something pushed the arm, or moved
            beside it.
    """

    n: int
    cells: Mapping[tuple[str, ...], Estimate]
    costs: tuple[CauseCost, ...]
    how: str
    together: float
    station: Estimate | None
    rate_p: float | None
    modes_p: float | None
    leads: Mapping[str, float]
    shown: Mapping[str, float]
    shares: Mapping[str, float]
    replays: tuple[int, int] = (0, 0)
    others: int = 0

    @property
    def nominal(self) -> Estimate:
        """How often the policy fails in the nominal simulation."""
        return self.cells[()]

    @property
    def twin(self) -> Estimate:
        """How often it fails in the full twin."""
        return self.cells[max(self.cells, key=len)]

    @property
    def reproduces(self) -> bool | None:
        """Whether the twin fails as the station does; None where neither could be tested."""
        tested = [p for p in (self.rate_p, self.modes_p) if p is not None]
        return min(holm(tested)) >= FALSE_ALARM if tested else None

    def lines(self) -> list[str]:
        """Return what people read of it."""
        station = f"station {percent(self.station)}, " if self.station else ""
        found = [
            f"Failures: {station}twin {percent(self.twin)}, nominal simulation "
            f"{percent(self.nominal)} ({self.n} equal scenes each)."
        ]
        ranked = sorted(self.costs, key=lambda c: -c.cost.value)
        found += [
            f"  the station fails less often than the twin, by {points(-c.cost)}"
            if c.name == UNMEASURED and c.cost.high < 0.0
            else f"  {_name(c.name)} costs {points(c.cost)}"
            for c in ranked
        ]
        if self.station is None:
            found.append(
                "How often the station fails isn't known: only failures were kept, or nobody says "
                "that they are all the rollouts there were. So what was not measured is open."
            )
        replayed, followed = self.replays
        if followed:
            found.append(
                f"Replayed, {followed} of {replayed} failed episodes go in the twin as they went "
                "here, row for row to their end: nothing else acts in them. Where its rollouts "
                "fail less often, that is counted as chance."
            )
        if self.others >= OTHERS:
            found.append(
                "While the station was measured, something pushed the arm or moved beside it in "
                f"{self.others} episodes: whatever did may have done so in the rollouts."
            )
        found.append(f"Costs: {self.how}.")
        if abs(self.together) >= 0.005:
            found.append(f"Together the mechanisms cost {100 * self.together:+.0f} points more.")
        tests = [
            f"{what} p = {p:.2g}"
            for what, p in (("rate", self.rate_p), ("modes and phases", self.modes_p))
            if p is not None
        ]
        if self.reproduces is None:
            found.append("Too few failures to say whether the twin fails as the station does.")
        elif self.reproduces:
            found.append(f"The twin fails as the station does ({', '.join(tests)}).")
        else:
            milder = self.station is not None and self.station.value < self.twin.value
            found.append(
                f"The twin doesn't fail as the station does ({', '.join(tests)}): "
                + (
                    "what it holds acts less there than at its estimate, or something helps."
                    if milder and (self.rate_p or 0.0) < FALSE_ALARM
                    else "look for something that was not measured."
                )
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return `summary.reproduction` of a diagnosis."""

        def span(estimate: Estimate | None) -> list[float] | None:
            return None if estimate is None else [estimate.value, estimate.low, estimate.high]

        return {
            "n": self.n,
            "failing": {
                "station": span(self.station),
                "twin": span(self.twin),
                "nominal": span(self.nominal),
            },
            "cells": [{"with": list(c), "failing": span(e)} for c, e in self.cells.items()],
            "costs": [
                {"name": c.name, "cause": c.cause, "says": _name(c.name), "points": span(c.cost)}
                for c in self.costs
            ],
            "how": self.how,
            "together": self.together,
            "rate_p": self.rate_p,
            "modes_p": self.modes_p,
            "reproduces": self.reproduces,
            "leads": dict(self.leads),
            "shown": dict(self.shown),
            "shares": dict(self.shares),
            "replays": list(self.replays),
            "says": self.lines(),
        }


def _name(name: str) -> str:
    return cause_words(name).replace(".", ": ")


def subsets(mechanisms: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the cells to roll out in: all subsets, or else none, each, all but each, and all."""
    m = len(mechanisms)
    sizes = range(m + 1) if m <= EXACT else (0, 1, m - 1, m)
    return [s for size in sizes for s in itertools.combinations(mechanisms, size)]


def reproduce(station: StationFailures, twin: Twin, roll_out: RollOut) -> Reproduction:
    """Roll the policy out cell by cell and share its failures out among their causes.

    Args:
        station: what happened there; it must have failed.
    """
    if not station.failed:
        raise UnusableInputError(
            "Nothing failed: there is nothing to reproduce. Name a diagnosis with failed episodes."
        )
    mechanisms = twin.mechanisms
    done = {cell: {r.seed: r for r in roll_out(cell)} for cell in subsets(mechanisms)}
    seeds = sorted(set.intersection(*(set(rollouts) for rollouts in done.values())))
    lost = {
        cell: np.array([not rollouts[s].success for s in seeds], dtype=np.float64)
        for cell, rollouts in done.items()
    }
    nominal, full = lost[()], lost[mechanisms]
    per_scene = {m: _costs(m, mechanisms, lost) for m in mechanisms}
    columns = np.stack([nominal, full, *per_scene.values()], axis=1)
    # Of each draw the columns' means over scenes.
    low = np.r_[0.0, 0.0, -np.ones(columns.shape[1] - 2)]
    rows = np.vstack([columns, low, np.ones(columns.shape[1])])
    weights = np.random.default_rng(0).dirichlet([*np.ones(len(columns)), 0.5, 0.5], DRAWS)
    drawn = np.asarray(weights @ rows)
    attempts_there = station.failed + station.succeeded
    failing = rate(station.failed, attempts_there)
    rng = np.random.default_rng(1)
    there = rng.beta(station.failed + 0.5, station.succeeded + 0.5, DRAWS)
    if not station.rate_known:  # what was counted may be all, or the failures that somebody kept
        there = np.where(rng.random(DRAWS) < ALL_KEPT, there, rng.random(DRAWS))
    rate_p: float | None = None
    nothing_else: NDArray[np.bool_] = np.full(DRAWS, False)
    if station.rate_known:
        # Two-sided posterior predictive p of the station's failures, given the twin's.
        from scipy.stats import betabinom

        fails = float(full.sum())
        predicted = betabinom(attempts_there, fails + 0.5, len(full) - fails + 0.5)
        half = 0.5 * predicted.pmf(station.failed)  # mid-p: counts are few
        below = float(predicted.cdf(station.failed) - half)
        rate_p = min(1.0, 2.0 * min(below, 1.0 - below))
        if mechanisms and not station.replayed:
            # What was measured brings so many failures, or something else acts as well and any
            # number of them is as likely: even odds before. Rows that were replayed tell more.
            alone, any_rate = float(predicted.pmf(station.failed)), 1.0 / (attempts_there + 1)
            nothing_else = rng.random(DRAWS) < alone / (alone + any_rate)
    means = np.array([per_scene[m].mean() for m in mechanisms])
    over, beyond = failing.value - float(full.mean()), there - drawn[:, 1]
    replays = (station.replayed, station.followed)
    if rate_p is None or rate_p < FALSE_ALARM or not mechanisms:
        replays = (0, 0)
    if station.followed and any(replays):
        # Something else can act in no more failures than the twin doesn't follow; what its rollouts
        # fail too seldom beyond that is the mechanisms', as far as each costs anything. Only of
        # failures that nobody replayed has that to be guessed.
        other, unseen = station.replayed - station.followed, station.failed - station.replayed
        open_share = rng.beta(other + 1.0, station.followed + 1.0, DRAWS)
        open_share = (other + unseen * open_share) / station.failed
        chance = (beyond - open_share * there).clip(0.0)
        part = means.clip(0.0) if means.max() > 0 else np.ones(len(means))
        part /= part.sum()
        drawn[:, 2:] += chance[:, None] * part
        beyond -= chance
        moved = max(over - failing.value * other / station.replayed, 0.0)
        means, over = means + moved * part, over - moved
    costs = [
        CauseCost(m, m.partition(".")[0], _estimate(float(means[k]), drawn[:, 2 + k]))
        for k, m in enumerate(mechanisms)
    ]
    costs.append(CauseCost(POLICY, POLICY, rate(float(nominal.sum()), len(seeds))))
    if station.rate_known:
        costs.append(CauseCost(UNMEASURED, UNMEASURED, _estimate(over, beyond)))
    twin_modes = [
        _kind(r.failure_mode, r.phase) for r in done[mechanisms].values() if not r.success
    ]
    modes_p = _modes_p(station.modes, twin_modes)
    beyond[nothing_else] = 0.0
    brought = np.stack([*(drawn[:, 2 + k] for k in range(len(mechanisms))), drawn[:, 0], beyond], 1)
    causes = [*(m.partition(".")[0] for m in mechanisms), POLICY, UNMEASURED]
    # What fails more often than the station, beyond chance, isn't what was there.
    worse_p = rate_p if failing.value < full.mean() else None
    leads, shown, shares = _leading(causes, brought, (modes_p, worse_p))
    exact = len(mechanisms) <= EXACT
    how = (
        f"exact Shapley values over {len(done)} cells" if exact
        else "mean of each mechanism put in alone and left out"
    )  # fmt: skip
    shared = sum(float(v.mean()) for v in per_scene.values())
    return Reproduction(
        len(seeds),
        {cell: rate(float(v.sum()), len(v)) for cell, v in lost.items()},
        tuple(costs),
        how,
        float(full.mean() - nominal.mean()) - shared,
        failing if station.rate_known else None,
        rate_p,
        modes_p,
        leads,
        shown,
        shares,
        replays,
        int(twin.fit.get("others", 0)),
    )


def _costs(
    mechanism: str, mechanisms: Sequence[str], lost: Mapping[tuple[str, ...], FloatArray]
) -> FloatArray:
    """Return what a mechanism costs in each scene, shape (n,), by its Shapley value."""
    m = len(mechanisms)
    total, weights = np.zeros(len(lost[()])), 0.0
    for cell in lost:
        beside = tuple(k for k in mechanisms if k in cell or k == mechanism)
        if mechanism in cell or beside not in lost:
            continue
        # Of all orders of coming in, the share in which just these came before.
        weight = 1.0 / (m * math.comb(m - 1, len(cell)))
        if m > EXACT:
            weight = 0.5 if len(cell) in (0, m - 1) else 0.0
        total += weight * (lost[beside] - lost[cell])
        weights += weight
    return total / weights


def _estimate(value: float, drawn: FloatArray) -> Estimate:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(value, min(float(low), value), max(float(high), value))


def _modes_p(station: Sequence[str], twin: Sequence[str]) -> float | None:
    """Return the p of a permutation test that failures of both are of the same kinds.

    By the chi-square statistic of kinds against place; None where either has too few.
    """
    if min(len(station), len(twin)) < LEAST_FAILURES:
        return None
    kinds = sorted({*station, *twin})
    of = np.array([kinds.index(k) for k in (*station, *twin)])
    share = np.bincount(of) / len(of)

    def distance(drawn: NDArray[np.int64]) -> float:
        expected = share * len(station)
        return float(((np.bincount(drawn, minlength=len(kinds)) - expected) ** 2 / expected).sum())

    rng = np.random.default_rng(2)
    seen = distance(of[: len(station)])
    shuffled = [distance(rng.permutation(of)[: len(station)]) for _ in range(PERMUTATIONS)]
    return (1 + sum(d >= seen - 1e-9 for d in shuffled)) / (PERMUTATIONS + 1)


def _leading(
    causes: Sequence[str], brought: FloatArray, alike_p: Sequence[float | None]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return how likely each cause brings most failures, a fair share of them, and what share.

    Args:
        brought: draws of the points that each costs, shape (DRAWS, len(causes)).
        alike_p: of the twin failing in the station's ways, and no more often; where one is
            unlikely, what was not measured is the likelier the smaller it is (Sellke, Bayarri and
            Berger 2001).
    """
    names = list(dict.fromkeys(causes))
    by_cause = np.stack(
        [brought[:, [c == name for c in causes]].sum(axis=1) for name in names], axis=1
    ).clip(0.0)
    total = by_cause.sum(axis=1)
    by_cause[total <= 0, names.index(UNMEASURED)] = 1.0
    shares = by_cause / by_cause.sum(axis=1, keepdims=True)
    first = Counter(np.argmax(shares, axis=1).tolist())
    missed, unlike = 0.0, [p for p in alike_p if p is not None and p < math.exp(-1)]
    if unlike:
        bounds = math.prod(-math.e * p * math.log(p) for p in unlike)
        missed = 1.0 / (1.0 + REPRODUCES / (1.0 - REPRODUCES) * bounds)
    leads = {name: (1.0 - missed) * first[k] / DRAWS for k, name in enumerate(names)}
    shown = {
        name: (1.0 - missed) * float((shares[:, k] >= LEAST_SHARE).mean())
        for k, name in enumerate(names)
    }
    means = {name: (1.0 - missed) * float(shares[:, k].mean()) for k, name in enumerate(names)}
    leads[UNMEASURED] += missed
    means[UNMEASURED] += missed
    return leads, shown, means


def combined(
    found: Reproduction, passive: Mapping[str, float], trust: float, takes: int
) -> StationVerdict:
    """Return the station's verdict: passive evidence as the prior, reproduction as the likelihood.

    Dimensions that were not measured share what was not measured among themselves and with
    "something else" as the takes say: of people, clutter and task there is nothing but takes.

    Args:
        passive: the takes' pooled posterior over dimensions and "none".
        trust: how often the takes' evidence is right at all.
        takes: failures behind it.
    """
    even = (1.0 - trust) / (len(GapDimension) + 1)
    prior = {d.value: trust * passive[d.value] + even for d in GapDimension}
    none = trust * passive[NONE] + even
    # A policy that fails by itself and an unknown gap look alike in takes: like none of these.
    prior |= {POLICY: none, UNMEASURED: none}
    if found.others >= OTHERS:
        prior[GapDimension.HUMAN_BEHAVIOR.value] *= OTHERS_TELL
    unmeasured = [c for c in prior if c not in found.leads] + [UNMEASURED]
    # What was not measured is one unknown, as likely as the likeliest thing that it may be: the
    # more there is that nobody measured, the likelier it would become by its mere number. It may
    # also be of a dimension of which something else was measured.
    hidden = {c: 1.0 if c in unmeasured else UNHELD for c in prior if c != POLICY}
    one = max(hidden[c] * prior[c] for c in hidden) / sum(hidden[c] * prior[c] for c in hidden)
    missed = one * max(found.leads[UNMEASURED], NEVER)
    weights = {c: p * hidden.get(c, 0.0) * missed for c, p in prior.items()}
    for c in found.leads.keys() - {UNMEASURED}:
        # Chance alone is no failure: a policy that never failed in simulation isn't blamed.
        is_clear = c == POLICY and not found.nominal.value
        weights[c] += prior[c] * (NEVER if is_clear else max(found.leads[c], NEVER))
    total = sum(weights.values())
    posterior = {c: w / total for c, w in weights.items()}
    also = {c: p for c, p in found.shown.items() if c != UNMEASURED and p >= SURE}
    somewhere = sum(prior[c] * hidden[c] for c in hidden) * missed / total
    if somewhere >= NAMED_FROM and max(posterior.values()) < NAMED_FROM:
        also[UNMEASURED] = somewhere
    return verdict(posterior, takes, also)


def reweighed(
    takes: Sequence[TakeDiagnosis], found: Reproduction, station: StationVerdict
) -> tuple[TakeDiagnosis, ...]:
    """Return failed takes with the station's shares as prior of their causes.

    What a take shows counts as far as other takes don't show it: what all of them lean to is told
    better by the rollouts that were reproduced, or is in the station's verdict. So a take that
    shows nothing of its own has the station's causes, and over all takes these are about as they
    were reproduced.

    Args:
        station: what came of it; the causes that it names are those of takes that have them.
    """
    unmeasured = [*(d.value for d in GapDimension if d.value not in found.shares), UNMEASURED]
    # Nothing but takes tells these apart: what all of them lean to has to be kept.
    per_share = found.shares[UNMEASURED] / sum(station.posterior[c] for c in unmeasured)
    prior = {
        d.value: station.posterior[d.value] * per_share
        if d.value in unmeasured else found.shares[d.value]
        for d in GapDimension
    }  # fmt: skip
    for_none = found.shares[POLICY] + station.posterior[UNMEASURED] * per_share
    failed = [take for take in takes if take.failed]
    usual = {
        d.value: max(float(np.mean([t.dimensions[d.value] for t in failed])), FLOOR)
        for d in (GapDimension if failed else ())
    }
    usual_none = max(float(np.mean([t.none for t in failed])), FLOOR) if failed else 1.0
    changed = []
    for take in takes:
        if take.failed:
            weights = {
                d: max(share, FLOOR) / usual[d] * prior[d] for d, share in take.dimensions.items()
            }
            none = max(take.none, FLOOR) / usual_none * for_none
            total = sum(weights.values()) + none or 1.0
            shares = {d: w / total for d, w in weights.items()}
            named = tuple(c for c in station.named if shares.get(c, 0.0) >= LEAST_SHARE)
            # What fails of itself, or for what wasn't measured, may have brought this one about.
            named = named if 2.0 * sum(shares[c] for c in named) > 1.0 else ()
            take = replace(
                take, dimensions=shares, none=max(0.0, 1.0 - math.fsum(shares.values())),
                named=named, abstained=not named, candidates=(), by="reproduction",
            )  # fmt: skip
        changed.append(take)
    return tuple(changed)


def in_the_twin(
    policy: str | Path,
    twin: Twin,
    takes: Sequence[Take],
    sees: str,
    *,
    n: int,
    workers: int,
    folder: Path,
    progress: Callable[[int], None] = lambda _rollouts: None,
) -> RollOut:
    """Return what rolls a policy out with a twin's mechanisms put in.

    In the simulation that the twin names modes of failures aren't told. Where replays found the
    scenes there that the station's episodes began in, among the first ones, it is rolled out in
    those: whether a twin fails where the station did is no chance there.

    Args:
        takes: the station's, whose task it is, and whose longest attempt is the longest rollout.
        sees: the evidence tier by which modes are told, that of the takes.
        progress: called with the number of rollouts just finished.
    """

    def told(done: Sequence[Rollout]) -> None:
        progress(len(done))

    def in_a_world(mechanisms: tuple[str, ...]) -> Sequence[Rollout]:
        from gaploop.finetune.lerobot_gym import evaluate_gym
        from gaploop.sim.lerobot_worlds import world_of
        from gaploop.sim.world import WorldSpec

        (env, roles), seed = world_of(twin), 0 if twin.fit.get("followed") else SCENES
        parameters, left_open, cell = in_twin(folder, twin, mechanisms, [str(policy), ""])
        spec = WorldSpec(roles=roles, parameters=parameters, randomise=left_open)
        return evaluate_gym(
            policy, env, n, seed=seed, batch=workers, folder=cell, spec=spec, on_rollouts=told
        ).outcomes

    def in_the_cell(mechanisms: tuple[str, ...]) -> Sequence[Rollout]:
        task, max_s = takes[0].info.task, attempt_s(takes, twin.arm)
        how = [str(policy), task, f"{sees} {max_s:g}"]
        parameters, left_open, cell = in_twin(folder, twin, mechanisms, how)
        return evaluate(
            policy, n, seed=SCENES, workers=workers, task=find_task(task), on_rollouts=told,
            folder=cell, robot=twin.arm, parameters=parameters, randomise=left_open, sees=sees,
            max_s=max_s,
        ).outcomes  # fmt: skip

    return in_a_world if twin.world else in_the_cell


def in_twin(
    folder: Path, twin: Twin, mechanisms: tuple[str, ...], how: Sequence[str]
) -> tuple[dict[str, dict[str, float]], Randomisation | None, Path]:
    """Return what is put in, what is drawn around it, and the folder of its rollouts."""
    parameters = twin.values(mechanisms)
    put_in = _beside_nominal([p for p in twin.parameters if p.mechanism in mechanisms], twin)
    left_open = around_twin(replace(twin, parameters=put_in)) if put_in else None
    of = as_yaml(left_open) if left_open else ""
    policy, task, *sees = how
    what: list[Any] = [policy, task, twin.arm, *sees, parameters, of]
    if twin.world:
        what.append(dict(twin.world))
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    cell = folder / digest[:16]
    cell.mkdir(parents=True, exist_ok=True)
    return parameters, left_open, cell


def _beside_nominal(put_in: Sequence[TwinParameter], twin: Twin) -> tuple[TwinParameter, ...]:
    """Return parameters with those of their draws in which the others are nearest to nominal.

    What was measured together and needn't differ is nominal in the twin. Drawn as well, slipperier
    objects than were there failed beside a right adhesion.
    """
    names, count = {p.name for p in put_in}, max((len(p.draws) for p in put_in), default=0)
    others = [p for p in twin.parameters if len(p.draws) == count and p.name not in names]
    if not count or not others:
        return tuple(put_in)
    draws = np.array([p.draws for p in others])
    off = (draws - [[p.nominal] for p in others]) / np.maximum(draws.std(axis=1), 1e-9)[:, None]
    nearest = np.argsort((off**2).sum(axis=0), kind="stable")[: -(-count // NEAREST)]
    return tuple(
        replace(p, draws=tuple(p.draws[k] for k in nearest)) if p.draws else p for p in put_in
    )


def reproduced(
    found: Diagnosis,
    takes: Sequence[Take],
    twin: Twin,
    policy: str | Path,
    folder: Path,
    *,
    n: int,
    workers: int,
    progress: Callable[[int], None] = lambda _rollouts: None,
) -> Diagnosis:
    """Return a diagnosis with what came of reproducing its failures, if there are any.

    Args:
        found: what the takes alone show.
        folder: keeps rollouts as they come; what it holds isn't rolled out again.
        n: scenes, the same in every cell.
        progress: called with the number of rollouts just finished.
    """
    if n < 1:
        raise UnusableInputError(f"--n={n}: nothing would be rolled out. Give 1 scene or more.")
    base = found.base
    if base is None:
        return found
    arm, rows = "" if twin.world else twin.arm, twin.fit.get("followed")
    station = StationFailures.of(takes, arm, base.tier.value, rows)
    if not station.failed:
        lost = [t for t in takes if t.outcome is Outcome.FAILURE]
        if lost or any(take.failed for take in found.takes):
            why = (
                "Not reproduced: none of the failed episodes is a labelled rollout. Say so with "
                "gaploop label --outcome=failure, and of demonstrations that a policy drove with "
                'gaploop edit retag --set=\'{"kind": "rollout"}\'.'
            )
            found = replace(found, summary={**found.summary, "not_reproduced": why})
        return found
    roll_out = in_the_twin(
        policy, twin, takes, base.tier.value, n=n, workers=workers, folder=folder, progress=progress
    )
    reproduction = reproduce(station, twin, roll_out)
    verdict = combined(reproduction, pooled_shares(found.takes), base.trust, station.failed)
    measured = {p.name.partition(".")[0] for p in twin.parameters if p.excited}
    evidence = base.with_twin(measured, owners=bool(twin.world))
    told = reweighed(found.takes, reproduction, verdict)
    summary = {
        **found.summary,
        **summarise_causes(told),
        "tier": evidence.tier.value,
        "evidence": evidence.to_json(),
        "station": verdict.to_json(),
        "reproduction": {**reproduction.to_json(), "sees": base.tier.value},
    }
    return replace(found, takes=told, summary=summary, base=evidence)
