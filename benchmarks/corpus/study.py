"""What the corpus says about attribution: the model fitted to its training part, beside baselines.

Only failures count. A failure under a gap counts where the same controller did well on the same
scene without the gap: otherwise the gap needn't be the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.corpus import fit
from benchmarks.corpus.design import POLICY, SCRIPT
from benchmarks.corpus.fit import LabelledFailures, balanced, joined, targets
from benchmarks.corpus.scores import Case, Prediction
from benchmarks.corpus.signals import MeasuredTake
from gaploop.core.messages import FloatArray
from gaploop.failure_analysis.attribution import (
    CAUSES,
    FEATURES,
    Attribution,
    EvidenceModel,
    by_rules,
    features,
)
from gaploop.failure_analysis.reference import Reference
from gaploop.failure_analysis.rules import rule_evidence
from gaploop.failure_analysis.signals.registry import registry

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
    row, rules = features(take.measured, reference, take.failure_mode)
    return Failure(take, row, by_rules(rules))


def masked(take: MeasuredTake, sources: Iterable[str]) -> MeasuredTake:
    """Return a take as it would be without these channels."""
    gone = set(sources)
    values = {
        k: float("nan") if registry()[k].source in gone else v for k, v in take.values.items()
    }
    return replace(take, values=values, unseen={**take.unseen, **dict.fromkeys(gone, "left out")})


def labelled(found: Sequence[Failure], counts: float = 1.0) -> LabelledFailures:
    """Return failures with what was injected, as training material; each counts `counts`."""
    of = targets([f.take.dimensions for f in found])
    groups = tuple(frozenset(f.take.gaps) or frozenset({f.take.controller}) for f in found)
    rows = np.array([f.row for f in found]).reshape(len(found), len(FEATURES))
    tasks = tuple(f.take.task for f in found)
    every = np.full(len(found), counts)
    return LabelledFailures(rows, of, counts * balanced(of), every, groups, tasks)


def training(found: Mapping[str, Sequence[Failure]]) -> list[Failure]:
    """Return the failures that may be trained on."""
    return [f for part in TRAIN for f in found.get(part, ())]


def variants(
    found: Sequence[Failure], references: Mapping[str, Reference], seed: int
) -> LabelledFailures:
    """Return every failure once more without some of its channels."""
    rng = np.random.default_rng([seed, 53])
    bare = []
    for failure in found:
        mask = MASKS[int(rng.integers(len(MASKS)))]
        bare.append(as_failure(masked(failure.take, mask), references[failure.take.usual]))
    return labelled(bare, 0.5)


EVADING: Final = 0.5
"""What a take as in `evading` counts, beside 1 as recorded."""
SHARED: Final = 0.2
"""A signal is a dimension's, not one mechanism's, if it speaks in this share of another's takes."""


def evading(found: Sequence[Failure], references: Mapping[str, Reference]) -> list[Failure]:
    """Return single-cause failures as they would look had their mechanism not been foreseen.

    Signals and rules were made by people who knew these mechanisms: leaving one out of a fit isn't
    enough to see how a new one would fare. So the signals that speak for a dimension under one of
    its mechanisms only are set to usual in that mechanism's takes.
    """
    spoken = [_spoken(failure, references[failure.take.usual]) for failure in found]
    shares = _shares_speaking(found, spoken)
    result = []
    for failure, signals in zip(found, spoken, strict=True):
        take, reference = failure.take, references[failure.take.usual]
        if len(take.gaps) != 1:
            continue
        others = [of for gap, of in shares.items() if gap not in take.gaps
                  and gap.partition(".")[0] == take.dimensions[0]]  # fmt: skip
        own = {n for n in signals if max((of.get(n, 0.0) for of in others), default=0.0) < SHARED}
        usual = {n: reference.signals[n].mean for n in own & reference.signals.keys()}
        hidden = replace(take, values={**take.values, **usual})
        result.append(as_failure(hidden, reference))
    return result


def _spoken(failure: Failure, reference: Reference) -> set[str]:
    """Return the signals that speak for what was injected."""
    take = failure.take
    rules = rule_evidence(take.measured, reference, take.failure_mode)
    return {found.signal for d, found in rules.evidence if d.value in take.dimensions}


def _shares_speaking(
    found: Sequence[Failure], spoken: Sequence[set[str]]
) -> dict[str, dict[str, float]]:
    """Return mechanism to signal to the share of its single-cause takes in which that speaks."""
    takes: dict[str, list[set[str]]] = {}
    for failure, signals in zip(found, spoken, strict=True):
        if len(failure.take.gaps) == 1:
            (gap,) = failure.take.gaps
            takes.setdefault(gap, []).append(signals)
    return {
        gap: {n: sum(n in signals for signals in of) / len(of) for n in set().union(*of)}
        for gap, of in takes.items()
    }


def material(
    found: Mapping[str, Sequence[Failure]], references: Mapping[str, Reference]
) -> LabelledFailures:
    """Return what the model is fitted to and calibrated on: as recorded, then as in `evading`."""
    recorded = training(found)
    return joined(labelled(recorded), labelled(evading(recorded, references), EVADING))


def fit_corpus(
    found: Mapping[str, Sequence[Failure]],
    references: Mapping[str, Reference],
    seed: int,
    about: Mapping[str, Any],
) -> EvidenceModel:
    """Fit and calibrate the model on the training parts."""
    extra = variants(training(found), references, seed)
    return fit.fit_model(FEATURES, material(found, references), extra, about)


def cases(found: Sequence[Failure], predict: Callable[[Failure], Prediction]) -> list[Case]:
    """Return failures with what `predict` says about them."""
    return told(found, [predict(f) for f in found])


def told(found: Sequence[Failure], said: Sequence[Prediction]) -> list[Case]:
    """Return failures with what is said about each."""
    return [
        Case(case_id(f.take), f.take.station, frozenset(f.take.dimensions), prediction)
        for f, prediction in zip(found, said, strict=True)
    ]


def case_id(take: MeasuredTake) -> str:
    """Return what names a take in predictions, whoever recorded the corpus."""
    return f"{take.station}/{take.scene}"


def by_model(model: EvidenceModel) -> Callable[[Failure], Prediction]:
    """Return how the model predicts."""
    return lambda failure: as_prediction(model.judge(failure.row))


def as_prediction(judged: Attribution) -> Prediction:
    """Return what the model says as any entry of the benchmark would."""
    shares = np.array([*judged.dimensions.values(), judged.none])
    return Prediction(
        shares, frozenset(d.value for d in judged.named), frozenset(judged.candidates)
    )


def rules_alone(failure: Failure) -> Prediction:
    """Predict by the rules alone."""
    said = failure.rules
    shares = np.array([*said.dimensions.values(), said.none])
    return Prediction(shares, frozenset(d.value for d in said.named))


def by_majority(found: Sequence[Failure]) -> Callable[[Failure], Prediction]:
    """Predict the commonest cause of the training part, always."""
    of = targets([f.take.dimensions for f in found])
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
