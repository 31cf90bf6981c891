"""Laws of the cell: equal seeds give equal takes; what is reported is what a servo could report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gaploop.core.errors import GaploopError
from gaploop.sim.catalogue import SO101, TASKS, from_degrees, to_degrees
from gaploop.sim.cell import ENCODER_STEP_RAD, SimCell
from gaploop.sim.conditions import NAMES, PLACEMENTS
from gaploop.sim.scene import (
    SPAWN_CENTRE_M,
    SPAWN_HALF_ANGLE_RAD,
    SPAWN_RADIUS_M,
    spawn_point,
)
from gaploop.sim.world import World


def test_equal_seeds_give_equal_takes(nominal: SimCell, sweep: Any, same: Any) -> None:
    first = sweep(nominal, 5)
    sweep(nominal, 6)
    assert same(first, sweep(nominal, 5))
    with SimCell() as other:
        assert same(first, sweep(other, 5))


def test_seeds_differ(nominal: SimCell) -> None:
    places = set()
    for seed in range(10):
        nominal.reset(seed)
        places.add(str(nominal.truth()["object_pos_m"]))
    assert len(places) == 10


def test_how_often_it_is_read_changes_nothing(nominal: SimCell) -> None:
    nominal.reset(3)
    nominal.advance(0.4)
    once = nominal.read().position_rad
    nominal.reset(3)
    for _ in range(40):
        nominal.advance(0.01)
        nominal.read()
    assert np.array_equal(once, nominal.read().position_rad)


def test_pictures_come_at_the_camera_rate(nominal: SimCell) -> None:
    nominal.reset(1)
    times = set()
    for _ in range(50):
        nominal.advance(0.01)
        frame = nominal.frame()
        assert 0.0 <= nominal.now_s - frame.t_capture_s < 0.04 + 1e-9
        times.add(round(frame.t_capture_s, 6))
    assert len(times) == 13  # 25 Hz over half a second, and the one at the start


def test_a_picture_shows_its_capture_time(nominal: SimCell) -> None:
    """Drawn late, a picture must still show the arm where it was when it was taken."""
    nominal.reset(2)
    nominal.command(np.asarray(SO101.home_q_rad) - 0.5)
    nominal.advance(0.2)
    prompt = nominal.frame()
    nominal.reset(2)
    nominal.command(np.asarray(SO101.home_q_rad) - 0.5)
    nominal.advance(0.235)
    late = nominal.frame()
    assert late.t_capture_s == prompt.t_capture_s
    assert np.array_equal(late.image, prompt.image)


def test_servos_report_encoder_steps_and_finite_values(nominal: SimCell) -> None:
    nominal.reset(0)
    nominal.advance(0.1)
    state = nominal.read()
    steps = state.position_rad / ENCODER_STEP_RAD
    assert np.allclose(steps, np.round(steps), atol=1e-6)
    for values in (state.velocity_rad_s, state.current_a, state.load_pct, state.temperature_c):
        assert values.shape == (6,)
        assert np.isfinite(values).all()
    assert not state.status.any()


def test_goals_beyond_the_joint_limits_are_not_followed(nominal: SimCell) -> None:
    nominal.reset(0)
    nominal.command(np.full(6, 9.0))
    nominal.advance(1.0)
    low, high = nominal.joint_limits_rad.T
    position = nominal.read().position_rad
    assert (position <= high + 0.05).all()
    assert (position >= low - 0.05).all()


def test_units_are_inverse_of_each_other() -> None:
    q_rad = np.random.default_rng(0).uniform(-1.5, 1.5, (20, 6))
    assert np.allclose(from_degrees(to_degrees(q_rad)), q_rad)
    assert to_degrees(np.zeros(6))[0] == 0.0


def test_the_scene_is_visible(nominal: SimCell) -> None:
    nominal.reset(0)
    image = nominal.frame().image.astype(int)
    red = (image[..., 0] > 150) & (image[..., 1] < 90)
    blue = (image[..., 2] > 150) & (image[..., 0] < 90)
    assert red.sum() > 50
    assert blue.sum() > 400
    assert nominal.picture(160, 120).shape == (120, 160, 3)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_builds_and_starts_unsolved(task: str) -> None:
    with SimCell(task, image_size=64) as cell:
        for seed in range(3):
            cell.reset(seed)
            assert not cell.success()


@pytest.mark.members(6)
@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind, values in NAMES.items() for value in values]
)
def test_every_named_condition_builds(kind: str, value: str) -> None:
    with SimCell(conditions={kind: value}, image_size=64) as cell:
        cell.advance(0.3)
        assert cell.frame().image.shape == (64, 64, 3)


def test_grid_cells_partition_the_spawn_region() -> None:
    centres = []
    for row in range(3):
        for column in range(3):
            cell = SimCell(conditions={"grid_cell": [row, column]}, image_size=64)
            places = []
            for seed in range(5):
                cell.reset(seed)
                places.append(cell.truth()["object_pos_m"])
            centres.append(np.mean(np.array(places), axis=0)[:2])
    gaps = [np.linalg.norm(a - b) for i, a in enumerate(centres) for b in centres[:i]]
    assert min(gaps) > 0.01


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"task": "fold_laundry"}, "pick_place"),
        ({"gaps": {"contact": 0.5}}, "contact_dynamics"),
        ({"gaps": {"contact_dynamics.slipery": 0.5}}, "slippery"),
        ({"gaps": {"contact_dynamics": 1.5}}, "0 to 1"),
        ({"conditions": {"colour": "red"}}, "background"),
        ({"conditions": {"lighting": "disco"}}, "dim"),
        ({"conditions": {"distractors": "many"}}, "number"),
        ({"conditions": {"camera_pose": [1.0]}}, "6 number"),
        ({"conditions": {"grid_cell": [9, 0]}}, "0 to 2"),
    ],
)
def test_wrong_arguments_say_what_is_right(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(GaploopError, match=says) as error:
        SimCell(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_beside_the_spawn_region_lies_what_no_nominal_scene_starts_in() -> None:
    rng = np.random.default_rng(0)
    for placement in PLACEMENTS:
        points = np.array([spawn_point(rng, placement=placement) for _ in range(400)])
        offset = points - SPAWN_CENTRE_M
        radius, angle = np.hypot(*offset.T), np.abs(np.arctan2(offset[:, 1], offset[:, 0]))
        is_nominal = (radius >= SPAWN_RADIUS_M[0]) & (angle <= SPAWN_HALF_ANGLE_RAD + 1e-9)
        assert is_nominal.all() if placement == "nominal" else not is_nominal.any()
        assert radius.max() <= SPAWN_RADIUS_M[1]


def test_the_cell_is_a_world(nominal: SimCell) -> None:
    assert isinstance(nominal, World)
    nominal.reset(0)
    nominal.step(nominal.read().position_rad)
    assert nominal.now_s == pytest.approx(nominal.period_s)


@pytest.mark.parametrize("delay_s", [0.06, 0.1])
def test_late_pictures_are_those_of_before_and_dont_tell(delay_s: float) -> None:
    """A camera's driver knows when a picture came, not when it was taken."""
    late = {"sensor_noise.camera_delay": {"delay_s": delay_s}}
    pictures: list[dict[float, Any]] = [{}, {}]
    for cell, seen in zip((SimCell(), SimCell(parameters=late)), pictures, strict=True):
        with cell:
            cell.reset(3)
            for _ in range(30):
                cell.command(np.array([0.5, -0.5, 0.3, 1.2, 0.0, 0.5]))
                cell.advance(0.01)
                frame = cell.frame()
                assert frame.t_capture_s <= cell.now_s + 1e-9
                seen[round(frame.t_capture_s, 3)] = frame.image
    nominal, delayed = pictures
    both = [t for t in delayed if round(t - delay_s, 3) in nominal]
    assert len(both) >= 4
    for t in both:
        assert np.array_equal(delayed[t], nominal[round(t - delay_s, 3)])
