"""Scores of predictions on the corpus: they count what they say, and know what belongs together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.corpus import figures, scores
from benchmarks.corpus.scores import Case, Prediction
from gaploop.core.errors import UnusableInputError
from gaploop.failure_analysis.attribution import CAUSES, NONE


def case(
    truth: set[str], top: str, *, sure: float = 0.9, says: set[str] | None = None, n: int = 0
) -> Case:
    p = np.full(10, (1.0 - sure) / 9)
    p[CAUSES.index(top)] = sure
    said = Prediction(p, frozenset(says if says is not None else {top} - {NONE}))
    return Case(f"{n}/0", str(n), frozenset(truth), said)


def test_scores_count_what_they_say() -> None:
    cases = [
        case({"visual_domain"}, "visual_domain", n=0),
        case({"visual_domain"}, "sensor_noise", n=1),
        case({"sensor_noise"}, NONE, n=2),
        case(set(), NONE, n=3),
        case(set(), "visual_domain", n=4),
        case({"visual_domain", "sensor_noise"}, "visual_domain", n=5),
        case({"visual_domain", "sensor_noise"}, "visual_domain", says=set(), n=6),
        case({"visual_domain", "sensor_noise"}, "visual_domain",
             says={"visual_domain", "sensor_noise"}, n=7),
    ]  # fmt: skip
    found = {name: figure.value for name, figure in scores.score(cases).items()}
    assert found["top1"] == pytest.approx(1 / 3)
    assert found["right_of_named"] == pytest.approx(1 / 2)
    assert found["false_cause"] == pytest.approx(1 / 2)
    assert found["mixed_safe"] == pytest.approx(2 / 3)
    assert found["mixed_both_named"] == pytest.approx(1 / 3)


def test_intervals_know_that_takes_of_a_station_belong_together() -> None:
    """Forty takes of two stations are two draws, not forty."""
    alone = [case({"visual_domain"}, "visual_domain" if n % 2 else NONE, n=n) for n in range(40)]
    together = [replace(c, station=str(n % 2)) for n, c in enumerate(alone)]
    wide, narrow = scores.score(together)["top1"], scores.score(alone)["top1"]
    assert wide.interval is not None
    assert narrow.interval is not None
    assert wide.interval[1] - wide.interval[0] > narrow.interval[1] - narrow.interval[0]


def test_calibration_error_is_zero_where_certainty_is_accuracy() -> None:
    sure = np.repeat([0.5, 1.0], 100)
    right = np.r_[np.tile([True, False], 50), np.ones(100, dtype=bool)]
    assert scores.expected_calibration_error(sure, right) < 0.02
    assert scores.expected_calibration_error(np.ones(100), np.zeros(100, dtype=bool)) == 1.0


def test_predictions_read_back_and_bad_ones_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    said = case({"visual_domain"}, "visual_domain").said
    path.write_text(figures.prediction_line("s/1", said) + "\n")
    again = scores.read_predictions(path)["s/1"]
    assert np.allclose(again.shares, said.shares)
    assert again.named == said.named
    for bad in (
        "no",
        '{"id": "s/1"}',
        '{"id": "s/1", "dimensions": {"contact": 1}, "none": 0, "named": []}',
        '{"id": "s/1", "dimensions": {"visual_domain": 0.4}, "none": 0.1, "named": []}',
    ):
        path.write_text(bad + "\n")
        with pytest.raises(UnusableInputError, match="line 1"):
            scores.read_predictions(path)
