"""The script that takes every new checkpoint through the gate, with a gate that answers as told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "gate_each_checkpoint.sh"
GATE = """#!/bin/bash
echo "$*" >>asked
for word in "$@"; do case $word in --output_dir=*) folder=${word#*=} ;; esac; done
mkdir -p "$folder"
[ "$ANSWER" = canary ] && touch "$folder/assignment.json" && exit 3
exit "$ANSWER"
"""


def one_round(at: Path, answer: str | int) -> list[str]:
    """Run one round; return what the gate was asked in it."""
    (at / "asked").unlink(missing_ok=True)
    env = os.environ | {"PATH": f"{at}:{os.environ['PATH']}", "ANSWER": str(answer)}
    line = [str(SCRIPT), "base", "run", "suite.yaml", "0"]
    code = subprocess.run(line, cwd=at, env=env, check=False, timeout=60).returncode
    assert code == (130 if answer == 130 else 0)
    return (at / "asked").read_text().splitlines() if (at / "asked").exists() else []


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Two whole checkpoints, as LeRobot writes them, and one that is being written."""
    (tmp_path / "gaploop").write_text(GATE)
    (tmp_path / "gaploop").chmod(0o755)
    (tmp_path / "suite.yaml").write_text("canary: {}\n")
    for step in ("001000", "002000"):
        (tmp_path / "run" / "checkpoints" / step / "training_state").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "003000" / "pretrained_model").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last").symlink_to("002000")
    return tmp_path


def test_each_whole_checkpoint_is_asked_once(training: Path) -> None:
    asked = one_round(training, 1)
    assert [line.split()[2] for line in asked] == [
        f"--candidate=run/checkpoints/{step}/pretrained_model" for step in ("001000", "002000")
    ]
    assert "--reports=outputs/gate/run_001000/reports" in asked[0]
    (training / "run" / "checkpoints" / "003000" / "training_state").mkdir()
    assert [line.split("checkpoints/")[1][:6] for line in one_round(training, 0)] == ["003000"]
    said = {p.parent.name: p.read_text().strip() for p in training.glob("outputs/gate/*/answer")}
    assert said == {"run_001000": "reject", "run_002000": "reject", "run_003000": "promote"}


def test_what_has_no_answer_yet_is_asked_again(training: Path) -> None:
    for answer in ("canary", 2, "canary", 130):  # on its way; something is missing; Ctrl-C
        assert len(one_round(training, answer)) == (1 if answer == 130 else 2)
    assert len(one_round(training, 0)) == 2
    assert not one_round(training, 0)


def test_a_comparison_that_ended_without_an_answer_is_not_repeated(training: Path) -> None:
    assert len(one_round(training, 3)) == 2
    assert not one_round(training, 3)
