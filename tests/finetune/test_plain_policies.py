"""Policies of plain lerobot-train, without a sidecar: their rate, and every command with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
from tiny_policies import CAMERA, SIZE

from benchmarks.lerobot_made_up import OPTIONS
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Observation
from gaploop.failure_analysis.cameras.policy_cameras import FILE, CameraReference
from gaploop.finetune import lerobot_latency
from gaploop.finetune.evaluate import evaluate
from gaploop.finetune.lerobot_act import SIDECAR
from gaploop.finetune.lerobot_policy import (
    LerobotDriver,
    load_policy,
    policy_id,
    reads_instruction,
)
from gaploop.scripts._finetune import _with_policy_in
from gaploop.scripts.cli import main
from gaploop.sim.catalogue import INSTRUCTIONS, wording
from gaploop.sim.tracker import NAMES

NETWORK = {
    "type": "act", "push_to_hub": "false", "device": "cpu", "dim_model": 16, "n_heads": 2,
    "dim_feedforward": 32, "n_encoder_layers": 1, "n_vae_encoder_layers": 1, "latent_dim": 4,
    "chunk_size": 4, "n_action_steps": 4, "pretrained_backbone_weights": "null",
}  # fmt: skip
SMALL = (
    *(f"--policy.{name}={value}" for name, value in NETWORK.items()),
    "--batch_size=2", "--steps=1", "--num_workers=0", "--dataset.repo_id=x/y",
)  # fmt: skip


def test_a_trained_policy_has_its_datasets_rate_and_keeps_what_its_cameras_showed(
    write_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    """A policy without sidecar counted as one of 30 fps, whatever it had learned from."""
    root = write_dataset("seen", [{"pictures": True}] * 5, fps=25.0)
    out = tmp_path / "run"
    options = ["--cache.size=off", f"--output_dir={out}", "--", *SMALL, f"--dataset.root={root}"]
    assert main(["finetune", "--method=lerobot", *options]) == 0
    policy = out / "checkpoints" / "last" / "pretrained_model"
    for named in (out, policy, "me/policy"):  # a run to train further is named like a policy
        expected = named if named == "me/policy" else policy
        assert _with_policy_in(f"--policy.path={named}") == f"--policy.path={expected}"
    kept = CameraReference.load(policy / FILE)
    assert kept.name == "seen"
    assert list(kept.cameras) == ["overhead"]
    before = policy_id(policy)
    (policy / FILE).unlink()
    assert policy_id(policy) == before
    (policy / SIDECAR).unlink()
    signature = load_policy(policy).bundle.signature
    assert (signature.fps, signature.robot_type) == (25.0, "so101_sim")
    assert signature.action_names == ("pan.pos", "lift.pos", "gripper.pos")
    with pytest.raises(UnusableInputError, match="trained at 25"):
        load_policy(policy, fps=30.0)
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(UnusableInputError, match=r"--policy\.fps"):
        _ = load_policy(policy).fps
    assert load_policy(policy, fps=30.0).fps == 30.0
    with pytest.raises(UnusableInputError, match="above 0"):
        load_policy(policy, fps=-1.0)


def test_the_cell_runs_at_the_policys_rate(
    tiny_policy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """evaluate asked for --dataset.fps, which it hasn't, and the cell refused 30 fps."""
    policy = f"--policy.path={tiny_policy('act', joints=6)}"
    tried = ["evaluate", policy, "--n=1", "--max_s=0.2", "--workers=1"]
    assert main(tried) == 2
    assert "--policy.fps=30" in capsys.readouterr().err
    assert main([*tried, "--policy.fps=30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 1
    root = tmp_path / "runs"
    rolled = ["rollout", policy, "--policy.fps=30", "--take_over=never", f"--dataset.root={root}"]
    assert main([*rolled, "--dataset.num_episodes=1", "--dataset.episode_time_s=0.3"]) == 0
    assert json.loads((root / "meta" / "info.json").read_text())["fps"] == 30


def test_whether_a_type_reads_its_instruction_is_in_its_code(tmp_path: Path) -> None:
    """A list by hand took each type that it didn't name for one that reads words."""
    words = {"smolvla": True, "pi05": True, "xvla": True, "evo1": True, "elsewhere": True}
    words |= dict.fromkeys(("act", "diffusion", "tdmpc", "vqbet", "keypoint"), False)
    (tmp_path / "model.safetensors").touch()
    for kind, reads in words.items():
        (tmp_path / "config.json").write_text(json.dumps({"type": kind}))
        assert reads_instruction(tmp_path) is reads, kind


def test_a_policy_is_told_its_task_in_the_cell(
    tiny_policy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """evaluate gave policies that read an instruction an empty one."""
    told = list[str]()

    def plan(self: LerobotDriver, observation: Observation) -> np.ndarray:
        told.append(self.task)
        return np.repeat(observation.state[None], 4, axis=0)

    monkeypatch.setattr(LerobotDriver, "plan", plan)
    policy, wordings = tiny_policy("act", joints=6), [{}, {"instruction": "unseen"}]
    assert not reads_instruction(policy)
    evaluate(policy, 1, conditions=wordings, policy_fps=30.0, max_s=0.1, workers=1)
    assert set(told) == {INSTRUCTIONS["pick_place"], wording("pick_place", "unseen", 0)}
    with pytest.raises(UnusableInputError, match="paraphrased"):
        evaluate(policy, 1, conditions=[{"instruction": "rude"}], workers=1)


def test_a_policy_that_sees_is_tried_in_the_cell_through_lerobot(
    tiny_policy: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """--env.type=so101_cell was known to lerobot-eval only."""
    command = ["evaluate", f"--policy.path={tiny_policy('act', joints=6)}", "--env.type=so101_cell"]
    short = ["--n=1", "--workers=1", "--env.episode_length=3", "--json"]
    assert main([*command, *short, "--policy.format=int8"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 1
    assert main([*command, *short, "--policy.format=onnx"]) == 2  # not installed, or for arms only


def test_a_policy_on_pictures_and_the_tracked_scene_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """lerobot-train takes both from the cell's datasets; who timed it showed it the scene
    alone, and ended in a KeyError."""
    for name, value in {"BLOCKS": 2, "BLOCK": 2, "VIEWS": 2}.items():
        monkeypatch.setattr(lerobot_latency, name, value)
    policy = _with_scene(tmp_path / "policy")
    command = ["doctor", f"--policy.path={policy}", "--json"]
    command += ["--policy.format=int8"]
    assert main(command) == 0
    assert set(json.loads(capsys.readouterr().out)["timing"]["variants"]) >= {"fp32"}


def _with_scene(folder: Path) -> Path:
    """Write an untrained ACT on joints, the tracked scene and a camera."""
    state, scene = "observation.state", "observation.environment_state"
    config: Any = make_policy_config(
        "act",
        device="cpu",
        push_to_hub=False,
        input_features={
            state: PolicyFeature(FeatureType.STATE, (6,)),
            scene: PolicyFeature(FeatureType.ENV, (7,)),
            CAMERA: PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
        **OPTIONS["act"],
    )
    torch.manual_seed(0)
    stats = {
        name: {"mean": np.zeros(shape, np.float32), "std": np.ones(shape, np.float32)}
        for name, shape in ((state, 6), (scene, 7), ("action", 6), (CAMERA, (3, 1, 1)))
    }
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    for part in (get_policy_class("act")(config), before, after):
        part.save_pretrained(folder)
    (folder / SIDECAR).write_text(json.dumps({"fps": 50, "environment_names": NAMES}))
    return folder
