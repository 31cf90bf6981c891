"""Simulated outcomes beside the station's: no worth of the simulation costs the error rate."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate_simulated import SIMULATIONS, MadeUpSimulation, made_up_control
from benchmarks.gate_tests import gate as comparisons
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder
from gaploop.core.suite import Rules, Suite, SuiteTask
from gaploop.finetune.gate.evidence import difference_interval, log_evidence
from gaploop.finetune.gate.folder import AttemptResult, Contest, GateFolder, attempts
from gaploop.finetune.gate.judge import HARDWARE
from gaploop.finetune.gate.outcomes import OTHERS, gate_scenes, simulated_pairs
from gaploop.scripts.cli import main

STEPS = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-2, 2)), min_size=1, max_size=60
)
SUITE = Suite("s", (SuiteTask("t", min_pass_rate=0.0),))


@given(STEPS, st.floats(-0.2, 0.2))
def test_without_simulation_it_is_the_same_test_bit_for_bit(
    steps: list[tuple[float, float]], null: float
) -> None:
    x = np.array(steps)[:, :1]
    plain = log_evidence(x, null, null + 0.1, 0.4)
    assert (log_evidence(x, null, null + 0.1, 0.4, control=np.zeros_like(x)) == plain).all()


@given(STEPS)
def test_a_control_counts_from_its_own_round_on_only(steps: list[tuple[float, float]]) -> None:
    """What is bet on a round may hang on nothing that the round or a later one brings."""
    x, control = np.array(steps)[:, :1], np.array(steps)[:, 1:]
    part = len(x) // 2 + 1
    whole = log_evidence(x, 0.0, 0.1, 0.4, control=control)
    assert np.isfinite(whole).all()
    assert log_evidence(x[:part], 0.0, 0.1, 0.4, control=control[:part]) == pytest.approx(
        whole[:part]
    )


@pytest.mark.parametrize("simulation", SIMULATIONS.values(), ids=SIMULATIONS)
def test_equal_policies_are_promoted_no_more_often_whatever_simulation_says(
    simulation: MadeUpSimulation,
) -> None:
    """At most 5 % of evidence ever crosses, over 300 looks. 3 sigma of 600."""
    rng, rates = np.random.default_rng(0), np.full((600, 2), 0.7)
    success = rng.random((600, 300, 2)) < rates[:, None]
    control = made_up_control(rng, success, rates, simulation)[..., None]
    x = success[..., 1:].astype(float) - success[..., :1]
    crossed = log_evidence(x, 0.0, 0.1, 0.42, control=control).max(-1) >= math.log(20)
    assert crossed.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


@pytest.mark.parametrize(
    ("simulation", "least", "most"),
    [(MadeUpSimulation(0.7), 0.25, 0.5), (MadeUpSimulation(0.0, 0.2), -0.03, 0.03)],
)
def test_a_simulation_that_tells_saves_pairs_and_one_that_does_not_costs_none(
    simulation: MadeUpSimulation, least: float, most: float
) -> None:
    rng, rates, rules = np.random.default_rng(1), np.full((300, 2), [0.7, 0.8]), Rules()
    success = rng.random((300, 900, 2)) < rates[:, None]
    control = made_up_control(rng, success, rates, simulation)
    old, new = success[..., 0], success[..., 1]
    plain = comparisons(old, new, rules, 0.02, 900)
    helped = comparisons(old, new, rules, 0.02, 900, control)
    assert least < 1 - helped.pairs.mean() / plain.pairs.mean() < most
    assert abs(helped.promoted.mean() - plain.promoted.mean()) < 0.05


def test_the_interval_gets_narrower_and_still_holds() -> None:
    rng, rates = np.random.default_rng(2), np.full((40, 2), [0.5, 0.7])
    success = rng.random((40, 150, 2)) < rates[:, None]
    control = made_up_control(rng, success, rates, MadeUpSimulation(0.8))[..., None]
    x = success[..., 1:].astype(float) - success[..., :1]
    plain = np.array([difference_interval(one, 0.05, 0.5) for one in x])
    spans = [difference_interval(one, 0.05, 0.5, c) for one, c in zip(x, control, strict=True)]
    assert sum(not low <= 0.2 <= high for low, high in spans) <= 5
    assert np.diff(spans).mean() < 0.9 * np.diff(plain).mean()


def rows(first: int, count: int, seed: int, rates: tuple[float, float] = (0.5, 0.7)) -> list[str]:
    drawn = np.random.default_rng(seed).random((count, 2)) < rates
    return [
        f"{side},{int(won)},{first + n}"
        for n, pair in enumerate(drawn)
        for side, won in zip(("baseline", "candidate"), pair, strict=True)
    ]


def csv(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["policy,success,pair", *lines, ""]))
    return path


def run(*arguments: str) -> int:
    return main(["gate", *arguments])


def test_recorded_pairs_are_judged_beside_what_was_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulation that says what the station says needs fewer pairs; the record names it."""
    station = csv(tmp_path / "o.csv", rows(0, 300, 0))
    simulated = csv(tmp_path / "s.csv", rows(0, 300, 0) + rows(300, 2400, 1))
    stages = []
    for n, more in enumerate(([], [f"--simulated={simulated}"])):
        out = tmp_path / f"gate_{n}"
        assert run(f"--outcomes={station}", f"--output_dir={out}", "--json", *more) == 0
        stages.append(json.loads(capsys.readouterr().out)["stages"][0])
    assert stages[1]["pairs"] < 0.7 * stages[0]["pairs"]
    assert stages[0]["simulated"] is None
    assert stages[1]["simulated"] > 0.9
    assert run(f"--verify={out / 'promotion.json'}") == 0
    with (out / "simulated.csv").open("a") as file:
        file.write("baseline,1,9999\n")
    assert run(f"--verify={out / 'promotion.json'}") == 1
    assert "simulated.csv" in capsys.readouterr().out


STATION = [[str(n) for n in range(100)]]
CONTEST = Contest("a", "b", "c")


def test_what_was_simulated_is_settled_before_the_first_attempt(tmp_path: Path) -> None:
    """Adding, changing or leaving it out once the outcomes are known would be another try."""
    one, other = (csv(tmp_path / f"{n}.csv", rows(0, 1000, n)) for n in (1, 2))
    folder = GateFolder(writable_folder(tmp_path / "g"), CONTEST)
    assert simulated_pairs(None, folder, SUITE, STATION) is None
    found = simulated_pairs(one, folder, SUITE, STATION)
    assert found is not None
    folder.add(AttemptResult(HARDWARE, 0, True))
    for again in (one, None):
        kept = simulated_pairs(again, folder, SUITE, STATION)
        assert kept is not None
        assert (kept.control == found.control).all()
    with pytest.raises(UnusableInputError, match="isn't what this gate began with"):
        simulated_pairs(other, folder, SUITE, STATION)
    begun = GateFolder(writable_folder(tmp_path / "begun"), CONTEST)
    begun.add(AttemptResult(HARDWARE, 0, True))
    replayed = GateFolder(writable_folder(tmp_path / "replayed"), CONTEST)
    (tmp_path / "replayed" / "gate.json").write_text("{}")
    for gate, recorded in ((begun, False), (replayed, True)):
        with pytest.raises(UnusableInputError, match="began without simulated outcomes"):
            simulated_pairs(one, gate, SUITE, STATION, recorded)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (rows(5000, 900, 1), "has 0 scenes of the station and 900 others"),
        (rows(0, 100, 1), "has 100 scenes of the station and 0 others"),
        (rows(0, 100, 1, (0.9, 0.1)) + rows(100, 900, 1, (0.1, 0.9)), "weren't drawn alike"),
        (["baseline,1,0"], "no pair of attempts"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_is_not_kept(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    source, folder = csv(tmp_path / "s.csv", lines), GateFolder(tmp_path, CONTEST)
    with pytest.raises(UnusableInputError, match=message) as error:
        simulated_pairs(source, folder, SUITE, STATION)
    assert str(source) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "simulated.csv").exists()


def test_evaluations_of_both_policies_go_with_the_scenes_to_come(tmp_path: Path) -> None:
    folder = GateFolder(tmp_path, CONTEST, seed=3)
    (names,) = scenes = gate_scenes(folder, 1, 20)
    turns = attempts(3, HARDWARE, 1)
    assert names == [str(next(turns).scene) for _ in range(40)][::2]
    first = int(names[0])
    for side, every in (("baseline", 3), ("candidate", 2)):
        (tmp_path / "sim" / side).mkdir(parents=True)
        lines = [f"nominal,{first + n},{n % every == 0},1.0,," for n in range(200)]
        head = "condition,seed,success,duration_s,reason,uid"
        text = "\n".join([head, *lines, ""])
        (tmp_path / "sim" / side / "rollouts.csv").write_text(text)
    found = simulated_pairs(tmp_path / "sim", folder, SUITE, scenes)
    assert found is not None
    assert found.control.shape == (20, 1)
    assert found.scenes == 20
    assert found.others == 180
    assert (tmp_path / "simulated.csv").exists()


def test_pairs_beyond_the_other_scenes_are_judged_by_the_station_alone(tmp_path: Path) -> None:
    """No other scene serves two pairs: they would vary together and count as more than they are."""
    folder = GateFolder(tmp_path, CONTEST, seed=3)
    source = csv(tmp_path / "s.csv", rows(0, 100 + 5 * OTHERS + 3, 4))
    found = simulated_pairs(source, folder, SUITE, STATION)
    assert found is not None
    assert found.scenes == 5
    assert found.others == 5 * OTHERS
    assert (found.control[5:] == 0).all()
