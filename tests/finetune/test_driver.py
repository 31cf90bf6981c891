"""Policies that see pictures drive here as plain LeRobot drives them, adapters too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_policies
import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.utils import prepare_observation_for_inference
from peft import PeftModel

from gaploop.collect.policy_leader import RealTimePlanner
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Observation
from gaploop.datasets.absolute.checkpoint import read_checkpoint
from gaploop.datasets.hub.dataset import PushOptions
from gaploop.datasets.hub.target import HubTarget
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.batches import Signature
from gaploop.finetune.hub_policy import pack_policy
from gaploop.finetune.lerobot_act import ActBundle
from gaploop.finetune.lerobot_policy import load_policy

SIZE = 32


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny ACT that sees a camera, as lerobot-train leaves it."""
    folder = tmp_path_factory.mktemp("policy") / "act"
    torch.manual_seed(0)
    config = ACTConfig(
        chunk_size=6, n_action_steps=4, dim_model=16, n_heads=2, dim_feedforward=16,
        n_encoder_layers=1, n_decoder_layers=1, use_vae=False, pretrained_backbone_weights=None,
        device="cpu", push_to_hub=False,
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (6,)),
            "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
        normalization_mapping=dict.fromkeys(("STATE", "VISUAL", "ACTION"),
                                            NormalizationMode.MEAN_STD),
    )  # fmt: skip
    moments = {"mean": torch.arange(6.0), "std": torch.full((6,), 2.0)}
    picture = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    stats = {"observation.state": moments, "action": moments, "observation.images.top": picture}
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    for part in (ACTPolicy(config), before, after):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapted(saved: Path) -> Path:
    """Return an adapter on it."""
    policy = ACTPolicy.from_pretrained(saved)
    targets = ("linear1", "linear2", "action_head")
    model = adapter.wrap(policy, saved, adapter.LoraOptions(r=2, target_modules=targets))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                weights.normal_(0.0, 0.1)

    parts = make_pre_post_processors(policy.config, pretrained_path=str(saved))
    names = Signature(25.0, tuple("abcdef"), (), tuple("abcdef"), "deg", "so_follower")
    adapter.save(model, ActBundle(policy, *parts, names), saved, saved.parent / "adapter")
    return saved.parent / "adapter"


def seen(step: int) -> Observation:
    rng = np.random.default_rng(step)
    image = rng.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)
    return Observation(rng.normal(size=6), None, {"top": image, "side": image})


def by_lerobot(folder: Path, steps: int) -> np.ndarray:
    """Return what plain LeRobot answers, step by step, shape (steps, 6)."""
    is_adapter = adapter.is_adapter(folder)
    policy = ACTPolicy.from_pretrained(folder / "base" if is_adapter else folder)
    if is_adapter:
        policy = PeftModel.from_pretrained(policy, str(folder)).merge_and_unload()
    policy.eval()
    before, after = make_pre_post_processors(policy.config, pretrained_path=str(folder))
    actions = []
    for step in range(steps):
        now = seen(step)
        given = {"observation.state": now.state.astype(np.float32),
                 "observation.images.top": now.images["top"].copy()}  # fmt: skip
        batch = before(prepare_observation_for_inference(given, torch.device("cpu")))
        with torch.inference_mode():
            actions.append(after(policy.select_action(batch)).numpy()[0])
    return np.array(actions)


@pytest.mark.members(1)
@pytest.mark.parametrize("kind", ["saved", "adapted"])
def test_it_answers_what_plain_lerobot_answers(kind: str, saved: Path, adapted: Path) -> None:
    folder = saved if kind == "saved" else adapted
    policy = load_policy(folder)
    policy.reset()
    mine = np.array([policy.act(seen(step)) for step in range(9)])
    assert np.array_equal(mine.astype(np.float32), by_lerobot(folder, 9))
    assert policy.plan(seen(0)).shape == (6, 6)
    assert policy.execute == 4


def test_an_adapter_says_what_it_needs(adapted: Path, saved: Path) -> None:
    known = read_checkpoint(adapted)
    cameras = {"observation.images.top": (3, SIZE, SIZE)}
    assert (known.fps, known.units, known.cameras) == (25.0, "deg", cameras)
    assert known.names == ("a", "b", "c", "d", "e", "f")
    assert load_policy(saved, fps=30.0).fps == 30.0


def test_what_isnt_seen_is_named(saved: Path) -> None:
    blind = Observation(np.zeros(6), None, {"front": np.zeros((SIZE, SIZE, 3), dtype=np.uint8)})
    with pytest.raises(UnusableInputError, match=r"needs observation\.images\.top"):
        load_policy(saved).act(blind)


def test_a_damaged_one_is_refused_in_a_line(saved: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(saved, tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(UnusableInputError, match="is not a loadable policy"):
        load_policy(tmp_path / "cut")


def test_it_is_packed_for_a_hub(adapted: Path) -> None:
    parcel = pack_policy(adapted, HubTarget("me/x", "model", "http://hub"), PushOptions())
    names = {file.name for file in parcel.contents.files}
    assert {"model.safetensors", "adapter_model.safetensors", "base/config.json"} <= names
    assert "gaploop has to be installed" not in parcel.card


@pytest.mark.parametrize("kind", ["smolvla", "pi05"])
def test_a_flow_policy_goes_on_with_its_plan_by_lerobots_real_time_chunking(
    kind: str, tiny_policy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each plan begins from other noise; what is executed meanwhile stays as it was planned."""
    name = "num_steps" if kind == "smolvla" else "num_inference_steps"
    for option, value in ((name, 10), ("chunk_size", 12), ("n_action_steps", 6)):
        monkeypatch.setitem(tiny_policies.OPTIONS[kind], option, value)
    policy = load_policy(tiny_policy(kind))
    assert isinstance(policy, RealTimePlanner)
    image = np.full((tiny_policies.SIZE, tiny_policies.SIZE, 3), 90, np.uint8)
    observation = Observation(np.zeros(3), None, {"overhead": image})
    torch.manual_seed(1)
    first = policy.plan(observation)
    anew, passed, delay = policy.plan(observation), 3, 4
    policy.reset()
    torch.manual_seed(1)
    assert np.array_equal(policy.replan(observation, passed, delay), first), "nothing to go on with"
    on = policy.replan(observation, passed, delay)
    left = first[passed:]
    frozen = np.abs(on[:delay] - left[:delay]).max()
    assert frozen < 0.05 * np.abs(anew[:delay] - left[:delay]).max()
    assert np.abs(on[len(left) :]).min() > 0.0
    beyond = np.abs(on[delay : len(left)] - left[delay:]).max(axis=1)
    assert beyond[0] < beyond[-1], "the rest is gone over into gradually"
