from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.collect.lerobot_factory import make_motion_leader
from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.core.messages import FollowerState, LeaderSample, SafeCommand, SafetyReason, Tick
from gaploop.core.station import Station
from gaploop.teleop.leaders.controls import SCRIPTS, MotionOptions
from gaploop.teleop.leaders.motion import Chirp, MotionLeader, Script, Smooth, Stroke, build_script

ARMS = {name: ArmModel.load(name) for name in ARM_MODELS}
START = {
    "so101": np.array([0.0, -0.3, 0.6, 0.6, 0.0, 0.2]),
    "koch": np.array([0.0, -0.3, -0.5, 0.6, 0.0, 0.3]),
    "openmanipulator": np.array([0.0, -0.6, 0.6, 0.9, 0.0, 0.3]),
}
SHORT = MotionOptions(seconds=4.0, cycles=1, speeds_rad_s=[0.5, 1.0], dwell_s=0.1)


def script(name: str, options: MotionOptions, start: np.ndarray | None = None) -> Script:
    arm = ARMS[name]
    box = ARM_MODELS[name].workspace_m
    return build_script(
        arm, arm.joint_limits_rad, box, START[name] if start is None else start, options
    )


def of(kind: str, **changes: object) -> MotionOptions:
    return MotionOptions(**{**vars(SHORT), "script": kind, **changes})  # type: ignore[arg-type]


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(list(ARM_MODELS)),
    kind=st.sampled_from(SCRIPTS),
    amplitude=st.floats(0.05, 2.0),
    moved=st.lists(st.floats(-0.15, 0.15), min_size=6, max_size=6),
    seed=st.integers(0, 9),
)
def test_every_script_stays_inside_every_bound(
    name: str, kind: str, amplitude: float, moved: list[float], seed: int
) -> None:
    arm, start = ARMS[name], START[name] + np.array(moved)
    options = of(kind, amplitude_rad=amplitude, seed=seed)
    try:
        made = script(name, options, start)
    except UnusableInputError:
        return  # refused: the arm doesn't move
    q = made.trajectory.sampled(0.004)
    low, high = arm.joint_limits_rad.T
    assert (q >= low).all()
    assert (q <= high).all()
    np.testing.assert_allclose(q[0], start, atol=1e-9)
    np.testing.assert_allclose(q[-1], start, atol=1e-6)
    speed = np.diff(q, axis=0) / 0.004
    assert np.abs(speed).max() <= options.velocity_rad_s * 1.001
    assert np.abs(np.diff(speed, axis=0) / 0.004).max() <= options.acceleration_rad_s2 * 1.05
    box_low, box_high = np.array(ARM_MODELS[name].workspace_m).T
    for pose in q[::5]:
        points = arm.points_m(pose)
        assert (points > box_low - 0.002).all()
        assert (points < box_high + 0.002).all()


@pytest.mark.members(2)
@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_same_seed_gives_the_same_motion(kind: str) -> None:
    q = [script("so101", of(kind, seed=seed)).trajectory.sampled(0.05) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(q[0], q[1])
    if kind == "reverse":
        assert len(q[0]) != len(q[2]) or not np.array_equal(q[0], q[2])


def test_chirp_moves_one_joint_at_a_time_ever_faster() -> None:
    q = script("openmanipulator", of("chirp", joints=["wrist_roll"], seconds=10.0)).trajectory
    moved = q.sampled(0.005) - START["openmanipulator"]
    assert np.abs(np.delete(moved, 4, axis=1)).max() == 0.0
    crossings = np.flatnonzero(np.diff(np.signbit(moved[:, 4])))
    gaps = np.diff(crossings)
    assert gaps[-3] < 0.2 * gaps[0]


def test_reverse_goes_both_ways_at_every_speed() -> None:
    options = of("reverse", joints=["shoulder_pan"], speeds_rad_s=[0.2, 0.5], cycles=2)
    q = script("so101", options).trajectory.sampled(0.01)[:, 0]
    speed = np.round(np.diff(q) / 0.01, 3)
    for wanted in (0.2, -0.2, 0.5, -0.5):
        assert (np.abs(speed - wanted) < 0.002).sum() > 50


def test_a_swing_that_does_not_fit_is_made_smaller_and_says_so() -> None:
    made = script("so101", of("chirp", amplitude_rad=1.5, joints=["shoulder_lift"]))
    (note,) = made.notes
    assert note.startswith("shoulder_lift: swings 0.")
    assert "workspace" in note


def test_an_arm_outside_its_workspace_is_refused_with_the_fix() -> None:
    with pytest.raises(UnusableInputError, match=r"finger tip.*Move it to the middle"):
        script("so101", of("chirp"), np.array([0.0, 0.9, 0.6, 0.6, 0.0, 0.2]))


def test_a_script_of_which_nothing_fits_is_refused() -> None:
    arm = ARMS["so101"]
    limits = np.column_stack([START["so101"] - 0.05, START["so101"] + 0.05])
    with pytest.raises(UnusableInputError, match=r"Nothing of --teleop.script=chirp fits"):
        build_script(arm, limits, None, START["so101"], of("chirp"))


def test_unknown_joint_names_the_valid_ones() -> None:
    with pytest.raises(
        UnusableInputError, match=r"elbow_flex.*--teleop.joints|--teleop.joints.*elbow_flex"
    ):
        script("so101", of("chirp", joints=["elbow"]))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"script": "dance"}, "chirp"),
        ({"seconds": 0.0}, "teleop.seconds"),
        ({"low_hz": 3.0, "high_hz": 1.0}, "must not be below"),
        ({"speeds_rad_s": []}, "teleop.speeds_rad_s"),
    ],
)
def test_options_say_what_is_valid(given: dict[str, object], says: str) -> None:
    with pytest.raises(UnusableInputError, match=says):
        MotionOptions(**given)  # type: ignore[arg-type]


def leader() -> MotionLeader:
    arm = ARMS["so101"]
    return MotionLeader(
        arm, arm.joint_limits_rad, lambda: START["so101"], of("chirp", joints=["wrist_roll"])
    )


def test_leader_starts_with_its_first_read_and_ends_where_it_began() -> None:
    made = leader()
    made.reset()
    np.testing.assert_array_equal(made.read(50.0).q_rad, START["so101"])
    now_s = 50.0
    while not made.done():
        now_s += 0.01
        sample = made.read(now_s)
    assert now_s - 50.0 == pytest.approx(made.duration_s, abs=0.02)
    np.testing.assert_allclose(sample.q_rad, START["so101"], atol=1e-6)


@pytest.mark.parametrize("how", ["trip", "pause"])
def test_an_interrupted_script_is_not_gone_on_with(how: str) -> None:
    """After the pause of a trip the script would have leapt to where it should have been."""
    made = leader()
    made.reset()
    for step in range(100):
        before = made.read(0.01 * step).q_rad
    if how == "trip":
        nothing = np.full(6, np.nan)
        state = FollowerState(
            1.0, before, nothing, nothing, nothing, nothing, nothing, np.zeros(6, int)
        )
        command = SafeCommand(before, before, SafetyReason.TRIPPED)
        made.tick(Tick(0, 1.0, 0.01, 0.0, LeaderSample(1.0, before), command, state, {}))
    np.testing.assert_array_equal(made.read(1.0 if how == "trip" else 3.0).q_rad, before)
    assert made.done()


class Arm:
    """As much of a follower as leaders look at."""

    def __init__(self, robot_type: str = "so101_follower", prefix: str = "") -> None:
        self.robot_type = robot_type
        self.joint_names = tuple(prefix + name for name in ARMS["so101"].joint_names)
        self.joint_limits_rad = ARMS["so101"].joint_limits_rad


@pytest.mark.parametrize(
    ("arm", "says"),
    [
        (Arm("reachy2"), "none is known for reachy2"),
        (Arm("bi_so_follower", "left_"), "left_shoulder_pan"),
    ],
)
def test_arms_without_a_fitting_model_get_one_clear_line(arm: Arm, says: str) -> None:
    with pytest.raises(UnusableInputError, match=says) as caught:
        make_motion_leader(arm, Station("cell"))  # type: ignore[arg-type]
    assert "leader arm" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.floats(-2, 2), st.floats(0.1, 3), st.floats(0.5, 20))
def test_smooth_keeps_speed_and_acceleration(way: float, speed: float, change: float) -> None:
    piece = Smooth.within(np.zeros(1), np.array([way]), speed, change)
    q = np.array([piece.at(t) for t in np.linspace(0, piece.duration_s, 400)])[:, 0]
    step_s = piece.duration_s / 399
    assert np.abs(np.diff(q) / step_s).max() <= speed * 1.001
    assert np.abs(np.diff(q, 2) / step_s**2).max() <= change * 1.001 + 1e-6
    assert q[-1] == pytest.approx(way)


@given(st.floats(0.01, 2), st.booleans(), st.floats(0.05, 3), st.floats(0.5, 20))
def test_stroke_keeps_speed_and_arrives(
    way: float, backwards: bool, speed: float, change: float
) -> None:
    piece = Stroke(np.zeros(2), 1, -way if backwards else way, speed, change)
    q = np.array([piece.at(t) for t in np.linspace(0, piece.duration_s, 400)])[:, 1]
    assert np.abs(np.diff(q) / (piece.duration_s / 399)).max() <= speed * 1.001
    assert q[-1] == pytest.approx(-way if backwards else way)


def test_chirp_starts_and_ends_at_rest() -> None:
    piece = Chirp(np.zeros(1), 0, 0.4, 0.2, 3.0, 10.0, 1.5, 10.0)
    for t_s in (0.0, 10.0):
        assert abs(piece.at(t_s)[0]) < 1e-9
    assert abs(piece.at(0.01)[0]) < 1e-4
    assert abs(piece.at(9.99)[0]) < 1e-4
