"""Planted failures are named and timed, on any arm, with few channels; nothing crashes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gaploop.core.messages import FloatArray, SafetyReason
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import FailureMode, Outcome, Phase, TakeKind
from gaploop.failure_analysis.modes import Event, ModeCall, arms, contacts, failure_mode, shaking
from gaploop.failure_analysis.signals.registry import TakeSignals, measure
from gaploop.failure_analysis.views.view import TakeView

RATE_HZ = 100.0
ONE_ARM = ("waist", "shoulder", "elbow", "wrist", "gripper")
"""An arm whose kinematics nobody here knows."""
TWO_ARMS = tuple(f"{side}_{name}" for side in ("left", "right") for name in ONE_ARM)
OPEN_RAD, SHUT_RAD, HELD_RAD = 0.8, 0.0, 0.3


def attempt(seconds: float = 6.0, joints: tuple[str, ...] = ONE_ARM) -> tuple[FloatArray, ...]:
    """Times, commands and readings of an attempt that picks something up and puts it down."""
    t_s = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    way = np.interp(t_s, [0.2, 1.4, 2.2, 3.6, 4.2, 5.4], [0.0, 0.6, 0.5, -0.4, -0.3, 0.2])
    gripper = np.interp(t_s, [1.5, 1.8, 3.8, 4.0], [OPEN_RAD, SHUT_RAD, SHUT_RAD, OPEN_RAD])
    sent = np.stack([gripper if "gripper" in n else way * (0.5 + 0.2 * k % 1)
                     for k, n in enumerate(joints)], axis=1)  # fmt: skip
    read = sent.copy()
    for column in grippers(joints):
        read[:, column] = np.maximum(sent[:, column], HELD_RAD)
    return t_s, sent, read


def grippers(joints: tuple[str, ...]) -> list[int]:
    return [k for k, name in enumerate(joints) if "gripper" in name]


def take(
    t_s: FloatArray,
    sent: FloatArray,
    read: FloatArray,
    *,
    joints: tuple[str, ...] = ONE_ARM,
    load_pct: FloatArray | None = None,
    safety: FloatArray | None = None,
    telemetry: bool = True,
) -> Take:
    columns = {}
    for k, name in enumerate(joints):
        columns[f"follower.{name}.sent_rad"] = sent[:, k]
        columns[f"follower.{name}.position_rad"] = read[:, k]
        if load_pct is not None:
            columns[f"follower.{name}.load_pct"] = load_pct[:, k]
    n = len(t_s)
    flags = np.zeros(n, dtype=np.int64) if safety is None else safety
    frames = Frames(
        t_s, np.degrees(read), np.degrees(sent), np.degrees(sent), np.empty((n, 0)),
        np.zeros(n, dtype=np.bool_), flags,
    )  # fmt: skip
    info = TakeInfo("take", fps=RATE_HZ, kind=TakeKind.ROLLOUT, joint_names=joints, units="deg")
    record = Telemetry(t_s, columns) if telemetry else Telemetry(np.empty(0), {})
    return Take(info, Outcome.FAILURE, frames, record)


def seen_swing(of: Take) -> Event | None:
    (arm,) = arms(TakeView(of, images=False))
    return shaking(arm)


def call(of: Take) -> ModeCall:
    view = TakeView(of, images=False)
    return failure_mode(view, TakeSignals({}, {}))


@pytest.mark.parametrize("telemetry", [True, False], ids=["telemetry", "frames only"])
class TestOneArm:
    def test_what_is_put_down_and_judged_a_failure_is_misplaced(self, telemetry: bool) -> None:
        found = call(take(*attempt(), telemetry=telemetry))
        assert (found.mode, found.phase) == (FailureMode.MISPLACEMENT, Phase.PLACE)

    def test_jaws_that_meet_missed(self, telemetry: bool) -> None:
        t_s, sent, _ = attempt()
        read = sent + 1e-3 * np.sin(40 * t_s)[:, None]
        found = call(take(t_s, sent, read, telemetry=telemetry))
        assert (found.mode, found.phase) == (FailureMode.MISSED_GRASP, Phase.GRASP)

    def test_jaws_that_close_in_transport_lost_it(self, telemetry: bool) -> None:
        t_s, sent, read = attempt()
        late = (t_s > 3.0) & (t_s < 3.8)
        read[late, -1] = sent[late, -1]
        found = call(take(t_s, sent, read, telemetry=telemetry))
        assert (found.mode, found.phase) == (FailureMode.SLIP, Phase.TRANSPORT)

    def test_a_second_attempt_that_holds_makes_good_the_first(self, telemetry: bool) -> None:
        t_s, sent, read = attempt()
        missed = sent.copy()
        missed[:, -1] = np.where(np.abs(t_s - 1.0) < 0.3, SHUT_RAD, sent[:, -1])
        read[:, -1] = np.where(t_s < 1.4, missed[:, -1], read[:, -1])
        assert call(take(t_s, missed, read, telemetry=telemetry)).mode == FailureMode.MISPLACEMENT

    def test_an_arm_that_stops_for_good_is_frozen(self, telemetry: bool) -> None:
        t_s, sent, read = attempt()
        stop = int(1.0 * RATE_HZ)
        sent[stop:], read[stop:] = sent[stop], read[stop]
        found = call(take(t_s, sent, read, telemetry=telemetry))
        assert (found.mode, found.phase) == (FailureMode.FROZEN, Phase.APPROACH)

    @pytest.mark.parametrize("rate_hz", [3.0, 7.0, 10.0])
    @pytest.mark.parametrize("begin_s", [0.0, 0.5])
    def test_an_arm_that_swings_oscillates_commanded_or_not(
        self, telemetry: bool, rate_hz: float, begin_s: float
    ) -> None:
        """A swing of most of the attempt was taken for noise, the more so the faster it was."""
        t_s, sent, read = attempt()
        noise = np.random.default_rng(0).normal(scale=0.002, size=len(t_s))
        swing = np.where(t_s > begin_s, 0.08 * np.sin(2 * np.pi * rate_hz * t_s + 0.3), 0.0)
        read[:, 1] += swing + noise
        assert call(take(t_s, sent, read, telemetry=telemetry)).mode == FailureMode.OSCILLATION
        sent[:, 1] += swing
        assert call(take(t_s, sent, read, telemetry=telemetry)).mode == FailureMode.OSCILLATION
        found = seen_swing(take(t_s, sent, read, telemetry=telemetry))
        assert found is not None
        said_hz = float(found.evidence.message.split(", ")[1].split()[0])
        assert said_hz == pytest.approx(rate_hz, rel=0.15)

    @pytest.mark.parametrize("width", [1, 2])
    def test_readings_that_are_noisy_are_no_swing(self, telemetry: bool, width: int) -> None:
        t_s, sent, read = attempt()
        draw = np.random.default_rng(width).normal(scale=0.04 * width, size=len(t_s) + width - 1)
        read[:, 1] += np.convolve(draw, np.ones(width) / width, "valid")
        assert seen_swing(take(t_s, sent, read, telemetry=telemetry)) is None

    def test_readings_that_flip_between_two_encoder_steps_are_no_swing(
        self, telemetry: bool
    ) -> None:
        """ "Swings back and forth by 0.0 degrees", of encoders that read in steps of 2.1."""
        t_s, sent, read = attempt()
        for swing_rad, mode in ((0.004, FailureMode.MISPLACEMENT), (0.12, FailureMode.OSCILLATION)):
            rests_rad = 10.5 * 0.037 + swing_rad * np.sin(2 * np.pi * 5.0 * t_s)
            sent[:, 1], read[:, 1] = 10.5 * 0.037, np.round(rests_rad / 0.037) * 0.037
            assert call(take(t_s, sent, read, telemetry=telemetry)).mode == mode

    def test_what_an_attempt_recovered_from_is_seen_in_it_all_the_same(
        self, telemetry: bool
    ) -> None:
        """Set against failures, successes seemed never to shake: theirs was before the hold."""
        t_s, sent, read = attempt()
        read[:, 1] += np.where(t_s < 1.2, 0.06 * np.sin(2 * np.pi * 4.0 * t_s), 0.0)
        found = call(take(t_s, sent, read, telemetry=telemetry))
        assert found.mode == FailureMode.MISPLACEMENT
        assert FailureMode.OSCILLATION in found.seen

    def test_a_trip_of_ours_alone_is_no_obstruction(self, telemetry: bool) -> None:
        """A late arm's takes read "obstruction": the filter had taken it for a stalled one."""
        t_s, sent, read = attempt(2.0)
        for reason, mode in (
            (SafetyReason.ESTOP, FailureMode.OPERATOR_STOP),
            (SafetyReason.OVER_TEMPERATURE, FailureMode.OPERATOR_STOP),
            (SafetyReason.STALL, FailureMode.OPERATOR_STOP),
        ):
            flags = np.where(t_s > 1.0, int(reason | SafetyReason.TRIPPED), 0)
            made = take(t_s, sent, read, safety=flags, telemetry=telemetry)
            assert call(made).mode == mode
        read[(t_s > 0.7) & (t_s < 1.05), 1] += 0.4  # something holds a joint, and then it trips
        flags = np.where(t_s > 1.0, int(SafetyReason.STALL | SafetyReason.TRIPPED), 0)
        held = take(t_s, sent, read, safety=flags, telemetry=telemetry)
        assert call(held).mode == FailureMode.OBSTRUCTION

    def test_an_arm_still_on_its_way_ran_out_of_time(self, telemetry: bool) -> None:
        t_s, sent, read = attempt()
        early = t_s < 1.2
        found = call(take(t_s[early], sent[early], read[early], telemetry=telemetry))
        assert (found.mode, found.phase) == (FailureMode.TIMEOUT, Phase.APPROACH)


def test_an_arm_that_sags_under_a_resting_command_drifts() -> None:
    t_s, sent, read = attempt()
    sent[t_s > 0.8] = sent[int(0.8 * RATE_HZ)]
    read = sent.copy()
    read[:, 1] -= np.interp(t_s, [1.0, 3.0], [0.0, 0.5])
    loads = np.full_like(sent, 8.0)
    assert call(take(t_s, sent, read, load_pct=loads)).mode == FailureMode.DRIFT


@pytest.mark.parametrize(
    ("lasts_s", "mode"), [(0.3, FailureMode.COLLISION), (2.0, FailureMode.OBSTRUCTION)]
)
def test_motors_at_stall_off_their_command_press_on_something(
    lasts_s: float, mode: FailureMode
) -> None:
    t_s, sent, _ = attempt(1.0 + lasts_s)
    sent[:, -1] = OPEN_RAD
    read = sent.copy()
    blocked = (t_s > 0.8) & (t_s < 0.8 + lasts_s)
    read[blocked, 0] = np.minimum(read[int(0.8 * RATE_HZ), 0], sent[blocked, 0])
    loads = np.where(blocked[:, None], 100.0, 15.0 * np.sign(np.sin(200 * t_s))[:, None])
    assert call(take(t_s, sent, read, load_pct=loads * np.ones_like(sent))).mode == mode


@given(st.sampled_from([20.0, 30.0, 50.0, 100.0]), st.floats(0.0, 0.12), st.floats(0.5, 3.0))
@settings(max_examples=25, deadline=None)
def test_an_arm_that_follows_late_presses_on_nothing(
    rate_hz: float, late_s: float, way_rad: float
) -> None:
    """At 50 rows a second fast free motion read "motors press off their command" in 17 of 20."""
    t_s = np.arange(0.0, 6.0, 1.0 / rate_hz)
    sent, read = (
        np.interp(at, [0.5, 1.5, 2.5, 4.0, 4.8], way_rad * np.array([0.0, 1.0, 0.6, -0.6, 0.0]))
        for at in (t_s, t_s - late_s)
    )
    columns = [np.outer(x, [1.0, 0.5, 0.3, 0.8, 0.0]) for x in (sent, read)]
    view = TakeView(take(t_s, *columns, telemetry=False), images=False)
    assert view.motion is not None
    assert not contacts(view.motion, None)
    columns[1][t_s > 2.0] = columns[1][int(2.0 * rate_hz)]  # and held, it does
    held = TakeView(take(t_s, *columns, telemetry=False), images=False)
    assert held.motion is not None
    assert contacts(held.motion, None)


def test_an_arm_that_is_slow_presses_on_nothing() -> None:
    """Drives of 0.4 rad/s read "obstruction, a joint is pushed 48° off its command" in 8 of 8."""
    t_s, sent, _ = attempt()
    sent = 2.0 * sent
    read = sent.copy()
    for n in range(1, len(t_s)):
        read[n] = read[n - 1] + np.clip(sent[n] - read[n - 1], -0.4 / RATE_HZ, 0.4 / RATE_HZ)
    view = TakeView(take(t_s, sent, read, telemetry=False), images=False)
    assert view.motion is not None
    assert not contacts(view.motion, None)


def test_either_of_two_arms_can_fail() -> None:
    t_s, sent, read = attempt(joints=TWO_ARMS)
    right = grippers(TWO_ARMS)[1]
    read[:, right] = sent[:, right] + 1e-3 * np.sin(40 * t_s)
    found = call(take(t_s, sent, read, joints=TWO_ARMS))
    assert (found.mode, found.phase) == (FailureMode.MISSED_GRASP, Phase.GRASP)


def test_jaws_that_are_not_read_are_said_to_be_unseen() -> None:
    t_s, sent, read = attempt()
    read[:, -1] = np.nan
    found = call(take(t_s, sent, read))
    assert found.mode is None
    assert any("can't be seen" in s.message and math.isnan(s.value) for s in found.evidence)


VALUES = st.one_of(st.just(0.0), st.just(math.nan), st.floats(-4.0, 4.0))


@settings(max_examples=60)
@given(st.data(), st.integers(1, 60), st.booleans())
def test_no_take_crashes(data: st.DataObject, n: int, telemetry: bool) -> None:
    t_s = np.arange(n) / RATE_HZ
    draw = arrays(np.float64, (n, len(ONE_ARM)), elements=VALUES)
    sent, read, load = (data.draw(draw) for _ in range(3))
    made = take(t_s, sent, read, load_pct=load, telemetry=telemetry)
    found = failure_mode(TakeView(made, images=False), TakeSignals({}, {}))
    assert found.mode is None or found.mode in FailureMode


@pytest.mark.parametrize("n", [1, 2, 9, 10, 11])
@pytest.mark.parametrize("value", [0.0, math.nan])
def test_short_and_constant_takes_are_measured_and_judged(n: int, value: float) -> None:
    t_s = np.arange(n) / RATE_HZ
    same = np.full((n, len(ONE_ARM)), value)
    made = take(t_s, same, same, load_pct=same)
    for of in (made, replace(made, telemetry=Telemetry(np.empty(0), {}))):
        view = TakeView(of, images=False)
        assert failure_mode(view, measure(view)).mode is None
