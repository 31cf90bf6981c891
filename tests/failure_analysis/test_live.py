"""A watched rollout: the recorded take's numbers, alarms at the stated rate, no clock in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from failure_analysis_makers import JOINTS, RATE_HZ, commands, take
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.collect.journal import JournalWriter
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import read_journal
from gaploop.core.messages import FloatArray
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.failure_analysis.live import (
    BIN_S,
    ENOUGH,
    FALSE_ALARMS,
    SHIPPED,
    Alarm,
    FailureWatch,
    SessionWatch,
    SignalTrack,
    SignalTracker,
    fit_score,
    score_of,
    session_watch,
    track_of,
    turns,
)
from gaploop.failure_analysis.live_signals import STREAMED, LiveSignals
from gaploop.failure_analysis.reference import SHIPPED_FOR
from gaploop.failure_analysis.signals.registry import measure, registry
from gaploop.failure_analysis.views.view import TakeView

FPS = 50.0


def scene_of(n: int, rng: np.random.Generator) -> FloatArray:
    """Return a tracked scene of n frames in which the object wanders and is lost at times."""
    scene = np.tile([0.2, 0.18, 0.1, -0.4, 0.22, 1.0, 0.0], (n, 1))
    scene[:, 0] += np.cumsum(rng.normal(0.0, 0.004, n))
    scene[:, 5] = rng.random(n) > 0.3
    return scene


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    lag_s=st.sampled_from([0.0, 0.05, 0.2]),
    noise_rad=st.sampled_from([0.0, 0.01]),
    hold_rad=st.sampled_from([0.0, 0.25]),
    seconds=st.sampled_from([2.0, 3.01, 8.0]),
)
def test_a_watched_take_has_the_numbers_of_the_recorded_one(
    seed: int, lag_s: float, noise_rad: float, hold_rad: float, seconds: float
) -> None:
    rng = np.random.default_rng(seed)
    sent = commands(seconds, seed)
    n = len(sent)
    extra = {
        f"follower.{name}.{quantity}": rng.normal(0.5, scale, n)
        for name in JOINTS
        for quantity, scale in (("current_a", 0.2), ("load_pct", 20.0))
    }
    made = take(
        sent=sent, lag_s=lag_s, noise_rad=noise_rad, hold_rad=hold_rad, seed=seed, extra=extra,
        scene=scene_of((n + 1) // 2, rng),
    )  # fmt: skip
    live = LiveSignals(JOINTS, RATE_HZ, FPS)
    for tick in turns(made):
        live.tick(tick)
    live.finish()
    recorded, watched = measure(TakeView(made)), live.values()
    for name in STREAMED:
        assert watched[name] == pytest.approx(recorded[name], rel=1e-6, abs=1e-9, nan_ok=True), name


def test_a_rollout_watched_in_the_cell_has_the_numbers_that_were_recorded(tmp_path: Path) -> None:
    rig = embedded_rig()
    live = LiveSignals(rig.follower.joint_names, rig.control_hz, rig.fps)
    watched = SignalTracker(rig.follower.joint_names, rig.control_hz, rig.fps)
    rig.reset(7)
    try:
        with JournalWriter(tmp_path, rig.header(TakeInfo("", "pick"))) as writer:
            leader = rig.scripted_leader(7)
            run_take(rig, leader, seed=7, max_s=6.0, writer=writer, sinks=(live, watched))
    finally:
        rig.close()
    live.finish()
    made = next(iter(read_journal(tmp_path)))
    recorded, values = measure(TakeView(made, images=False)), live.values()
    for name in STREAMED:
        assert values[name] == pytest.approx(recorded[name], rel=1e-6, abs=1e-9, nan_ok=True), name
    again = track_of(made)
    np.testing.assert_allclose(again.t_s, watched.track(failed=False).t_s, atol=1e-6)
    np.testing.assert_allclose(
        again.values, watched.track(failed=False).values, rtol=1e-6, atol=1e-9
    )


def test_windows_of_half_a_sample_do_not_hang_on_rounding() -> None:
    """Reversals differed between a short and a long take of the same motion.

    50 ms at 100 Hz is five samples, half of it 2.5: whether that became 2 or 3 was decided by the
    rounding of the times, which grows along a take.
    """
    motion = TakeView(take(sent=commands(80.0))).motion
    assert motion is not None
    assert motion.rate_hz == RATE_HZ


def test_what_a_robot_lacks_stays_unknown() -> None:
    made = take()
    live = LiveSignals(JOINTS, RATE_HZ, FPS)
    for tick in turns(made):
        live.tick(tick)
    values = live.values()
    assert np.isnan(
        [values[k] for k in ("current_jump_a", "effort_a", "way_left_m", "hidden_hz")]
    ).all()
    assert np.isfinite([values[k] for k in ("tracking_rms_rad", "reversals_hz")]).all()


def tracks(
    count: int,
    rng: np.random.Generator,
    *,
    failed: bool = False,
    odd: float = 0.0,
    end_s: float = 3.0,
) -> list[SignalTrack]:
    """Return takes whose signals drift alike over time; `odd` spreads off in one of them."""
    made = []
    for _ in range(count):
        t_s = np.arange(1, int((end_s + rng.uniform(0.0, 1.0)) / 0.1)) * 0.1
        start = rng.normal(0.0, 1.0, len(STREAMED))
        values = start + t_s[:, None] + rng.normal(0.0, 0.2, (len(t_s), len(STREAMED)))
        values[:, 0] += odd
        made.append(SignalTrack(t_s, values, failed))
    return made


def even() -> FloatArray:
    return np.ones(2 * len(STREAMED))


@pytest.mark.parametrize("stated", [0.05, 0.2])
def test_takes_that_go_well_alarm_at_most_as_often_as_stated(stated: float) -> None:
    rng = np.random.default_rng(1)
    score = fit_score(tracks(100, rng), even(), "made up")
    fresh = tracks(600, rng)
    alarmed = np.mean([score.along(t).max() > score.threshold(stated) for t in fresh])
    assert alarmed <= stated + 3 * np.sqrt(
        stated * (1 - stated) / 100
    )  # the threshold is drawn too


def test_length_alone_raises_no_alarm() -> None:
    """A take that outlasts every successful one without anything odd isn't failing more by that."""
    rng = np.random.default_rng(2)
    score = fit_score(tracks(60, rng), even(), "made up")
    last_s = len(score.usual.mean) * BIN_S
    row = score.usual.mean[-1]
    long = SignalTrack(np.arange(1, 200) * 0.1, np.tile(row, (199, 1)), failed=True)
    after = score.along(long)[long.t_s > last_s]
    assert after.max() == pytest.approx(after.min())
    assert after.max() < score.threshold(0.05)


def test_a_failing_take_alarms_once_and_says_why() -> None:
    made = take(sent=commands(4.0), lag_s=0.2)
    calm = [
        replace(track_of(take(sent=commands(4.0, seed=k), seed=k)), failed=False) for k in range(30)
    ]
    weights = even() * 0.0
    weights[STREAMED.index("tracking_rms_rad")] = 1.0
    score = fit_score(calm, weights, "calm takes")
    told: list[Alarm] = []
    watch = FailureWatch(score, JOINTS, RATE_HZ, FPS, on_alarm=told.append)
    for tick in turns(made):
        watch.tick(tick)
    assert len(told) == 1
    assert told[0] == watch.alarm
    assert "miss their command" in told[0].why
    assert ", usually " in told[0].why
    assert told[0].p_value == pytest.approx(1 / 31)


def test_too_few_takes_are_refused_and_cannot_alarm() -> None:
    rng = np.random.default_rng(6)
    with pytest.raises(UnusableInputError, match="at least 10"):
        fit_score(tracks(9, rng), even(), "few")
    score = fit_score(tracks(25, rng), even(), "few")
    assert score.threshold(0.01) == np.inf
    assert score.threshold(0.10) < np.inf


def test_live_signals_are_registered_ones() -> None:
    assert set(STREAMED) <= set(registry())
    assert tuple(json.loads(SHIPPED.read_text())["features"]) == STREAMED


def test_outside_the_cell_nothing_that_was_fitted_in_it_counts() -> None:
    """On foreign ground weights learned in the cell made some of a station's signals deaf."""
    here = [
        take(uid=f"t{k}", sent=commands(4.0, seed=k), seed=k, outcome=Outcome.SUCCESS)
        for k in range(12)
    ]
    cell = [replace(t, info=replace(t.info, robot_type=SHIPPED_FOR)) for t in here]
    there = [replace(t, info=replace(t.info, domain=Domain.REAL, robot_type="x")) for t in here]
    assert (score_of(there, "there").weights == 1.0).all()
    assert not (score_of(cell, "cell").weights == 1.0).all()


def test_a_score_that_is_not_calibrated_here_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert session_watch("auto", "sha256:any", False).score is None
    assert "isn't calibrated here" in caplog.text
    assert "--watch=DIR" in caplog.text


@pytest.mark.parametrize(("shift", "most_said"), [(0.0, 0.06), (0.5, 0.35), (2.0, 1.0)])
def test_what_goes_well_at_a_station_alarms_about_as_often_as_stated(
    shift: float, most_said: float
) -> None:
    """A third of the successes under a gap alarmed, at a stated tenth, to the session's end.

    It is rarely said of a score that is calibrated that it isn't.
    """
    rng, alarmed, said = np.random.default_rng(2), list[bool](), list[bool]()
    shown = fit_score(tracks(20, np.random.default_rng(1)), even(), "n")
    for _ in range(60):
        score = replace(shown, peaks=np.sort(rng.normal(size=48)))
        peaks = rng.normal(shift, 1.0, 30).tolist()
        alarmed += [
            peak > score.here(peaks[:n]).threshold(FALSE_ALARMS) for n, peak in enumerate(peaks)
        ]
        said.append(score.is_off(peaks))
    assert np.mean(alarmed) <= FALSE_ALARMS + 0.02
    assert np.mean(said) <= most_said
    if shift > 1.0:
        assert np.mean(said) > 0.9


def test_a_watch_that_is_not_calibrated_here_says_so_and_falls_silent_until_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = SessionWatch(fit_score(tracks(40, np.random.default_rng(1)), even(), "n"))
    assert watch.score is not None
    won = list[str]()
    watch.won = lambda: won
    limits = list[float]()
    rig = SimpleNamespace(follower=SimpleNamespace(joint_names=JOINTS), control_hz=100.0, fps=25.0)
    for number in range(ENOUGH + 1):
        writer = SimpleNamespace(header=SimpleNamespace(info=SimpleNamespace(uid=str(number))))
        (seen,) = watch(rig, writer)
        assert isinstance(seen, FailureWatch)
        limits.append(seen._threshold)
        seen.peak = 100.0 + number
        won.append(str(number))
    assert limits[0] == watch.score.threshold(FALSE_ALARMS)
    assert math.inf in limits
    assert limits[-1] == 100.0 + ENOUGH - 1
    assert caplog.text.count("isn't calibrated here") == 1
    assert "attempts that went well looked like failures" in watch.doubt()
    assert SessionWatch(None).doubt() == ""


def test_elsewhere_a_session_is_watched_as_soon_as_enough_went_well_in_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On every robot but the cell's nothing was watched, however much went well there."""
    watch, rng = session_watch("auto", "sha256:any", False), np.random.default_rng(4)
    assert "until 20 attempts of this session went well" in caplog.text
    won = list[str]()
    watch.won = lambda: won
    rig = SimpleNamespace(follower=SimpleNamespace(joint_names=JOINTS), control_hz=100.0, fps=25.0)
    for number, track in enumerate(tracks(ENOUGH, rng)):
        writer = SimpleNamespace(header=SimpleNamespace(info=SimpleNamespace(uid=str(number))))
        (seen,) = watch(rig, writer)
        assert not isinstance(seen, FailureWatch)
        assert isinstance(seen, SignalTracker)
        seen.t_s, seen._rows = track.t_s.tolist(), track.values.tolist()
        won.append(str(number))
    writer = SimpleNamespace(header=SimpleNamespace(info=SimpleNamespace(uid="next")))
    (seen,) = watch(rig, writer)
    assert isinstance(seen, FailureWatch)
    assert math.isfinite(seen._threshold)
