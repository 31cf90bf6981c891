"""`gaploop doctor --policy.path`: every number format is timed or left out with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gaploop.finetune import lerobot_format_times
from gaploop.scripts.cli import main

BASE = "--policy.path=base"
FORMATS = "--formats=[int8]"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BLOCKS": 2, "PLANS": 2, "VIEWS": 2}.items():
        monkeypatch.setattr(lerobot_format_times, name, value)


def test_the_base_is_timed_and_tried_on_the_same_scenes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", BASE, "--n=1", "--json", FORMATS]) == 0
    said = json.loads(capsys.readouterr().out)["timing"]
    assert set(said["variants"]) == {"fp32", "int8", "lerobot"}
    assert said["variants"]["fp32"]["trials"] == said["variants"]["int8"]["trials"] == 1
    assert "trials" not in said["variants"]["lerobot"]
    assert said["plans"] == 4


def test_times_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", BASE, FORMATS]) == 0
    said = capsys.readouterr().out
    assert "fp32" in said
    assert "bf16" not in said
    assert "success" not in said


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_a_policy_that_sees_pictures_is_timed_and_not_tried(
    kind: str,
    tiny_policy: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ended in a KeyError: the benchmark that this was showed it the tracked scene alone."""
    command = ["doctor", f"--policy.path={tiny_policy(kind)}", "--n=2", "--json", FORMATS]
    assert main([*command, "--policy.fps=30"]) == 0
    said = json.loads(capsys.readouterr().out)["timing"]
    assert said["evidence"] == ""
    assert {"fp32", "lerobot"} <= set(said["variants"])
    assert all("trials" not in one for one in said["variants"].values())
    assert set(said["variants"]) | set(said["lacking"]) == {"fp32", "int8", "lerobot"}
