"""A robot that answers from memory is silent; an arm at rest, or one that pushes, isn't."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lerobot import motors

from gaploop.core.clock import ManualClock
from gaploop.core.messages import NO_REPLY, FloatArray, LeaderSample, SafeCommand, SafetyReason
from gaploop.core.station import SafetyLimits, Station
from gaploop.teleop.lerobot_devices import generic
from gaploop.teleop.lerobot_devices.generic import GenericFollower, GenericLeader, OwnUnits
from gaploop.teleop.safety import make_safety
from gaploop.teleop.trips import TripWatch

PERIOD_S = 0.01
HERTZ = 30
ARM = ("pan", "lift", "elbow", "flex", "roll", "gripper")
BASE = ("x.vel", "y.vel", "theta.vel")


class Robot:
    """Goes where it is sent at up to 60 °/s after 0.15 s, and reports whole steps of `step_deg`.

    Args:
        blocked: joint to the angle beyond which something is in its way [°].
        noise_deg: by how much its encoders flicker.
    """

    name = "robot"

    def __init__(
        self,
        clock: ManualClock,
        joints: Sequence[str] = ARM,
        step_deg: float = 0.088,
        blocked: dict[str, float] | None = None,
        noise_deg: float = 0.0,
    ) -> None:
        self.clock, self.step_deg, self.noise_deg = clock, step_deg, noise_deg
        self.action_features = {j if "." in j else f"{j}.pos": float for j in joints}
        self.at = dict.fromkeys(self.action_features, 0.0)
        self.ends = {f"{j}.pos": end for j, end in (blocked or {}).items()}
        self.goals: list[tuple[float, dict[str, float]]] = []
        self.is_dead = False
        self.said = self.message()
        self.noise = np.random.default_rng(0)

    def message(self) -> dict[str, float]:
        step = self.step_deg
        return {k: round(q / step) * step if step else q for k, q in self.at.items()}

    def send_action(self, action: dict[str, float]) -> None:
        self.goals.append((self.clock.now_s(), action))

    def get_observation(self) -> dict[str, Any]:
        if self.is_dead:
            return self.said
        heard = [goal for t_s, goal in self.goals if t_s <= self.clock.now_s() - 0.15]
        if heard:
            most = 60.0 * PERIOD_S
            for key, goal in heard[-1].items():
                way = min(goal, self.ends.get(key, math.inf)) - self.at[key]
                self.at[key] += max(-most, min(most, way))
        self.said = self.message()
        if self.noise_deg:
            self.said["pan.pos"] += self.noise_deg * float(self.noise.standard_normal())
        return self.said


class Relayed(Robot):
    """As LeRobot's LeKiwi client: its newest message is kept, and served until the next one."""

    name = "relayed"

    def __init__(self, clock: ManualClock, **given: Any) -> None:
        super().__init__(clock, (*(f"arm_{j}" for j in ARM), *BASE), **given)
        self.last_remote_state: dict[str, Any] = self.said
        self.next_s = 0.0

    def get_observation(self) -> dict[str, Any]:
        if not self.is_dead and self.clock.now_s() >= self.next_s:
            self.next_s += 1.0 / HERTZ
            self.last_remote_state = super().get_observation()
        return self.last_remote_state


class OnCan(Robot):
    """As LeRobot's OpenArm: where a motor is dead its bus serves that one's last answer."""

    name = "on_can"

    def __init__(self, clock: ManualClock, **given: Any) -> None:
        super().__init__(clock, **given)
        self.bus = SimpleNamespace(_last_known_states={})
        self.dead: tuple[str, ...] = ()
        self.get_observation()

    def get_observation(self) -> dict[str, Any]:
        seen, states = super().get_observation(), self.bus._last_known_states
        for motor in ARM:
            if motor not in self.dead:
                states[motor] = {"position": seen[f"{motor}.pos"]}
        return {f"{motor}.pos": states[motor]["position"] for motor in ARM}


class Driven:
    """A robot with what it is driven by, turn by turn."""

    def __init__(self, make: Callable[..., Robot], **given: Any) -> None:
        self.clock = ManualClock()
        self.robot = make(self.clock, **given)
        self.follower = GenericFollower(self.robot, Station("test"), self.clock)
        self.n = len(self.follower.joint_names)
        limits = SafetyLimits(lost_servo_s=self.follower.lost_s)
        self.watch = TripWatch(limits, self.n, [ARM.index("gripper")])
        self.follower.torque_on()

    def tripped_after_s(
        self, goals_deg: Callable[[float], FloatArray], long_s: float
    ) -> float | None:
        """Drive; return when a servo counted as lost, since now [s], or None."""
        start_s = self.clock.now_s()
        while (t_s := self.clock.now_s() - start_s) < long_s:
            state = self.follower.read()
            goal = np.zeros(self.n)
            asked = goals_deg(t_s)
            goal[: len(asked)] = np.radians(asked)
            sample = LeaderSample(self.clock.now_s(), goal)
            cause = self.watch.cause(sample, state, self.clock.now_s(), goal.tolist())
            assert not cause & ~SafetyReason.LOST_SERVO & ~SafetyReason.NOT_FOLLOWING
            if cause & SafetyReason.LOST_SERVO:
                dead = getattr(self.robot, "dead", ARM)
                assert (state.status & NO_REPLY).astype(bool).tolist() == [
                    name in dead or dead is ARM for name in self.follower.joint_names
                ]
                assert np.isfinite(state.position_rad).all()
                return t_s
            self.follower.send(SafeCommand(goal, goal))
            self.clock.sleep_until(self.clock.now_s() + PERIOD_S)
        return None


def sweep(joints: Sequence[int], by_deg: float = 25.0, hertz: float = 0.3) -> Any:
    def goals(t_s: float) -> FloatArray:
        asked = np.zeros(len(ARM))
        asked[list(joints)] = by_deg * math.sin(2 * math.pi * hertz * t_s)
        return asked

    return goals


def rest(_t_s: float) -> FloatArray:
    return np.zeros(len(ARM))


def squeeze(t_s: float) -> FloatArray:
    """The gripper closes on something, and is asked for more."""
    asked = np.zeros(len(ARM))
    asked[-1] = min(60.0, 40.0 * t_s)
    return asked


def press(t_s: float) -> FloatArray:
    """One joint is asked on into the table, and comes back."""
    asked = np.zeros(len(ARM))
    asked[1] = max(0.0, 40.0 - abs(20.0 * t_s - 40.0))
    return asked


def creep(t_s: float) -> FloatArray:
    """Slower than a step of the encoders in half a second."""
    return np.full(len(ARM), 0.1 * t_s)


MOVING = {
    "every joint": sweep(range(6)),
    "two joints": sweep([0, 1]),
    "one joint, there and back": sweep([2]),
}
QUIET = {
    "at rest": (rest, {}),
    "a policy that asks for one pose": (lambda _t: np.full(len(ARM), 20.0), {}),
    "gripper on something": (squeeze, {"blocked": {"gripper": 8.0}}),
    "one joint into the table": (press, {"blocked": {"lift": 3.0}}),
    "one joint blocked, the others move": (sweep(range(6)), {"blocked": {"lift": 3.0}}),
    "creeping": (creep, {}),
    "whole degrees": (sweep(range(6), by_deg=6.0, hertz=0.05), {"step_deg": 1.0}),
    "slow, in steps of two degrees": (sweep([0, 1], 20.0, 0.02), {"step_deg": 2.0}),
    "exact floats": (sweep(range(6)), {"step_deg": 0.0}),
    "quiet but for noise": (squeeze, {"blocked": {"gripper": 8.0}, "noise_deg": 0.01}),
}


@pytest.mark.members(3)
@pytest.mark.parametrize("how", MOVING)
@pytest.mark.parametrize("step_deg", [0.0, 0.088, 1.0])
def test_readings_that_stay_while_the_goals_move_are_silence(how: str, step_deg: float) -> None:
    driven = Driven(Robot, step_deg=step_deg)
    assert driven.tripped_after_s(MOVING[how], 1.0) is None
    driven.robot.is_dead = True
    after_s = driven.tripped_after_s(lambda t_s: MOVING[how](t_s + 1.0), 5.0)
    assert after_s is not None
    assert after_s < 2.0  # a sweep takes 3.3 s, and its turning points are slow
    assert driven.follower.fault_counts()["failed reads"] == 1


@pytest.mark.members(2)
@pytest.mark.parametrize("goals", [rest, squeeze, sweep(range(6))])
def test_a_class_that_keeps_its_last_message_is_silent_when_no_other_comes(goals: Any) -> None:
    """The LeKiwi client's host died: 32 of 180 rows were frozen, then 180 of 180, all sealed."""
    driven = Driven(Relayed)
    assert driven.tripped_after_s(goals, 2.0) is None  # one message is served for several turns
    driven.robot.is_dead = True
    after_s = driven.tripped_after_s(goals, 2.0)
    assert after_s == pytest.approx(0.5, abs=0.05)
    driven.robot.is_dead, driven.robot.next_s = False, driven.clock.now_s()  # type: ignore[attr-defined]
    assert not driven.follower.read().status.any()


@pytest.mark.members(2)
@pytest.mark.parametrize("dead", [("elbow",), ("pan", "gripper")])
@pytest.mark.parametrize("goals", [rest, sweep(range(6))])
def test_a_motor_that_a_can_bus_serves_from_memory_is_silent_alone(
    dead: tuple[str, ...], goals: Any
) -> None:
    """An OpenArm drove on with one motor frozen, as the others' readings changed."""
    driven = Driven(OnCan)
    assert driven.tripped_after_s(goals, 2.0) is None
    driven.robot.dead = dead  # type: ignore[attr-defined]
    assert driven.tripped_after_s(goals, 2.0) == pytest.approx(0.5, abs=0.05)
    leader = OnCan(driven.clock)
    leader.get_action = leader.get_observation  # type: ignore[attr-defined]
    leading = GenericLeader(leader, OwnUnits(leader), driven.clock)
    leader.dead, began_s = dead, leading.read(0.0).t_s
    driven.clock.sleep_until(began_s + 1.0)
    assert leading.read(0.0).t_s == began_s


def test_the_can_buses_still_keep_what_tells() -> None:
    for maker in ("damiao", "robstride"):
        source = Path(motors.__file__).parent / maker / f"{maker}.py"
        assert f"self.{generic._NEWEST_OF_MOTORS}[" in source.read_text()


@pytest.mark.members(2)
@pytest.mark.parametrize("pause_s", [0.1, 0.15, 0.25, 0.4, 0.55, 3.0])
def test_a_link_that_pauses_holds_the_arm_and_stops_the_base_for_a_while(pause_s: float) -> None:
    """A LeKiwi was let go of after 0.15 s without news, which a wireless link takes every day."""
    clock = ManualClock()
    robot = Relayed(clock)
    follower = GenericFollower(robot, Station("test"), clock)
    safety = make_safety(Station("test"), follower, PERIOD_S)
    follower.torque_on()
    safety.reset(follower.read().position_rad)
    moved: list[tuple[float, float]] = []
    while (now_s := clock.now_s()) < 5.0:
        robot.is_dead = 2.0 <= now_s < 2.0 + pause_s
        before = safety.sent_rad
        goal = np.zeros(len(follower.joint_names))
        goal[0], goal[6] = 0.2 * math.sin(now_s), 0.1
        command = safety.filter(LeaderSample(now_s, goal), follower.read(), now_s)
        follower.send(command)
        moved.append((abs(command.sent_rad[0] - before[0]), command.sent_rad[6]))
        clock.sleep_until(now_s + PERIOD_S)
    assert bool(safety.tripped) == (pause_s > 0.5)
    while_silent = moved[round(2.2 / PERIOD_S) : round((2.0 + pause_s) / PERIOD_S)]
    assert not np.array(while_silent).any()
    assert moved[-1][1] == (0.0 if safety.tripped else 0.1)


@pytest.mark.members(5)
@pytest.mark.parametrize("make", [Robot, Relayed])
@pytest.mark.parametrize("case", QUIET)
def test_a_quiet_arm_is_no_silent_one(case: str, make: type[Robot]) -> None:
    goals, given = QUIET[case]
    if make is Relayed:
        given = {k: v for k, v in given.items() if k == "step_deg"}
    assert Driven(make, **given).tripped_after_s(goals, 6.0) is None


def test_a_limp_arm_may_be_left_alone() -> None:
    driven = Driven(Robot)
    driven.follower.torque_off = lambda: None  # type: ignore[method-assign]
    driven.follower._silence.forget()
    for _ in range(100):
        assert not driven.follower.read().status.any()
        driven.clock.sleep_until(driven.clock.now_s() + PERIOD_S)


def test_a_leader_at_rest_is_no_old_one_unless_its_class_knows() -> None:
    clock = ManualClock()
    features = {"pan.pos": float}
    plain = SimpleNamespace(name="l", action_features=features, get_action=lambda: {"pan.pos": 1.0})
    kept = SimpleNamespace(
        name="k",
        action_features=features,
        last_remote_state={"pan.pos": 1.0},
        get_action=lambda: kept.last_remote_state,
    )
    leaders = [GenericLeader(device, OwnUnits(device), clock) for device in (plain, kept)]
    for leader in leaders:
        assert leader.read(0.0).t_s == 0.0
    clock.sleep_until(1.0)
    assert [leader.read(1.0).t_s for leader in leaders] == [1.0, 0.0]
    kept.last_remote_state = {"pan.pos": 1.0}  # the same, said anew
    assert leaders[1].read(1.0).t_s == 1.0
