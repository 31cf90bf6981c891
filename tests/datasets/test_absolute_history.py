"""What changed from one dataset to the next: figures, and what episodes hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from made_arms import FPS, recording, report, write

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate
from gaploop.datasets.absolute.findings import Figure, trends
from gaploop.scripts.cli import main

DAYS = ("monday", "tuesday", "wednesday", "thursday")


def figure(value: float, half: float = 0.1) -> list[Figure]:
    return [Figure("offset", "elbow", "°", Estimate(value, value - half, value + half), 0.5)]


def test_a_step_is_told_with_both_days() -> None:
    values = (0.4, 0.45, 3.1, 3.05)
    (found,) = trends([(day, figure(v)) for day, v in zip(DAYS, values, strict=True)])
    assert found.line().startswith("offset of elbow: 0.425° [")
    assert " until tuesday, 3.08° [" in found.line()
    assert found.line().endswith(" from wednesday.")


def test_one_odd_day_is_three_stretches() -> None:
    values = (0.4, 3.1, 0.4, 0.45)
    (found,) = trends([(day, figure(v)) for day, v in zip(DAYS, values, strict=True)])
    assert [(a, b) for a, b, _ in found.stretches] == [
        ("monday", "monday"), ("tuesday", "tuesday"), ("wednesday", "thursday"),
    ]  # fmt: skip


@pytest.mark.parametrize("half", [0.1, 2.0])
def test_what_intervals_allow_is_no_change(half: float) -> None:
    step = 0.4 if half == 0.1 else 2.5
    assert not trends([("a", figure(0.0, half)), ("b", figure(step, half))])


def test_days_of_one_arm_are_alike() -> None:
    days = [(day, report(recording(seed, 6)).figures) for seed, day in enumerate(DAYS)]
    assert len(days[0][1]) > 15
    assert not trends(days)


def day(root: Path, seed: int, offset_deg: float = 0.0, start_deg: float = 0.0) -> Path:
    off = np.array([0, 0, offset_deg, 0, 0, 0])
    made = recording(seed, 6, sent=lambda u, _: u + off)
    move = start_deg * np.array([1.0, 0, 0, 0, 0, 0])

    def moved(x: FloatArray) -> FloatArray:
        return x + move * np.linspace(1, 0, len(x))[:, None]

    return write(root, [(moved(e.command), moved(e.reading)) for e in made.episodes])


def test_check_tells_which_day_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = [str(day(tmp_path / d, n, 3.0 * (n > 1))) for n, d in enumerate(DAYS)]
    assert main(["check", *roots, "--history"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("offset of elbow: ")
    assert "until tuesday" in said
    assert "from wednesday" in said
    assert main(["check", roots[0], "--history"]) == 2
    assert "two or more" in capsys.readouterr().err


def made(root: Path, seed: int, late_s: float = 0.0, noise_deg: float = 0.0) -> Path:
    rows, rng = round(late_s * FPS), np.random.default_rng(seed)
    arms = [
        (e.command, np.vstack([np.repeat(e.reading[:1], rows, 0), e.reading])[: len(e.reading)])
        for e in recording(seed, 6).episodes
    ]
    return write(root, [(u, y + rng.normal(0, 1, y.shape) * noise_deg) for u, y in arms])


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("option", "here", "there", "said"),
    [
        ("reference", (0.1, 0.0), (0.0, 0.0), {"delay"}),
        ("trained_on", (0.0, 0.0), (0.1, 0.0), {"delay"}),
        ("reference", (0.0, 0.2), (0.0, 0.0), {"noise at rest"}),
        ("reference", (0.1, 0.0), (0.1, 0.0), set[str]()),
    ],
)
def test_episodes_without_outcome_are_set_beside_those_that_are_usual(
    option: str, here: tuple[float, float], there: tuple[float, float], said: set[str],
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """150 ms beside 40 were "as slow arms do", and the reference wasn't looked at."""
    usual, root = made(tmp_path / "usual", 1, *there), made(tmp_path / "set", 2, *here)
    assert main(["diagnose", str(root), f"--{option}={usual}", "--json"]) == 0
    assert {d["what"] for d in json.loads(capsys.readouterr().out)["beside"]} == said
    assert main(["diagnose", str(root), f"--{option}={usual}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = lines[lines.index("Beside 6 episodes of usual:") + 1 :]
    assert all(any(f"  {what} of " in line for line in told) for what in said)
    assert ("No different" in told[0]) == (not said)


def test_a_fault_that_both_have_is_said_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, root = day(tmp_path / "usual", 1, 5.0), day(tmp_path / "set", 2, 5.0)
    assert main(["diagnose", str(root), f"--reference={usual}"]) == 0
    too = r"  offset of elbow [45]\.\d+ .*; usual has [45].*, too\."
    assert re.search(too, capsys.readouterr().out)
    (tmp_path / "one.json").write_text("{}")
    assert main(["diagnose", str(root), f"--reference={tmp_path / 'one.json'}"]) == 0
    assert "was not looked at" in capsys.readouterr().out


def test_two_checkpoints_differ_in_what_they_were_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their own config names their data, absolutely or from where the training was typed."""
    places = []
    for n, (name, start_deg) in enumerate((("old", 0.0), ("new", 120.0))):
        root = day(tmp_path / f"data_{name}", n, start_deg=start_deg)
        config = tmp_path / name / "pretrained_model/train_config.json"
        config.parent.mkdir(parents=True)
        where = str(root) if n else root.name
        given = {"dataset": {"repo_id": "me/it", "root": where}, "output_dir": name}
        config.write_text(json.dumps(given))
        places.append(str(config.parent.parent))
    assert main(["check", *places, "--history", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["contents"]
    assert (found["before"], found["after"], found["same"]) == ("old", "new", 0)
    moved = {d["about"]: d for d in found["differences"]}
    assert moved["base_pan at the start"]["low"] > 0.2


def test_episodes_that_both_hold_are_counted_and_only_the_others_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recording(0, episodes=12)
    every = [(e.command, e.reading) for e in made.episodes]
    first = write(tmp_path / "first", every[:8], ["Stack the cups"] * 8)
    tasks = ["Stack the cups"] * 8 + ["Fold the towel"] * 4
    second = write(tmp_path / "second", every, tasks)
    assert main(["check", str(first), str(second), "--history"]) == 0
    said = capsys.readouterr().out
    assert "8 are the same, 0 are only in the first, 4 only in the second." in said
    assert 'task "Fold the towel" in 0% of episodes before, 100% now' in said
    assert main(["check", str(first), str(first), "--history"]) == 0
    assert "They hold the same episodes." in capsys.readouterr().out
