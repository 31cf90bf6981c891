"""What every joint reports while nothing is recorded, and safety reasons in words."""

from __future__ import annotations

import dataclasses
import io
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console, Group

from gaploop.collect.operator.terminal import arm_details
from gaploop.core.messages import (
    NO_REPLY,
    REBOOTED,
    FollowerState,
    LeaderSample,
    SafeCommand,
    SafetyReason,
    Tick,
)
from gaploop.core.station import SafetyLimits
from gaploop.teleop.loop import LoopStatistics
from gaploop.teleop.trips import HOT, OWN_ERRORS, TO_DO, WHAT, say_status, say_trip

JOINTS = ("pan", "lift", "gripper")
PERIOD_S = 0.005


def state(**changed: np.ndarray) -> FollowerState:
    n = len(JOINTS)
    made = FollowerState(
        0.0, np.zeros(n), np.zeros(n), np.full(n, 0.1), np.full(n, 5.0), np.full(n, 30.0),
        np.full(n, 7.4), np.zeros(n, dtype=np.int64),
    )  # fmt: skip
    return dataclasses.replace(made, **changed)


def tick(
    index: int = 1,
    reasons: SafetyReason = SafetyReason.NONE,
    reported: FollowerState | None = None,
    period_s: float = PERIOD_S,
    overruns: int = 0,
) -> Tick:
    asked = np.radians([10.0, 20.0, 30.0])
    command = SafeCommand(asked, asked, reasons)
    seen = reported if reported is not None else state()
    return Tick(
        index, index * PERIOD_S, period_s if index else math.nan, 0.0001, LeaderSample(0.0, asked),
        command, seen, {}, latency_s=0.002, overruns=overruns,
    )  # fmt: skip


def shown(*ticks: Tick, is_driven: bool = True, now: FollowerState | None = None) -> str:
    """Return what is drawn below the view after some turns."""
    statistics = LoopStatistics(JOINTS, PERIOD_S, SafetyLimits())
    for one in ticks:
        statistics.tick(one)
    follower = SimpleNamespace(joint_names=JOINTS, units="deg", to_units=np.degrees)
    arm: Any = SimpleNamespace(
        statistics=statistics,
        arm=SimpleNamespace(follower=follower),
        station=SimpleNamespace(safety=SafetyLimits()),
        is_driven=is_driven,
        state=lambda: now,
        bus_faults={"follower timeouts": 3, "leader checksums": 0},
        realtime=None,
    )
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(Group(*arm_details(arm)))
    return console.export_text()


def test_every_joint_is_shown_and_what_was_counted() -> None:
    text = shown(*(tick(n) for n in range(50)))
    for words in (*JOINTS, "20.0", "7.4", "follower timeouts 3"):
        assert words in text
    assert "leader checksums" not in text
    assert shown().strip() == "", "nothing was read yet"


def test_what_a_device_lacks_has_no_column() -> None:
    text = shown(
        tick(0, reported=state(current_a=np.full(3, np.nan), voltage_v=np.full(3, np.nan)))
    )
    assert "°C" in text
    assert " V " not in text
    assert " A " not in text


def test_a_silent_servo_and_a_trip_are_named() -> None:
    silent = state(status=np.array([0, NO_REPLY, 0]), temperature_c=np.array([30.0, np.nan, 30.0]))
    hot = state(temperature_c=np.array([30.0, 80.0, 30.0]))
    tripped = SafetyReason.OVER_TEMPERATURE | SafetyReason.TRIPPED
    text = shown(tick(0), tick(1, reported=silent), tick(2, tripped, hot))
    assert "silent: lift 1×" in text
    assert f"{WHAT[SafetyReason.OVER_TEMPERATURE]} (lift)" in text


def test_what_stands_still_shows_no_old_readings() -> None:
    """READY AGAIN showed the rate and the joints of before the loss."""
    was = tick(reported=state(position_rad=np.radians([77.7, 0.0, 0.0])))
    assert "77.7" not in shown(tick(0), was, is_driven=False)
    now = state(position_rad=np.radians([11.1, 0.0, 0.0]))
    text = shown(tick(0), was, is_driven=False, now=now)
    assert "11.1" in text
    assert "20.0" not in text  # what the leader asked for then


@pytest.mark.parametrize("reason", TO_DO)
def test_a_trip_says_what_happened_and_what_to_do(reason: SafetyReason) -> None:
    text = say_trip(reason, ())
    assert WHAT[reason] in text
    assert TO_DO[reason] in text


@pytest.mark.parametrize("bits", [(b,) for b in OWN_ERRORS] + [(0x01, 0x20), (REBOOTED, 0x04)])
def test_a_servo_that_reports_an_error_is_told_of_by_that_error(bits: tuple[int, ...]) -> None:
    text = say_trip(SafetyReason.HARDWARE_ERROR, ("lift",), sum(bits) | NO_REPLY)
    assert all(OWN_ERRORS[bit][0] in text and OWN_ERRORS[bit][1] in text for bit in bits)
    assert WHAT[SafetyReason.HARDWARE_ERROR] not in text
    both = SafetyReason.HARDWARE_ERROR | SafetyReason.OVER_TEMPERATURE
    assert (WHAT[SafetyReason.OVER_TEMPERATURE] in say_trip(both, (), sum(bits))) == (
        HOT not in bits
    )
    unknown = say_trip(SafetyReason.HARDWARE_ERROR, (), sum(bits) | 0x08)  # differs by maker
    assert unknown == say_trip(SafetyReason.HARDWARE_ERROR, ())


@pytest.mark.parametrize("own", [HOT, 0x20, 0x08])
def test_a_servo_that_let_go_of_itself_is_not_said_to_have_lost_its_power(own: int) -> None:
    """A hot XL330 takes its torque off: "check its cable and the power supply" was said, too."""
    told = []
    for status in ([0, own | REBOOTED, 0], [REBOOTED, own, 0]):
        statistics = LoopStatistics(JOINTS, PERIOD_S, SafetyLimits())
        tripped = SafetyReason.HARDWARE_ERROR | SafetyReason.TRIPPED
        statistics.tick(tick(1, tripped, state(status=np.array(status))))
        told.append(statistics.figures().trips[0].errors)
    assert told == [own, own | REBOOTED]


def test_every_reason_to_trip_is_explained() -> None:
    assert set(SafetyReason) == set(WHAT) | {SafetyReason.TRIPPED}


@pytest.mark.parametrize(
    ("bits", "protocol", "says"),
    [
        (0, "feetech", ""),
        (0b100000, "feetech", "overload"),
        (0b100100, "dynamixel", "overheating, overload"),
        (0b1000000, "dynamixel", "0x40"),
        (NO_REPLY | 1, "feetech", "silent"),
        (1, "", "bit 0"),
        (REBOOTED, "feetech", "lost power or torque"),
        (REBOOTED | 4, "dynamixel", "lost power or torque, overheating"),
    ],
)
def test_status_bits_in_words(bits: int, protocol: str, says: str) -> None:
    assert say_status(bits, protocol) == says
