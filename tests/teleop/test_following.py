"""What counts as following, on the emulated servos and in the cell, without real time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, SafetyReason
from gaploop.core.station import SafetyLimits
from gaploop.sim.cell import CellClock, CellFollower, SimCell
from gaploop.teleop.emulator.arms import ArmPlan, build_servo, koch, so101
from gaploop.teleop.emulator.servo import EmulatedServo
from gaploop.teleop.safety import SafetyFilter

PERIOD_S = 0.005


class Arm:
    """Emulated servos that are moved by hand of the test: no bus, no thread, no time."""

    def __init__(self, plan: ArmPlan) -> None:
        self.servos: Sequence[EmulatedServo] = [build_servo(s) for s in plan.calibrated().servos]
        for servo in self.servos:
            servo.hold_here()
            servo.memory["Torque_Enable"] = 1
            servo.configure()
        self.limits_rad = np.array([(s.joint.low_rad, s.joint.high_rad) for s in self.servos])

    def read(self, t_s: float) -> FollowerState:
        joints = [servo.joint for servo in self.servos]
        nan = np.full(len(joints), np.nan)
        current = np.array([j.current_a if j.motor.current_sensor else math.nan for j in joints])
        load = np.array([math.nan if j.motor.current_sensor else 100 * j.duty for j in joints])
        return FollowerState(
            t_s,
            np.array([joint.q_rad for joint in joints]),
            nan,
            current,
            load,
            np.array([joint.temperature_c for joint in joints]),
            nan,
            np.zeros(len(joints), np.int64),
        )

    def go_on(self, goals_rad: FloatArray) -> None:
        for servo, goal in zip(self.servos, goals_rad.tolist(), strict=True):
            servo.goal = servo.shown_ticks_at(goal)
            servo.control(PERIOD_S)
            servo.joint.advance(PERIOD_S)


def swing(limits_rad: FloatArray, t_s: float, rad_s: float) -> FloatArray:
    """Return a pose on a motion of all joints over most of their travel, at `rad_s` at most."""
    middle, half = limits_rad.mean(axis=1), 0.45 * np.ptp(limits_rad, axis=1)
    return np.asarray(middle + half * np.sin(rad_s / half * t_s))


@pytest.mark.members(2)
@pytest.mark.parametrize("plan", [so101(), koch()], ids=["so101", "koch"])
@pytest.mark.parametrize("rad_s", [1.0, 2.5, 6.0])
def test_fast_teleoperation_under_weight_never_trips(plan: ArmPlan, rad_s: float) -> None:
    arm = Arm(plan)
    safety = SafetyFilter(SafetyLimits(), arm.limits_rad, PERIOD_S)
    safety.reset(arm.read(0.0).position_rad)
    for turn in range(4000):
        t_s = turn * PERIOD_S
        sample = LeaderSample(t_s, swing(arm.limits_rad, t_s, rad_s))
        arm.go_on(safety.filter(sample, arm.read(t_s), t_s).sent_rad)
        assert not safety.tripped, (t_s, safety.tripped)


@pytest.mark.members(8)
@pytest.mark.parametrize("plan", [so101(), koch()], ids=["so101", "koch"])
@pytest.mark.parametrize("joint", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("what", ["stuck", "limp"])
def test_a_dead_or_limp_servo_trips_within_a_second(plan: ArmPlan, joint: int, what: str) -> None:
    """It was noticed after 6.7 s, by the load on others."""
    arm = Arm(plan)
    safety = SafetyFilter(SafetyLimits(), arm.limits_rad, PERIOD_S)
    safety.reset(arm.read(0.0).position_rad)
    for turn in range(800):
        t_s = turn * PERIOD_S
        if turn == 400 and what == "stuck":
            arm.servos[joint].joint.stuck = True
        elif turn == 400:
            arm.servos[joint].memory["Torque_Enable"] = 0
        sample = LeaderSample(t_s, swing(arm.limits_rad, t_s, 2.0))
        arm.go_on(safety.filter(sample, arm.read(t_s), t_s).sent_rad)
        assert not safety.tripped or turn > 400
        if safety.tripped:
            break
    assert safety.tripped == SafetyReason.NOT_FOLLOWING
    assert t_s < 3.0


@pytest.mark.members(2)
@pytest.mark.parametrize("gap_seed", range(6))
def test_an_arm_with_late_loose_or_weak_servos_never_trips(gap_seed: int) -> None:
    """The cell's actuator gaps at full severity, under the limits of a real arm."""
    cell = SimCell(gaps={"actuator_response": 1.0}, gap_seed=gap_seed)
    cell.reset(0)
    follower, clock = CellFollower(cell), CellClock(cell)
    period_s = 0.02
    safety = SafetyFilter(SafetyLimits(), follower.joint_limits_rad, period_s, (), [5])
    start = follower.read().position_rad
    safety.reset(start)
    begin_s = clock.now_s()
    for turn in range(300):
        t_s = clock.now_s()
        asked = start + 0.3 * np.sin(6.0 * (t_s - begin_s)) * np.array([1, 0.5, -0.5, 1, 1, 0])
        command = safety.filter(LeaderSample(t_s, asked), follower.read(), t_s)
        follower.send(command)
        assert not safety.tripped & SafetyReason.NOT_FOLLOWING, (t_s - begin_s, cell)
        clock.sleep_until(begin_s + (turn + 1) * period_s)
    cell.close()
