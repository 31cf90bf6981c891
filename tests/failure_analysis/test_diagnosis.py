"""Laws of diagnosis: shares sum to one, nothing but takes is looked at, it is reproducible."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from failure_analysis_makers import repeated, scene_picture, successes, take, wrench

from gaploop.core.errors import UnusableInputError
from gaploop.core.take import Take
from gaploop.core.vocabulary import GapDimension, Outcome
from gaploop.failure_analysis.diagnosis import (
    diagnose,
    load_diagnosis,
    save_diagnosis,
    suggested_labels,
)
from gaploop.failure_analysis.reference import (
    SHIPPED_FOR,
    build_reference,
    choose_reference,
    load_reference,
    save_reference,
    shipped_reference,
)
from gaploop.sim.catalogue import INSTRUCTIONS, TASKS

FAULTS: dict[str, dict[str, float]] = {
    "actuator_response": {"lag_s": 0.3},
    "sensor_noise": {"noise_rad": 0.03},
}


def failed(**faults: float) -> Take:
    return take(uid="bad", pictures=repeated(scene_picture()), seed=20, **faults)  # type: ignore[arg-type]


@pytest.mark.members(1)
@pytest.mark.parametrize("dimension", FAULTS)
def test_a_planted_fault_is_attributed(dimension: str) -> None:
    found = diagnose([*successes(), failed(**FAULTS[dimension])]).takes
    assert [t.top for t in found] == [dimension]


def test_pictures_speak_for_light_and_camera() -> None:
    dark = take(uid="dark", seed=21, pictures=repeated(scene_picture(gain=0.35)))
    moved = take(uid="moved", seed=22, pictures=repeated(scene_picture(shift_px=(9, -7))))
    large = take(uid="large", seed=23, pictures=repeated(scene_picture(object_px=22)))
    found = diagnose([*successes(), dark, moved, large]).takes
    assert [t.top for t in found] == ["visual_domain", "spatial_geometry", "object_property"]


@pytest.mark.members(1)
@pytest.mark.parametrize("faults", [{}, {"lag_s": 0.2}, {"noise_rad": 0.05, "lag_s": 0.3}])
def test_shares_and_none_sum_to_one(faults: dict[str, float]) -> None:
    (found,) = diagnose([*successes(), failed(**faults)]).takes
    assert sum(found.dimensions.values()) + found.none == pytest.approx(1.0)
    assert all(0.0 <= share <= 1.0 for share in found.dimensions.values())
    assert set(found.dimensions) == {d.value for d in GapDimension}


def test_without_evidence_it_abstains() -> None:
    (found,) = diagnose([*successes(), take(uid="bad", seed=3)]).takes
    assert found.abstained
    assert found.top == ""


def test_it_is_deterministic() -> None:
    takes = [*successes(), failed(lag_s=0.2)]
    first, second = diagnose(takes), diagnose(takes)
    assert first.takes == second.takes
    assert first.id != second.id


def test_only_failures_are_diagnosed() -> None:
    """Imported logs without an outcome were accused of whatever looked odd."""
    takes = [
        *successes(),
        take(uid="interrupted", outcome=Outcome.INTERRUPTED),
        take(uid="discarded", outcome=Outcome.DISCARDED),
        failed(lag_s=0.2),
    ]
    assert [t.uid for t in diagnose(takes).takes] == ["bad"]
    assert not diagnose([wrench(np.zeros(15), uid=str(k)) for k in range(6)]).takes


@pytest.mark.parametrize("lost", ["all but one axis", "torques", "some rows", "everything"])
def test_a_force_sensor_with_gaps_is_diagnosed(lost: str) -> None:
    """NaN in an imported force log, or a sensor of fewer axes, ended diagnose in a traceback."""
    takes = [replace(wrench(np.zeros(15), uid=str(k), seed=k), outcome=Outcome.FAILURE)
             for k in range(6)]  # fmt: skip
    for take_ in takes:
        for name, values in take_.telemetry.columns.items():
            axis = name.partition(".")[2]
            gone = {
                "all but one axis": axis != "fx_n",
                "torques": axis.startswith("t"),
                "everything": True,
            }.get(lost, False)
            values[:] = np.nan if gone else values
            if lost == "some rows" and axis == "fz_n":
                values[2:9] = np.nan
    assert len(diagnose(takes).takes) == 6


def test_it_says_what_it_could_not_see() -> None:
    windows = [wrench(np.zeros(15), uid=str(k)) for k in range(6)]
    diagnosis = diagnose([replace(w, outcome=Outcome.FAILURE) for w in windows])
    assert "no joint commands with readings" in diagnosis.takes[0].unseen


def test_evidence_is_words_and_numbers() -> None:
    (found,) = diagnose([*successes(), failed(lag_s=0.3)]).takes
    lag = next(e for e in found.evidence if e.signal == "lag_s")
    assert lag.value == pytest.approx(0.3, abs=0.01)
    assert lag.unit == "s"
    assert "ms" in lag.message
    assert "nominal" in lag.message


def test_a_saved_diagnosis_reads_back(tmp_path: Path) -> None:
    diagnosis = diagnose([*successes(), failed(lag_s=0.3)], source="here")
    save_diagnosis(diagnosis, tmp_path / "diagnosis.json")
    again = load_diagnosis(tmp_path / "diagnosis.json")
    assert (again.id, again.source) == (diagnosis.id, diagnosis.source)
    assert [t.top for t in again.takes] == [t.top for t in diagnosis.takes]
    value = json.loads((tmp_path / "diagnosis.json").read_text())
    assert {"uid", "episode", "mode", "phase", "dimensions", "abstained", "evidence"} <= set(
        value["takes"][0]
    )


@pytest.mark.parametrize(
    "content",
    ["not json", "[]", '{"schema": "other"}', '{"schema": "gaploop.diagnosis.v1", "id": "x"}'],
)
def test_a_bad_diagnosis_file_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "diagnosis.json"
    path.write_text(content)
    with pytest.raises(UnusableInputError) as caught:
        load_diagnosis(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_unknown_dimension_in_a_diagnosis_is_named(tmp_path: Path) -> None:
    diagnosis = diagnose([*successes(), failed(lag_s=0.3)]).to_json()
    diagnosis["takes"][0]["dimensions"] = {"contact": 1.0}
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(diagnosis))
    with pytest.raises(UnusableInputError, match="Did you mean 'contact_dynamics'"):
        load_diagnosis(path)


def test_labels_are_suggestions_and_silent_where_unsure() -> None:
    (sure,) = diagnose([*successes(), failed(lag_s=0.3)]).takes
    fields = {e.field: e for e in suggested_labels(sure)}
    assert fields["dimensions"].value["actuator_response"] > 0.5
    assert all(e.source == "auto" for e in fields.values())
    (unsure,) = diagnose([*successes(), take(uid="bad", seed=3)]).takes
    assert "dimensions" not in {e.field for e in suggested_labels(unsure)}


def test_a_reference_survives_its_file(tmp_path: Path) -> None:
    built = build_reference(successes(), "these")
    assert built is not None
    save_reference(built, tmp_path / "reference.json")
    again = load_reference(tmp_path / "reference.json")
    assert again.signals == built.signals
    assert again.background is not None
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(UnusableInputError, match="not a reference"):
        load_reference(bad)


def test_the_reference_is_chosen_best_first() -> None:
    few = list(successes(2))
    assert choose_reference(few).takes == 0
    assert choose_reference(list(successes(8))).takes == 8
    given = build_reference(successes(6), "given")
    assert choose_reference(list(successes(8)), given).name == "given"


@pytest.mark.parametrize("task", TASKS)
def test_the_shipped_reference_covers_every_source_of_the_cell(task: str) -> None:
    shipped = shipped_reference(task)
    assert shipped.takes >= 20
    assert {"lag_s", "jitter_rad", "brightness", "camera_shift_px", "hand_share"} <= set(
        shipped.signals
    )
    assert shipped.background is not None


def test_each_task_of_the_cell_is_held_against_its_own_reference() -> None:
    """Beside pick_place's disc the cube of stack_cube looked like a table that had been moved."""

    def told(words: str) -> Take:
        made = next(iter(successes(1)))
        return replace(made, info=replace(made.info, robot_type=SHIPPED_FOR, task=words))

    takes = {task: told(words) for task, words in INSTRUCTIONS.items()}
    for task, one in takes.items():
        assert choose_reference([one]).signals == shipped_reference(task).signals
    areas = [shipped_reference(task).signals["object_area_ratio"].mean for task in TASKS[::2]]
    assert areas[1] > 3 * areas[0]
    assert choose_reference([told("Tidy up")]).signals == shipped_reference("pick_place").signals
    assert choose_reference(list(takes.values())).takes == 0
