"""A pushed adapter drives in plain LeRobot, from any folder, as it drives here: to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quick_imports
import torch
from loopback_hub import LoopbackHub
from peft import PeftModel

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.datasets.hub.dataset import PushOptions
from gaploop.datasets.hub.target import HubTarget
from gaploop.datasets.hub.upload import Patience
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune import lerobot_policy
from gaploop.finetune.hub_policy import pack_policy, push_policy
from gaploop.finetune.tuning.presets import ACT_TARGETS
from gaploop.sim.catalogue import to_degrees
from gaploop.sim.cell import SimCell

ADAPTER, MERGED, STEPS = "me/adapter", "me/merged", 12
PLAIN = """
import json, sys
import numpy as np, torch
from lerobot import policies
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies import make_pre_post_processors
from lerobot.rollout.context import _load_pretrained_policy

out, *names = sys.argv[1:]
seen = np.load(out + "/seen.npz")
for name in names:
    config = PreTrainedConfig.from_pretrained(name)
    config.pretrained_path = name  # as lerobot-rollout sets it
    policy = _load_pretrained_policy(config)
    policy.eval()
    before, after = make_pre_post_processors(config, pretrained_path=name)
    actions = []
    for picture, state in zip(seen["pictures"], seen["states"]):
        image = torch.from_numpy(picture).permute(2, 0, 1).float() / 255
        batch = before({"observation.images.overhead": image,
                        "observation.state": torch.from_numpy(state)})
        with torch.inference_mode():
            actions.append(after(policy.select_action(batch)).numpy())
    np.save(out + "/" + name.replace("/", "_"), np.concatenate(actions))
ours = ("gaploop.finetune.", "gaploop.scripts")
print(json.dumps([m for m in sys.modules if m.startswith(ours)]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder with an adapter that changes the base, and its merged twin."""
    run = tmp_path_factory.mktemp("training") / "run"
    base = lerobot_policy.PACKAGED_BASE
    bundle = act.load(base)
    model = adapter.wrap(bundle.policy, base, adapter.LoraOptions(2, ACT_TARGETS))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                weights.normal_(0.0, 0.02)
    adapter.save(model, bundle, base, run / "adapter")
    act.save(lerobot_policy.load_policy(run / "adapter").bundle, run / "merged")
    write_json(run / "run.json", {
        "id": "r1", "command": "finetune", "seed": 0, "at": "2026", "versions": {},
        "inputs": [{"root": "takes", "sha256": "0" * 64, "domain": "sim_target", "share": 0.5,
                    "takes": 9, "frames": 7, "uids": [], "plans": []}],
        "config": {"lora": {"r": 2}}, "lineage": {"base": lerobot_policy.policy_id("base")},
        "result": {"policy": lerobot_policy.policy_id(run / "adapter"), "steps": 4, "loss": 0.5,
                   "merged": lerobot_policy.policy_id(run / "merged")},
    })  # fmt: skip
    return run


@pytest.fixture
def push(hub: LoopbackHub) -> Callable[[Path, str], None]:
    def push(folder: Path, name: str) -> None:
        patience = Patience(2, wait_s=0.01, timeout_s=60)
        push_policy(folder, HubTarget(name, "model", hub.url), PushOptions(patience=patience))

    return push


def observed() -> tuple[np.ndarray, np.ndarray]:
    """Return pictures and joint states [°] of an arm that moves, one row each a step."""
    pictures, states = [], []
    with SimCell() as cell:
        cell.reset(5)
        for step in range(STEPS):
            pictures.append(cell.frame().image.copy())
            states.append(to_degrees(cell.read().position_rad).astype(np.float32))
            cell.command(cell.read().position_rad + 0.02 * np.sin(step))
            cell.advance(0.2)
    return np.array(pictures), np.array(states)


def driven(bundle: act.ActBundle, policy: Any, seen: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    bundle.preprocessor.reset()
    actions = []
    for picture, state in zip(*seen, strict=True):
        image = torch.from_numpy(picture).permute(2, 0, 1).float() / 255
        batch = bundle.preprocessor({"observation.images.overhead": image,
                                     "observation.state": torch.from_numpy(state)})  # fmt: skip
        with torch.inference_mode():
            actions.append(bundle.postprocessor(policy.select_action(batch)).numpy())
    return np.concatenate(actions)


def test_plain_lerobot_drives_a_pulled_adapter_as_it_drives_here(
    hub: LoopbackHub, push: Callable[[Path, str], None], run: Path, tmp_path: Path
) -> None:
    """LeRobot's own adapter folders name their base by a path of the computer that trained them."""
    push(run, ADAPTER)
    push(run / "merged", MERGED)
    seen, elsewhere = observed(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    np.savez(elsewhere / "seen.npz", pictures=seen[0], states=seen[1])
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "theirs"),
                   "OMP_NUM_THREADS": str(torch.get_num_threads())}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", quick_imports.FIRST + PLAIN, str(elsewhere), ADAPTER, MERGED],
        capture_output=True, text=True, cwd=elsewhere, env=environment, timeout=1000,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []  # of gaploop only the processor step
    theirs, theirs_merged = (
        np.load(elsewhere / f"{name.replace('/', '_')}.npy") for name in (ADAPTER, MERGED)
    )
    bundle = act.load(run / "adapter" / "base", processors=run / "adapter")
    mine = driven(bundle, PeftModel.from_pretrained(bundle.policy, str(run / "adapter")), seen)
    assert np.array_equal(theirs, mine)
    merged = lerobot_policy.load_policy(run / "merged").bundle
    assert np.array_equal(theirs_merged, driven(merged, merged.policy, seen))
    assert np.allclose(theirs, theirs_merged, atol=1e-3)
    base = act.load(lerobot_policy.PACKAGED_BASE)
    assert np.abs(theirs - driven(base, base.policy, seen)).max() > 0.1  # it isn't the base


def test_an_adapter_has_one_id_here_and_on_the_hub(
    hub: LoopbackHub, push: Callable[[Path, str], None], run: Path
) -> None:
    push(run, ADAPTER)
    assert lerobot_policy.policy_id(ADAPTER) == lerobot_policy.policy_id(run)
    files = hub.files(ADAPTER, "model")
    assert files["model.safetensors"] == files["base/model.safetensors"]
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == ADAPTER
    assert read_json(run / "adapter" / "adapter_config.json")["base_model_name_or_path"] == "base"


@pytest.fixture
def alone(run: Path, tmp_path: Path) -> Path:
    """Return an adapter folder whose base isn't in it, as for bases that are too large to copy."""
    import shutil

    shutil.copytree(run / "adapter", tmp_path / "alone")
    shutil.rmtree(tmp_path / "alone" / "base")
    return tmp_path / "alone"


@pytest.mark.parametrize(("base", "is_named"), [("lerobot/some_base", True), ("/home/a/b", False)])
def test_a_base_that_isnt_copied_has_a_name_on_the_hub(
    alone: Path, base: str, is_named: bool
) -> None:
    from gaploop.finetune.hub_policy import portable

    config = alone / "adapter_config.json"
    write_json(config, {**read_json(config), "base_model_name_or_path": base})
    if is_named:
        found = {file.name: file.source for file in portable(alone, ADAPTER)}
        assert found["adapter_config.json"] == config
        assert "model.safetensors" not in found
    else:
        with pytest.raises(UnusableInputError, match="/home/a/b as its base, which nobody else"):
            portable(alone, ADAPTER)


def test_the_card_shows_what_was_measured_and_nothing_else(run: Path, tmp_path: Path) -> None:
    import shutil

    from gaploop.core.vocabulary import Domain
    from gaploop.finetune.evaluation import Rollout, summarise

    target, options = HubTarget(ADAPTER, "model", "http://hub"), PushOptions()
    card = pack_policy(run / "adapter", target, options).card
    assert "How well it drives isn't measured by training" in card
    assert "gaploop.sim.lerobot_tracker_step.TrackerStep" in card
    shutil.copytree(run, tmp_path / "run")
    result = read_json(run / "run.json")["result"]
    base = lerobot_policy.policy_id("base")
    for name, policy, wins in (("before", base, 3), ("after", result["policy"], 9),
                               ("another", "sha256:another", 1)):  # fmt: skip
        rollouts = [Rollout(seed, "nominal", seed < wins) for seed in range(10)]
        found = summarise(rollouts, domain=Domain.SIM_TARGET, policy=policy,
                          gaps={"object_property.size": 0.6}, gap_seed=4)  # fmt: skip
        (tmp_path / "run" / name).mkdir()
        write_json(tmp_path / "run" / name / "evaluation.json", found.to_json())
    (tmp_path / "run" / "another" / "gate.json").write_text("{")
    rate = {"successes": 4, "trials": 5, "rate": 0.8, "interval": [0.38, 0.96]}
    stage = {"stage": "hardware", "rates": {"baseline": rate, "candidate": rate,
                                            "dim: candidate": rate}}  # fmt: skip
    gate = {"says": "it is better", "evidence": "sim-to-sim", "stages": [stage]}
    for name, candidate in (("before", "sha256:another"), ("after", result["merged"])):
        contest = {"baseline": base, "candidate": candidate}
        said = {**gate, "contest": contest, "verdict": "promote" if name == "after" else "reject"}
        write_json(tmp_path / "run" / name / "gate.json", said)
    card = pack_policy(tmp_path / "run" / "adapter", target, options).card
    row = next(line for line in card.splitlines() if line.startswith("| object_property |"))
    assert "object_property.size 0.6 (gap_seed 4)" in row
    assert "30% [11%, 60%] (3/10) | 90% [60%, 98%] (9/10)" in row
    assert "sim-to-sim" in row
    assert "1/10" not in card
    assert f"Gate: promote against `{base}`: it is better (evidence: sim-to-sim)" in card
    assert "reject" not in card
    decided = (
        "| – | gate, hardware, until it was decided: dim | not measured | 80% [38%, 96%] (4/5)"
    )
    assert decided in card
