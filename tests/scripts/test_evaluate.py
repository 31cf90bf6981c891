"""`gaploop evaluate` as its user meets it."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gaploop.finetune.evaluation import Evaluation
from gaploop.scripts.cli import main

SHORT = ["--policy.path=base", "--workers=1", "--max_s=0.2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy.path=missing"], "not found"),
        (["--n=0"], "at least 1"),
        (["--factors=lightning"], "Did you mean 'lighting'"),
        (["--factors=[all, colour]"], "One of: all, background"),
        (["--factors=[instruction]"], "read none"),
        (["--env.conditions={instruction: unseen}"], "read none"),
        (["--env.conditions={placement: outside}"], "One of: flank, inner, nominal"),
        (["--rollouts=missing"], "not found"),
        (["--rollouts=.", "--factors=all"], "leave --factors"),
        (["--env.type=atari"], "atari"),
        (["--dataset.root=kept"], "gaploop rollout records"),
        (["--env.type=pusht", "--dataset.failures=true"], "--env.gym or --env.scene"),
    ],
)
def test_unusable_input_is_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--policy.path=base", "--workers=1", *options]) == 2
    said_before = "The policy runs on"
    (error,) = (
        line for line in capsys.readouterr().err.splitlines() if not line.startswith(said_before)
    )
    assert said in error


def test_factors_are_told_written_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", *SHORT, "--factors=[distractors, grid_cell]", "--n=1"]
    command += [f"--output_dir={tmp_path}"]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"successes", "trials", "rate", "interval", "by_condition"} <= said.keys()
    assert said["trials"] == 13
    assert {d["condition"] for d in said["drops"]} == said["by_condition"].keys() - {"nominal"}
    written = Evaluation.from_json(json.loads((tmp_path / "evaluation.json").read_text()))
    assert written.trials == 13
    with (tmp_path / "rollouts.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 13
    assert all(row["failure_mode"] and row["reason"] for row in rows)
    for picture in ("evaluation.png", "positions.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "run.json").read_text())["command"] == "evaluate"
    assert main(command) == 0
    text = capsys.readouterr().out
    # Whose success it is stood nowhere, and an adapter's in a line called "base".
    assert re.match(r"base: nominal cell\n  as it is +", text)
    assert "4 distractors" in text
    assert "0 of 12 settings differ from the scene as it is beyond chance" in text
    assert main([*command, "--env.task=stack_cube"]) == 2
    assert "Name another --output_dir" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "stop", "code"), [(2, signal.SIGINT, 130), (1, signal.SIGTERM, 143)]
)
def test_a_stop_keeps_what_was_rolled_out(
    workers: int, stop: signal.Signals, code: int, tmp_path: Path
) -> None:
    """In one process the renderer was left to the interpreter's exit, and EGL's errors followed."""
    command = [sys.executable, "-m", "gaploop.scripts.cli", "evaluate", "--policy.path=base"]
    command += ["--n=400", f"--workers={workers}", f"--output_dir={tmp_path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        rollouts = tmp_path / "rollouts.csv"
        while process.poll() is None and not rollouts.exists():
            time.sleep(0.2)
        process.send_signal(stop)
        _, error = process.communicate(timeout=200)
    assert process.returncode == code
    assert "of 400 rollouts are in" in error
    assert "Traceback" not in error
    assert "EGL" not in error
    assert len(rollouts.read_text().splitlines()) > 1
