"""Laws of labelled recordings: nothing leaks between folds, sets or sessions, nor from an event."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.__main__ import main as bench
from benchmarks.recorded import figures, stops
from benchmarks.recorded.force_classes import ForceClasses
from benchmarks.recorded.transfer import every_transfer, force_energy, transfer
from benchmarks.recorded.uci_failures import labelled_windows

SAMPLES = 15


def windows_of(seed: int, count: int = 12, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return as many quiet windows, bumps to either side, and long pushes down."""
    rng = np.random.default_rng(seed)
    kinds = {"normal": None, "left": -1.0, "right": 1.0, "obstruction": 2.0}
    windows, labels = [], []
    for kind, side in kinds.items():
        for _ in range(count):
            window = np.array([0, 0, 60, -3, -1, 0]) + rng.normal(0.0, 1.0, (SAMPLES, 6))
            if kind == "obstruction":
                window[3:, 2] -= 1200.0 * scale * rng.uniform(0.7, 1.3)
            elif side is not None:
                at = int(rng.integers(2, SAMPLES - 2))
                window[at : at + 2, 0] += side * 60.0 * scale * rng.uniform(0.7, 1.3)
            windows.append(window)
            labels.append(kind)
    return np.round(np.array(windows)), np.array(labels)


@given(st.integers(0, 1000), st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_force_energy_needs_no_axes(seed: int, turn: int) -> None:
    """A sensor mounted the other way round tells collision from obstruction as well as before."""
    windows = np.random.default_rng(seed).normal(0, 100, (3, SAMPLES, 6))
    axes, _ = np.linalg.qr(np.random.default_rng(turn).normal(size=(3, 3)))
    turned = windows.copy()
    turned[..., :3] = windows[..., :3] @ axes
    np.testing.assert_allclose(force_energy(turned), force_energy(windows), atol=1e-9)


def test_force_classes_tells_directions_and_strengths() -> None:
    windows, labels = windows_of(0)
    groups = figures.duplicates(windows)
    told = figures.cross_validated(windows, labels, ForceClasses, range(1), groups)
    assert figures.score(told, labels, groups).balanced.value > 0.9


def test_force_classes_learns_nothing_from_labels_drawn_by_lot() -> None:
    """The guard against a leak: with labels that mean nothing it must be no better than chance."""
    windows, labels = windows_of(1, count=15)
    drawn = np.random.default_rng(3).permutation(labels)
    groups = figures.duplicates(windows)
    told = figures.cross_validated(windows, drawn, ForceClasses, range(1), groups)
    assert figures.score(told, drawn, groups).accuracy.value < 0.45


def test_two_classes_and_one_of_a_single_case_are_told_too() -> None:
    windows, labels = windows_of(2)
    two = np.isin(labels, ("normal", "obstruction"))
    classifier = ForceClasses().fit(windows[two], labels[two])
    assert (classifier.predict(windows[two]) == labels[two]).all()
    rare = labels.copy()
    rare[0] = "lost"
    groups = figures.duplicates(windows)
    told = figures.cross_validated(windows, rare, figures.METHODS["majority"], range(2), groups)
    assert figures.score(told, rare, groups).accuracy.value < 0.5


def test_windows_that_repeat_stay_in_one_fold() -> None:
    """A set merged from two others holds some windows twice; apart, one would give the other away.

    Labels are drawn by lot, so only a twin in the training part can tell them.
    """
    rng = np.random.default_rng(0)
    windows = rng.normal(0, 50, (30, SAMPLES, 6)).round()
    labels = rng.choice(["a", "b", "c"], 30)
    windows, labels = np.concatenate([windows] * 2), np.concatenate([labels] * 2)
    groups = figures.duplicates(windows)
    for seed in range(5):
        for train, test in figures.folds(labels, groups, seed):
            assert not set(groups[train]) & set(groups[test])
    forest = figures.METHODS["random forest on raw readings"]
    kept = figures.cross_validated(windows, labels, forest, range(1), groups)
    apart = figures.cross_validated(windows, labels, forest, range(1), np.arange(len(labels)))
    assert (kept == labels).mean() < 0.6 < (apart == labels).mean()


def test_a_judge_frozen_on_one_set_isnt_changed_by_the_other() -> None:
    """What it says of one window mustn't hang on the others that are judged with it."""
    train, (windows, labels) = windows_of(4), windows_of(5, scale=1.5)
    whole = transfer(train, (windows, labels), ("left", "right"))
    assert whole is not None
    assert whole.balanced.value > 0.9
    assert whole.auroc.value > 0.97
    weaker = np.where((labels == "left")[:, None, None], windows / 10, windows)
    again = transfer(train, (weaker, labels), ("left", "right"))
    assert again is not None
    assert again.found == whole.found
    assert every_transfer({"a": train, "b": train}) == {}, "these sets name no collision"


def log_of(seed: int = 0, onsets_per_session: int = 12) -> tuple[np.ndarray, ...]:
    """Return a log of two sessions whose first channel rises for three rows before an event."""
    rng = np.random.default_rng(seed)
    rows = 1200
    t_s = np.arange(rows) * 1.0 + np.where(np.arange(rows) >= rows // 2, 500.0, 0.0)
    values = rng.normal(0, 0.1, (rows, 3))
    stop = np.zeros(rows, dtype=bool)
    for half in (0, rows // 2):
        for row in half + 30 + 45 * np.arange(onsets_per_session):
            row = int(row + rng.integers(0, 10))
            values[row - 3 : row, 0] += 2.0
            stop[row : row + 3] = True
            values[row : row + 3] = 50.0
    return t_s, values, np.arange(rows) // 25 * 1.0, stop


def test_what_is_looked_at_ends_before_the_event_and_holds_none() -> None:
    t_s, values, cycle, stop = log_of()
    moments = stops.moments_of(t_s, values, cycle, {"stop": stop})
    assert moments.features.max() < 10, "a row of an event was looked at"
    changed = values.copy()
    changed[stop] = -7.0
    again = stops.moments_of(t_s, changed, cycle, {"stop": stop})
    np.testing.assert_array_equal(moments.features, again.features)


def test_rows_with_an_empty_cell_are_left_out_not_filled() -> None:
    t_s, values, cycle, stop = log_of()
    whole = stops.moments_of(t_s, values, cycle, {"stop": stop})
    values[20, 1] = np.nan
    holed = stops.moments_of(t_s, values, cycle, {"stop": stop})
    assert np.isfinite(holed.features).all()
    # Six moments would have looked at it, and three had it ahead of them.
    assert len(holed.features) == len(whole.features) - stops.HISTORY - int(stops.HORIZON_S)


def test_a_session_begins_after_a_pause_or_where_the_counter_goes_back() -> None:
    t_s = np.array([0.0, 1, 2, 40, 41, 42, 43])
    cycle = np.array([1.0, 1, 2, 2, 3, 1, 2])
    assert stops.sessions_of(t_s, cycle).tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.slow
def test_events_with_forerunners_are_foreseen_and_others_arent() -> None:
    t_s, values, cycle, stop = log_of()
    moments = stops.moments_of(t_s, values, cycle, {"stop": stop})
    assert len(np.unique(moments.session)) == 2
    found = stops.foreseen(moments, "stop", moments.features)
    assert found.auroc.value > 0.9
    assert found.balanced.value > 0.85
    assert found.events == 24
    assert found.events_found > 0.8
    assert len(found.sessions) == 2
    noise = np.random.default_rng(1).normal(size=(len(moments.clock_s), 3))
    blind = stops.foreseen(moments, "stop", noise)
    assert blind.auroc.interval[0] < 0.6


def test_what_only_tells_the_time_is_no_better_than_chance_at_equal_times() -> None:
    """Protective stops of a real log came at a cycle's fourth second: a clock foresaw them well."""
    rng = np.random.default_rng(0)
    second = rng.integers(0, 20, 2000)
    positive = rng.random(2000) < np.where(second == 4, 0.5, 0.005)
    clock = -np.abs(second - 4.0)
    assert figures.auroc(clock, positive) > 0.8
    assert figures.matched_auroc(clock, positive, second) == pytest.approx(0.5)
    assert figures.matched_auroc(clock + positive, positive, second) == pytest.approx(1.0)


def write_set(path: Path, seed: int, scale: float = 1.0) -> None:
    windows, labels = windows_of(seed, count=8, scale=scale)
    labels[labels == "left"] = "collision"
    text = []
    for window, label in zip(windows, labels, strict=True):
        rows = "\n".join("\t" + "\t".join(f"{v:.0f}" for v in row) for row in window)
        text.append(f"{label}\n{rows}\n\n")
    path.write_text("".join(text), encoding="ascii")


def test_the_bench_scores_every_set_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("lp1", 6), ("lp3", 7)):
        write_set(tmp_path / f"{name}.data", seed)
    windows, labels = labelled_windows(tmp_path / "lp1.data")
    assert windows.shape == (32, 15, 6)
    assert labels.shape == (32,)
    out = tmp_path / "out"
    command = ["attribution", "--real", f"--data={tmp_path}", "--n=1", "--json"]
    assert bench([*command, f"--output_dir={out}"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["sets"]) == {"lp1", "lp3"}
    assert "LP2" in result["sets"]["lp3"]["note"]
    assert result["foreseen"] is None
    for found in result["sets"].values():
        methods = found["methods"]
        assert methods[figures.OURS]["accuracy"]["value"] > methods["majority"]["accuracy"]["value"]
    assert set(result["transfer"]) == {"lp1 → lp3", "lp3 → lp1"}


def test_the_bench_says_what_it_looks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["attribution", "--real", f"--output_dir={tmp_path / 'out'}"]
    assert bench([*command, f"--data={tmp_path}"]) == 2
    assert "lp*.data" in capsys.readouterr().err
    assert bench(command) == 2
    assert "--data" in capsys.readouterr().err
