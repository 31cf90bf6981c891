"""Random faults on emulated arms: torque is off in time, and the bench would notice if not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks import fault_schedules as schedules
from benchmarks.fault_schedules import Schedule, ScheduleOutcome, draw
from gaploop.core.protocols import Follower
from gaploop.teleop.emulator import Fault

ENDLESS_S = 3600.0
ONE_OF_EACH: Mapping[str, tuple[str, str, Fault | None]] = {
    "LOST_SERVO": ("so101", "follower", Fault("vanish", 0.1, ENDLESS_S, id=3)),
    "OVER_TEMPERATURE": ("koch", "follower", Fault("overheat", 0.1, ENDLESS_S, id=2)),
    "STALE_LEADER": ("so101", "leader", Fault("unplug", 0.1, ENDLESS_S)),
    "ESTOP": ("openmanipulator", "", None),
}


def one_of(reason: str) -> Schedule:
    model, side, fault = ONE_OF_EACH[reason]
    faults = () if fault is None else (fault,)
    return Schedule(
        1,
        model,
        faults if side == "follower" else (),
        faults if side == "leader" else (),
        None if faults else 0.1,
    )


@pytest.mark.parametrize("reason", ONE_OF_EACH)
def test_whatever_trips_torque_goes_off_on_every_reachable_servo(reason: str) -> None:
    """How soon, and by which of the reasons, is for a machine that isn't busy to say: below."""
    outcome = schedules.run(one_of(reason), patience_s=60.0)
    assert outcome.trip not in ("none", "error")
    assert outcome.reachable == 6
    assert outcome.lets_go, outcome


def run(schedule: Schedule, **given: Any) -> ScheduleOutcome:
    """Run it again where the machine was too busy to time it."""
    outcome = schedules.run(schedule, **given)
    for _ in range(4):
        if outcome.tells_nothing:
            outcome = schedules.run(schedule, **given)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("reason", ONE_OF_EACH)
def test_after_a_trip_torque_is_off_on_every_reachable_servo_within_200_ms(reason: str) -> None:
    """A busy machine tripped by a servo's own alert first, and took a third of a second."""
    outcome = run(one_of(reason))
    for _ in range(4):  # a machine that stalled makes servos that are well look lost
        if reason not in outcome.trip and outcome.stall_s > schedules.BUSY_S:
            outcome = run(one_of(reason))
    assert reason in outcome.trip
    assert outcome.holds, outcome


def test_the_bench_would_notice_torque_that_stays_on() -> None:
    """A bench whose arms let go by themselves would prove nothing."""

    @dataclass
    class Clinging:
        """Says that it took torque off."""

        arm: Any

        def torque_off(self) -> None:
            pass

        close = torque_off

        def __getattr__(self, name: str) -> object:
            return getattr(self.arm, name)

    schedule = Schedule(1, "so101", (), (), 0.05)
    outcome = schedules.run(schedule, lambda arm: _as_follower(Clinging(arm)))
    assert outcome.trip == "ESTOP"
    assert not outcome.holds
    assert not outcome.lets_go


def _as_follower(arm: Any) -> Follower:
    follower: Follower = arm
    return follower


def test_a_follower_whose_cable_was_pulled_is_told_to_be_switched_off() -> None:
    unplugged = Schedule(1, "so101", (Fault("unplug", 0.1, ENDLESS_S),), (), None)
    outcome = schedules.run(unplugged)
    assert outcome.reachable == 0
    assert "Switch the arm's power off" in outcome.said
    assert "\n" not in outcome.said


def test_schedules_are_drawn_from_their_seed_and_cover_every_fault() -> None:
    drawn = [draw(seed) for seed in range(300)]
    assert drawn == [draw(seed) for seed in range(300)]
    follower = {fault.fault for one in drawn for fault in one.follower}
    assert {"vanish", "overheat", "overload", "corrupt", "drop", "slow", "unplug"} <= follower
    assert {"vanish", "unplug", "drop"} <= {f.fault for one in drawn for f in one.leader}
    assert any(one.estop_s is not None for one in drawn)
    assert {one.model for one in drawn} == set(schedules.MODELS)


@pytest.mark.slow
def test_a_hundred_random_schedules() -> None:
    late = [str(outcome) for seed in range(100) if not (outcome := run(draw(seed))).holds]
    assert not late
