"""A LeRobot policy set against a dataset by command: check demonstrations, diagnose rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gaploop.core.files import write_json
from gaploop.core.vocabulary import Outcome
from gaploop.scripts.cli import main

TAKES: list[dict[str, Any]] = [{"pictures": True}] * 3


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    main([*map(str, arguments), "--json"])
    answer = json.loads(capsys.readouterr().out)
    found: dict[str, Any] = answer.get("absolute", answer)
    return found


@pytest.mark.members(1)
@pytest.mark.parametrize("kind", ["act", "diffusion", "smolvla"])
def test_a_policy_of_any_kind_is_asked(
    kind: str,
    tiny_policy: Callable[..., Path],
    write_dataset: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, policy = write_dataset("set", TAKES, fps=25.0), tiny_policy(kind)
    answer = said(capsys, "check", root, f"--policy.path={policy}")
    assert "what the policy commands here" not in answer["untested"]
    assert "the policy's rate" in answer["untested"]


def test_a_policy_without_its_statistics_or_of_other_cameras_is_told(
    tiny_policy: Callable[..., Path],
    write_dataset: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = write_dataset("set", TAKES, fps=25.0)
    policy = tiny_policy("act", stats=False)
    write_json(policy / "train_config.json", {"dataset": {"repo_id": "me/set", "root": str(root)}})
    answer = said(capsys, "check", root, f"--policy.path={policy}")
    assert "no_normaliser" in [s["kind"] for s in answer["sentences"]]
    assert "the policy's rate" not in answer["untested"]
    assert main(["check", str(root), f"--policy.path={policy}", "--fail_on=[no_normaliser]"]) == 1
    other = tiny_policy("act", camera="observation.images.wrist")
    answer = said(capsys, "check", root, f"--policy.path={other}")
    (found,) = [s for s in answer["sentences"] if s["kind"] == "wrong_features"]
    assert found["sentence"] == "The policy sees camera wrist; this dataset has overhead"
    assert answer["untested"]["what the policy commands here"] == "it doesn't fit this dataset"


def test_weights_for_more_observations_than_are_given_are_told(
    tiny_policy: Callable[..., Path],
    write_dataset: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, policy = write_dataset("set", TAKES, fps=25.0), tiny_policy("diffusion")
    config = json.loads((policy / "config.json").read_text())
    assert config["n_obs_steps"] == 2
    write_json(policy / "config.json", config | {"n_obs_steps": 1})
    answer = said(capsys, "check", root, f"--policy.path={policy}")
    (found,) = [s for s in answer["sentences"] if s["kind"] == "observation_steps"]
    assert "looks at 1 observations, its weights are made for 2" in found["sentence"]


def test_rollouts_are_set_beside_the_demonstrations_that_the_policy_names(
    tiny_policy: Callable[..., Path],
    write_dataset: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = write_dataset("demonstrations", [{"pictures": True}] * 8, fps=25.0)
    runs = write_dataset("runs", [{"pictures": True, "outcome": Outcome.UNLABELLED}] * 3, fps=25.0)
    policy = tiny_policy("act")
    dataset = {"repo_id": "me/demonstrations", "root": str(root)}
    write_json(policy / "train_config.json", {"dataset": dataset})
    answer = said(capsys, "diagnose", runs, f"--policy.path={policy}")
    assert answer["good"]["demonstrated"] == (
        "rollouts begin and stay where the 8 demonstrations went"
    )
