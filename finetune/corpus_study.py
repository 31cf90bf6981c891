"""What the corpus says about attribution: the model fitted to its training part, beside baselines.

Only failures count. A failure under a gap counts where the same controller did well on the same
scene without the gap: otherwise the gap needn't be the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from gaploop.core.types import FloatArray
from gaploop.failure_analysis.attribution import features, fit
from gaploop.failure_analysis.attribution.benchmark import Case, Prediction
from gaploop.failure_analysis.attribution.model import (
    CAUSES,
    EvidenceModel,
    candidates,
    named,
)
from gaploop.failure_analysis.attribution.posterior import Attribution, by_rules
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.signals.registry import registry
from gaploop.finetune.corpus import POLICY, SCRIPT
from gaploop.finetune.corpus_signals import MeasuredTake

TRAIN: Final = ("train", "train_mixed", "train_none")
PLAIN: Final = (POLICY, SCRIPT)
MASKS: Final[tuple[tuple[str, ...], ...]] = (
    ("currents", "loads"),
    ("scene",),
    ("images",),
    ("currents", "loads", "scene"),
    ("currents", "loads", "images"),
)
"""Channels that a variant of a training take goes without."""

type Predict = Callable[[MeasuredTake], Prediction]


@dataclass(frozen=True)
class Failure:
    """A failed take that counts, as a row of features.

    Attributes:
        take: measured.
        row: its features, shape (n,).
        rules: what the rules alone say.
    """

    take: MeasuredTake
    row: FloatArray
    rules: Attribution


def failures(
    takes: Sequence[MeasuredTake], references: Mapping[str, Reference]
) -> dict[str, list[Failure]]:
    """Return part to its failures that count.

    Args:
        takes: of the whole corpus; its twins say which scenes can be done.
        references: what is usual, by name.
    """
    doable = {(t.usual, t.scene) for t in takes if t.part == "twin" and not t.failed}
    found: dict[str, list[Failure]] = {}
    for take in takes:
        caused = take.controller not in PLAIN or (take.usual, take.scene) in doable
        if take.failed and caused and take.part not in ("reference", "twin"):
            found.setdefault(take.part, []).append(as_failure(take, references[take.usual]))
    return found


def as_failure(take: MeasuredTake, reference: Reference) -> Failure:
    """Return a failed take as a row of features."""
    found = features.features(take.measured, reference, take.failure_mode)
    return Failure(take, found.values, by_rules(found.rules))


def masked(take: MeasuredTake, sources: Iterable[str]) -> MeasuredTake:
    """Return a take as it would be without these channels."""
    gone = set(sources)
    values = {
        k: float("nan") if registry()[k].source in gone else v for k, v in take.values.items()
    }
    return replace(take, values=values, unseen={**take.unseen, **dict.fromkeys(gone, "left out")})


def labelled(found: Sequence[Failure]) -> fit.Labelled:
    """Return failures with what was injected, as training material."""
    of = fit.targets([f.take.dimensions for f in found])
    groups = tuple(frozenset(f.take.gaps) or frozenset({f.take.controller}) for f in found)
    rows = np.array([f.row for f in found])
    return fit.Labelled(rows, of, fit.balanced(of), groups, tuple(f.take.task for f in found))


def training(found: Mapping[str, Sequence[Failure]]) -> list[Failure]:
    """Return the failures that may be trained on."""
    return [f for part in TRAIN for f in found.get(part, ())]


def variants(
    found: Sequence[Failure], references: Mapping[str, Reference], seed: int
) -> fit.Labelled:
    """Return every failure once more without some of its channels."""
    rng = np.random.default_rng([seed, 53])
    bare = []
    for failure in found:
        mask = MASKS[int(rng.integers(len(MASKS)))]
        bare.append(as_failure(masked(failure.take, mask), references[failure.take.usual]))
    return labelled(bare)


def fit_corpus(
    found: Mapping[str, Sequence[Failure]],
    references: Mapping[str, Reference],
    seed: int,
    about: Mapping[str, Any],
) -> EvidenceModel:
    """Fit and calibrate the model on the training parts."""
    material = training(found)
    extra = variants(material, references, seed)
    extra = replace(extra, weights=0.5 * extra.weights)
    return fit.fit_model(features.names(), labelled(material), extra, about)


def cases(found: Sequence[Failure], predict: Callable[[Failure], Prediction]) -> list[Case]:
    """Return failures with what `predict` says about them."""
    return [
        Case(case_id(f.take), f.take.station, frozenset(f.take.dimensions), predict(f))
        for f in found
    ]


def case_id(take: MeasuredTake) -> str:
    """Return what names a take in predictions, whoever recorded the corpus."""
    return f"{take.station}/{take.scene}"


def by_model(model: EvidenceModel) -> Callable[[Failure], Prediction]:
    """Return how the model predicts."""

    return lambda failure: judged(model.shares(failure.row[None])[0], model)


def judged(shares: FloatArray, model: EvidenceModel) -> Prediction:
    """Return a posterior, shape (10,), with what the model's thresholds make of it."""
    said = frozenset(d.value for d in named(shares, model.thresholds))
    return Prediction(shares, said, frozenset(candidates(shares, model.thresholds.cuts)))


def rules_alone(failure: Failure) -> Prediction:
    """Predict by the rules alone."""
    said = failure.rules
    shares = np.array([*said.dimensions.values(), said.none])
    return Prediction(shares, frozenset(d.value for d in said.named))


def by_majority(found: Sequence[Failure]) -> Callable[[Failure], Prediction]:
    """Predict the commonest cause of the training part, always."""
    of = fit.targets([f.take.dimensions for f in found])
    return lambda _: _plain(of.mean(axis=0))


def by_forest(
    found: Sequence[Failure], row: Callable[[Failure], FloatArray], seed: int
) -> Callable[[Failure], Prediction]:
    """Predict by a plain random forest on other features, at scikit-learn's own settings."""
    from sklearn.ensemble import RandomForestClassifier

    single = [f for f in found if len(f.take.dimensions) <= 1]
    truth = [next(iter(f.take.dimensions), CAUSES[-1]) for f in single]
    forest = RandomForestClassifier(500, class_weight="balanced", random_state=seed)
    forest.fit(np.array([row(f) for f in single]), truth)
    columns = [CAUSES.index(name) for name in forest.classes_]

    def predict(failure: Failure) -> Prediction:
        shares = np.zeros(len(CAUSES))
        shares[columns] = forest.predict_proba(row(failure)[None])[0]
        return _plain(shares)

    return predict


def _plain(shares: FloatArray) -> Prediction:
    """Return a prediction that names its likeliest cause above one half, and abstains below."""
    top = int(np.argmax(shares))
    sure = shares[top] > 0.5 and top < len(CAUSES) - 1
    return Prediction(shares, frozenset({CAUSES[top]} if sure else ()))


def raw_row(failure: Failure, reference: Reference) -> FloatArray:
    """Return distances from usual of every signal, as they are, for the plain forest."""
    values = [reference.z(name, failure.take.values.get(name, float("nan"))) for name in registry()]
    return np.clip(np.nan_to_num(np.array(values)), -1e3, 1e3)


def length_row(failure: Failure, usual_s: float) -> FloatArray:
    """Return what only knows how long the take was: seconds, and multiples of the usual."""
    return np.array([failure.take.duration_s, failure.take.duration_s / usual_s])


LENGTHS_S: Final = (4.0, 6.0, 7.95)
"""Edges of the classes of length within which causes are made equally frequent [s]."""


def length_matched(found: Sequence[Case], durations_s: Sequence[float]) -> float:
    """Return top-1 with causes made equally frequent within each class of length.

    Within a class of length, length then says nothing about the cause. Classes with fewer than
    three causes are left out.
    """
    cells: dict[int, dict[str, list[bool]]] = {}
    for case, duration_s in zip(found, durations_s, strict=True):
        if len(case.causes) == 1:
            cell = cells.setdefault(int(np.searchsorted(LENGTHS_S, duration_s)), {})
            cell.setdefault(case.truth, []).append(case.said.top == case.truth)
    right = [np.mean([np.mean(v) for v in c.values()]) for c in cells.values() if len(c) >= 3]
    sizes = [sum(map(len, c.values())) for c in cells.values() if len(c) >= 3]
    return float(np.average(right, weights=sizes)) if right else float("nan")
