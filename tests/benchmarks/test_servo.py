"""The servo bench on logs that its own model made: what went in must come out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import servo
from gaploop.core.errors import UnusableInputError

TRUTH = {name: spec[1] for name, spec in servo.PARAMETERS.items()} | {"gain": 0.31, "delay": 0.022}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> servo.Logs:
    """Two seconds of a sine and of a step, at two gains."""
    t_s = np.arange(0, 2.0, servo.SAMPLE_S)
    goals = {"sine": 0.8 * np.sin(3 * t_s), "step": 1.2 * (t_s > 0.5)}
    rows, number = [], 0
    for kp in (8, 16):
        for trajectory, goal_rad in goals.items():
            rows.append(
                pd.DataFrame(
                    {"log": number, "t": t_s, "goal_rad": goal_rad, "position_rad": 0.0, "kp": kp}
                ).assign(
                    mass_kg=0.7, length_m=0.12, trajectory=trajectory, repeat=0, input_volts=12.0
                )
            )
            number += 1
    path = tmp_path_factory.mktemp("servo") / "logs.parquet"
    pd.concat(rows).to_parquet(path)
    read = servo.read_logs(path)
    made = servo.simulate(TRUTH, read)
    return servo.Logs(read.goal_rad, made, *(getattr(read, name) for name in servo._FLAT))


def test_a_fit_finds_what_made_the_logs(logs: servo.Logs) -> None:
    start = {name: spec[1] for name, spec in servo.PARAMETERS.items()}
    found = servo.fit(logs, start, ("gain", "delay"))
    assert found["gain"] == pytest.approx(TRUTH["gain"], rel=0.02)
    assert found["delay"] == pytest.approx(TRUTH["delay"], abs=0.001)
    assert servo.error_rad(found, logs) < 0.2 * servo.error_rad(start, logs)


def test_one_log_tells_what_was_said_wrongly_of_it(logs: servo.Logs) -> None:
    told, where, what = servo.faulty(logs, seed=0)
    own, misfit = servo.own_estimates(TRUTH, told)
    low = what == "gain"
    assert set(logs.kp[where[low]]) == {8.0}
    assert np.allclose(own[low, 0], np.log(0.5), atol=0.1)
    assert np.abs(own[what == "nominal"]).max() < 0.02
    assert (own[what == "delay", 2] > 0.02).all()
    late = servo.own_estimates(TRUTH, told, (2, 3))[1]  # a delay alone explains a delay
    assert np.allclose(late[what == "delay"], misfit[what == "delay"], atol=1.0)
    assert (late[low] > misfit[low] + 1.0).all()


def test_an_interval_is_as_wide_as_other_gains_are_wrong(logs: servo.Logs) -> None:
    holds, ratios = servo.gain_intervals(np.array([0.3, 0.3, 0.0, 0.0]), logs)
    assert holds == [False, True]  # each by what the other one shows
    assert ratios[0] < ratios[1]


def test_a_file_without_a_column_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "logs.parquet"
    pd.DataFrame({"log": [0], "t": [0.0]}).to_parquet(path)
    with pytest.raises(UnusableInputError, match="lacks the columns position_rad"):
        servo.read_logs(path)
