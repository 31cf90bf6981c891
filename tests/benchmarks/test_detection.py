"""Detection is judged at equal elapsed time: nothing that only knows the clock does well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.detection import analysed, auroc, learn_weights, save, table
from benchmarks.detection_rollouts import CLASSES, NOMINAL, Rolled, trials
from gaploop.failure_analysis.live import SignalTrack, Usual, fit_score, shipped_score
from gaploop.failure_analysis.live_signals import STREAMED


def made(rng: np.random.Generator, failed: bool, odd: float) -> SignalTrack:
    """Return a take of 3 to 4 s, or of 6 s where it failed; one signal is off by `odd` from 1 s."""
    end_s = 6.0 if failed else rng.uniform(3.0, 4.0)
    t_s = np.arange(1, int(end_s / 0.1)) * 0.1
    values = t_s[:, None] + rng.normal(0.0, 0.3, (len(t_s), len(STREAMED)))
    values[:, 0] += odd * (t_s > 1.0)
    return SignalTrack(t_s, values, failed)


def test_the_clock_alone_gets_one_half_however_long_failures_are() -> None:
    """Length told failures apart at 0.99: they run to the time-out, successes end early."""
    rng = np.random.default_rng(0)
    takes = [made(rng, k % 2 == 0, 0.0) for k in range(40)]
    for share in (0.5, 1.0):
        assert auroc(takes, lambda track: track.t_s, share, 0)["auroc"] == 0.5
        found = auroc(takes, lambda track: track.values[:, 0], share, 0)
        assert found["interval"][0] < 0.5 < found["interval"][1]


def test_what_tells_them_apart_gets_one_and_its_opposite_nothing() -> None:
    rng = np.random.default_rng(1)
    takes = [made(rng, failed, 9.0 * failed) for failed in (True, False) * 15]
    assert auroc(takes, lambda track: track.values[:, 0], 1.0, 0)["auroc"] == 1.0
    assert auroc(takes, lambda track: -track.values[:, 0], 1.0, 0)["auroc"] == 0.0


def test_more_trials_go_on_where_fewer_ended() -> None:
    few, many = trials(3, 20), trials(3, 60)
    assert many[: len(few)] == few
    assert len({t.scene for t in many}) == len(many)
    assert not any(t.part == "fit" and t.dimension != NOMINAL for t in many)
    assert len({t.gap_seed for t in many if t.dimension != NOMINAL}) == 60


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


def test_weights_learn_what_is_odd_and_not_how_long_a_take_was() -> None:
    rng = np.random.default_rng(3)
    good = tracks(60, rng)
    usual = Usual.fit(good)
    odd = tracks(60, rng, failed=True, odd=4.0, end_s=8.0)
    weights = learn_weights([(usual, [*good, *odd])])
    assert int(np.argmax(weights)) == 0
    only_longer = learn_weights([(usual, [*good, *tracks(60, rng, failed=True, end_s=8.0)])])
    assert np.abs(only_longer).max() < 0.4 * weights[0]


def test_the_result_is_told_whole() -> None:
    rng = np.random.default_rng(2)
    done = {}
    for name in CLASSES:
        rolls = []
        for trial in trials(0, 30):
            failed = trial.dimension != NOMINAL and rng.random() < 0.6
            rolls.append(Rolled(trial, made(rng, failed, 4.0 * failed), np.empty((0, 13))))
        done[name] = rolls
    result = analysed(done, 0)
    assert result["mean_auroc"] > 0.9
    for name in CLASSES:
        one = result["classes"][name]
        assert one["baselines"]["length"]["auroc"] == 0.5
        assert one["length_uncontrolled"] > 0.95
        assert one["takes"]["fit nominal"] == [0, 24]
    text = table(result)
    assert "tracking error" in text
    assert "alarms, went" in text


def test_a_class_without_failures_has_no_figure() -> None:
    rng = np.random.default_rng(3)
    found = auroc([made(rng, False, 0.0) for _ in range(5)], lambda t: t.t_s, 1.0, 0)
    assert np.isnan(found["auroc"])
    assert found["interval"] is None


def test_a_score_survives_its_file(tmp_path: Path) -> None:
    unseen = np.arange(len(STREAMED)) == 3
    takes = [
        replace(t, values=np.where(unseen, np.nan, t.values))
        for t in tracks(30, np.random.default_rng(5))
    ]
    score = fit_score(takes, np.ones(2 * len(STREAMED)), "made up")
    save(score, tmp_path / "score.json")
    again = shipped_score(tmp_path / "score.json")
    np.testing.assert_allclose(again.along(takes[0]), score.along(takes[0]), atol=1e-3)
    assert again.name == score.name
