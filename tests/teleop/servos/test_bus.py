"""One bus, two buses: state in SI units, silence, alerts, and everybody asked at once."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from fake_servos import FakeServos
from patient_wire import LoopTime

from gaploop.core.errors import DeviceError
from gaploop.core.messages import NO_REPLY, REBOOTED
from gaploop.teleop.checks import Level
from gaploop.teleop.checks.servos import check_servos as doctors_servos
from gaploop.teleop.lerobot_devices.arm import check_servos
from gaploop.teleop.servos import dynamixel, feetech
from gaploop.teleop.servos.bus import ServoBus
from gaploop.teleop.servos.exchange import BusLine, run
from gaploop.teleop.servos.frames import Frame, Instruction
from gaploop.teleop.servos.port import SerialPort
from gaploop.teleop.servos.registers import RAD_PER_TICK, Protocol, describe_error
from gaploop.teleop.servos.torque import torque_off, torque_on

STS = dict.fromkeys((1, 2, 3), "sts3215")
MIXED = {1: "xl430-w250", 2: "xl330-m288", 3: "xl330-m288", 4: "xl330-m288"}
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def wires(monkeypatch: pytest.MonkeyPatch, loop_time: LoopTime) -> None:
    monkeypatch.setattr(FakeServos, "wires", loop_time.wires)


@contextlib.contextmanager
def a_bus(protocol: Protocol, models: dict[int, str]) -> Iterator[tuple[FakeServos, ServoBus]]:
    with FakeServos(protocol, models) as fake:
        port = SerialPort(fake.path)
        port.open()
        bus = ServoBus(BusLine(port, protocol), list(models), list(models.values()))
        try:
            yield fake, bus
        finally:
            port.close()


def read(bus: ServoBus, now_s: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    (state,) = run([(bus.line, bus.read(now_s))])
    return state.values, state.status


def test_feetech_registers_in_si_units() -> None:
    with a_bus(Protocol.FEETECH, STS) as (fake, bus):
        for name, value in {
            "Present_Position": 0x8000 | 12,  # sign and magnitude: -12
            "Present_Velocity": 0x8000 | 2048,
            "Present_Load": 0x0400 | 250,  # its sign is bit 10
            "Present_Voltage": 121,
            "Present_Temperature": 41,
            "Present_Current": 100,
            "Status": 0x20,
        }.items():
            fake.put(2, name, value)
        fake.put(3, "Phase", 0)  # speed in steps of 50 ticks a second
        fake.put(3, "Present_Velocity", 41)
        fake.put(1, "Phase", 4)
        fake.put(2, "Phase", 12)
        run([(bus.line, bus.probe())])
        values, status = read(bus)
        np.testing.assert_allclose(
            values[:, 1],
            [-12, -np.pi, 0.65, -25.0, 41.0, 12.1, -12 * RAD_PER_TICK],
            rtol=0,
            atol=1e-9,
        )
        assert values[1, 2] == pytest.approx(41 * 50 * 2 * np.pi / 4096)
        assert status.tolist() == [0, 0x20, 0]
        assert describe_error(Protocol.FEETECH, 0x24) == "overheating, overload"


def test_dynamixel_registers_in_si_units_on_a_mixed_bus() -> None:
    with a_bus(Protocol.DYNAMIXEL, MIXED) as (fake, bus):
        for servo_id in (1, 2):
            fake.put(servo_id, "Present_Position", -5000)  # more than a turn back
            fake.put(servo_id, "Present_Velocity", -100)
            fake.put(servo_id, "Present_Current", -300)
            fake.put(servo_id, "Present_Input_Voltage", 50)
            fake.put(servo_id, "Present_Temperature", 36)
        values, _ = read(bus)
        speed = -100 * 0.229 * 2 * np.pi / 60
        angle = -5000 * RAD_PER_TICK
        np.testing.assert_allclose(values[:, 0], [-5000, speed, np.nan, -30.0, 36, 5.0, angle])
        np.testing.assert_allclose(values[:, 1], [-5000, speed, -0.3, np.nan, 36, 5.0, angle])


def test_a_dead_servo_does_not_silence_those_behind_it() -> None:
    """On a Dynamixel bus each waits for the one before it, so one dead servo hides the rest."""
    with a_bus(Protocol.DYNAMIXEL, MIXED) as (fake, bus):
        fake.dead = {2}
        _, status = read(bus)
        assert status.tolist() == [0, NO_REPLY, 0, 0]
        _, status = read(bus)
        assert status.tolist() == [0, NO_REPLY, 0, 0]
        asked = [f.params[4:] for f in fake.seen if f.code == 0x82]
        assert asked[-1] == bytes((1, 3, 4, 2))  # asked last from now on
        assert bus.line.faults.of(2).silent == 1  # one incident, however often it was asked
        assert bus.line.faults.of(1).silent == 0
        fake.dead = set()
        for _ in range(30):
            _, status = read(bus)
        assert not status.any()


def test_when_a_servo_was_heard_last() -> None:
    with a_bus(Protocol.FEETECH, STS) as (fake, bus):
        read(bus)
        fake.dead = {3}
        run([(bus.line, bus.read(4.0))])
        run([(bus.line, bus.read(5.0))])
        assert bus.heard_s[0] == 5.0
        assert bus.heard_s[2] < 4.0


def test_an_alert_is_looked_up_in_register_70() -> None:
    with a_bus(Protocol.DYNAMIXEL, MIXED) as (fake, bus):
        fake.errors[3] = dynamixel.ALERT
        fake.put(3, "Hardware_Error_Status", 0x20)
        assert read(bus)[1].tolist() == [0, 0, 0x20, 0]
        before = len(fake.seen)
        assert read(bus)[1].tolist() == [0, 0, 0x20, 0]
        assert len(fake.seen) == before + 1  # a known error isn't asked for every turn
        fake.errors.clear()
        assert read(bus)[1].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_servo_that_comes_back_limp(protocol: Protocol) -> None:
    models = STS if protocol is Protocol.FEETECH else MIXED
    with a_bus(protocol, models) as (fake, bus):
        setting = "Torque_Limit" if protocol is Protocol.FEETECH else "Position_P_Gain"
        for servo_id in models:
            fake.put(servo_id, setting, 700)
        run([(bus.line, bus.remember())])
        assert run([(bus.line, torque_on(bus))]) == [()]
        fake.dead = {2}
        read(bus)
        fake.put(2, "Torque_Enable", 0)
        fake.put(2, setting, 1)
        fake.dead = set()
        _, status = read(bus)
        assert status.tolist()[1] == REBOOTED
        assert fake.get(2, setting) == 1  # a follower isn't set up again behind anybody's back
        assert run([(bus.line, torque_on(bus))]) == [()]
        assert fake.get(2, setting) == 700
        assert not read(bus)[1].any()


class Reawakened(FakeServos):
    """Servos that are back as soon as somebody pings them."""

    def _answer(self, frame: Frame) -> bytes:
        if frame.code == Instruction.PING:
            self.dead = set()
        return super()._answer(frame)


@pytest.mark.parametrize(
    ("kind", "count", "dead", "said"),
    [
        (FakeServos, 9, {7, 8, 9}, "no answer from servos 7 (j7), 8 (j8), 9 (j9)"),
        (Reawakened, 6, {4, 5, 6}, "servos 4 (j4), 5 (j5), 6 (j6) answered only when asked again"),
    ],
)
def test_silent_servos_make_no_other_arm(
    kind: type[FakeServos], count: int, dead: set[int], said: str
) -> None:
    """Six Feetech servos that answered were "a koch_follower": any six with ids 1 to 6 were, once
    others were silent, or had been a moment before.
    """
    with kind(Protocol.FEETECH, dict.fromkeys(range(1, count + 1), "sts3215")) as fake:
        fake.dead = dead
        assert said in refusal(fake)


def refusal(fake: FakeServos) -> str:
    """Return why an arm of these servos isn't started."""
    ids = tuple(fake.memory)
    port = SerialPort(fake.path)
    port.open()
    bus = ServoBus(BusLine(port, Protocol.FEETECH), ids, ["sts3215"] * len(ids))
    motors = {f"j{i}": SimpleNamespace(id=i) for i in ids}
    device = SimpleNamespace(
        name="an_arm",
        id="a",
        config=SimpleNamespace(type="an_arm"),
        bus=SimpleNamespace(motors=motors, port=fake.path),
    )
    with contextlib.closing(port), pytest.raises(DeviceError) as caught:
        check_servos(bus, device)
    return str(caught.value)


def test_an_error_that_only_replies_carry_is_told_before_the_start() -> None:
    """`doctor` found nothing, LeRobot would have raised, and the arm tripped in its first turn."""
    with FakeServos(Protocol.FEETECH, STS) as fake:
        fake.errors = {2: 0x20}
        assert "servo 2 (j2) reports overload" in refusal(fake)
        found = [one.found for one in doctors_servos(fake.path) if one.level is Level.FAIL]
    assert "servo 2 (shoulder_lift) reports overload" in found


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_that_is_garbled_and_looks_whole_stops_no_arm(seed: int) -> None:
    """On a bad cable a servo at 30 °C was "too hot", a reading leapt by 200°, and an arm was let go
    of: of garbled answers on a Feetech bus one in 256 has a right checksum.
    """
    draw = random.Random(seed)
    with a_bus(Protocol.FEETECH, STS) as (fake, bus):
        for servo_id in STS:
            fake.put(servo_id, "Present_Position", 1000 * servo_id)
            fake.put(servo_id, "Present_Temperature", 30)
        run([(bus.line, torque_on(bus))])

        def garble(data: bytes) -> bytes:
            if draw.random() < 0.5:
                return data
            fake.spoil = lambda data: data  # what is asked again isn't garbled
            frames = feetech.Parser().feed(data)
            one = draw.choice(frames)
            frames[frames.index(one)] = one._replace(params=draw.randbytes(len(one.params)))
            return b"".join(feetech.status(*frame) for frame in frames)

        for turn in range(400):
            fake.spoil = garble
            values, status = read(bus, now_s=0.005 * turn)
            assert not status.any()
            assert np.abs(values[0] - [1000, 2000, 3000]).max() < 200
            assert np.abs(values[4] - 30).max() <= 5
        assert not bus.line.faults.of(2).reboots


@pytest.mark.parametrize("protocol", list(Protocol))
def test_torque_on_holds_every_servo_where_it_is(protocol: Protocol) -> None:
    models = STS if protocol is Protocol.FEETECH else MIXED
    with a_bus(protocol, models) as (fake, bus):
        for servo_id in models:
            fake.put(servo_id, "Present_Position", 1000 + servo_id)
            fake.put(servo_id, "Goal_Position", 3000)
        run([(bus.line, torque_on(bus))])
        for servo_id in models:
            assert fake.get(servo_id, "Goal_Position") == 1000 + servo_id
            assert fake.get(servo_id, "Torque_Enable") == 1
        fake.dead = {1, 3}
        assert run([(bus.line, torque_off(bus))]) == [(1, 3)]
        assert [fake.get(i, "Torque_Enable") for i in models if i not in (1, 3)].count(1) == 0
        fake.dead = set()
        assert run([(bus.line, torque_off(bus))]) == [()]


class Stubborn(bytearray):
    """A control table that takes nothing any more."""

    def __setitem__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_servo_that_takes_a_write_and_holds_on_has_not_let_go(protocol: Protocol) -> None:
    """Its "done" was taken for torque off, and the program said nothing of a joint that held."""
    models = STS if protocol is Protocol.FEETECH else MIXED
    with a_bus(protocol, models) as (fake, bus):
        run([(bus.line, torque_on(bus))])
        fake.memory[2] = Stubborn(fake.memory[2])
        assert run([(bus.line, torque_off(bus))]) == [(2,)]


def test_two_buses_are_asked_before_either_has_answered() -> None:
    with (
        a_bus(Protocol.FEETECH, STS) as (one, first),
        a_bus(Protocol.DYNAMIXEL, MIXED) as (two, second),
    ):
        asked = {"first": threading.Event(), "second": threading.Event()}
        late = []

        def answer(mine: str, other: str, data: bytes) -> bytes:
            asked[mine].set()
            if not asked[other].wait(PATIENCE_S):
                late.append(mine)
            return data

        one.spoil = lambda data: answer("first", "second", data)
        two.spoil = lambda data: answer("second", "first", data)
        states = run([(first.line, first.read(0.0)), (second.line, second.read(0.0))])
        assert len(states) == 2
        assert not late


def test_an_answer_that_comes_too_late_is_not_the_next_ones() -> None:
    with a_bus(Protocol.FEETECH, STS) as (fake, bus):
        kept = list[bytes]()
        fake.spoil = lambda data: (kept.append(data), b"")[1]
        assert (read(bus)[1] & NO_REPLY).all()
        fake.spoil = lambda data: data
        fake.say(b"".join(kept))
        fake.put(1, "Present_Position", 555)
        values, _ = read(bus)
        assert values[0, 0] == 555
        faults = bus.line.faults
        assert faults.stale_bytes + sum(f.repeated for f in faults.servos.values()) > 0
