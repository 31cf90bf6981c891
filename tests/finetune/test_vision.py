"""The base that sees: what ships, and that plain LeRobot drives with it alike."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.lerobot_gym import evaluate_gym
from gaploop.finetune.lerobot_policy import PACKAGED, load_policy
from gaploop.sim.lerobot_env import CellEnvConfig

BASE = PACKAGED["base_vision"]


def test_what_ships_is_small_and_loads_by_plain_lerobots_functions() -> None:
    assert sum(p.stat().st_size for p in BASE.iterdir()) < 10_000_000
    config = PreTrainedConfig.from_pretrained(BASE)
    policy = get_policy_class(config.type).from_pretrained(str(BASE), config=config)
    before, after = make_pre_post_processors(config, pretrained_path=str(BASE))
    state, picture = torch.zeros(6), torch.full((3, 480, 640), 0.5)  # a camera of another size
    seen = {"observation.state": state, "observation.images.overhead": picture}
    action = after(policy.select_action(before(seen)))
    assert action.shape == (1, 6)
    assert torch.isfinite(action).all()


def test_the_first_picture_is_remembered_until_the_policy_is_reset() -> None:
    policy = load_policy(BASE).bundle.policy
    rng = torch.Generator().manual_seed(0)
    one, two = (
        {
            "observation.state": torch.zeros(1, 6),
            "observation.images.overhead": torch.rand(1, 3, 96, 96, generator=rng),
        }
        for _ in range(2)
    )
    alone = policy.predict_action_chunk(two)
    policy.reset()
    policy.predict_action_chunk(one)
    assert not torch.allclose(policy.predict_action_chunk(two), alone)
    policy.reset()
    assert torch.equal(policy.predict_action_chunk(two), alone)


def test_a_sample_of_plain_lerobot_is_planned_as_when_driving() -> None:
    """Training sees [first, now] stacked; driving sees them one after the other."""
    policy = load_policy(BASE).bundle.policy
    rng = torch.Generator().manual_seed(0)
    pictures = torch.rand(1, 2, 3, 96, 96, generator=rng)
    state = torch.zeros(1, 2, 6)
    for at in range(2):
        seen = {"observation.state": state[:, at], "observation.images.overhead": pictures[:, at]}
        chunk = policy.predict_action_chunk(seen)
    loss, _ = policy.forward(
        {
            "observation.state": state,
            "observation.images.overhead": pictures,
            "action": chunk,
            "action_is_pad": torch.zeros(chunk.shape[:2], dtype=torch.bool),
        }
    )
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-5)


def test_gaploop_and_plain_lerobot_count_the_same_scenes_as_solved() -> None:
    """An adapter of it solved a scene there that it failed here: commands went in steps there."""
    gaps = {"spatial_geometry.camera_pose": 0.6}
    here = evaluate(BASE, 2, gaps=gaps, gap_seed=4, workers=1)
    there = evaluate_gym(BASE, CellEnvConfig(gaps=gaps, gap_seed=4), 2)
    assert [r.success for r in here.outcomes] == [r.success for r in there.outcomes]
    assert here.successes == 1


def test_gaploop_train_knows_the_type_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/train/seeing.md had the command, which ended in: invalid choice: 'keypoint'."""
    given = ("--policy.type=keypoint", "--policy.push_to_hub=false", "--dataset.repo_id=x/y",
             "--policy.device=cpu", f"--output_dir={tmp_path / 'run'}")  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["lerobot-train", *given])
    # As in a program that has just begun: nobody has imported the module, which registers the type.
    monkeypatch.delattr("gaploop.finetune.lerobot_keypoint")
    monkeypatch.delitem(sys.modules, "gaploop.finetune.lerobot_keypoint")
    monkeypatch.delitem(PreTrainedConfig.get_known_choices(), "keypoint")
    monkeypatch.delitem(sys.modules, "gaploop.finetune.lerobot_train", raising=False)
    from gaploop.finetune.lerobot_train import read_options

    assert read_options().policy.type == "keypoint"
