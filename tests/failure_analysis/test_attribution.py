"""Laws of attribution: shares, sets and thresholds; the rules as prior; labels; predictions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from failure_analysis_makers import repeated, scene_picture, successes, take
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.corpus import fit
from benchmarks.corpus.fit import LabelledFailures, targets
from gaploop.core import labels
from gaploop.core.labels import LabelEvent
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import FailureMode, GapDimension
from gaploop.failure_analysis.attribution import (
    CAUSES,
    FEATURES,
    FIRST,
    LEAST_LABELS,
    SECOND,
    SHIPPED,
    EvidenceModel,
    Pairs,
    Thresholds,
    attribute,
    candidates,
    engineer_labels,
    features,
    load_model,
    named,
    recalibrated,
    shipped_model,
    together,
)
from gaploop.failure_analysis.diagnosis import diagnose
from gaploop.failure_analysis.reference import Reference, UsualValue
from gaploop.failure_analysis.signals.registry import TakeSignals, registry

LIMITS = Thresholds(0.5, 0.5, (0.9,) * 10)
USUAL = Reference("made up", 20, {name: UsualValue(0.0, 1.0, 20) for name in registry()})


def measured(**z: float) -> TakeSignals:
    """Signals that stand so many spreads from usual; all others are usual."""
    spread = {n: max(1.0, s.floor) for n, s in registry().items()}
    values = {n: z.get(n, 0.0) * spread[n] for n, s in registry().items() if s.source != "policy"}
    return TakeSignals(values, {})


def row(mode: FailureMode | None = None, **z: float) -> FloatArray:
    return features(measured(**z), USUAL, mode)[0]


def plain_model() -> EvidenceModel:
    """The rules as a model, before any data."""
    nothing = labelled(np.empty((0, len(FEATURES))), np.empty((0, 10)))
    weights = fit.fit_weights(FEATURES, nothing, fit.Stiffness())
    return EvidenceModel(weights, 1.0, (0.0,) * 10, Pairs(), LIMITS, 0.9, {})


def labelled(
    rows: FloatArray,
    of: FloatArray,
    groups: tuple[frozenset[str], ...] = (),
    tasks: tuple[str, ...] = (),
) -> LabelledFailures:
    return LabelledFailures(rows, of, np.ones(len(rows)), np.ones(len(rows)), groups, tasks)


shares = arrays(np.float64, 10, elements=st.floats(0.001, 1.0)).map(lambda a: a / a.sum())


@given(shares, st.floats(0.05, 1.0))
def test_a_conformal_set_holds_the_likeliest_and_grows_with_its_cut(
    p: FloatArray, cut: float
) -> None:
    found = candidates(p, (cut,) * 10)
    assert CAUSES[int(np.argmax(p))] in found
    assert set(found) <= set(candidates(p, (cut + 0.1,) * 10))
    assert len(set(found)) == len(found)


logits = arrays(np.float64, 10, elements=st.floats(-6.0, 6.0))


@given(logits, st.floats(0.0, 5.0))
def test_one_two_or_nothing_is_named_and_two_only_where_both_together_are_likely(
    said: FloatArray, placed: float
) -> None:
    (sets,) = together(said[None], np.array([placed]), Pairs())
    found = named(sets, LIMITS)
    assert math.isclose(sets.sum(), 1.0, abs_tol=1e-9)
    assert len(found) <= 2
    if len(found) == 1:
        assert sets[CAUSES.index(found[0].value)] >= LIMITS.name
    if len(found) == 2:
        a, b = sorted(CAUSES.index(d.value) for d in found)
        (pair,) = np.flatnonzero((a == FIRST) & (b == SECOND))
        assert sets[10 + pair] >= LIMITS.both


@given(st.floats(-6.0, 6.0), st.floats(-6.0, 4.0))
def test_a_second_cause_that_says_no_more_than_none_has_the_odds_of_the_fit(
    first: float, odds: float
) -> None:
    said = np.full(10, -9.0)
    said[0] = first
    (sets,) = together(said[None], np.zeros(1), Pairs(1.0, 0.5, odds))
    assert math.isclose(sets[10] / sets[0], math.exp(odds), rel_tol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(registry())), st.floats(-1e6, 1e6), max_size=6))
def test_shares_sum_to_one_whatever_is_measured(z: dict[str, float]) -> None:
    found = attribute(measured(**z), USUAL, FailureMode.SLIP, plain_model())
    assert math.isclose(sum(found.dimensions.values()) + found.none, 1.0, abs_tol=1e-9)
    assert all(math.isfinite(share) and share >= 0 for share in found.dimensions.values())


@pytest.mark.parametrize(
    ("signal", "side", "cause"),
    [
        ("lag_s", 30.0, GapDimension.ACTUATOR_RESPONSE),
        ("jitter_rad", 30.0, GapDimension.SENSOR_NOISE),
        ("brightness", -30.0, GapDimension.VISUAL_DOMAIN),
        ("camera_shift_px", 30.0, GapDimension.SPATIAL_GEOMETRY),
        ("object_area_ratio", 30.0, GapDimension.OBJECT_PROPERTY),
        ("foreground_share", 30.0, GapDimension.ENVIRONMENTAL_COMPLEXITY),
        ("hand_share", 30.0, GapDimension.HUMAN_BEHAVIOR),
    ],
)
def test_without_data_the_model_is_the_rules(signal: str, side: float, cause: GapDimension) -> None:
    found = attribute(measured(**{signal: side}), USUAL, FailureMode.TIMEOUT, plain_model())
    assert found.named == (cause,)
    assert found.evidence[0].signal == signal


def test_evidence_for_two_dimensions_names_both() -> None:
    found = attribute(measured(lag_s=60.0, brightness=-60.0), USUAL, None, plain_model())
    assert set(found.named) == {GapDimension.ACTUATOR_RESPONSE, GapDimension.VISUAL_DOMAIN}


PLACED = {"held_share": 1.0, "release_target_m": 0.0}


def let_go(end_m: float, **z: float) -> TakeSignals:
    """Held all along and opened over the target; the object rests so far from it [m]."""
    return TakeSignals({**measured(**z).values, **PLACED, "end_distance_m": end_m}, {})


def test_put_where_it_was_aimed_speaks_for_a_restated_task_and_beside_it_for_contact() -> None:
    """Sticky pads left the object a little beside its place, which read as a restated task."""
    model = plain_model()
    put = attribute(let_go(0.003), USUAL, FailureMode.MISPLACEMENT, model)
    beside = attribute(let_go(0.017), USUAL, FailureMode.MISPLACEMENT, model)
    assert put.named == (GapDimension.TASK_SPECIFICATION,)
    shares = beside.dimensions
    assert shares[GapDimension.CONTACT_DYNAMICS] > shares[GapDimension.TASK_SPECIFICATION]


def test_a_restated_task_shows_beside_a_picture_that_is_off() -> None:
    """A goal that moved behind an overexposed picture: the light explains much, but not this."""
    found = attribute(let_go(0.003, brightness=60.0), USUAL, FailureMode.MISPLACEMENT, both_model())
    assert set(found.named) == {GapDimension.VISUAL_DOMAIN, GapDimension.TASK_SPECIFICATION}
    plain = attribute(measured(brightness=60.0), USUAL, FailureMode.MISPLACEMENT, both_model())
    assert plain.named == (GapDimension.VISUAL_DOMAIN,)


def both_model() -> EvidenceModel:
    return replace(plain_model(), pairs=Pairs(1.0, 1.0, -0.5))


def test_nothing_unusual_names_nothing() -> None:
    found = attribute(measured(), USUAL, FailureMode.SLIP, plain_model())
    assert not found.named
    assert found.none > max(found.dimensions.values())


def test_missing_channels_are_said_and_the_rules_take_over() -> None:
    blind = replace(measured(lag_s=30.0), unseen={"motion": "no joint commands with readings"})
    found = attribute(blind, USUAL, None, plain_model())
    assert found.by == "rules: no joint commands with readings"
    limits = replace(USUAL, takes=0)
    assert "usual" in attribute(measured(lag_s=30.0), limits, None, plain_model()).by
    assert attribute(measured(lag_s=30.0), USUAL, None, plain_model()).by == "model"


@pytest.mark.parametrize(
    ("signal", "side"),
    [("slip_rad_s", 30.0), ("lost_count", 30.0), ("held_share", -30.0), ("stall_s", 30.0)],
)
def test_how_an_attempt_went_names_nothing_where_other_gaps_would_not_show(
    signal: str, side: float
) -> None:
    """Jaws that closed on nothing were laid to contact where no picture showed a smaller cube."""
    blind = {"scene": "no tracked scene", "images": "pictures not analysed"}
    seen = replace(measured(**{signal: side}), unseen=blind)
    hidden = (GapDimension.OBJECT_PROPERTY, GapDimension.SPATIAL_GEOMETRY)
    found = attribute(seen, USUAL, FailureMode.SLIP, plain_model(), hidden)
    assert not found.named
    assert len({found.dimensions[d] for d in hidden}) == 1
    late = replace(measured(**{signal: side}, lag_s=60.0), unseen=blind)
    found = attribute(late, USUAL, FailureMode.SLIP, plain_model(), hidden)
    assert found.named == (GapDimension.ACTUATOR_RESPONSE,)


@given(st.floats(0.0, 0.1))
def test_a_time_is_told_no_finer_than_half_a_row(late_s: float) -> None:
    """44 ms instead of 23, in rows of 20 ms, were taken for late drives."""
    usual = replace(USUAL, signals={"lag_s": UsualValue(0.023, 0.0, 20)})
    assert usual.z("lag_s", 0.023 + late_s, 0.02) == pytest.approx(late_s / 0.01)
    assert usual.z("lag_s", 0.023 + late_s) == pytest.approx(late_s / 0.003)


def test_own_evidence_never_speaks_against_its_dimension() -> None:
    """Data in which loud evidence comes with another cause may silence it, never turn it round."""
    rows = np.array([row(lag_s=20.0 + n) for n in range(20)])
    of = targets([["visual_domain"]] * 20)
    groups = tuple(frozenset({"visual_domain.blur"}) for _ in rows)
    data = labelled(rows, of, groups, ("pick_place",) * 20)
    weights = fit.fit_weights(FEATURES, data, fit.Stiffness(0.01, 0.01))
    cause = CAUSES.index("actuator_response")
    assert weights[cause, FEATURES.index("left.actuator_response")] >= 0.0


def test_a_stations_labels_silence_evidence_that_is_always_there() -> None:
    """At a station with warm light, every failure looked like `visual_domain`."""
    model = plain_model()
    warm = {"cast_red": 12.0}
    rows = np.array([row(**warm, lag_s=4.0 + n) for n in range(12)])
    of = targets([["actuator_response"]] * 12)
    fresh = row(**warm, lag_s=9.5)
    assert model.judge(fresh).named != (GapDimension.ACTUATOR_RESPONSE,)
    corrected = recalibrated(model, rows, of)
    shares = corrected.judge(fresh).dimensions
    assert max(shares, key=lambda d: shares[d]) is GapDimension.ACTUATOR_RESPONSE
    assert corrected.about["labels"] == 12


def test_only_engineers_labels_that_stand_are_learned_from(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    said = LabelEvent("a", "dimensions", {"visual_domain": 1.0}, "ana", "engineer")
    labels.append(
        path,
        said,
        LabelEvent("b", "dimensions", {"sensor_noise": 1.0}, "ana", "engineer"),
        LabelEvent("b", "dimensions", {}, "ana", "engineer"),
        LabelEvent("c", "dimensions", {"human_behavior": 1.0}, "gaploop", "auto"),
        labels.retraction(said),
    )
    assert engineer_labels(path) == {"b": {}}
    assert engineer_labels(tmp_path / "nowhere.jsonl") == {}


def test_diagnosis_learns_from_labels_and_says_so() -> None:
    takes = [take(uid=f"bad-{n}", seed=30 + n, lag_s=0.1, pictures=repeated(scene_picture()))
             for n in range(LEAST_LABELS)]  # fmt: skip
    causes = {t.info.uid: {"actuator_response": 1.0} for t in takes}
    found = diagnose([*successes(), *takes], model=plain_model(), causes=causes)
    assert found.summary["labels_learned_from"] == len(takes)
    few = dict(list(causes.items())[:3])
    assert diagnose([*successes(), *takes], causes=few).summary["labels_learned_from"] == 0


def test_a_saved_model_is_the_model_that_loads(tmp_path: Path) -> None:
    model = plain_model()
    fit.save_model(model, tmp_path / SHIPPED)
    again = load_model(tmp_path / SHIPPED)
    assert np.allclose(again.weights, model.weights, atol=1e-5)
    assert again.thresholds == model.thresholds


def test_a_model_of_an_older_registry_loads_and_gives_new_features_no_weight(
    tmp_path: Path,
) -> None:
    path = tmp_path / SHIPPED
    fit.save_model(plain_model(), path)
    value = json.loads(path.read_text())
    del value["weights"]["left.human_behavior"]
    path.write_text(json.dumps(value))
    column = FEATURES.index("left.human_behavior")
    assert not load_model(path).weights[:, column].any()


def test_the_shipped_model_loads_and_is_no_worse_than_the_rules_on_plain_faults() -> None:
    model = shipped_model()
    assert model.weights.shape == (10, len(FEATURES))
    assert model.about["evidence"] == "sim-to-sim"
    found = attribute(measured(lag_s=40.0), USUAL, FailureMode.TIMEOUT, model)
    assert (
        max(found.dimensions, key=lambda d: found.dimensions[d]) is GapDimension.ACTUATOR_RESPONSE
    )
