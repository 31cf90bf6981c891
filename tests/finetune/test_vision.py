"""The base that sees: how it is made, what ships, and that plain LeRobot drives with it alike."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from safetensors.torch import load_file

from gaploop.core.errors import UnusableInputError
from gaploop.finetune import picture_demonstrations
from gaploop.finetune.config import FinetuneConfig, StartPolicy
from gaploop.finetune.demonstrations import DemonstratedCell
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.lerobot_gym import evaluate_gym
from gaploop.finetune.lerobot_policy import PACKAGED, load_policy
from gaploop.finetune.lerobot_vision import pretrain_vision
from gaploop.finetune.picture_demonstrations import PictureTakes
from gaploop.sim.lerobot_env import CellEnvConfig

BASE = PACKAGED["base_vision"]


@pytest.fixture(autouse=True)
def _recorded_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more processes that import PyTorch take longer than the takes."""
    monkeypatch.setattr(
        picture_demonstrations, "record", partial(picture_demonstrations.record, workers=1)
    )


@pytest.fixture(scope="module")
def takes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scripted takes, the same for every test that trains."""
    folder = tmp_path_factory.mktemp("takes")
    picture_demonstrations.record(folder, DemonstratedCell(), 2, size_px=96, workers=1)
    return folder


def test_a_batch_is_a_function_of_its_step_and_shows_first_and_present_frames(takes: Path) -> None:
    drawn = PictureTakes([takes], chunk=5, batch_size=6, seed=0, each=3)
    one, again, other = (drawn.batch(step) for step in (7, 7, 8))
    assert np.array_equal(one.pictures, again.pictures)
    assert not np.array_equal(one.state, other.state)
    assert one.pictures.shape == (8, 96, 96, 3)
    assert one.first.tolist() == [0, 0, 0, 4, 4, 4]
    assert one.poses[0, 0].tolist() == one.poses[2, 0].tolist()
    assert one.action.shape == (6, 5, 6)


def test_what_is_recorded_is_not_recorded_again(takes: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in takes.iterdir()}
    picture_demonstrations.record(takes, DemonstratedCell(), 2, size_px=96, workers=1)
    assert {p: p.stat().st_mtime_ns for p in takes.iterdir()} == before


def test_a_pretraining_that_was_stopped_in_both_rounds_ends_like_one_that_was_not(
    takes: Path, tmp_path: Path
) -> None:
    spec: Any = {"steps": 6, "batch_size": 4}
    whole, stopped = (
        FinetuneConfig(sim_takes=2, output_dir=tmp_path / name, **spec)
        for name in ("whole", "stopped")
    )
    for options in (whole, stopped):
        options.folder.mkdir()
        (options.folder / "takes").symlink_to(takes)
    done = pretrain_vision(whole)
    for options in (stopped, replace(stopped, resume=True)):
        with pytest.raises(KeyboardInterrupt):
            pretrain_vision(options, _interrupt_at_step_2)
    resumed = pretrain_vision(replace(stopped, resume=True))
    one, other = (load_file(d.folder / "model.safetensors") for d in (done, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)


def _interrupt_at_step_2(step: int, _steps: int, _loss: float) -> None:
    if step == 2:
        raise KeyboardInterrupt


def test_a_base_of_another_task_is_begun_with_and_keeps_its_statistics(
    takes: Path, tmp_path: Path
) -> None:
    spec: Any = {"steps": 2, "batch_size": 4, "lr": 1e-9}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "takes").symlink_to(takes)
    start = StartPolicy("base_vision")
    options = FinetuneConfig(start, sim_takes=2, output_dir=tmp_path / "out", **spec)
    made, base = (load_policy(p).bundle for p in (pretrain_vision(options).folder, BASE))
    assert made.policy.head.weight.allclose(base.policy.head.weight, atol=1e-6)
    state = {"observation.state": torch.zeros(1, 6)}
    assert torch.equal(*(b.preprocessor(state)["observation.state"] for b in (made, base)))
    with pytest.raises(UnusableInputError, match="isn't a keypoint policy"):
        pretrain_vision(replace(options, policy=StartPolicy("base")))


def test_vision_records_its_own_takes(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="--sim_takes=600"):
        pretrain_vision(FinetuneConfig(sim=(tmp_path,), output_dir=tmp_path / "out"))


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
    here = evaluate(BASE, 4, gaps=gaps, gap_seed=5, workers=1)
    there = evaluate_gym(BASE, CellEnvConfig(gaps=gaps, gap_seed=5), 4)
    assert [r.success for r in here.outcomes] == [r.success for r in there.outcomes]
    assert 0 < here.successes < 4


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
    monkeypatch.delitem(sys.modules, "gaploop.finetune.lerobot_train")
    from gaploop.finetune.lerobot_train import read_options

    assert read_options().policy.type == "keypoint"
