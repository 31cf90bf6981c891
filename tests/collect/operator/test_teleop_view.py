"""The live view: says what is wrong, where, and what to do; never fails on what lacks."""

from __future__ import annotations

import dataclasses
import io
import math

import numpy as np
import pytest
from rich.console import Console

from gaploop.collect.operator.teleop_view import ProgramMode, TeleopScreen, line, render
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
from gaploop.teleop.advice import TO_DO, WHAT, say_status
from gaploop.teleop.statistics import LoopStatistics

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


def picture(mode: ProgramMode, *ticks: Tick, lost: str = "", note: str = "") -> TeleopScreen:
    statistics = LoopStatistics(JOINTS, PERIOD_S, SafetyLimits())
    for one in ticks:
        statistics.tick(one)
    rate_hz, error, latency = statistics.now()
    return TeleopScreen(
        "follower ← leader", mode, "deg", np.degrees, JOINTS, "feetech", SafetyLimits(),
        statistics.latest, rate_hz, error, latency, statistics.figures(), lost=lost, note=note,
        bus_faults={"follower timeouts": 3, "leader checksums": 0},
    )  # fmt: skip


def shown(what: TeleopScreen, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(render(what))
    return console.export_text()


def test_running_shows_every_joint_and_the_timing() -> None:
    text = shown(picture(ProgramMode.RUNNING, *(tick(n) for n in range(50))))
    for words in ("RUNNING", *JOINTS, "200.0 Hz", "20.0", "7.4", "follower timeouts 3", "missed 0"):
        assert words in text
    assert "leader checksums" not in text


@pytest.mark.parametrize("mode", ProgramMode)
def test_nothing_read_yet_is_shown_too(mode: ProgramMode) -> None:
    assert mode.value in shown(picture(mode))
    assert mode.value.lower() in line(picture(mode))


def test_what_a_device_lacks_has_no_column() -> None:
    lacking = state(current_a=np.full(3, np.nan), voltage_v=np.full(3, np.nan))
    text = shown(picture(ProgramMode.RUNNING, tick(0, reported=lacking)))
    assert "°C" in text
    assert " V " not in text
    assert " A " not in text


def test_a_silent_servo_is_named_with_its_last_position() -> None:
    silent = state(status=np.array([0, NO_REPLY, 0]), temperature_c=np.array([30.0, np.nan, 30.0]))
    text = shown(picture(ProgramMode.RUNNING, tick(0), tick(1, reported=silent)))
    assert "silent" in text
    assert "silent: lift 1×" in text


@pytest.mark.parametrize("reason", TO_DO)
def test_a_trip_says_what_happened_and_what_to_do(reason: SafetyReason) -> None:
    hot = state(temperature_c=np.array([30.0, 80.0, 30.0]))
    tripped = tick(5, reason | SafetyReason.TRIPPED, hot)
    what = picture(ProgramMode.TRIPPED, tick(0), tripped)
    for text in (" ".join(shown(what, 200).split()), line(what)):
        assert WHAT[reason] in text
        assert TO_DO[reason] in text
    assert ("(lift)" in line(what)) == (reason is SafetyReason.OVER_TEMPERATURE)


def test_every_reason_to_trip_is_explained() -> None:
    explained = set(WHAT) | {SafetyReason.TRIPPED}
    assert set(SafetyReason) == explained


def test_what_is_lost_and_the_next_key_are_said() -> None:
    what = picture(ProgramMode.LOST, tick(0), lost="leader /dev/ttyACM1 is gone", note="plug it in")
    for text in (shown(what), line(what)):
        assert "leader /dev/ttyACM1 is gone" in text
        assert "plug it in" in text


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


def drawn(what: TeleopScreen) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=160).print(render(what))
    return buffer.getvalue()


def test_what_stands_still_shows_no_old_readings_and_only_keys_that_do_something() -> None:
    """READY AGAIN showed the rate and the joints of before the loss, and listed the e-stop, which
    does nothing there.
    """
    was = tick(reported=state(position_rad=np.radians([77.7, 0.0, 0.0])))
    for mode, keys in ((ProgramMode.LOST, "q quit"), (ProgramMode.READY, "c c go on")):
        shown = drawn(dataclasses.replace(picture(mode, tick(0), was), torque=False))
        assert keys in shown
        assert "e-stop" not in shown
        assert "77.7" not in shown
        assert "Hz" not in shown
    now = state(position_rad=np.radians([11.1, 0.0, 0.0]))
    ready = dataclasses.replace(picture(ProgramMode.READY, tick(0), was), torque=False, state=now)
    assert "11.1" in drawn(ready)
    assert "20.0" not in drawn(ready)  # what the leader asked for then
    assert "e-stop" in drawn(picture(ProgramMode.RUNNING, tick(0)))


def test_the_key_that_clears_is_named_only_where_there_is_one() -> None:
    from gaploop.collect.operator.teleop_view import say_trip

    assert say_trip(SafetyReason.ESTOP, (), "press c twice").endswith("way; then press c twice.")
    assert say_trip(SafetyReason.ESTOP, ()).endswith("way.")


def test_torque_is_called_off_only_where_every_servo_confirmed_it() -> None:
    why = "Torque off isn't confirmed by pan (servo 1 on ./f). Switch the arm's power off."
    tripped = picture(
        ProgramMode.TRIPPED, tick(0), tick(1, SafetyReason.TRIPPED | SafetyReason.ESTOP)
    )
    limp = dataclasses.replace(tripped, torque=False)
    assert "torque off" in drawn(limp)
    assert "confirmed" not in drawn(limp)
    assert why in drawn(dataclasses.replace(limp, unconfirmed=why))
