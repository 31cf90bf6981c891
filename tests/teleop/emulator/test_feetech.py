"""Feetech's STS protocol and memory table, on a chain of servos without port or thread."""

from __future__ import annotations

import random

import pytest

from gaploop.teleop.emulator.arms import ArmPlan, build_servo, so101
from gaploop.teleop.emulator.feetech import (
    HEAT,
    OVERLOAD,
    FeetechChain,
    FeetechServo,
)
from gaploop.teleop.emulator.joint import JointMechanics
from gaploop.teleop.servos import feetech
from gaploop.teleop.servos.frames import Reply

BAUD = 1_000_000


class Bench:
    """A chain with a clock, and a host that asks it."""

    def __init__(self, plan: ArmPlan | None = None) -> None:
        servos = [build_servo(s) for s in (plan or so101()).servos]
        ours = [s for s in servos if isinstance(s, FeetechServo)]
        self.servos = {s.id: s for s in ours}
        self.chain = FeetechChain(ours, JointMechanics([s.joint for s in ours]))

    def run(self, duration_s: float) -> None:
        end_s = self.chain.now_s + duration_s
        while self.chain.now_s < end_s - 1e-9:
            self.chain.advance(self.chain.now_s + 0.005)

    def raw(self, packet: bytes) -> bytes:
        self.chain.advance(self.chain.now_s + 0.001)
        return b"".join(self.chain.hear(packet, BAUD))

    def ask(self, packet: bytes) -> list[Reply]:
        frames = feetech.Parser().feed(self.raw(packet))
        return [r for r in map(feetech.reply_of, frames) if r is not None]

    def write(self, servo: int, address: int, value: int, size: int = 1) -> int:
        (reply,) = self.ask(feetech.write(servo, address, value.to_bytes(size, "little")))
        return reply.error

    def read(self, servo: int, address: int, size: int = 1) -> int:
        (reply,) = self.ask(feetech.read(servo, address, size))
        return int.from_bytes(reply.data, "little")


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        # Feetech, "Communication Protocol User Manual", section "PING": id 1, no error.
        ("FF FF 01 02 01 FB", "FF FF 01 02 00 FC"),
        # Section "WRITE DATA": the id of every servo (broadcast) becomes 1. Nobody answers.
        ("FF FF FE 04 03 05 01 F4", ""),
    ],
)
def test_the_manuals_examples(bench: Bench, packet: str, answer: str) -> None:
    assert bench.raw(bytes.fromhex(packet)) == bytes.fromhex(answer)


def test_a_wrong_checksum_is_ignored(bench: Bench) -> None:
    assert bench.raw(bytes.fromhex("FF FF 01 02 01 FA")) == b""
    assert bench.raw(feetech.ping(1))


def test_one_block_read_is_the_whole_state(bench: Bench) -> None:
    replies = bench.ask(feetech.sync_read(56, 15, [6, 1]))
    assert [r.id for r in replies] == [6, 1]
    state = replies[1].data
    assert int.from_bytes(state[:2], "little") == pytest.approx(2048 + 118, abs=2)
    assert state[6] == 120
    assert 25 <= state[7] <= 35
    assert state[9] == 0


def test_a_servo_that_is_gone_leaves_the_others_answers(bench: Bench) -> None:
    bench.servos[2].power_down()
    assert [r.id for r in bench.ask(feetech.sync_read(56, 2, [1, 2, 3]))] == [1, 3]


def test_a_goal_is_reached_within_what_p_and_weight_leave(bench: Bench) -> None:
    bench.write(1, 40, 1)
    bench.raw(feetech.sync_write(42, 2, bytes((1,)) + (2600).to_bytes(2, "little")))
    bench.run(1.5)
    assert bench.read(1, 56, 2) == pytest.approx(2600, abs=12)
    assert bench.read(1, 66) == 0


def test_acceleration_and_speed_limit_the_way(bench: Bench) -> None:
    """41 counts 100 steps/s², 46 counts steps/s: 1000 steps at 500/s take over two seconds."""
    bench.write(1, 40, 1)
    bench.write(1, 41, 10)
    bench.write(1, 46, 500, 2)
    start = bench.read(1, 56, 2)
    bench.write(1, 42, start + 1000, 2)
    bench.run(1.0)
    assert 150 < bench.read(1, 56, 2) - start < 420
    assert bench.read(1, 58, 2) == pytest.approx(500, abs=40)
    bench.run(2.5)
    assert bench.read(1, 56, 2) == pytest.approx(start + 1000, abs=12)


def test_goals_stop_at_the_angle_limits(bench: Bench) -> None:
    bench.write(1, 11, 2300, 2)
    bench.write(1, 40, 1)
    bench.write(1, 42, 3000, 2)
    bench.run(1.5)
    assert bench.read(1, 56, 2) == pytest.approx(2300, abs=12)


def test_torque_limit_is_the_most_that_it_pushes_with(bench: Bench) -> None:
    servo = bench.servos[6]
    bench.write(6, 40, 1)
    bench.write(6, 48, 100, 2)
    bench.write(6, 42, servo.position_ticks + 400, 2)
    servo.joint.hand_rad = servo.joint.q_rad
    bench.run(1.0)
    assert bench.read(6, 60, 2) & 0x3FF == pytest.approx(100, abs=5)
    assert abs(servo.joint.current_a) == pytest.approx(0.27, abs=0.03)


def test_a_goal_switches_torque_on(bench: Bench) -> None:
    """Feetech's own examples write a goal and never 40; a late goal revives a limp arm."""
    assert not bench.servos[1].torque
    bench.raw(feetech.sync_write(42, 2, bytes((1,)) + (2100).to_bytes(2, "little")))
    bench.run(0.1)
    assert bench.read(1, 40) == 1


def test_overload_leaves_the_protective_torque_until_it_backs_off(bench: Bench) -> None:
    """34, 35, 36: over 80 % for 2 s leaves 20 %."""
    servo = bench.servos[6]
    servo.joint.hand_nm = 10.0
    servo.joint.hand_rad = start = servo.joint.q_rad
    bench.write(6, 28, 2047, 2)  # the current protection would be first
    bench.write(6, 42, servo.position_ticks + 900, 2)
    bench.run(2.5)
    assert bench.read(6, 65) == OVERLOAD
    assert bench.read(6, 60, 2) & 0x3FF == pytest.approx(200, abs=10)
    assert bench.write(6, 41, 0) == OVERLOAD  # the error byte of every answer
    servo.joint.hand_rad = start
    bench.write(6, 42, servo.position_ticks - 20, 2)
    bench.run(0.2)
    assert bench.read(6, 65) == 0


def test_too_much_current_for_too_long_lets_go(bench: Bench) -> None:
    servo = bench.servos[6]
    servo.joint.hand_rad = servo.joint.q_rad
    servo.joint.hand_nm = 10.0
    bench.write(6, 28, 100, 2)
    bench.write(6, 38, 50)
    bench.write(6, 36, 254)
    bench.write(6, 42, servo.position_ticks + 900, 2)
    bench.run(0.4)
    assert servo.torque
    bench.run(0.4)
    assert not servo.torque


def test_heat_lets_go_where_the_unloading_condition_says_so(bench: Bench) -> None:
    for servo, condition in ((1, 0), (2, 0x04)):
        bench.write(servo, 19, condition)
        bench.write(servo, 40, 1)
        bench.servos[servo].forced_temperature_c = 80.0
    bench.run(0.1)
    assert bench.read(1, 65) == bench.read(2, 65) == HEAT
    assert bench.servos[1].torque
    assert not bench.servos[2].torque


def test_ten_thousand_random_pieces_never_crash_or_block_the_chain() -> None:
    bench, rng = Bench(), random.Random(11)
    for n in range(10_000):
        if n % 3 == 0:
            piece = rng.randbytes(rng.randrange(30))
        elif n % 3 == 1:
            piece = feetech.HEADER + rng.randbytes(rng.randrange(20))
        else:
            target = rng.choice([1, 4, 6, 0xFE, rng.randrange(255)])
            code = rng.choice([1, 2, 3, 4, 5, 6, 8, 0x82, 0x83, rng.randrange(256)])
            piece = feetech.frame(target, code, rng.randbytes(rng.randrange(16)))
        bench.raw(piece)
    bench.chain.silence()
    for servo in bench.servos.values():
        servo.memory["Baud_Rate"] = 0
    assert any(bench.raw(feetech.ping(i)) for i in range(254))
