"""The bus as a host sees it: a serial port, bit rates, faults, a hand on the arm."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import serial

from gaploop.core.clock import ManualClock
from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.scripts.emulate import carry_out
from gaploop.teleop.emulator.arms import ManualHand, arm_plan, build_servo, koch, so101
from gaploop.teleop.emulator.bus import EmulatedBus, Fault, parse_faults, wire_faults
from gaploop.teleop.servos import dynamixel, feetech

PATIENCE_S = 120.0


def until(true: Callable[[], object], what: str) -> None:
    """Wait for something that another thread does."""
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def ask(bus: EmulatedBus, packet: bytes, size: int, baud: int = 1_000_000) -> bytes:
    with serial.Serial(bus.port, baud, timeout=PATIENCE_S) as port:
        port.write(packet)
        return bytes(port.read(size))


def unanswered(bus: EmulatedBus, packet: bytes, baud: int = 1_000_000) -> bool:
    """Say whether a packet that has arrived at the servos is answered by none."""
    with serial.Serial(bus.port, baud, timeout=0.1) as port:
        heard = bus.counts.received_bytes + len(packet)
        port.write(packet)
        until(lambda: bus.counts.received_bytes >= heard, "heard")
        return port.read(1) == b""


def test_a_host_is_answered_at_the_servos_bit_rate_only() -> None:
    """The speed that is set on the terminal is seen on its other end, odd rates too."""
    plan = so101().with_servo("gripper", settings={"Baud_Rate": 3, "Return_Delay_Time": 0})
    with EmulatedBus(plan=plan) as bus:
        assert ask(bus, feetech.ping(1), 6) == feetech.status(1, 0)
        assert unanswered(bus, feetech.ping(1), 115_200)
        assert ask(bus, feetech.ping(6), 6, 128_000) == feetech.status(6, 0)
        assert unanswered(bus, feetech.ping(6))


def test_hosts_may_come_and_go() -> None:
    with EmulatedBus() as bus:
        for _ in range(5):
            assert ask(bus, feetech.ping(2), 6)


def test_a_packet_in_pieces_is_one_packet() -> None:
    with (
        EmulatedBus(model="koch") as bus,
        serial.Serial(bus.port, 1_000_000, timeout=PATIENCE_S) as port,
    ):
        for byte in dynamixel.ping(3):
            port.write(bytes((byte,)))
        assert len(port.read(14)) == 14


def test_the_link_follows_the_port_and_goes_with_it(tmp_path: Path) -> None:
    link = tmp_path / "follower"
    link.symlink_to("/dev/null")  # left by one that was killed
    with EmulatedBus(link=link) as bus:
        assert bus.port == str(link)
        assert link.resolve().is_char_device()
        assert ask(bus, feetech.ping(1), 6)
    assert not os.path.lexists(link)


def test_the_link_never_replaces_a_file(tmp_path: Path) -> None:
    target = tmp_path / "notes.txt"
    target.write_text("mine")
    with pytest.raises(UnusableInputError, match="not a link"):
        EmulatedBus(link=target)
    assert target.read_text() == "mine"
    with pytest.raises(UnusableInputError, match="can't be made"):
        EmulatedBus(link=tmp_path / "nowhere" / "link")


def test_stopping_gives_back_every_file_descriptor() -> None:
    EmulatedBus().stop()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        bus = EmulatedBus()
        bus.faults.add(Fault("unplug"))
        bus.stop()
        bus.stop()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_servo_that_vanishes_is_silent_and_returns_without_torque() -> None:
    with EmulatedBus() as bus:
        ask(bus, feetech.write(3, 40, b"\1"), 6)
        until(lambda: bus.servos[3].torque, "torque on")
        ask(bus, feetech.write(3, 41, b"\x32"), 6)
        bus.faults.add(Fault("vanish", id=3))
        assert unanswered(bus, feetech.ping(3))
        assert ask(bus, feetech.ping(2), 6)
        bus.faults.clear("vanish")
        assert ask(bus, feetech.read(3, 40, 2), 8) == feetech.status(3, 0, b"\0\0")


def test_faults_come_and_go_on_schedule() -> None:
    faults = parse_faults([{"at_s": 0.2, "fault": "vanish", "id": 2, "for_s": 0.4}], "faults")
    clock = ManualClock(7.0)
    with EmulatedBus(faults=faults, clock=clock) as bus:
        for now_s, powered in ((0.19, True), (0.21, False), (0.59, False), (0.61, True)):
            clock.sleep_until(7.0 + now_s)
            ask(bus, feetech.ping(1), 6)  # whoever was answered was so at that time
            assert bus.servos[2].powered is powered


@pytest.mark.parametrize("kind", ["drop", "corrupt", "garbage"])
def test_faults_of_the_wire_strike_at_their_rate_and_repeat(kind: str) -> None:
    def arrived(seed: int) -> list[bytes]:
        wire, rng = wire_faults([Fault(kind, rate=0.3)]), random.Random(seed)
        return [wire.spoil(feetech.status(1, 0), rng) for _ in range(1000)]

    wrong = sum(answer != feetech.status(1, 0) for answer in arrived(5))
    assert 240 < wrong < 360
    assert arrived(5) == arrived(5)
    assert arrived(5) != arrived(6)


def test_every_packet_is_lost_where_the_rate_is_1() -> None:
    with EmulatedBus() as bus:
        bus.faults.add(Fault("drop", rate=1.0))
        assert unanswered(bus, feetech.ping(1))
        assert bus.counts.spoiled > 0
        bus.faults.clear()
        assert ask(bus, feetech.ping(1), 6)


def test_a_slow_bus_answers_late() -> None:
    clock = ManualClock()
    with (
        EmulatedBus(clock=clock) as bus,
        serial.Serial(bus.port, 1_000_000, timeout=PATIENCE_S) as port,
    ):
        bus.faults.add(Fault("slow", latency_s=0.15))
        port.write(feetech.ping(1))
        until(lambda: bus.counts.answers, "heard")
        clock.sleep_until(0.14)
        port.timeout = 0.1
        assert not port.read(6)
        port.timeout = PATIENCE_S
        clock.sleep_until(0.16)
        assert port.read(6)


def test_heat_and_low_voltage_are_told(tmp_path: Path) -> None:
    del tmp_path
    with EmulatedBus(model="koch") as bus:
        bus.faults.add(Fault("overheat", id=4))
        bus.faults.add(Fault("voltage", value=5.0))
        until(lambda: bus.servos[4].alarm_bits == 0x05, "both alarms")
        assert ask(bus, dynamixel.ping(4), 14)[8] == dynamixel.ALERT
        assert bus.servos[1].alarm_bits == 0x01


def test_unplugging_hangs_up_on_the_host_and_plugging_in_makes_a_new_port(tmp_path: Path) -> None:
    link = tmp_path / "arm"
    with EmulatedBus(link=link) as bus:
        with serial.Serial(str(link), 1_000_000, timeout=0.2) as port:
            bus.faults.add(Fault("unplug"))
            assert not os.path.lexists(link)
            with pytest.raises((serial.SerialException, OSError)):
                port.read(1)
        bus.faults.clear()
        assert ask(bus, feetech.ping(1), 6)


def test_pulling_the_cable_again_and_again_never_ends_the_bus() -> None:
    """Closing the port while the bus's thread waited on it once ended that thread."""
    with EmulatedBus() as bus:
        for _ in range(30):
            bus.faults.add(Fault("unplug"))
            bus.faults.clear()
            assert ask(bus, feetech.ping(1), 6)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"fault": "drop"}, "must be a list"),
        ([{"fault": "melt"}], "Unknown fault 'melt'"),
        ([{"at_s": 1}], "entry 1 needs `fault`"),
        ([{"fault": "vanish"}], "needs the id"),
        ([{"fault": "drop", "rate": 2}], "from 0 to 1"),
        ([{"fault": "drop", "rat": 0.2}], "Did you mean 'rate'"),
        ([{"fault": "drop", "rate": "much"}], "must be a number"),
        ([{"fault": "drop", "at_s": -1}], "at_s: -1 must be a number from 0"),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_fix(entries: object, says: str) -> None:
    with pytest.raises(UnusableInputError, match=says):
        parse_faults(entries, "faults.yaml")


def test_a_fault_needs_a_servo_that_is_there() -> None:
    with pytest.raises(UnusableInputError, match="No servo has id 9"):
        EmulatedBus(faults=[Fault("vanish", id=9)])
    with EmulatedBus() as bus, pytest.raises(UnusableInputError, match="No servo has id 9"):
        bus.faults.add(Fault("vanish", id=9))


def test_wrong_arms_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnusableInputError, match="xml, koch, openmanipulator, so101"):
        arm_plan("so102")
    with pytest.raises(UnusableInputError, match="One of: follower, leader"):
        arm_plan("koch", "boss")


def test_the_hand_leads_within_the_joints_ranges() -> None:
    with EmulatedBus(role="leader", hand="wave") as bus:
        until(lambda: abs(bus.servos[1].joint.q_rad) > 0.1, "moved")
        for servo in bus.all_servos:
            assert servo.joint.low_rad <= servo.joint.q_rad <= servo.joint.high_rad


def test_the_hand_lets_go_of_a_follower_that_holds_itself() -> None:
    with EmulatedBus(hand="still") as bus:
        until(lambda: bus.servos[1].joint.hand_rad is not None, "held")
        ask(bus, feetech.write(1, 40, b"\1"), 6)
        until(lambda: bus.servos[1].joint.hand_rad is None, "let go")
        assert bus.servos[2].joint.hand_rad is not None


def test_the_console_does_what_it_is_told() -> None:
    with EmulatedBus() as bus:
        assert "shoulder_pan" in str(carry_out(bus, "status"))
        carry_out(bus, "fault vanish 3")
        assert "gone" in str(carry_out(bus, "status"))
        carry_out(bus, "fault clear")
        assert "gone" not in str(carry_out(bus, "status"))
        carry_out(bus, "pose 0.5 0 0 0 0 1.0")
        until(lambda: bus.servos[1].joint.q_rad > 0.45, "posed")
        carry_out(bus, "plug gripper")
        assert unanswered(bus, feetech.ping(1))
        assert ask(bus, feetech.ping(6), 6)
        carry_out(bus, "plug all")
        carry_out(bus, "power off")
        assert unanswered(bus, feetech.ping(1))
        carry_out(bus, "power on")
        assert carry_out(bus, "# nothing") == ""
        assert carry_out(bus, "quit") is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("dance", "Unknown command"),
        ("hand dance", "Unknown hand"),
        ("pose 1 2", "needs 6 angles"),
        ("pose 1 2 3 4 5 nan", "not a number"),
        ("fault", "Which fault"),
        ("fault vanish", "needs the id"),
        ("fault vanish x", "not a number"),
        ("fault clear melt", "Unknown fault"),
        ("plug elbow", "Unknown motor"),
        ("power maybe", "Unknown power"),
        ("status 'open", "No closing quotation"),
    ],
)
def test_the_console_refuses_nonsense_and_goes_on(line: str, says: str) -> None:
    with EmulatedBus() as bus:
        with pytest.raises(UnusableInputError, match=says):
            carry_out(bus, line)
        assert ask(bus, feetech.ping(1), 6)


def test_factory_new_servos_are_found_one_at_a_time() -> None:
    """As `lerobot-setup-motors` finds them: id 1, the maker's bit rate."""
    with EmulatedBus(plan=koch().factory_new()) as bus:
        bus.plug(["gripper"])
        assert len(ask(bus, dynamixel.ping(0xFE), 14, 57_600)) == 14
        assert unanswered(bus, dynamixel.ping(0xFE))


@pytest.mark.parametrize("model", ["so101", "koch", "openmanipulator"])
def test_the_waving_hand_keeps_every_arm_in_its_workspace(model: str) -> None:
    """With a table under it, an arm that followed the wave was pressed on it and tripped."""
    arm, servos = ArmModel.load(model), [build_servo(s) for s in arm_plan(model, "leader").servos]
    (low, high), hand = (
        np.transpose(ARM_MODELS[model].workspace_m),
        ManualHand(servos, "wave", leads=True),
    )
    for turn in range(3000):
        hand.update(0.1 * turn)
        held_rad = [servo.joint.hand_rad for servo in servos]
        if turn > 20:  # it goes there from wherever the arm lay
            points_m = arm.points_m(np.array(held_rad, dtype=np.float64))
            assert (points_m >= low).all()
            assert (points_m <= high).all()
