"""Protocol 2.0 as ROBOTIS' e-Manual has it, on a chain of servos without port or thread."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.teleop.emulator.arms import ArmPlan, build_servo, koch
from gaploop.teleop.emulator.dynamixel import HEAT, DynamixelChain, DynamixelServo
from gaploop.teleop.emulator.joint import JointMechanics
from gaploop.teleop.servos import dynamixel
from gaploop.teleop.servos.dynamixel import ErrorCode, Instruction
from gaploop.teleop.servos.frames import Frame, Reply

BAUD = 1_000_000


class Bench:
    """A chain with a clock, and a host that asks it."""

    def __init__(self, plan: ArmPlan | None = None) -> None:
        servos = [build_servo(s) for s in (plan or koch()).servos]
        ours = [s for s in servos if isinstance(s, DynamixelServo)]
        self.servos = {s.id: s for s in ours}
        self.chain = DynamixelChain(ours, JointMechanics([s.joint for s in ours]))

    def run(self, duration_s: float) -> None:
        end_s = self.chain.now_s + duration_s
        while self.chain.now_s < end_s - 1e-9:
            self.chain.advance(self.chain.now_s + 0.005)

    def raw(self, packet: bytes) -> bytes:
        self.chain.advance(self.chain.now_s + 0.001)
        return b"".join(self.chain.hear(packet, BAUD))

    def ask(self, packet: bytes) -> list[Reply]:
        frames = dynamixel.Parser().feed(self.raw(packet))
        replies = [dynamixel.reply_of(f) for f in frames]
        return [r for r in replies if r is not None]

    def one(self, packet: bytes) -> Reply:
        (reply,) = self.ask(packet)
        return reply

    def write(self, servo: int, address: int, value: int, size: int) -> int:
        data = value.to_bytes(size, "little", signed=value < 0)
        return self.one(dynamixel.write(servo, address, data)).error

    def read(self, servo: int, address: int, size: int, signed: bool = False) -> int:
        reply = self.one(dynamixel.read(servo, address, size))
        assert reply.error & 0x7F == 0
        return int.from_bytes(reply.data, "little", signed=signed)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_ping_is_answered_as_in_the_manual(bench: Bench) -> None:
    """Ping of ID 1 is FF FF FD 00 01 03 00 01 19 4E; the answer has model and firmware."""
    answer = bench.raw(bytes.fromhex("FF FF FD 00 01 03 00 01 19 4E"))
    assert answer[:9] == bytes.fromhex("FF FF FD 00 01 07 00 55 00")
    assert int.from_bytes(answer[9:11], "little") == 1060
    assert dynamixel.crc16(answer[:-2]) == int.from_bytes(answer[-2:], "little")


def test_a_broadcast_ping_is_answered_in_order_of_ids(bench: Bench) -> None:
    assert [r.id for r in bench.ask(dynamixel.ping(0xFE))] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("address", "value", "size", "error"),
    [
        (9, 255, 1, ErrorCode.DATA_RANGE),
        (116, 4096, 4, ErrorCode.DATA_LIMIT),
        (116, 100, 2, ErrorCode.DATA_LENGTH),
        (0, 7, 2, ErrorCode.ACCESS),
        (132, 7, 4, ErrorCode.ACCESS),
        (14, 7, 1, ErrorCode.ACCESS),
        (5000, 7, 1, ErrorCode.ACCESS),
        (102, 7, 2, ErrorCode.ACCESS),  # the XL430 has no current control
        (64, 2, 1, ErrorCode.DATA_RANGE),
    ],
)
def test_what_is_refused_has_the_manuals_error_and_changes_nothing(
    bench: Bench, address: int, value: int, size: int, error: ErrorCode
) -> None:
    before = bytes(bench.servos[1].memory.bytes)
    assert bench.write(1, address, value, size) == error
    changed = [
        n
        for n, (a, b) in enumerate(zip(before, bench.servos[1].memory.bytes, strict=True))
        if a != b
    ]
    assert all(120 <= n < 148 for n in changed)  # only what is measured


def test_eeprom_is_locked_while_torque_is_on(bench: Bench) -> None:
    assert bench.write(1, 64, 1, 1) == 0
    assert bench.write(1, 11, 4, 1) == ErrorCode.ACCESS
    bench.write(1, 64, 0, 1)
    assert bench.write(1, 11, 4, 1) == 0


def test_a_reboot_keeps_eeprom_and_forgets_ram(bench: Bench) -> None:
    bench.write(3, 20, -500, 4)
    bench.write(3, 112, 77, 4)
    bench.write(3, 64, 1, 1)
    assert bench.one(dynamixel.frame(3, Instruction.REBOOT)).error == 0
    assert bench.read(3, 20, 4, signed=True) == -500
    assert bench.read(3, 112, 4) == 0
    assert bench.read(3, 64, 1) == 0
    assert not bench.servos[3].torque


def test_broadcast_writes_are_done_in_silence(bench: Bench) -> None:
    assert bench.raw(dynamixel.write(0xFE, 65, b"\1")) == b""
    assert all(bench.read(i, 65, 1) == 1 for i in bench.servos)


def test_another_bit_rate_is_not_heard(bench: Bench) -> None:
    assert bench.chain.hear(dynamixel.ping(1), 57_600) == []
    bench.write(1, 8, 1, 1)
    assert b"".join(bench.chain.hear(dynamixel.ping(1), 57_600))
    assert bench.raw(dynamixel.ping(1)) == b""


def test_two_servos_with_one_id_garble_each_other() -> None:
    bench = Bench(koch().with_servo("gripper", id=5))
    answer = bench.raw(dynamixel.read(5, 132, 4))
    assert answer
    assert dynamixel.Parser().feed(answer) == []


def test_extended_mode_counts_turns() -> None:
    bench = Bench()
    servo = bench.servos[5]
    servo.joint.low_rad, servo.joint.high_rad = -20.0, 20.0
    bench.write(5, 11, 4, 1)
    servo.joint.q_rad = 7.0
    assert bench.read(5, 132, 4, signed=True) == pytest.approx(
        2048 + 151 + 7 * 4096 / math.tau, abs=1
    )


def test_reverse_mode_and_offset_show_the_same_joint_otherwise(bench: Bench) -> None:
    before = bench.read(5, 132, 4, signed=True)
    bench.write(5, 20, 100, 4)
    assert bench.read(5, 132, 4, signed=True) == before + 100
    bench.write(5, 10, 1, 1)
    assert bench.read(5, 132, 4, signed=True) == pytest.approx(4096 - before + 100, abs=1)


def test_a_profile_limits_speed_and_arrives(bench: Bench) -> None:
    """Profile Velocity 50 is 11.45 rev/min: 1000 ticks take 1.28 s, plus acceleration."""
    bench.write(1, 112, 50, 4)
    bench.write(1, 108, 20, 4)
    bench.write(1, 64, 1, 1)
    start = bench.servos[1].position_ticks
    bench.write(1, 116, start + 1000, 4)
    bench.run(0.7)
    assert start + 200 < bench.servos[1].position_ticks < start + 650
    assert bench.read(1, 122, 1) == 1
    assert bench.read(1, 128, 4, signed=True) == pytest.approx(50, abs=6)
    bench.run(2.0)
    assert bench.servos[1].position_ticks == pytest.approx(start + 1000, abs=25)
    assert bench.read(1, 122, 1) == 0


def test_current_based_position_yields_to_a_hand_beyond_its_current(bench: Bench) -> None:
    """Koch's gripper: the goal current is all that it pushes with."""
    servo = bench.servos[6]
    bench.write(6, 11, 5, 1)
    bench.write(6, 102, 100, 2)
    bench.write(6, 64, 1, 1)
    bench.write(6, 116, servo.position_ticks + 300, 4)
    servo.joint.hand_rad = servo.joint.q_rad
    held = servo.position_ticks
    bench.run(1.0)
    assert abs(servo.position_ticks - held) < 15
    assert bench.read(6, 126, 2, signed=True) == pytest.approx(100, abs=10)


def test_torque_off_lets_a_heavy_joint_fall(bench: Bench) -> None:
    bench.write(2, 64, 1, 1)
    bench.run(0.5)
    bench.servos[2].joint.push_nm = -0.2
    bench.run(0.5)
    held = bench.servos[2].position_ticks
    bench.write(2, 64, 0, 1)
    bench.run(1.0)
    assert bench.servos[2].position_ticks < held - 100


def test_heat_shuts_torque_off_until_a_reboot(bench: Bench) -> None:
    servo = bench.servos[3]
    bench.write(3, 64, 1, 1)
    servo.forced_temperature_c = 90.0
    bench.run(0.1)
    assert not servo.torque
    reply = bench.one(dynamixel.read(3, 70, 1))
    assert (reply.error, reply.data[0]) == (dynamixel.ALERT, HEAT)
    assert bench.write(3, 64, 1, 1) == dynamixel.ALERT | ErrorCode.RESULT_FAIL
    servo.forced_temperature_c = None
    bench.run(0.1)
    assert bench.read(3, 70, 1) == HEAT
    bench.one(dynamixel.frame(3, Instruction.REBOOT))
    assert bench.write(3, 64, 1, 1) == 0


def test_ten_thousand_random_pieces_never_crash_or_block_the_chain() -> None:
    bench, rng = Bench(), random.Random(7)
    codes = list(Instruction)
    for n in range(10_000):
        kind = n % 4
        if kind == 0:
            piece = rng.randbytes(rng.randrange(40))
        elif kind == 1:
            piece = dynamixel.HEADER + rng.randbytes(rng.randrange(30))
        elif kind == 2:
            target = rng.choice([1, 2, 6, 0xFE, rng.randrange(256)])
            piece = dynamixel.frame(target, rng.randrange(256), rng.randbytes(rng.randrange(20)))
        else:
            target, code = rng.choice([1, 3, 0xFE]), rng.choice(codes)
            piece = dynamixel.frame(target, code, rng.randbytes(rng.randrange(14)))
        bench.raw(piece)
    bench.chain.silence()
    for servo in bench.servos.values():
        servo.power_up()
        servo.memory["Baud_Rate"], servo.memory["ID"] = 3, servo.plan.id
    assert bench.raw(dynamixel.ping(1))


@settings(max_examples=200, deadline=None)
@given(
    writes=st.lists(st.tuples(st.integers(0, 180), st.binary(min_size=1, max_size=8)), max_size=12)
)
def test_registers_stay_in_their_ranges_whatever_is_written(
    writes: list[tuple[int, bytes]],
) -> None:
    servo = next(iter(Bench().servos.values()))
    for address, data in writes:
        servo.write(address, data)
        servo.control(0.005)
        servo.refresh()
    for register in servo.memory.registers.values():
        if register.low <= register.high:
            assert register.low <= servo.memory[register.name] <= register.high, register.name


def test_frames_of_other_servos_are_not_instructions(bench: Bench) -> None:
    """On a half-duplex line a servo hears the others' answers."""
    assert bench.raw(dynamixel.status(1, 0, b"\1\2")) == b""


def test_every_table_has_its_registers_once() -> None:
    for servo in Bench().servos.values():
        spans = sorted((r.address, r.end) for r in servo.memory.registers.values())
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert spans[-1][1] <= len(servo.memory.bytes)


def test_a_frame_is_what_the_parser_makes_of_it() -> None:
    """The emulator and the drivers share one codec; this holds its two halves together."""
    (parsed,) = dynamixel.Parser().feed(dynamixel.frame(3, 0x10, b"\xff\xff\xfd\xfd"))
    assert parsed == Frame(3, 0x10, b"\xff\xff\xfd\xfd")
