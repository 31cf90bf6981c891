"""The scripted teleoperator solves the nominal cell; the tracker finds what is there."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sight import by_tracker
from benchmarks.trial import run_take
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import run_take as safe_take
from gaploop.core.errors import UnknownChoiceError
from gaploop.core.station import COLOURS, StationScene
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Outcome
from gaploop.finetune.demonstrations import MAX_S
from gaploop.sim.cell import SimCell
from gaploop.sim.expert import ScriptedLeader, nominal_arm
from gaploop.sim.kinematics import ArmIk, fold_square, from_polar, polar
from gaploop.sim.recolour import recoloured, recoloured_take
from gaploop.sim.tracker import NAMES, Tracker


def test_the_teleoperator_solves_the_nominal_cell(nominal: SimCell) -> None:
    leader = ScriptedLeader(nominal, 1)
    assert all(run_take(nominal, leader, seed) for seed in range(8))


@pytest.mark.slow
def test_the_teleoperator_solves_95_of_100_seeds(nominal: SimCell) -> None:
    leader = ScriptedLeader(nominal, 1)
    assert sum(run_take(nominal, leader, seed) for seed in range(100)) >= 95


def test_the_tracker_driven_controller_solves_the_nominal_cell(nominal: SimCell) -> None:
    leader = by_tracker(nominal, 1)
    assert sum(run_take(nominal, leader, seed) for seed in range(5)) == 5


@pytest.mark.members(1)
@pytest.mark.parametrize("task", ["pick_lift", "stack_cube"])
def test_other_tasks_are_solved_too(task: str) -> None:
    cell = SimCell(task, image_size=64)
    leader = ScriptedLeader(cell, 0)
    assert sum(run_take(cell, leader, seed) for seed in range(4)) >= 3


@pytest.mark.members(1)
@pytest.mark.parametrize(
    ("gap", "scenes"), [("actuator_response.backlash", (1, 2)), ("actuator_response.slow", (4,))]
)
def test_the_teleoperator_allows_for_play_and_slow_drives(
    gap: str, scenes: tuple[int, ...]
) -> None:
    """Incident: it pressed on the object until the safety filter tripped, or closed on its way."""
    for scene in scenes:
        rig = embedded_rig(gaps={gap: 1.0}, gap_seed=scene)
        result = safe_take(rig, rig.scripted_leader(scene), seed=scene, max_s=MAX_S)
        rig.close()
        assert result.outcome is Outcome.SUCCESS, result.reason


def test_commands_stay_under_the_default_speed_limit(nominal: SimCell) -> None:
    nominal.reset(11)
    leader = ScriptedLeader(nominal, 2)
    before = None
    while not leader.done() and nominal.now_s < 6.0:
        q_rad = leader.read(nominal.now_s).q_rad
        if before is not None:
            assert np.abs(q_rad - before).max() * nominal.fps < 3.0
        before = q_rad
        nominal.command(q_rad)
        nominal.advance(0.02)


def test_takes_of_one_person_differ_and_can_be_repeated(nominal: SimCell) -> None:
    def commands(leader: ScriptedLeader) -> np.ndarray:
        nominal.reset(3)
        leader.reset()
        out = []
        for _ in range(30):
            out.append(leader.read(nominal.now_s).q_rad)
            nominal.command(out[-1])
            nominal.advance(0.02)
        return np.array(out)

    leader = ScriptedLeader(nominal, 5)
    first, second = commands(leader), commands(leader)
    assert not np.allclose(first, second)
    assert np.array_equal(first, commands(ScriptedLeader(nominal, 5)))


def test_the_tracker_finds_object_and_target_to_a_millimetre(nominal: SimCell) -> None:
    tracker = Tracker.nominal(nominal.image_size, domain=1.0)
    object_m, target_m, yaw_rad = [], [], []
    for seed in range(30):
        nominal.reset(seed)
        tracker.reset()
        seen = dict(zip(NAMES, tracker.observe(nominal.frame().image), strict=True))
        truth = nominal.truth()
        place = np.array(truth["object_pos_m"])[:2]
        found = from_polar(seen["object_azimuth_rad"], seen["object_radius_m"])
        object_m.append(np.linalg.norm(found - place))
        found = from_polar(seen["target_azimuth_rad"], seen["target_radius_m"])
        target_m.append(np.linalg.norm(found - np.array(truth["target_pos_m"])[:2]))
        yaw = seen["object_yaw_rad"] + seen["object_azimuth_rad"] - truth["object_yaw_rad"]
        yaw_rad.append(abs(fold_square(float(yaw))))
        assert seen["visible"] == 1.0
        assert seen["domain"] == 1.0
    assert np.mean(object_m) < 0.001
    assert np.mean(target_m) < 0.001
    assert np.degrees(np.mean(yaw_rad)) < 3.0


def test_an_occluded_object_stays_where_it_was(nominal: SimCell) -> None:
    nominal.reset(0)
    tracker = Tracker.nominal(nominal.image_size)
    image = nominal.frame().image.copy()
    before = tracker.observe(image)
    thing = tracker.detect(image).object
    assert thing is not None
    column = round(float(thing.centroid_px[0]))
    image[:, : column + 1] = 90
    after = tracker.observe(image)
    assert after[5] == 0.0
    assert np.array_equal(before[:3], after[:3])


def test_a_moved_camera_misleads_the_tracker() -> None:
    errors = []
    for gaps in ({}, {"spatial_geometry.camera_pose": 1.0}):
        with SimCell(gaps=gaps, gap_seed=1) as cell:
            cell.reset(2)
            seen = Tracker.nominal(cell.image_size).observe(cell.frame().image)
            place = np.array(cell.truth()["object_pos_m"])[:2]
            errors.append(np.linalg.norm(from_polar(seen[0], seen[1]) - place))
    assert errors[0] < 0.002
    assert errors[1] > 0.01


@given(st.floats(-1.0, 1.0), st.floats(0.13, 0.235), st.floats(0.01, 0.07), st.floats(-0.7, 0.7))
def test_inverse_kinematics_reaches_the_workspace(
    azimuth: float, radius: float, height: float, turn: float
) -> None:
    ik = ArmIk(nominal_arm())
    goal = np.array([*from_polar(azimuth, radius), height])
    start = np.array([-azimuth, -0.2, 0.3, 1.3, 0.0])
    q_rad = ik.solve(goal, azimuth + np.pi + turn, start, iterations=60)
    position, rotation = ik.tcp(q_rad)
    assert np.linalg.norm(position - goal) < 0.002
    assert rotation[2, 2] < -0.99


@given(st.floats(-3.0, 3.0), st.floats(0.01, 0.5))
def test_polar_coordinates_are_inverse_of_each_other(azimuth: float, radius: float) -> None:
    assert polar(from_polar(azimuth, radius)) == pytest.approx((azimuth, radius))


@pytest.mark.parametrize("colours", [("green", "magenta"), ("blue", "red"), ("cyan", "yellow")])
def test_a_stations_own_colours_are_tracked_as_well(
    nominal: SimCell, colours: tuple[str, str]
) -> None:
    """What is red or blue there is neither object nor target."""
    nominal.reset(4)
    picture = nominal.frame().image
    theirs = StationScene("", *(COLOURS[name] for name in colours))
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    is_object = (hsv[..., 0] < 10) | (hsv[..., 0] > 171)
    is_target = (hsv[..., 0] > 99) & (hsv[..., 0] < 123)
    for mask, name in ((is_object, colours[0]), (is_target, colours[1])):
        low, high = COLOURS[name]
        hsv[..., 0][mask & (hsv[..., 1] > 100)] = (low + (high - low) % 360.0 / 2.0) % 360.0 / 2.0
    painted = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    ours = Tracker.nominal(nominal.image_size).observe(picture)
    own = Tracker.nominal(nominal.image_size, scene=theirs).observe(painted)
    assert own == pytest.approx(ours, abs=0.02)
    assert Tracker.nominal(nominal.image_size).observe(painted) != pytest.approx(ours, abs=0.02)
    grey = cv2.cvtColor(painted, cv2.COLOR_RGB2HSV)[..., 1] < 60
    assert (recoloured(painted, theirs)[grey] == painted[grey]).all()


def test_a_take_is_looked_at_through_the_stations_camera() -> None:
    pictures = {name: lambda k=k: iter([np.full((4, 4, 3), k, np.uint8)])
                for k, name in enumerate(("side", "top"))}  # fmt: skip
    take = Take(
        TakeInfo("a"), Outcome.FAILURE, Frames.empty(), Telemetry(np.empty(0), {}), cameras=pictures
    )
    assert list(recoloured_take(take, StationScene("top")).cameras) == ["top"]
    assert next(recoloured_take(take, StationScene()).cameras["side"]()).max() == 0
    with pytest.raises(UnknownChoiceError, match="side, top"):
        recoloured_take(take, StationScene("wrist"))
