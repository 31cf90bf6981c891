"""The benchmark's figures: ours beside baselines, on every part, with intervals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.corpus import fit, scores, study
from benchmarks.corpus.design import BLIND, SHIFTS, DrawnStation
from benchmarks.corpus.fit import targets
from benchmarks.corpus.record import STATIONS
from benchmarks.corpus.scores import Case, Prediction
from benchmarks.corpus.study import Failure
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_atomically
from gaploop.core.journal_format import read_journal
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import GapDimension, Outcome
from gaploop.failure_analysis.attribution import (
    CAUSES,
    FEATURES,
    NONE,
    PLACED,
    EvidenceModel,
    recalibrated,
)
from gaploop.failure_analysis.diagnosis import diagnose_take, prepared
from gaploop.failure_analysis.reference import Reference

STRICT: Final = ("test", "test_mixed", "test_none")
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "test": STRICT,
    "held_task": ("held_task",),
    "held_severity": ("held_severity",),
    "held_mechanism": ("held_mechanism",),
}
"""What is scored together."""
OTHER_REFERENCE: Final = "pick_place-script"
"""What the held-out task is set against, to see how far labels fix a reference that is off."""
LABELS: Final = 36
"""A few dozen: what recalibration is given."""
DRAWS: Final = 40
TRADED: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99)
"""Shares asked for before a cause is named."""
DECIDED: Final = ("named", "right_of_named", "mixed_safe", "mixed_both_named", "false_cause")
"""What they decide."""
SPEED_TAKES: Final = 60

type Found = Mapping[str, Sequence[Failure]]
type Predict = Callable[[Failure], Prediction]


def every_figure(
    found: Found, references: Mapping[str, Reference], model: EvidenceModel, seed: int
) -> dict[str, Any]:
    """Return ours on every part, baselines on the strict one, length control, recalibration."""
    ours = study.by_model(model)
    everybody = {"ours": ours, **baselines(found, references, seed)}
    strict = _chosen(found, STRICT)
    cases = {name: study.cases(strict, predict) for name, predict in everybody.items()}
    durations = [f.take.duration_s for f in strict]
    return {
        "test": {name: _plain(scores.score(said)) for name, said in cases.items()},
        "length_matched_top1": {
            name: study.length_matched(said, durations) for name, said in cases.items()
        },
        "confusion": confusion(cases["ours"]),
        "parts": {
            part: _plain(scores.score(study.cases(_chosen(found, names), ours)))
            for part, names in PARTS.items()
            if part != "test"
        },
        "trade": trade(strict, model),
        "left_out_in_training": {
            name: _plain(figures) for name, figures in _left_out(found, references, model).items()
        },
        "masked": _masked(strict, references, model),
        "recalibration": recalibration(found, references, model, seed),
    }


def strict_figures(found: Found, model: EvidenceModel) -> dict[str, Any]:
    """Return a model's figures on the strict part."""
    return _plain(scores.score(study.cases(_chosen(found, STRICT), study.by_model(model))))


def _chosen(found: Found, parts: Sequence[str]) -> list[Failure]:
    return [f for part in parts for f in found.get(part, ())]


def _plain(figures: Mapping[str, scores.Figure]) -> dict[str, Any]:
    return {name: asdict(figure) for name, figure in figures.items()}


def baselines(found: Found, references: Mapping[str, Reference], seed: int) -> dict[str, Predict]:
    """Return who is set beside: rules alone, a plain forest, length only, the majority."""
    material = study.training(found)
    usual_s = _usual_s(found)

    def raw(failure: Failure) -> FloatArray:
        return study.raw_row(failure, references[failure.take.usual])

    def length(failure: Failure) -> FloatArray:
        return study.length_row(failure, usual_s[failure.take.usual])

    return {
        "rules": study.rules_alone,
        "forest": study.by_forest(material, raw, seed),
        "length_only": study.by_forest(material, length, seed),
        "majority": study.by_majority(material),
    }


def _usual_s(found: Found) -> dict[str, float]:
    """Return reference to the median length of its failures: what a length-only guess may know."""
    lengths: dict[str, list[float]] = {}
    for rows in found.values():
        for failure in rows:
            lengths.setdefault(failure.take.usual, []).append(failure.take.duration_s)
    return {name: float(np.median(values)) for name, values in lengths.items()}


def trade(strict: Sequence[Failure], model: EvidenceModel) -> list[dict[str, Any]]:
    """Return what naming less brings: every figure that naming decides, by the share asked for."""
    rows = []
    for name in TRADED:
        limits = replace(model.thresholds, name=name)
        scored = scores.score(
            study.cases(strict, study.by_model(replace(model, thresholds=limits)))
        )
        rows.append({"share": name, **{k: scored[k].value for k in DECIDED}})
    return rows


def _left_out(
    found: Found, references: Mapping[str, Reference], model: EvidenceModel
) -> dict[str, dict[str, scores.Figure]]:
    """Score the training part by fits that left each take's mechanisms and task out."""
    recorded = study.training(found)
    every = [*recorded, *study.evading(recorded, references)]
    data = study.material(found, references)
    logits = fit.left_out(data, fit.log_linear(FEATURES, fit.Stiffness()))
    placed = data.rows[:, [FEATURES.index(PLACED)]]
    said = [
        study.as_prediction(model.judged(row, at))
        for row, at in zip(logits / model.temperature, placed, strict=True)
    ]
    cases = study.told(every, said)
    return {
        "left out in training": scores.score(cases[: len(recorded)]),
        "its own signals hidden too": scores.score(cases[len(recorded) :]),
    }


def _masked(
    strict: Sequence[Failure], references: Mapping[str, Reference], model: EvidenceModel
) -> dict[str, Any]:
    """Return top-1 and false causes on the strict part with channels taken away."""
    result = {}
    for mask in study.MASKS:
        bare = [
            study.as_failure(study.masked(f.take, mask), references[f.take.usual]) for f in strict
        ]
        scored = scores.score(study.cases(bare, study.by_model(model)))
        kept = {k: scored[k] for k in ("top1", "named", "right_of_named", "false_cause")}
        result["without " + ", ".join(mask)] = _plain(kept)
    return result


def recalibration(
    found: Found, references: Mapping[str, Reference], model: EvidenceModel, seed: int
) -> list[dict[str, Any]]:
    """Return what a few dozen labels bring at stations that differ from their reference for good.

    Labels and takes to score are drawn from the station's failures at random, by whole drawn
    cells, `DRAWS` times. Stations with too few failures are left out.
    """
    rows = []
    for number, (station, here) in enumerate(_stations_off(found, references).items()):
        before, after = _gains(here, model, np.random.default_rng([seed, 61, number]))
        if before:
            gain = np.array(after) - np.array(before)
            rows.append(
                {
                    "station": station,
                    "failures": len(here),
                    "labels": LABELS,
                    "top1_before": float(np.mean(before)),
                    "top1_after": float(np.mean(after)),
                    "gain": float(gain.mean()),
                    "gain_interval": np.percentile(gain, (2.5, 97.5)).tolist(),
                }
            )
    return rows


def _stations_off(found: Found, references: Mapping[str, Reference]) -> dict[str, list[Failure]]:
    """Return stations that their reference doesn't fit: set up otherwise, or of another task."""
    stations = {
        " and ".join(f"{k} {v}" for k, v in shift.items()): [
            f for f in found.get("shifted", ()) if f.take.shift == number
        ]
        for number, shift in enumerate(SHIFTS)
    }
    other = references[OTHER_REFERENCE]
    takes = [f.take for f in _chosen(found, ("held_task", "test", "test_none"))]
    stations[f"the reference of {OTHER_REFERENCE}"] = [study.as_failure(t, other) for t in takes]
    return stations


def _gains(
    here: Sequence[Failure], model: EvidenceModel, rng: np.random.Generator
) -> tuple[list[float], list[float]]:
    """Return top-1 before and after labels, of every draw of labels."""
    if len(here) < LABELS + 10:
        return [], []
    of = targets([f.take.dimensions for f in here])
    rows, truth = np.array([f.row for f in here]), of.argmax(axis=1)
    stations = np.array([f.take.station for f in here])
    before: list[float] = []
    after: list[float] = []
    for _ in range(DRAWS):
        order = rng.permutation(np.unique(stations))
        rank = {name: n for n, name in enumerate(order)}
        drawn = np.argsort([rank[name] for name in stations], kind="stable")
        given, rest = drawn[:LABELS], drawn[LABELS:]
        rest = rest[~np.isin(stations[rest], stations[given])]
        corrected = recalibrated(model, rows[given], of[given])
        for result, judge in ((before, model), (after, corrected)):
            said = judge.shares(rows[rest]).argmax(axis=1)
            result.append(float(np.mean(said == truth[rest])))
    return before, after


def confusion(cases: Iterable[Case]) -> dict[str, dict[str, int]]:
    """Return injected cause → likeliest cause → number of takes, of takes with one or none."""
    rows = {name: dict.fromkeys(CAUSES, 0) for name in CAUSES}
    for case in cases:
        if len(case.causes) <= 1:
            rows[case.truth][case.said.top] += 1
    return rows


def prediction_line(key: str, said: Prediction) -> str:
    """Return a prediction's line, as `read_predictions` reads it."""
    shares: Mapping[str, float] = dict(zip(CAUSES, said.shares.tolist(), strict=True))
    return json.dumps(
        {
            "id": key,
            "dimensions": {d.value: shares[d.value] for d in GapDimension},
            "none": shares[NONE],
            "named": sorted(said.named),
            "candidates": sorted(said.candidates),
        }
    )


def write_predictions(path: Path, found: Found, model: EvidenceModel) -> None:
    """Write our predictions for the test parts, in the form that others hand in."""
    predict = study.by_model(model)
    lines = [prediction_line(study.case_id(f.take), predict(f)) for f in _chosen(found, STRICT)]
    write_atomically(path, "\n".join([*lines, ""]))


def handed_in(found: Found, path: Path) -> dict[str, Any]:
    """Score somebody's predictions on the test parts; what they leave out counts as abstained."""
    said = scores.read_predictions(path)
    strict = _chosen(found, STRICT)
    silent = Prediction(np.full(10, 0.1), frozenset())
    cases = study.cases(strict, lambda f: said.get(study.case_id(f.take), silent))
    missing = sum(study.case_id(f.take) not in said for f in strict)
    return {"file": str(path), "missing": missing, **_plain(scores.score(cases))}


def blind(found: Found, model: EvidenceModel | None) -> dict[str, Any]:
    """Score the model that ships, and the rules alone, on mechanisms that nobody had seen.

    Raises:
        UnusableInputError: no model ships.
    """
    if model is None:
        raise UnusableInputError(
            "No attribution model ships. Run python -m benchmarks attribution first."
        )
    rows = found.get(BLIND, ())
    judges = {"ours": study.by_model(model), "rules": study.rules_alone}
    return {
        name: _plain(scores.score(study.cases(rows, predict))) for name, predict in judges.items()
    }


def is_same(model: EvidenceModel, other: EvidenceModel | None) -> bool:
    """Whether two models judge alike, past the rounding of their files."""
    return (
        other is not None
        and bool(np.allclose(model.weights, other.weights, atol=1e-3))
        and abs(model.temperature - other.temperature) < 1e-3
    )


def speed(
    stations: Sequence[DrawnStation],
    folder: Path,
    references: Mapping[str, Reference],
    model: EvidenceModel,
) -> dict[str, float]:
    """Return failed takes diagnosed in a minute of one core, with pictures and without."""
    result = {}
    for name, images in (("with_pictures", True), ("telemetry_and_scene", False)):
        count, spent = 0, 0.0
        for station in stations:
            if station.part != "test" or count >= SPEED_TAKES:
                continue
            usual = references[station.usual]
            start = time.process_time()
            for take in read_journal(folder / STATIONS / station.key):
                if take.outcome is Outcome.FAILURE:
                    diagnose_take(prepared(take, usual, images), usual, model)
                    count += 1
            spent += time.process_time() - start
        result[name] = 60.0 * count / max(spent, 1e-9)
    return result
