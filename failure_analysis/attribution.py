"""Why a take failed: a posterior over the nine gap dimensions and "none of these".

The learned model gives it, log-linear and calibrated, where the take has the channels that the
model was made for and the station a reference; the rules alone give it elsewhere. It looks at
nothing but what the rules say: weights of single signals were fitted and came out as nothing.

Shares are a softmax of `weights @ features / temperature`, less a doubt for each cause: how often
evidence that points there isn't to be trusted at all. One cause is named where it is likely alone,
two where they are likely together. `python -m benchmarks attribution` rebuilds the JSON that ships.
From a dozen failures on that engineers labelled, the weights move to what holds at their station.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize

from gaploop.core import labels
from gaploop.core.files import read_json
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.rules import SHOWN, RuleEvidence, rule_evidence
from gaploop.failure_analysis.signals.registry import Evidence, TakeSignals

SCHEMA: Final = "gaploop.attribution.v2"
SHIPPED: Final = "model_so101_cell.json"
NONE: Final = "none"
CAUSES: Final = (*(d.value for d in GapDimension), NONE)
"""Order of shares and weights."""
FIRST, SECOND = np.triu_indices(len(GapDimension), 1)
"""Columns of the two causes of each of the 36 pairs."""
TASK: Final = CAUSES.index(GapDimension.TASK_SPECIFICATION.value)
PLACED: Final = "placed"
"""What evidence for a restated task would gain if nothing else were unusual: the object rests where
it was meant to, whatever else is wrong. Only two causes at once are judged by it."""
FEATURES: Final = ("one", *(f"left.{d.value}" for d in GapDimension), PLACED)
"""Entries of a row of features; what can't be seen is 0."""
FAINTEST: Final = 0.05
"""What a dimension scores for which nothing speaks: nine of them together hardly count."""
LEAST_LABELS: Final = 12
"""Labelled failures of a station from which on the model learns from them."""
LABEL_STIFFNESS: Final = 3.0
"""How hard a station's labels find it to move a weight; chosen on one shifted station."""


@dataclass(frozen=True)
class Pairs:
    """What two causes at once are worth, from what each says alone.

    The log odds of both are those of the likelier one, plus `second` times those of the other
    against "none", plus `odds`; of `PLACED` the share `placed` counts for a restated task.
    """

    second: float = 1.0
    placed: float = 0.5
    odds: float = -1.0


@dataclass(frozen=True)
class Thresholds:
    """Least shares of one cause alone, and of two together, from which on they are named.

    A cause belongs to the conformal set while the shares above its own sum to less than its cut, in
    the order of `CAUSES`.
    """

    name: float
    both: float
    cuts: tuple[float, ...]


@dataclass(frozen=True)
class Attribution:
    """Why a take failed, as far as its signals say.

    Attributes:
        dimensions: dimension to posterior share; with `none` they sum to 1.
        none: share of "nothing that can be seen".
        named: the dimensions that are named, most likely first: one, two where both act, none
            when abstaining.
        candidates: dimensions, and "none", that hold the cause with the model's stated coverage;
            empty where the rules alone judged.
        evidence: strongest first.
        by: who judged, "model" or "rules: …" with the reason.
    """

    dimensions: Mapping[GapDimension, float]
    none: float
    named: tuple[GapDimension, ...]
    candidates: tuple[str, ...]
    evidence: tuple[Evidence, ...] = ()
    by: str = "model"


@dataclass(frozen=True)
class EvidenceModel:
    """Weights, calibration and thresholds.

    Attributes:
        weights: shape (10, n), rows in the order of `CAUSES`, columns in that of `FEATURES`.
        temperature: divides the logits.
        doubt: how much of each cause's share is spread over all of them, whatever the evidence;
            in the order of `CAUSES`.
        coverage: stated coverage of the conformal sets.
        about: where it comes from: takes, seed, code.
    """

    weights: FloatArray
    temperature: float
    doubt: tuple[float, ...]
    pairs: Pairs
    thresholds: Thresholds
    coverage: float
    about: Mapping[str, Any]

    def logits(self, rows: FloatArray) -> FloatArray:
        """Return what rows of features, shape (m, n), say for each cause, shape (m, 10)."""
        return np.asarray(rows @ self.weights.T / self.temperature)

    def shares(self, rows: FloatArray) -> FloatArray:
        """Return the posterior of rows of features, shape (m, n), as shape (m, 10)."""
        return doubted(softmax(self.logits(rows)), self.doubt)

    def judge(self, row: FloatArray) -> Attribution:
        """Return posterior, what is named, and the conformal set, of one row, shape (n,)."""
        return self.judged(self.logits(row[None])[0], row[[FEATURES.index(PLACED)]])

    def judged(self, logits: FloatArray, placed: FloatArray) -> Attribution:
        """Return the same from logits, shape (10,), and the feature `PLACED`, shape (1,)."""
        p = doubted(softmax(logits), self.doubt)
        (sets,) = trusted(together(logits[None], placed, self.pairs), self.doubt)
        shares = {d: float(p[n]) for n, d in enumerate(GapDimension)}
        return Attribution(
            shares, float(p[-1]), named(sets, self.thresholds), candidates(p, self.thresholds.cuts)
        )


def softmax(logits: FloatArray) -> FloatArray:
    """Return shares along the last axis."""
    grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def doubted(shares: FloatArray, doubt: Sequence[float] | FloatArray) -> FloatArray:
    """Return shares, shape (..., 10), of which `doubt` is spread over all causes alike."""
    taken = shares * np.asarray(doubt)
    return np.asarray(shares - taken + taken.sum(axis=-1, keepdims=True) / len(CAUSES))


def together(logits: FloatArray, placed: FloatArray, pairs: Pairs) -> FloatArray:
    """Return the posterior over one cause, none, and two at once, shape (m, 46).

    The ten of `CAUSES`, each alone, then the pairs `FIRST`, `SECOND`; from the logits of each cause
    alone, shape (m, 10), and the feature `PLACED`, shape (m,).
    """
    beside = logits.copy()
    beside[:, TASK] += pairs.placed * placed
    one, other = logits[:, FIRST], logits[:, SECOND]
    second = np.where(one < other, beside[:, FIRST], beside[:, SECOND]) - logits[:, -1:]
    both = np.maximum(one, other) + pairs.second * second + pairs.odds
    return softmax(np.concatenate([logits, both], axis=1))


def trusted(sets: FloatArray, doubt: Sequence[float]) -> FloatArray:
    """Return what is left of `together`'s sets, shape (m, 46), where evidence may be misleading."""
    of = np.asarray(doubt)
    return np.asarray(sets * (1.0 - np.concatenate([of, 0.5 * (of[FIRST] + of[SECOND])])))


def named(sets: FloatArray, limits: Thresholds) -> tuple[GapDimension, ...]:
    """Return the dimensions that a posterior over sets, shape (46,), is sure enough to name."""
    every = tuple(GapDimension)
    alone, both = sets[: len(every)], sets[len(CAUSES) :]
    one, pair = int(np.argmax(alone)), int(np.argmax(both))
    if alone[one] >= limits.name and alone[one] >= both[pair]:
        return (every[one],)
    if both[pair] >= limits.both:
        a, b = int(FIRST[pair]), int(SECOND[pair])
        return (every[a], every[b]) if alone[a] >= alone[b] else (every[b], every[a])
    return ()


def candidates(shares: FloatArray, cuts: Sequence[float]) -> tuple[str, ...]:
    """Return the conformal set of a posterior, shape (10,), likeliest first; never empty.

    A cause belongs to it while the shares of likelier ones sum to less than its cut (adaptive sets
    of Romano, Sesia and Candès 2020, without randomisation).
    """
    order = np.argsort(-shares, kind="stable")
    above = np.cumsum(shares[order]) - shares[order]
    inside = above < np.asarray(cuts)[order]
    return tuple(CAUSES[int(n)] for n in order[inside]) or (CAUSES[int(order[0])],)


def load_model(path: Path) -> EvidenceModel:
    """Read a model's file as `python -m benchmarks attribution` wrote it.

    Features without a weight get none.
    """
    value = read_json(path)
    limits = value["thresholds"]
    columns = [value["weights"].get(name, [0.0] * len(CAUSES)) for name in FEATURES]
    return EvidenceModel(
        np.array(columns, dtype=np.float64).T,
        value["temperature"],
        tuple(value["doubt"]),
        Pairs(**value["pairs"]),
        Thresholds(limits["name"], limits["both"], tuple(limits["cuts"])),
        value["coverage"],
        value["about"],
    )


@cache
def shipped_model() -> EvidenceModel:
    """Return the model that ships."""
    return load_model(Path(__file__).with_name(SHIPPED))


def features(
    measured: TakeSignals, reference: Reference, mode: FailureMode | None
) -> tuple[FloatArray, RuleEvidence]:
    """Return a failed take's row of `FEATURES`, shape (n,), and what the rules say.

    All is relative to the station's reference, so that a row means the same on another task, arm or
    camera.
    """
    rules = rule_evidence(measured, reference, mode)
    odds = {d: math.log(math.expm1(s) + FAINTEST) for d, s in rules.left.items()}
    task = GapDimension.TASK_SPECIFICATION
    placed = max(rules.placed, rules.left[task])
    more = math.log(math.expm1(placed) + FAINTEST) - odds[task]
    return np.array([1.0, *(odds[d] for d in GapDimension), more]), rules


NONE_SCORE: Final = 1.2
"""What unexplained failures score: as much as a signal some 5 spreads from usual."""
ABSTAIN_SCORE: Final = 1.0
ABSTAIN_MARGIN: Final = 0.15
NEEDED: Final = ("motion", "scene", "images")
"""Sources without any of which the model would judge by what it lacks."""


def attribute(
    measured: TakeSignals,
    reference: Reference,
    mode: FailureMode | None,
    model: EvidenceModel,
    hidden: Collection[GapDimension] = (),
) -> Attribution:
    """Return the posterior over gap dimensions for one failed take.

    `hidden` are dimensions whose gaps this take can't show.
    """
    lacking = [measured.unseen[s] for s in NEEDED if s in measured.unseen]
    blind = len(lacking) > 1 or "motion" in measured.unseen
    why = ", ".join(lacking) if blind else ""
    why = why if reference.takes else "no successful episode shows what is usual"
    if why:
        return by_rules(rule_evidence(measured, reference, mode), why, hidden)
    row, rules = features(measured, reference, mode)
    judged = model.judge(row)
    order = {d: n for n, d in enumerate(sorted(GapDimension, key=lambda d: -judged.dimensions[d]))}
    ranked = sorted(rules.evidence, key=lambda pair: order[pair[0]])
    firsts = dict(reversed(ranked))  # the strongest of each dimension
    rest = [e for d, e in ranked if e is not firsts[d]]
    shown = [*(firsts[d] for d in order if d in firsts), *rest][:SHOWN]
    return replace(judged, evidence=tuple(shown))


def by_rules(
    rules: RuleEvidence, why: str = "", hidden: Collection[GapDimension] = ()
) -> Attribution:
    """Return the posterior by the rules alone; `why` says why no model judged.

    What is hidden may have brought about how the attempt went as well as what that speaks for:
    jaws close on nothing where the object is smaller, or somewhere else.
    """
    scores = {d: max(s, rules.indirect * (d in hidden)) for d, s in rules.left.items()}
    weights = {name: math.exp(score) - 1.0 for name, score in scores.items()}
    total = sum(weights.values()) + math.exp(NONE_SCORE)
    shares = {name: weight / total for name, weight in weights.items()}
    first, second = sorted(shares, key=lambda d: -shares[d])[:2]
    close = shares[first] - shares[second] < ABSTAIN_MARGIN
    none = math.exp(NONE_SCORE) / total
    abstained = max(rules.left.values()) < ABSTAIN_SCORE or close or none > shares[first]
    evidence = tuple(e for _, e in rules.evidence[:SHOWN])
    named = () if abstained else (first,)
    by = f"rules: {why}" if why else "rules"
    return Attribution(shares, 1.0 - sum(shares.values()), named, (), evidence, by)


def engineer_labels(path: Path) -> dict[str, dict[str, float]]:
    """Return uid to dimension to weight, of the labels that engineers gave and didn't take back.

    Suggestions and operators' words are left out: the model would learn from itself. An engineer's
    empty label says that none of the dimensions is the cause. Without a file nothing is said.

    Raises:
        UnusableInputError: a line of it can't be read.
    """
    given = (e for e in labels.read(path) if e.source == "engineer" and e.field == "dimensions")
    return {uid: dict(event.value) for (uid, _), event in labels.standing(given).items()}


def weighted_targets(causes: Sequence[Mapping[str, float]]) -> FloatArray:
    """Return the target shares, shape (m, 10), of takes with weighted causes; none if empty."""
    rows = np.zeros((len(causes), len(CAUSES)))
    for row, found in zip(rows, causes, strict=True):
        for cause, weight in found.items():
            row[CAUSES.index(cause)] = weight
        if not row.any():
            row[CAUSES.index(NONE)] = 1.0
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def recalibrated(model: EvidenceModel, rows: FloatArray, of: FloatArray) -> EvidenceModel:
    """Return the model corrected by a station's labelled failures, shape (m, n).

    The shipped weights are the prior; a few dozen labels move what they contradict: evidence that
    is always there at this station stops counting. `of` are target shares, shape (m, 10).
    """
    mean = model.weights / model.temperature
    precision = np.full_like(mean, LABEL_STIFFNESS)
    precision[:, FEATURES.index("one")] *= 0.1  # here, how often each occurs counts
    precision[:, FEATURES.index(PLACED)] = np.inf
    lowest = np.full_like(mean, -np.inf)
    weights = likeliest_weights(rows, of, np.ones(len(rows)), mean, precision, lowest)
    about = {**model.about, "labels": len(rows)}
    return replace(model, weights=weights, temperature=1.0, about=about)


def likeliest_weights(
    rows: FloatArray,
    of: FloatArray,
    counts: FloatArray,
    mean: FloatArray,
    precision: FloatArray,
    lowest: FloatArray,
) -> FloatArray:
    """Return the likeliest weights of labelled failures, shape (10, n).

    Args:
        rows: their features, shape (m, n).
        of: their causes as target shares, shape (m, 10).
        counts: how much each counts, shape (m,).
        mean: of the prior; its precision and the weights' lower bounds are of shape (10, n), too. A
            feature stays at the mean where any precision is infinite.
    """
    free = np.isfinite(precision).all(axis=0)
    start, held = mean[:, free], precision[:, free]
    fixed = rows[:, ~free] @ mean[:, ~free].T
    rows = rows[:, free]

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        weights = flat.reshape(start.shape)
        shares = softmax(rows @ weights.T + fixed)
        missed = -np.sum(of * np.log(shares + 1e-12), axis=1)
        pulled = held * (weights - start)
        value = counts @ missed + 0.5 * np.sum(pulled * (weights - start))
        slope = ((shares - of) * counts[:, None]).T @ rows + pulled
        return float(value), slope.ravel()

    bounds = [(None if v == -np.inf else float(v), None) for v in lowest[:, free].ravel()]
    done = minimize(
        loss, start.ravel(), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 400, "ftol": 1e-8},
    )  # fmt: skip
    found = mean.copy()
    found[:, free] = np.asarray(done.x).reshape(start.shape)
    return found
