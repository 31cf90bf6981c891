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
    sign_magnitude,
)
from gaploop.teleop.emulator.joint import JointMechanics
from gaploop.teleop.servos import feetech
from gaploop.teleop.servos.feetech import Instruction
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


def test_present_position_is_the_encoder_less_the_offset_in_one_turn(bench: Bench) -> None:
    """LeRobot: Present_Position = Actual_Position - Homing_Offset, sign in bit 11."""
    before = bench.read(5, 56, 2)
    bench.write(5, 31, sign_magnitude(300, 11), 2)
    assert bench.read(5, 56, 2) == before - 300
    bench.write(5, 31, sign_magnitude(-2000, 11), 2)
    assert bench.read(5, 56, 2) == (before + 2000) % 4096


def test_torque_enable_128_makes_here_the_middle(bench: Bench) -> None:
    bench.write(6, 40, 128)
    assert bench.read(6, 56, 2) == 2048
    bench.servos[6].power_up()
    assert bench.read(6, 56, 2) == 2048


def test_the_lock_decides_what_survives_a_loss_of_power(bench: Bench) -> None:
    """Memory table, 55: 0 keeps EPROM writes without power, 1 doesn't."""
    bench.write(3, 55, 0)
    bench.write(3, 13, 60)
    bench.write(3, 55, 1)
    bench.write(3, 13, 50)
    bench.write(3, 41, 9)
    assert bench.read(3, 13) == 50
    bench.servos[3].power_down()
    assert bench.raw(feetech.ping(3)) == b""
    bench.servos[3].power_up()
    assert (bench.read(3, 13), bench.read(3, 41), bench.read(3, 55)) == (60, 0, 1)


def test_max_torque_is_the_torque_limit_after_power_up(bench: Bench) -> None:
    bench.write(6, 55, 0)
    bench.write(6, 16, 500, 2)
    assert bench.read(6, 48, 2) == 500
    bench.write(6, 48, 200, 2)
    bench.servos[6].power_up()
    assert bench.read(6, 48, 2) == 500


def test_read_only_registers_stay(bench: Bench) -> None:
    bench.write(1, 3, 99, 2)
    bench.write(1, 62, 99)
    assert bench.read(1, 3, 2) == 777
    assert bench.read(1, 62) == 120


def test_reg_write_waits_for_action(bench: Bench) -> None:
    bench.ask(feetech.frame(1, Instruction.REG_WRITE, bytes((41, 50))))
    assert bench.read(1, 41) == 0
    assert bench.read(1, 64) == 1
    assert bench.raw(feetech.frame(0xFE, Instruction.ACTION)) == b""
    assert bench.read(1, 41) == 50


def test_reset_keeps_the_id(bench: Bench) -> None:
    bench.write(4, 55, 0)
    bench.write(4, 13, 44)
    bench.ask(feetech.frame(4, Instruction.RESET))
    assert (bench.read(4, 5), bench.read(4, 13)) == (4, 70)


def test_response_level_0_answers_only_ping_and_read(bench: Bench) -> None:
    bench.raw(feetech.write(1, 8, b"\0"))
    assert bench.raw(feetech.write(1, 41, b"\1")) == b""
    assert bench.read(1, 41) == 1


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


def test_work_heats_and_rest_cools(bench: Bench) -> None:
    """1.5 kg on 10 cm for 10 minutes: +15 °C (SO-ARM100, issue 134)."""
    joint = bench.servos[1].joint
    bench.write(1, 40, 1)
    joint.push_nm = -1.47
    for _ in range(600):
        bench.chain.mechanics.advance(0.01)
        bench.run(0.01)
        joint.warm(1.0)
    warm_c = bench.servos[1].temperature_c
    assert 38 < warm_c < 60
    bench.write(1, 40, 0)
    bench.run(0.1)
    joint.current_a = 0.0
    joint.warm(1000.0)
    assert bench.servos[1].temperature_c < warm_c - 8


def test_wheel_mode_turns_at_the_goal_speed(bench: Bench) -> None:
    servo = bench.servos[5]
    servo.joint.low_rad, servo.joint.high_rad = -100.0, 100.0
    bench.write(5, 33, 1)
    bench.write(5, 40, 1)
    bench.write(5, 46, sign_magnitude(-1000, 15), 2)
    bench.run(1.0)
    assert bench.read(5, 58, 2) == pytest.approx(sign_magnitude(-1000, 15), abs=150)


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
