"""Laws of the workspace box, on a planar arm and on the models that ship."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, SafetyReason
from gaploop.core.station import SIM_STATION, SafetyLimits, Station, Workspace
from gaploop.teleop.safety import SafetyFilter, make_safety
from gaploop.teleop.workspace import WorkspaceGuard

PERIOD_S = 0.005
LIMITS = SafetyLimits(align_velocity_rad_s=3.0)


@dataclass
class Arm:
    """What the filter asks of a follower."""

    robot_type: str = "so101_follower"
    joint_names: tuple[str, ...] = ()
    joint_limits_rad: FloatArray = field(default_factory=lambda: np.empty((0, 2)))

    def __post_init__(self) -> None:
        if not self.joint_names:
            arm = model()
            self.joint_names, self.joint_limits_rad = arm.joint_names, arm.joint_limits_rad


@functools.cache
def model(name: str = "so101") -> ArmModel:
    return ArmModel.load(name)


def filtered(safety: SafetyFilter, q: FloatArray, turn: int) -> tuple[FloatArray, SafetyReason]:
    nothing, count = np.full(len(q), np.nan), len(q)
    state = FollowerState(0, q, nothing, nothing, nothing, nothing, nothing, np.zeros(count, int))
    command = safety.filter(LeaderSample(turn * PERIOD_S, q), state, turn * PERIOD_S)
    return command.sent_rad, command.reasons


def outside_m(points: FloatArray, box: Workspace) -> FloatArray:
    low, high = box.bounds_m()
    beyond: FloatArray = np.maximum(np.maximum(low - points, points - high), 0.0)
    return beyond


anything = st.floats(-2.0, 2.0) | st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30])
walks = st.lists(
    st.tuples(st.lists(anything, min_size=6, max_size=6), st.integers(1, 60)),
    min_size=1,
    max_size=8,
)
INSIDE = np.array([0.0, -0.5, 0.6, 0.8, 0.0, 0.5])


@settings(max_examples=40)
@given(walks, st.sampled_from(sorted(ARM_MODELS)))
def test_from_inside_no_request_takes_any_guarded_point_out_of_the_box(
    walk: list[tuple[list[float], int]], name: str
) -> None:
    arm = model(name)
    box = Workspace(*ARM_MODELS[name].workspace_m)
    start = inside_pose(name)
    safety = make_safety(
        Station("s", robot_model=name, safety=LIMITS),
        Arm("other", arm.joint_names, arm.joint_limits_rad),  # type: ignore[arg-type]
        PERIOD_S,
    )
    safety.reset(start)
    turn, last = 0, safety.sent_rad
    for q, turns in walk:
        for _ in range(turns):
            sent, _ = filtered(safety, np.resize(np.array(q), len(start)), turn)
            assert not outside_m(arm.points_m(sent), box).any()
            step = np.abs(sent - last)
            assert (step <= LIMITS.velocity_rad_s * PERIOD_S + 1e-12).all()
            turn, last = turn + 1, sent


def inside_pose(name: str) -> FloatArray:
    """Return a pose of the arm whose points are all in its own box."""
    arm, box = model(name), Workspace(*ARM_MODELS[name].workspace_m)
    draw = np.random.default_rng(0)
    low, high = arm.joint_limits_rad.T
    poses = (low + (high - low) * draw.uniform(size=len(low)) for _ in range(1000))
    return next(q for q in poses if not outside_m(arm.points_m(q), box).any())


@settings(max_examples=40)
@given(walks)
def test_from_outside_no_point_goes_further_out_on_any_axis(
    walk: list[tuple[list[float], int]],
) -> None:
    box = Workspace((0.05, 0.2), (-0.1, 0.1), (0.1, 0.3))
    safety = make_safety(Station("s", workspace=box, safety=LIMITS), Arm(), PERIOD_S)  # type: ignore[arg-type]
    safety.reset(INSIDE)
    out_m = outside_m(model().points_m(INSIDE), box)
    assert out_m.any()
    turn = 0
    for q, turns in walk:
        for _ in range(turns):
            sent, _ = filtered(safety, np.array(q), turn)
            now_m = outside_m(model().points_m(sent), box)
            assert (now_m <= out_m + 1e-12).all()
            turn, out_m = turn + 1, now_m


def planar(box: Workspace) -> SafetyFilter:
    """Return the filter of two links of 1 m each in the x-y plane; its point is the tip."""

    def tip_m(q: FloatArray) -> FloatArray:
        first, second = q[0], q[0] + q[1]
        return np.array(
            [[math.cos(first) + math.cos(second), math.sin(first) + math.sin(second), 0.0]]
        )

    arm: Any = SimpleNamespace(
        points_m=tip_m, reach_m=[2.0, 1.0], joint_names=("one", "two"), point_names=("tip",)
    )
    guard = WorkspaceGuard(box, arm, range(2))
    safety = SafetyFilter(LIMITS, np.array([[-3.0, 3.0]] * 2), PERIOD_S, (guard,))
    safety._alignments = []  # it looks for no way round
    return safety


def test_the_step_towards_the_request_is_as_large_as_the_box_allows() -> None:
    safety = planar(Workspace((-2.0, 1.9), (-2.0, 2.0), (-1.0, 1.0)))
    safety.reset(np.array([1.0, 0.0]))
    for turn in range(400):
        sent, reasons = filtered(safety, np.zeros(2), turn)
    assert reasons & SafetyReason.WORKSPACE
    assert 1.9 - 0.001 < 2 * math.cos(sent[0]) <= 1.9


def test_knowing_the_reach_changes_nothing_but_how_often_the_points_are_found() -> None:
    arm, looks = model(), {True: 0, False: 0}
    box = Workspace(*ARM_MODELS["so101"].workspace_m)

    def sent(knows: bool) -> FloatArray:
        def points_m(q: FloatArray) -> FloatArray:
            looks[knows] += 1
            return arm.points_m(q)

        counted: Any = SimpleNamespace(
            points_m=points_m,
            reach_m=arm.reach_m,
            joint_names=arm.joint_names,
            point_names=arm.point_names,
        )
        guard = WorkspaceGuard(box, counted, range(6))
        guard._reach_m = list(arm.reach_m) if knows else [math.inf] * 6
        safety = SafetyFilter(LIMITS, arm.joint_limits_rad, PERIOD_S, (guard,))
        safety.reset(INSIDE)
        wave = INSIDE + 0.9 * np.sin(np.arange(600)[:, None] * 0.02 * np.arange(1, 7))
        return np.array([filtered(safety, q, turn)[0] for turn, q in enumerate(wave)])

    np.testing.assert_array_equal(sent(True), sent(False))
    assert looks[True] < 0.7 * looks[False]


def test_pressed_against_a_face_the_arm_slides_along_it() -> None:
    """The whole arm stuck where only one joint's part of the step led out of the box."""
    box = ARM_MODELS["so101"].workspace_m
    safety = make_safety(Station("s", safety=LIMITS), Arm(), PERIOD_S)  # type: ignore[arg-type]
    safety.reset(INSIDE)
    down = INSIDE + np.array([0.0, 1.2, 0.0, 0.0, 0.0, 0.0])
    for turn in range(400):
        pressed, reasons = filtered(safety, down, turn)
    assert reasons & SafetyReason.WORKSPACE
    for turn in range(400, 800):
        sent, _ = filtered(safety, down + np.array([0.8, 0, 0, 0, 0, 0]), turn)
    assert sent[0] == pytest.approx(0.8)
    assert model().points_m(pressed)[:, 2].min() < box[2][0] + 0.005


def test_a_pair_has_a_box_for_each_arm_and_one_at_its_face_doesnt_stop_the_other() -> None:
    one = model()
    names = tuple(f"{side}_{joint}" for side in ("left", "right") for joint in one.joint_names)
    pair = Arm("bi_so_follower", names, np.tile(one.joint_limits_rad, (2, 1)))
    safety = make_safety(Station("s", safety=LIMITS), pair, PERIOD_S)  # type: ignore[arg-type]
    assert len(safety.guards) == 2
    safety.reset(np.tile(INSIDE, 2))
    lift = np.zeros(12)
    lift[[1, 7]] = 1.2, -0.3
    for turn in range(300):
        sent, _ = filtered(safety, np.tile(INSIDE, 2) + lift, turn)
    assert sent[1] < INSIDE[1] + 1.1
    assert sent[7] == pytest.approx(INSIDE[1] - 0.3)


def test_the_embedded_cells_box_holds_whatever_its_arm_can_reach() -> None:
    """A box that bites in simulation would change what every shipped figure was measured on."""
    draw = np.random.default_rng(0)
    low, high = model().joint_limits_rad.T
    assert SIM_STATION.workspace is not None
    for _ in range(2000):
        q = low + (high - low) * draw.uniform(size=6)
        assert not outside_m(model().points_m(q), SIM_STATION.workspace).any()


@pytest.mark.parametrize(
    ("station", "robot_type", "says"),
    [
        (Station("s", workspace=SIM_STATION.workspace), "third_party", "none is known for"),
        (Station("s", robot_model="so11"), "so101_follower", "Did you mean 'so101'"),
        (Station("s", robot_model="koch.xml"), "so101_follower", "No arm model"),
        (Station("s", robot_model="so101"), "two_joints", "has the joints shoulder_pan"),
        (Station("s", joint_limits_rad={"elbow": (0, 1)}), "so101_follower", "'elbow_flex'"),
        (
            Station("s", joint_limits_rad={"elbow_flex": (-3.0, 0.0)}),
            "so101_follower",
            "own range [-1.69, 1.69] rad",
        ),
    ],
)
def test_a_station_that_doesnt_fit_the_robot_is_one_line(
    station: Station, robot_type: str, says: str
) -> None:
    joints = ("a", "b") if robot_type == "two_joints" else ()
    limits = np.array([[-1.0, 1.0]] * 2)
    with pytest.raises(UnusableInputError) as caught:
        make_safety(station, Arm(robot_type, joints, limits), PERIOD_S)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_robot_whose_model_nobody_knows_still_has_every_other_limit() -> None:
    arm = Arm("third_party", ("a", "b"), np.array([[-1.0, 1.0]] * 2))
    station = Station("s", joint_limits_rad={"b": (-0.2, 0.2)}, safety=LIMITS)
    safety = make_safety(station, arm, PERIOD_S)  # type: ignore[arg-type]
    assert safety.guards == ()
    safety.reset(np.zeros(2))
    for turn in range(300):
        sent, _ = filtered(safety, np.array([0.9, 0.9]), turn)
    np.testing.assert_allclose(sent, [0.9, 0.2])


def test_no_stall_limit_lies_above_what_the_motors_can_draw() -> None:
    joints = model("koch").joint_names
    koch = Arm("koch_follower", joints, model("koch").joint_limits_rad)
    wide = replace(LIMITS, stall_current_a=20.0)
    for arm, highest_a in ((koch, 1.47), (Arm(), 2.7)):
        safety = make_safety(Station("s", safety=wide), arm, PERIOD_S)  # type: ignore[arg-type]
        assert safety.limits.stall_current_a < highest_a
