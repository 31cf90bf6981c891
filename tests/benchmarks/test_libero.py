"""The LIBERO lab: failure categories, the file of rollouts, the moved camera, figures, the script.

What needs LIBERO itself is slow, and left out where it isn't installed (docs/figures/libero.md).
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import libero
from benchmarks.libero import figures
from benchmarks.libero.categories import (
    CATEGORIES,
    DROPPED,
    FROZEN,
    MISPLACED,
    NOT_LIFTED,
    STILL_STEPS,
    TIME_OUT,
    UNTOUCHED,
    StepState,
    category,
)
from benchmarks.libero.rollouts import (
    CAMERAS,
    NOMINAL,
    LiberoRow,
    RolloutKey,
    TaskName,
    append_rows,
    move_camera,
    parse_tasks,
    read_rows,
    roll_out,
)
from benchmarks.libero.scripted import grasp
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Observation

TASK = TaskName("libero_object", 6)


def trace(*parts: tuple[int, bool, float, bool], still: bool = False) -> list[StepState]:
    """Make a trace of (steps, touched, height above the table [m], closing)."""
    states = list[StepState]()
    for steps, touched, height, closing in parts:
        for _ in range(steps):
            place = np.array([0.0 if still else 0.02 * len(states), 0.0, 0.3])
            states.append(StepState(place, closing, (touched,), (0.9 + height,), (False,)))
    return states


LIFT = ((20, False, 0.0, False), (10, True, 0.0, True), (20, True, 0.2, True))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (trace((60, False, 0.0, False)), UNTOUCHED),
        (trace((20, False, 0.0, False), (60, True, 0.01, True)), NOT_LIFTED),
        (trace(*LIFT, (20, False, 0.0, True)), DROPPED),
        (trace(*LIFT, (20, False, 0.05, False)), MISPLACED),
        (trace(*LIFT), TIME_OUT),
        (trace((STILL_STEPS + 20, False, 0.0, False), still=True), FROZEN),
        # Whoever stands still over what fell didn't freeze: the object was lost before.
        (trace(*LIFT, (STILL_STEPS + 20, False, 0.0, True), still=True), DROPPED),
        # Pushed up without the gripper, such as by the other arm: not carried.
        (trace((20, False, 0.0, False), (20, False, 0.2, False)), UNTOUCHED),
        (trace((1, False, 0.0, False)), UNTOUCHED),
    ],
)
def test_a_failure_has_its_category(states: list[StepState], expected: str) -> None:
    assert category(states) == expected


def test_the_category_is_about_the_first_predicate_that_does_not_hold() -> None:
    placed = [
        replace(s, touched=(True, *s.touched), height_m=(1.2, *s.height_m), met=(True, False))
        for s in trace((60, False, 0.0, False))
    ]
    assert category(placed) == UNTOUCHED


@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(-0.1, 0.3), st.booleans(), st.floats(-0.5, 0.5)),
        min_size=1,
        max_size=80,
    )
)
def test_any_trace_has_a_category(steps: list[tuple[bool, float, bool, float]]) -> None:
    states = [
        StepState(np.array([x, 0.0, 0.0]), closing, (touched,), (height,), (False,))
        for touched, height, closing, x in steps
    ]
    assert category(states) in CATEGORIES


class FakeScene:
    """A scene that is done after `needed` steps; counts how often it was looked at."""

    def __init__(self, needed: int, max_steps: int = 30) -> None:
        self.max_steps, self._needed = max_steps, needed
        self.looks, self.reset_to = 0, (-1, 0.0)

    def reset(self, seed: int, camera_m: float = 0.0) -> None:
        self.reset_to, self._left, self.looks = (seed, camera_m), self._needed, 0

    def look(self) -> Observation:
        self.looks += 1
        return Observation(np.zeros(8), None, {})

    def step(self, action: FloatArray) -> bool:
        assert action.shape == (7,)
        self._left -= 1
        return self._left == 0

    def privileged(self, action: FloatArray) -> StepState:
        x = 0.02 * self._left
        return StepState(np.array([x, 0.0, 0.0]), bool(action[-1] > 0), (False,), (0.9,), (False,))


class FakePolicy:
    """Plans eight actions, of which four are to be taken."""

    execute = 4

    def reset(self) -> None:
        """Nothing to forget."""

    def plan(self, observation: Observation) -> FloatArray:
        return np.zeros((8, len(observation.state) - 1))


def key(seed: int = 0, camera: str = NOMINAL, policy: str = "sha256:0") -> RolloutKey:
    return RolloutKey(policy, TASK, camera, seed)


def test_a_rollout_ends_with_success_or_the_time() -> None:
    won, lost = FakeScene(10), FakeScene(1000)
    row = roll_out(won, FakePolicy(), key(3))
    assert (row.success, row.category, row.steps) == (True, "", 10)
    assert row.key == key(3)
    row = roll_out(lost, FakePolicy(), key())
    assert (row.success, row.category, row.steps) == (False, UNTOUCHED, lost.max_steps)


def test_pictures_are_drawn_where_the_policy_plans() -> None:
    scene = FakeScene(10)
    roll_out(scene, FakePolicy(), key())
    assert scene.looks == 3  # before steps 0, 4 and 8


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_rollout_moves_the_camera_by_its_name(camera: str) -> None:
    scene = FakeScene(1)
    roll_out(scene, FakePolicy(), key(5, camera))
    assert scene.reset_to == (5, CAMERAS[camera])


def test_a_camera_moves_to_the_right_of_its_own_picture() -> None:
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><camera name="front" pos="1 0 1" xyaxes="0 1 0 -1 0 1"/>'
        '<camera name="other" pos="2 0 1"/></worldbody></mujoco>'
    )
    move_camera(model, "front", 0.05)
    np.testing.assert_allclose(model.camera("front").pos, [1.0, 0.05, 1.0], atol=1e-9)
    np.testing.assert_allclose(model.camera("other").pos, [2.0, 0.0, 1.0])
    move_camera(model, "front", -0.05)
    np.testing.assert_allclose(model.camera("front").pos, [1.0, 0.0, 1.0], atol=1e-9)


def row(seed: int, success: bool, camera: str = NOMINAL, task: int = 6) -> LiberoRow:
    why = "" if success else DROPPED
    return LiberoRow("sha256:0", TASK.suite, task, seed, camera, success, why, 80 + seed, 1.5)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.csv"
    rows = [row(0, True), row(1, False, "left 5 cm"), row(2, True)]
    append_rows(path, rows[:2])
    append_rows(path, rows[2:])
    assert read_rows(path) == rows
    assert read_rows(tmp_path / "none.csv") == []


def test_a_torn_last_line_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.csv"
    append_rows(path, [row(0, True), row(1, True)])
    path.write_bytes(path.read_bytes()[:-9])
    assert read_rows(path) == [row(0, True)]
    append_rows(path, [row(1, True)])
    assert read_rows(path) == [row(0, True), row(1, True)]


def test_a_line_that_is_no_rollout_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.csv"
    append_rows(path, [row(0, True)])
    path.write_text(path.read_text().replace("True", "perhaps"))
    with pytest.raises(UnusableInputError, match="line 2"):
        read_rows(path)


def test_tasks_are_suite_and_number() -> None:
    assert parse_tasks(["libero_object/6", "libero_10/0"]) == [TASK, TaskName("libero_10", 0)]
    with pytest.raises(UnusableInputError, match="SUITE/NUMBER"):
        parse_tasks(["libero_object"])
    with pytest.raises(UnusableInputError, match="twice"):
        parse_tasks(["libero_object/6", "libero_object/6"])


OTHER = TaskName("libero_object", 9)


def study() -> list[LiberoRow]:
    """Ten scenes of two tasks: the camera to the left loses half of what was won."""
    rows = []
    for task, wins in ((6, 8), (9, 4)):
        for seed in range(10):
            rows.append(row(seed, seed < wins, NOMINAL, task))
            rows.append(row(seed, seed < wins // 2, "left 5 cm", task))
            rows.append(row(seed, seed < wins, "right 5 cm", task))
    return rows


def test_figures_are_rates_and_paired_differences_with_intervals() -> None:
    found = figures.summary(study(), [TASK, OTHER])
    assert found["tasks"][str(TASK)]["success"]["n"] == 8
    low, high = found["tasks"][str(TASK)]["success"]["interval"]
    assert low < 0.8 < high
    moved = found["cameras"]["left 5 cm"]
    assert (moved["pairs"], moved["gained"], moved["lost"]) == (20, 0, 6)
    assert moved["difference"]["rate"] == pytest.approx(-0.3)
    assert found["cameras"]["right 5 cm"]["difference"]["rate"] == 0.0
    assert "difference" not in found["cameras"][NOMINAL]
    shares = found["categories"]
    assert sum(shares[c]["n"] for c in ("success", *CATEGORIES)) == len(study())


def test_the_worst_task_is_adapted_to_and_compared_scene_by_scene() -> None:
    rows = study()
    assert figures.worst(rows, [TASK, OTHER]) == OTHER
    after = [row(seed, seed < 7, NOMINAL, 9) for seed in range(10)]
    found = figures.few_shot(OTHER, rows, after, 10)
    assert (found["before"]["success"]["n"], found["after"]["success"]["n"]) == (4, 7)
    assert (found["gained"], found["lost"]) == (3, 0)
    result = {
        "policy": "p", "rollouts": 10, "demonstrations": "scripted", "rows": "rollouts.csv",
        **figures.summary(rows, [TASK, OTHER]), "few_shot": found,
    }  # fmt: skip
    text = figures.table(result)
    assert "+30 points" in text
    assert "dropped" in text


def test_a_box_is_taken_across_its_narrow_side() -> None:
    turn = np.radians(30.0)
    half = np.array([0.06, 0.02, 0.03])
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * half
    rotation = np.array(
        [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    )
    found = grasp(corners @ rotation.T + np.array([0.3, 0.1, 0.93]))
    np.testing.assert_allclose(found.place_m[:2], [0.3, 0.1], atol=1e-9)
    across = np.array([np.cos(found.yaw_rad), np.sin(found.yaw_rad)])
    assert abs(across @ [-np.sin(turn), np.cos(turn)]) > 0.99


def test_what_is_too_wide_is_taken_by_its_rim() -> None:
    angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    rim = np.stack([0.08 * np.cos(angle), 0.08 * np.sin(angle), np.full(60, 0.06)], 1)
    bowl = np.concatenate([rim, rim * [0.5, 0.5, 0.0]])
    found = grasp(bowl)
    assert 0.06 < np.linalg.norm(found.place_m[:2]) < 0.08
    assert 0.03 < found.place_m[2] < 0.06


needs_libero = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in libero.NEEDED),
    reason="needs LIBERO: docs/figures/libero.md has the lines that install it",
)


@pytest.mark.slow
@needs_libero
def test_the_script_does_a_task_and_equal_seeds_are_equal_scenes(tmp_path: Path) -> None:
    from benchmarks.libero.lerobot_demonstrations import DemonstrationJob, record
    from benchmarks.libero.lerobot_scene import AGENT_VIEW, Scene
    from gaploop.datasets.layout import read_episodes, read_info

    scene = Scene(TASK, ("image",))
    scene.reset(0)
    place, seen = scene.body("butter_1")[0], scene.look().images["image"]
    camera = scene.inner.sim.model._model.camera(AGENT_VIEW).pos.copy()
    scene.reset(0, 0.05)
    np.testing.assert_allclose(scene.body("butter_1")[0], place)
    moved = scene.inner.sim.model._model.camera(AGENT_VIEW).pos
    assert np.linalg.norm(moved - camera) == pytest.approx(0.05)
    assert np.abs(scene.look().images["image"].astype(int) - seen).mean() > 1
    scene.close()
    job = DemonstrationJob(TASK, tmp_path, 100_000, ("image",))
    assert record(job)
    (episode,) = read_episodes(read_info(job.root))
    assert "butter" in episode.info.task
    before = job.root.stat().st_mtime_ns
    assert record(job)  # there already
    assert job.root.stat().st_mtime_ns == before
