"""Laws of the corpus: nothing held out is trained on, larger holds smaller, it resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.corpus import figures, scores, study
from benchmarks.corpus.card import card
from benchmarks.corpus.design import (
    PARTS,
    REFERENCE,
    SCRIPT,
    TEST_SEVERITIES,
    TEST_TASK,
    TRAIN_SEVERITIES,
    TRAIN_TASKS,
    TWIN,
    DrawnStation,
    draw_corpus,
    mechanism_names,
)
from benchmarks.corpus.errant import ERRORS, HELD_OUT_ERRORS
from benchmarks.corpus.record import STATIONS, record_corpus
from benchmarks.corpus.scores import read_truth
from benchmarks.corpus.signals import MeasuredTake, corpus_references, measure_corpus
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import TRUTH, read_journal, take_folders
from gaploop.core.vocabulary import GapDimension, Outcome
from gaploop.failure_analysis.reference import Reference, UsualValue
from gaploop.failure_analysis.signals.registry import registry

TRAINED = ("train", "train_mixed", "train_none")
STRICT = ("test", "test_mixed", "test_none")


def test_training_and_test_share_no_task_severity_mechanism_or_error() -> None:
    assert not set(TRAIN_TASKS) & {TEST_TASK}
    assert not set(TRAIN_SEVERITIES) & set(TEST_SEVERITIES)
    assert not set(ERRORS) & set(HELD_OUT_ERRORS)
    assert not set(mechanism_names("train")) & set(mechanism_names("test"))
    stations = draw_corpus(1200, 0)
    train = [s for s in stations if s.part in TRAINED]
    test = [s for s in stations if s.part in STRICT]
    assert train
    assert test
    for of in (
        lambda s: {s.task},
        lambda s: set(s.gaps.values()),
        lambda s: set(s.gaps),
        lambda s: {s.controller} - {SCRIPT},
    ):
        assert not set.union(*map(of, train)) & set.union(*map(of, test))


def test_each_factorised_part_holds_out_one_thing() -> None:
    stations = draw_corpus(1200, 0)
    for part, task, severity, mechanism in (
        ("held_task", True, False, False),
        ("held_severity", False, True, False),
        ("held_mechanism", False, False, True),
    ):
        for s in (s for s in stations if s.part == part):
            ((gap, strength),) = s.gaps.items()
            assert (s.task == TEST_TASK) == task
            assert (strength in TEST_SEVERITIES) == severity
            assert (gap not in mechanism_names("train")) == mechanism


def test_a_larger_corpus_holds_the_smaller_one_and_names_tell_nothing() -> None:
    small, large = draw_corpus(200, 3), draw_corpus(600, 3)
    by_key = {s.key: s for s in large}
    assert all(by_key[s.key] == s for s in small)
    assert len(by_key) == len(large)
    assert {s.part for s in small} == {REFERENCE, TWIN, *PARTS}
    assert not any(d.value in s.key or s.part in s.key for s in large for d in GapDimension)


def test_every_dimension_is_trained_and_tested_alike() -> None:
    stations = draw_corpus(1200, 0)
    for part in ("train", "test"):
        counts = {d.value: 0 for d in GapDimension}
        for s in (s for s in stations if s.part == part):
            counts[next(iter(s.gaps)).partition(".")[0]] += 1
        assert min(counts.values()) >= 0.7 * max(counts.values())


def station(**changes: Any) -> DrawnStation:
    given = DrawnStation("a1", "train", "pick_place", "stops", (3_000_000,))
    return replace(given, **changes)


def test_a_recorded_station_resumes_and_another_corpus_is_refused(tmp_path: Path) -> None:
    record_corpus([station()], tmp_path, "base")
    journal = tmp_path / STATIONS / "a1"
    (take,) = read_journal(journal)
    assert take.outcome is Outcome.FAILURE
    truth = read_truth(journal / TRUTH)[take.info.uid]
    assert truth["scene"] == 3_000_000
    assert truth["injected"] == []
    assert truth["happened"]["mode"]
    done: list[int] = []
    before = take_folders(journal)
    record_corpus([station()], tmp_path, "base", progress=done.append)
    assert done == [1]
    assert take_folders(journal) == before
    with pytest.raises(UnusableInputError, match="another corpus"):
        record_corpus([station(task="stack_cube")], tmp_path, "base")


@pytest.mark.slow
def test_every_error_fails_in_the_nominal_cell(tmp_path: Path) -> None:
    stations = [
        station(key=error, controller=error, scenes=(3_000_001, 3_000_002))
        for error in ERRORS + HELD_OUT_ERRORS
    ]
    record_corpus(stations, tmp_path, "base")
    for s in stations:
        outcomes = [t.outcome for t in read_journal(tmp_path / STATIONS / s.key)]
        assert Outcome.FAILURE in outcomes


@pytest.mark.slow
def test_measured_takes_survive_their_table_and_the_bench_runs_on_them(tmp_path: Path) -> None:
    usual = station(
        key="r", part=REFERENCE, controller=SCRIPT, scenes=tuple(range(3_500_000, 3_500_006))
    )
    stations = [usual, station()]
    record_corpus(stations, tmp_path, "base")
    first = measure_corpus(stations, tmp_path)
    again = measure_corpus(stations, tmp_path)
    assert [t.uid for t in first] == [t.uid for t in again]
    for a, b in zip(first, again, strict=True):
        assert all(math.isclose(v, b.values[k]) or math.isnan(v) for k, v in a.values.items())
    found = study.failures(first, corpus_references(stations, tmp_path))
    assert [f.take.part for f in found["train"]] == ["train"]
    text = card(stations, first, {"train": 1}, 0)
    assert "sim-to-sim" in text
    assert "| `train` | 1 | 1 | 1 |" in text


USUAL = {
    "x": Reference("x", 20, {name: UsualValue(0.0, 1.0, 20) for name in registry()}),
}


def measured(
    number: int, gaps: Mapping[str, float], z: Mapping[str, float], **more: Any
) -> MeasuredTake:
    values = dict.fromkeys(registry(), 0.0) | dict(z)
    given: dict[str, Any] = {
        "uid": str(number), "station": f"s{number}", "part": "train", "task": "pick_place",
        "controller": SCRIPT, "usual": "x", "scene": number, "gaps": gaps, "shift": -1,
        "failed": True, "mode": "timeout", "duration_s": 6.5, "unseen": {}, "values": values,
    }  # fmt: skip
    return MeasuredTake(**{**given, **more})


def test_a_failure_without_the_gap_too_does_not_count() -> None:
    """Where the controller fails on a scene anyway, the gap needn't be the cause."""
    gap = {"actuator_response.latency": 0.8}
    takes = [
        measured(1, {}, {}, part=TWIN, failed=False),
        measured(2, {}, {}, part=TWIN, failed=True),
        measured(1, gap, {"lag_s": 30.0}),
        measured(2, gap, {"lag_s": 30.0}),
        measured(3, {}, {}, controller="stops"),
    ]
    found = study.failures(takes, USUAL)
    assert [(f.take.scene, f.take.controller) for f in found["train"]] == [
        (1, SCRIPT),
        (3, "stops"),
    ]


def test_signals_that_one_mechanism_alone_excites_are_left_out_with_it() -> None:
    """Leaving a mechanism out of a fit is not enough: its signals were made knowing it."""
    latency, slow = {"actuator_response.latency": 0.8}, {"actuator_response.backlash": 0.8}
    takes = [
        *(measured(n, {}, {}, part=TWIN, failed=False) for n in range(4)),
        measured(0, latency, {"lag_s": 30.0, "speed_gain": -30.0}),
        measured(1, latency, {"lag_s": 30.0, "speed_gain": -30.0}),
        measured(2, slow, {"lag_s": 30.0}),
        measured(3, {**slow, "visual_domain.blur": 0.8}, {"sharpness": -30.0}),
    ]
    recorded = study.training(study.failures(takes, USUAL))
    hidden = study.evading(recorded, USUAL)
    assert [f.take.scene for f in hidden] == [0, 1, 2]
    assert [f.take.values["speed_gain"] for f in hidden] == [0.0, 0.0, 0.0]
    assert [f.take.values["lag_s"] for f in hidden] == [30.0, 30.0, 30.0]


def test_masking_takes_a_channel_away_everywhere() -> None:
    take = study.masked(measured(1, {}, {"brightness": 9.0, "lag_s": 9.0}), ("images",))
    assert math.isnan(take.values["brightness"])
    assert take.values["lag_s"] == 9.0
    assert "images" in take.unseen


def test_length_matching_takes_away_what_length_knows() -> None:
    """Two causes, one short and one long: a guess by length is right, and worth nothing matched."""
    causes = ("visual_domain", "sensor_noise", "human_behavior")
    said = {d: np.eye(10)[scores.CAUSES.index(d)] for d in causes}
    cases, durations = [], []
    for n in range(60):
        cause, long = causes[n % 3], n % 3 == 2 or n % 5 == 0
        guess = "human_behavior" if long else "visual_domain"
        prediction = scores.Prediction(said[guess], frozenset({guess}))
        cases.append(scores.Case(str(n), str(n), frozenset({cause}), prediction))
        durations.append(7.96 if long else 3.0)
    right = np.mean([c.said.top == c.truth for c in cases])
    assert study.length_matched(cases, durations) < right


def test_predictions_handed_in_are_scored_by_the_same_code(tmp_path: Path) -> None:
    gap = {"actuator_response.slow": 0.7}
    twins = [measured(n, {}, {}, part=TWIN, failed=False) for n in range(4)]
    takes = [*twins, *(measured(n, gap, {"lag_s": 30.0}, part="test") for n in range(4))]
    found = study.failures(takes, USUAL)
    shares = np.eye(10)[scores.CAUSES.index("actuator_response")]
    lines = [
        figures.prediction_line(f"s{n}/{n}", scores.Prediction(shares, frozenset()))
        for n in range(3)
    ]
    path = tmp_path / "theirs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    scored = figures.handed_in(found, path)
    assert scored["missing"] == 1
    assert scored["top1"]["value"] == pytest.approx(0.75)
    assert json.loads(lines[0])["id"] == "s0/0"
