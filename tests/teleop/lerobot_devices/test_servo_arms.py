"""LeRobot arms on emulated buses: what they report, how they follow, how they let go."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from emulated_arms import Emulated, calibration_folder, emulated

from gaploop.collect.rig import LedArm, world_rig
from gaploop.core.clock import ManualClock
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import (
    NO_REPLY,
    REBOOTED,
    FloatArray,
    FollowerState,
    LeaderSample,
    SafeCommand,
)
from gaploop.core.protocols import Follower
from gaploop.core.station import SafetyLimits, Station
from gaploop.teleop.control import STUCK_S
from gaploop.teleop.emulator.arms import so101
from gaploop.teleop.emulator.bus import EmulatedBus, Fault
from gaploop.teleop.lerobot_devices import servo_arm
from gaploop.teleop.lerobot_devices.make import make_follower, make_leader
from gaploop.teleop.lerobot_devices.servo_arm import ServoFollower, ServoLeader
from gaploop.teleop.servos.exchange import LATE_S, BusLine
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.supervisor import HOLDS, SupervisedBus, _Arms

SCENES = Path(__file__).parents[3] / "examples" / "scene"
pytestmark = pytest.mark.usefixtures("loop_time")

type Until = Callable[[Callable[[], object]], None]

MODELS = ("so101", "koch", "openmanipulator")


@contextlib.contextmanager
def follower_of(arm: Emulated) -> Iterator[ServoFollower]:
    follower = make_follower(arm.config)
    assert isinstance(follower, ServoFollower)
    try:
        yield follower
    finally:
        with contextlib.suppress(DeviceError):
            follower.close()


def torques(bus: EmulatedBus) -> dict[int, bool]:
    with bus.lock:
        return {i: bool(servo.memory["Torque_Enable"]) for i, servo in bus.servos.items()}


def good_read(follower: ServoFollower) -> FollowerState:
    """Read; everybody answers in time."""
    state = follower.read()
    assert not (state.status & NO_REPLY).any(), follower.fault_counts()
    return state


def hold(follower: ServoFollower, q_rad: FloatArray) -> None:
    follower.send(SafeCommand(q_rad, q_rad))


@pytest.mark.parametrize("model", MODELS)
def test_readings_are_lerobots_own_and_more(model: str, tmp_path: Path) -> None:
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        state = good_read(follower)
        theirs = follower.arms[0].device.get_observation()
        ours = follower.to_units(state.position_rad)
        for name, value in zip(follower.joint_names, ours, strict=True):
            assert value == pytest.approx(theirs[f"{name}.pos"], abs=0.2), name
        assert np.isfinite(state.velocity_rad_s).all()
        assert np.isfinite(state.temperature_c).all()
        assert (state.voltage_v > 4.0).all()
        # Every motor reports its current, or else its load.
        assert (np.isfinite(state.current_a) | np.isfinite(state.load_pct)).all()
        assert not state.status.any()
        assert (follower.joint_limits_rad[:, 0] < follower.joint_limits_rad[:, 1]).all()
        assert not any(torques(arm.bus).values())


@pytest.mark.parametrize("model", MODELS)
def test_the_follower_goes_where_the_leader_is(model: str, tmp_path: Path, until: Until) -> None:
    with (
        emulated(model, "follower", tmp_path) as arm,
        emulated(model, "leader", tmp_path) as led,
        follower_of(arm) as follower,
    ):
        leader = make_leader(led.config, follower)
        assert isinstance(leader, ServoLeader)
        follower.torque_on()
        assert all(torques(arm.bus).values())
        for _ in range(3):
            good_read(follower)
            sample = leader.read(0.0)
        # LeRobot's own way: the leader's action, in its units, is the follower's goal.
        action = leader.arms[0].device.get_action()
        wanted = follower.from_units(np.array([action[f"{n}.pos"] for n in follower.joint_names]))
        np.testing.assert_allclose(sample.q_rad, wanted, atol=0.02)
        assert sample.state is not None
        assert sample.t_s > follower.group.clock.now_s() - 5.0
        low, high = follower.joint_limits_rad.T
        goal = np.clip(sample.q_rad, low, high)

        def arrived() -> bool:
            hold(follower, goal)
            return bool(np.abs(follower.read().position_rad - goal).max() < 0.15)

        until(arrived)
        leader.close()
        follower.close()
        assert not any(torques(arm.bus).values())
        assert not any(torques(led.bus).values())


@pytest.mark.parametrize("model", MODELS)
def test_a_supervisor_means_the_same_angles_and_goals(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the ports, and knows the arms by what it was handed: no LeRobot, no calibration."""
    with (
        emulated(model, "follower", tmp_path) as arm,
        emulated(model, "leader", tmp_path) as led,
        follower_of(arm) as follower,
    ):
        leader = make_leader(led.config, follower)
        assert follower.supervised() == []  # the arms would end with this program
        monkeypatch.setattr(servo_arm, "is_emulated_here", lambda _port: False)
        ports = {bus.line.port.path: bus.line.port for bus in follower.group.buses}
        monkeypatch.setattr(SerialPort, "inherited", lambda path, _baud, _handle: ports[path])
        known = [SupervisedBus(**asdict(bus)) for bus in follower.supervised()]
        assert [bus.is_follower for bus in known] == [True, False]
        follower.torque_on()
        hold(follower, good_read(follower).position_rad + 0.05)
        beside = _Arms(known[:1])
        goal_rad, torque = beside.ask()
        assert (torque == HOLDS).all()
        np.testing.assert_allclose(beside.read().position_rad, follower.read().position_rad)
        beside.send(SafeCommand(goal_rad, goal_rad))
        np.testing.assert_allclose(beside.ask()[0], goal_rad)
        assert np.abs(goal_rad - good_read(follower).position_rad).max() < 0.1
        beside.release([1, 2])
        holds = [servo.memory["Torque_Enable"] == HOLDS for servo in arm.bus.all_servos]
        assert holds == [True, False, False, True, True, True]
        beside.torque_off()
        _Arms(known[1:]).torque_off()
        leader.close()
        assert not any(torques(arm.bus).values())
        assert not any(torques(led.bus).values())


def test_a_leader_and_its_follower_are_read_in_one_exchange(tmp_path: Path) -> None:
    with (
        emulated("so101", "follower", tmp_path) as arm,
        emulated("so101", "leader", tmp_path) as led,
        follower_of(arm) as follower,
    ):
        leader = make_leader(led.config, follower)
        state = good_read(follower)
        before = led.bus.counts.exchanges
        sample = leader.read(0.0)
        assert led.bus.counts.exchanges == before  # its reading was made with the follower's
        assert sample.t_s == state.t_s
        again = leader.read(0.0)  # and is handed out once
        assert again.t_s > sample.t_s
        leader.close()


@pytest.mark.parametrize("model", ["so101", "koch"])
def test_in_a_fast_loop_goals_wait_for_no_readings_but_the_leaders_place(
    model: str, tmp_path: Path, loop_time: ManualClock
) -> None:
    """All else was asked for in the turn before; a pause or a silent servo ends that."""
    with (
        emulated(model, "follower", tmp_path) as arm,
        emulated(model, "leader", tmp_path) as led,
        follower_of(arm) as follower,
    ):
        leader = make_leader(led.config, follower)
        assert isinstance(leader, ServoLeader)
        follower.torque_on()
        sent: list[str] = []
        for who, bus in zip(("follower", "leader"), follower.group.buses, strict=True):
            tell(bus.line, who, sent)

        def turn() -> tuple[FollowerState, LeaderSample]:
            loop_time.sleep_until(loop_time.now_s() + 0.005)
            sent.clear()
            state, sample = follower.read(), leader.read(0.0)
            hold(follower, sample.q_rad)
            return state, sample

        reads = ["follower SYNC_READ", "leader SYNC_READ"]
        ahead = ["leader SYNC_READ", "follower SYNC_WRITE", *reads]
        loop_time.sleep_until(loop_time.now_s() + LATE_S)  # a search for servos left questions open
        for _ in range(4):
            began_s = loop_time.now_s() + 0.005
            state, sample = turn()
        assert sent == ahead
        assert state.t_s < began_s <= sample.t_s
        assert not (state.status & NO_REPLY).any()
        action = leader.arms[0].device.get_action()
        wanted = [action[f"{name}.pos"] for name in follower.joint_names]
        np.testing.assert_allclose(sample.q_rad, follower.from_units(np.array(wanted)), atol=0.02)

        loop_time.sleep_until(loop_time.now_s() + 0.5)  # what was asked then says nothing now
        now_s = loop_time.now_s()
        assert follower.read().t_s >= now_s

        for _ in range(3):
            turn()
        assert sent == ahead
        follower.torque_off()  # whoever else wants the bus gets it, and nobody's answers
        assert not any(torques(arm.bus).values())
        follower.torque_on()
        assert not (follower.read().status & NO_REPLY).any()

        arm.bus.faults.add(Fault("vanish", id=3))
        for _ in range(3):
            state, _sample = turn()
        assert state.status[2] & NO_REPLY
        assert sent[-1] == "follower SYNC_WRITE"
        leader.close()


def tell(line: BusLine, who: str, sent: list[str]) -> None:
    """Note in `sent` what is written to a bus: whose it is, and the instruction."""
    write = line.port.write

    def noted(data: bytes) -> None:
        code = line.wire.Parser().feed(data)[0].code
        sent.append(f"{who} {line.wire.Instruction(code).name}")
        write(data)

    line.port.write = noted  # type: ignore[method-assign]


def test_a_koch_leaders_gripper_keeps_its_spring(tmp_path: Path, until: Until) -> None:
    with (
        emulated("koch", "follower", tmp_path) as arm,
        emulated("koch", "leader", tmp_path) as led,
        follower_of(arm) as follower,
    ):
        leader = make_leader(led.config, follower)
        assert torques(led.bus) == {1: False, 2: False, 3: False, 4: False, 5: False, 6: True}
        led.bus.faults.add(Fault("vanish", id=6, for_s=0.2))

        def back() -> bool:
            leader.read(0.0)
            return leader.fault_counts()["reboots"] == 1

        until(back)  # it comes back limp; what it forgot is written again and the spring holds
        assert torques(led.bus)[6]
        leader.close()


@pytest.mark.parametrize("model", ["so101", "koch"])
def test_nothing_moves_when_torque_comes_on(
    model: str, tmp_path: Path, loop_time: ManualClock
) -> None:
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        before = good_read(follower).position_rad
        follower.torque_on()
        loop_time.sleep_until(loop_time.now_s() + 0.2)
        assert np.abs(good_read(follower).position_rad - before).max() < 0.05


@pytest.mark.parametrize("model", ["so101", "koch"])
def test_torque_off_reaches_every_servo_that_lives(model: str, tmp_path: Path) -> None:
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        follower.torque_on()
        dead = (2, 5)
        for servo_id in dead:
            arm.bus.faults.add(Fault("vanish", id=servo_id))
        with pytest.raises(DeviceError, match=r"shoulder_lift .*wrist_roll .*power off"):
            follower.torque_off()
        assert not any(on for i, on in torques(arm.bus).items() if i not in dead)
        hold(follower, np.zeros(6))  # a goal would switch a Feetech servo's torque on again
        assert not any(on for i, on in torques(arm.bus).items() if i not in dead)


def test_torque_off_is_quick_with_two_dead_servos(tmp_path: Path, loop_time: ManualClock) -> None:
    with emulated("so101", "follower", tmp_path) as arm, follower_of(arm) as follower:
        follower.torque_on()
        arm.bus.faults.add(Fault("vanish", id=2))
        arm.bus.faults.add(Fault("vanish", id=5))
        start_s = loop_time.now_s()
        with pytest.raises(DeviceError):
            follower.torque_off()
        assert loop_time.now_s() - start_s < 0.06


@pytest.mark.parametrize("latency_s", [0.06, 0.3])
@pytest.mark.parametrize("model", ["so101", "koch"])
def test_letting_go_of_an_arm_that_answers_late_does_not_take_long(
    model: str, latency_s: float, tmp_path: Path, loop_time: ManualClock
) -> None:
    """Each servo was asked on its own for over a second: the program counted as hung, and was
    killed, with an episode open."""
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        follower.torque_on()
        arm.bus.faults.add(Fault("slow", latency_s=latency_s))
        until_s = loop_time.now_s() + 0.5
        while loop_time.now_s() < until_s:  # as a loop does until it trips
            follower.read()
            loop_time.sleep_until(loop_time.now_s() + 0.005)
        start_s = loop_time.now_s()
        if latency_s > 0.1:
            with pytest.raises(DeviceError, match="isn't confirmed"):
                follower.torque_off(damped=True)
        else:
            follower.torque_off(damped=True)
        assert loop_time.now_s() - start_s < STUCK_S
        assert 1 not in {servo.memory["Torque_Enable"] for servo in arm.bus.all_servos}
        arm.bus.faults.clear()


def test_no_signal_interrupts_torque_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C that was held down, or a supervisor that asked again, left joints holding."""
    write = SerialPort.write

    def interrupted(port: SerialPort, data: bytes) -> None:
        signal.raise_signal(signal.SIGINT)
        write(port, data)

    with emulated("so101", "follower", tmp_path) as arm, follower_of(arm) as follower:
        follower.torque_on()
        monkeypatch.setattr(SerialPort, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            follower.torque_off()
        assert not any(torques(arm.bus).values())
        monkeypatch.setattr(SerialPort, "write", write)


@pytest.mark.parametrize("model", ["so101", "koch"])
def test_a_servo_that_vanishes_is_told_and_one_that_comes_back_limp_too(
    model: str, tmp_path: Path, until: Until
) -> None:
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        follower.torque_on()
        last = good_read(follower).position_rad[2]
        arm.bus.faults.add(Fault("vanish", id=3, for_s=0.3))
        until(lambda: follower.read().status[2] & NO_REPLY)
        state = follower.read()
        assert state.position_rad[2] == pytest.approx(last, abs=0.05)
        assert np.isnan(state.temperature_c[2])
        until(lambda: follower.read().status[2] == REBOOTED)
        assert follower.fault_counts()["reboots"] == 1
        follower.torque_on()  # writes again what it forgot
        assert all(torques(arm.bus).values())
        until(lambda: not good_read(follower).status.any())
        if model == "koch":  # LeRobot sets this gain in RAM, where a loss of power forgets it
            with arm.bus.lock:
                assert arm.bus.servos[3].memory["Position_P_Gain"] == 1500


@pytest.mark.parametrize("model", ["so101", "koch"])
def test_a_servos_hardware_error_shows_in_its_status(
    model: str, tmp_path: Path, until: Until
) -> None:
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        arm.bus.faults.add(Fault("overheat", id=4))
        until(lambda: follower.read().status[3] & 0x04)  # both makers: bit 2 is overheating
        assert not follower.read().status[:3].any()
        if model == "koch":  # an X servo stays shut down until it is restarted
            with pytest.raises(DeviceError, match="wrist_flex"):
                follower.torque_on()
            assert not any(torques(arm.bus).values())


def test_a_bus_that_is_pulled_out_trips_nothing_but_silence(tmp_path: Path, until: Until) -> None:
    with emulated("so101", "follower", tmp_path) as arm, follower_of(arm) as follower:
        follower.torque_on()
        arm.bus.faults.add(Fault("unplug"))
        until(lambda: (follower.read().status & NO_REPLY).all())
        hold(follower, np.zeros(6))
        with pytest.raises(DeviceError, match="power off"):
            follower.torque_off()
        arm.bus.faults.clear("unplug")


@pytest.mark.parametrize("fault", ["drop", "corrupt", "garbage"])
def test_a_noisy_bus_is_counted_and_teleoperates(fault: str, tmp_path: Path, until: Until) -> None:
    with emulated("koch", "follower", tmp_path) as arm, follower_of(arm) as follower:
        follower.torque_on()
        arm.bus.faults.add(Fault(fault, rate=0.1))
        heard = 0
        for _ in range(100):
            state = follower.read()
            assert np.isfinite(state.position_rad).all()
            heard += int((state.status & NO_REPLY == 0).sum())
        assert heard > 300
        assert sum(follower.fault_counts().values()) > 0
        arm.bus.faults.clear()
        until(lambda: not (follower.read().status & NO_REPLY).any())


def test_a_bimanual_pair_moves_both_arms_in_one_exchange(tmp_path: Path, until: Until) -> None:
    """Nobody held LeRobot's two-armed robot, and its destructor closed both ports."""
    from lerobot.robots.bi_so_follower import BiSOFollowerConfig
    from lerobot.robots.so_follower import SOFollowerConfig

    with (
        EmulatedBus("so101", hand="still", wire_time=False) as left,
        EmulatedBus("so101", hand="still", wire_time=False, seed=1) as right,
    ):
        folder = calibration_folder(tmp_path, "follower", so101().calibration(), "bi_left")
        calibration_folder(tmp_path, "follower", so101().calibration(), "bi_right")
        follower = make_follower(
            BiSOFollowerConfig(
                left_arm_config=SOFollowerConfig(port=left.port),
                right_arm_config=SOFollowerConfig(port=right.port),
                id="bi",
                calibration_dir=folder,
            )
        )
        assert isinstance(follower, ServoFollower)
        assert len(follower.joint_names) == 12
        assert follower.joint_names[0] == "left_shoulder_pan"
        follower.torque_on()
        goal = good_read(follower).position_rad.copy()
        goal[[0, 6]] = 0.3, -0.3

        def arrived() -> bool:
            hold(follower, goal)
            there = follower.read().position_rad[[0, 6]]
            return bool(np.abs(there - goal[[0, 6]]).max() < 0.1)

        until(arrived)
        right.faults.add(Fault("vanish", id=1))
        with pytest.raises(DeviceError, match="right_shoulder_pan"):
            follower.close()
        assert not any(torques(left).values())
        assert not any(on for i, on in torques(right).items() if i != 1)


@pytest.mark.parametrize("model", ["so101", "koch"])
def test_a_servo_that_restarts_in_an_instant_is_noticed(
    model: str, tmp_path: Path, until: Until
) -> None:
    """It answered on, limp, and was noticed after 6.7 s.

    A Feetech servo even takes its torque again with the next goal, but without its settings.
    """
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        follower.torque_on()
        q_rad = good_read(follower).position_rad
        for _ in range(3):
            hold(follower, q_rad)
            assert not (follower.read().status & ~NO_REPLY).any()
        arm.bus.faults.add(Fault("reboot", id=3))

        def noticed() -> bool:
            hold(follower, q_rad)
            status = follower.read().status
            assert not (status[[0, 1, 3, 4, 5]] & REBOOTED).any()
            return bool(status[2] & REBOOTED)

        until(noticed)
        assert follower.fault_counts()["reboots"] == 1
        assert not (follower.read().status[2] & NO_REPLY)  # it never missed a question


@pytest.mark.parametrize("model", ["so101", "koch"])
def test_answers_that_come_late_are_no_answers(model: str, tmp_path: Path, until: Until) -> None:
    """Answers 30 ms late counted for the next request: 42 of 44 reads were taken for fresh."""
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        good_read(follower)
        arm.bus.faults.add(Fault("slow", latency_s=0.05))
        follower.read()  # its answer may be under way already
        for _ in range(20):
            assert (follower.read().status & NO_REPLY).all()
        arm.bus.faults.clear()
        until(lambda: not follower.read().status.any())


@pytest.mark.parametrize("slip_ticks", [2047, 3000])
def test_a_leaders_encoder_that_begins_again_does_not_swing_the_follower(
    slip_ticks: int, tmp_path: Path
) -> None:
    """A wrist turned past 4095 asked for the other end of its range, 340 degrees away."""
    with (
        emulated("so101", "follower", tmp_path) as arm,
        emulated("so101", "leader", tmp_path, hand="still") as led,
        follower_of(arm) as follower,
    ):
        leader = make_leader(led.config, follower)
        high = follower.joint_limits_rad[4][1]
        seen = []
        for ticks in range(0, slip_ticks, 150):  # the wrist is turned on and on
            led.bus.faults.clear()
            led.bus.faults.add(Fault("slip", id=5, value=ticks))
            seen.append(leader.read(0.0).q_rad[4])
        assert (np.diff(seen) > 0).all()
        assert seen[-1] - seen[0] > 0.9 * slip_ticks * 2 * np.pi / 4096 - 0.25
        assert seen[-1] > high or slip_ticks < 2048
        leader.close()


@pytest.mark.parametrize("joint", [0, 4], ids=["with end stops", "turns freely"])
def test_a_leader_that_was_moved_while_nobody_looked_is_where_it_is(
    joint: int, tmp_path: Path
) -> None:
    """Moved by more than half a turn while its follower was limp, it led to the wrong end."""
    with (
        emulated("so101", "follower", tmp_path) as arm,
        emulated("so101", "leader", tmp_path, hand="still") as led,
        follower_of(arm) as follower,
    ):
        leader = make_leader(led.config, follower)
        seen = []
        for ticks in (-1150, 1150):
            led.bus.faults.clear()
            led.bus.faults.add(Fault("slip", id=joint + 1, value=ticks))
            leader.reset()  # as when a trip is cleared
            leader.read(0.0)  # what is under way is from before
            seen.append(leader.read(0.0).q_rad[joint])
        assert seen[1] - seen[0] == pytest.approx(2300 * 2 * np.pi / 4096, abs=0.05)
        leader.close()


def test_a_joint_with_end_stops_is_never_a_turn_further(tmp_path: Path) -> None:
    """One bad reading, or a cable that was out, put it a turn further for the rest of the day."""
    with (
        emulated("so101", "follower", tmp_path) as arm,
        emulated("so101", "leader", tmp_path, hand="still") as led,
        follower_of(arm) as follower,
    ):
        leader = make_leader(led.config, follower)
        ranges = {
            name: (c["range_min"], c["range_max"]) for name, c in led.bus.plan.calibration().items()
        }
        ends = [[float(one[k]) for one in ranges.values()] for k in (0, 1)]
        for ticks in (*ends, *ends[::-1]):
            asked = leader._unwrapped(ticks)
            assert [asked[k] for k in (0, 1, 2, 3, 5)] == [ticks[k] for k in (0, 1, 2, 3, 5)]
        leader.close()


@pytest.mark.parametrize("model", ["so101", "koch"])
def test_an_adapter_that_keeps_answers_for_a_while_is_waited_for(
    model: str, tmp_path: Path, until: Until
) -> None:
    """An FTDI adapter keeps them for 16 ms unless it is told not to."""
    with emulated(model, "follower", tmp_path) as arm, follower_of(arm) as follower:
        arm.bus.faults.add(Fault("slow", latency_s=0.012))
        until(
            lambda: (
                not follower.read().status.any()
                and min(bus.line.wait_s for bus in follower.buses) > 0.012
            )
        )


@pytest.mark.parametrize("pct", [50.0, 20.0])
@pytest.mark.parametrize(
    ("model", "register", "whole"),
    [
        ("so101", "Torque_Limit", 1000),
        ("koch", "Goal_Current", 1750),
        ("openmanipulator", "Goal_Current", 1750),
    ],
)
def test_a_gripper_has_a_torque_limit_of_its_own(
    model: str, register: str, whole: int, pct: float, tmp_path: Path
) -> None:
    """Half of what it can unless the station says less, and after a restart too.

    LeRobot sets Overload_Torque to 25 % in an SO-101's gripper: whoever held something for 2 s with
    half of its torque was stopped by the servo's error.
    """
    safety = SafetyLimits() if pct == 50.0 else SafetyLimits(gripper_torque_pct=pct)
    station = Station("test", safety=safety)
    with emulated(model, "follower", tmp_path) as arm:
        follower = make_follower(arm.config, station)
        names = dict(zip(follower.joint_names, sorted(arm.bus.servos), strict=True))
        gripper = names.pop("gripper")

        def limits() -> dict[int, int]:
            with arm.bus.lock:
                servos = arm.bus.servos
                return {
                    i: s.memory[register]
                    for i, s in servos.items()
                    if register in s.memory.registers
                }

        def at(servo_id: int) -> int | None:
            return limits().get(servo_id)

        limited = min(round(whole * pct / 100), 240 if model == "so101" else whole)
        assert at(gripper) == limited
        assert all(at(i) in (whole, None) for i in names.values())
        with arm.bus.lock:  # it loses power, and nobody looks
            arm.bus.servos[gripper].power_down()
            arm.bus.servos[gripper].power_up()
            arm.bus.servos[gripper].memory[register] = whole
        follower.torque_on()
        assert at(gripper) == limited
        assert torques(arm.bus)[gripper]
        follower.close()


@pytest.mark.parametrize("model", MODELS)
def test_a_leader_arm_leads_the_arm_of_a_scene_file(model: str, tmp_path: Path) -> None:
    """Its joints by name: degrees as they are, else by the ranges; the gripper from end to end."""
    rig = world_rig(SCENES / "scene.yaml", gaps={}, conditions={}, looks=False)
    led = cast(Follower, LedArm(rig.follower))
    with contextlib.closing(rig), emulated(model, "leader", tmp_path) as arm:
        with contextlib.closing(make_leader(arm.config, led)) as leader:
            assert isinstance(leader, ServoLeader)
            units, own = leader.convert, leader.own_joints
            ends = [
                leader.slope_rad_per_tick * ticks[own] + leader._offset
                for ticks in (units.low_ticks, units.high_ticks)
            ]
        low, high = np.sort(ends, axis=0)
        assert (low[-1], high[-1]) == pytest.approx((-0.17, 1.0))  # closed and open, of the file
        asked = units.ticks_to_units(units.high_ticks)[own]
        free = units.degrees[own]
        assert high[free] == pytest.approx(np.radians(np.abs(asked[free])))
        by_range = ~free & (np.arange(len(own)) < len(own) - 1)
        limits = rig.follower.joint_limits_rad[by_range]
        np.testing.assert_allclose(np.array([low, high]).T[by_range], limits)


def test_a_leader_arm_with_other_joints_than_the_scene_is_refused(tmp_path: Path) -> None:
    rig = world_rig(SCENES / "scene.yaml", gaps={}, conditions={}, looks=False)
    led = LedArm(rig.follower)
    led.joint_names = ("waist", "shoulder", "jaw")
    with (
        contextlib.closing(rig),
        emulated("so101", "leader", tmp_path) as arm,
        pytest.raises(UnusableInputError, match=r"shoulder_pan.*waist, shoulder, jaw"),
    ):
        make_leader(arm.config, cast(Follower, led))
