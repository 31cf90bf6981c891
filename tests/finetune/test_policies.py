"""Adapters that travel, merged weights that agree, policies that plain LeRobot loads."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.heldout import action_error
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Observation
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.mixing.sources import load_mixture, open_mixture
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.adapt import adapt
from gaploop.finetune.batches import MixedBatches, sources_in_memory
from gaploop.finetune.config import FinetuneConfig, StartPolicy
from gaploop.finetune.lerobot_policy import load_policy, policy_id
from gaploop.finetune.pretrain import TrainedPolicy, pretrain
from gaploop.finetune.tuning.presets import LoraOptions

SPEC: Any = {"steps": 3, "batch_size": 4, "lr": 1e-2}
SEEN = Observation(np.array([0.3, -0.2, 1.0]), np.array([0.5, 1.0, 1.0]), {})
TINY = act.ActSize(chunk=4, execute=2, width=16, heads=2, feedforward=32)


@pytest.fixture
def adapted(base: Path, write_dataset: Callable[..., Path], tmp_path: Path) -> TrainedPolicy:
    real = write_dataset("real", [{"domain": Domain.SIM_TARGET, "plan": "pose-1"}] * 3)
    sim = write_dataset("sim", [{"domain": Domain.SIM}] * 2)
    return adapt(
        FinetuneConfig(
            StartPolicy(str(base)), real=(real,), sim=(sim,), lora=LoraOptions(4),
            output_dir=tmp_path / "out", **SPEC,
        )
    )  # fmt: skip


@pytest.mark.parametrize("last", ["checkpoints/last", "checkpoints/000020", "last", ""])
def test_what_plain_lerobot_train_wrote_is_found_in_its_run(
    last: str, base: Path, tmp_path: Path
) -> None:
    """`lerobot-train --output_dir=OUT` leaves OUT/checkpoints/last/pretrained_model."""
    shutil.copytree(base, tmp_path / "run" / last / "pretrained_model")
    assert policy_id(tmp_path / "run") == policy_id(base)


def test_merged_acts_like_the_adapter_and_neither_like_the_base(
    adapted: TrainedPolicy, base: Path
) -> None:
    actions = [load_policy(p).act(SEEN) for p in (adapted.folder, adapted.merged, base)]
    assert actions[0] == pytest.approx(actions[1], abs=1e-4)
    assert np.abs(actions[0] - actions[2]).max() > 1e-3


def test_an_adapter_loads_after_a_move_from_anywhere_without_its_base(
    adapted: TrainedPolicy, base: Path, tmp_path: Path
) -> None:
    """LeRobot 0.6.1 stores the base's literal path; a pushed adapter was then unusable."""
    expected = load_policy(adapted.folder).act(SEEN)
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(adapted.folder, moved)
    shutil.rmtree(base)
    shutil.rmtree(adapted.run)
    with contextlib.chdir(moved.parent):
        assert load_policy("renamed").act(SEEN) == pytest.approx(expected, abs=1e-6)


def test_an_adapter_says_its_rate_and_joints_itself(adapted: TrainedPolicy) -> None:
    """Only its base was asked, and what lerobot-train saved says neither."""
    (adapted.folder / adapter.BASE / act.SIDECAR).unlink()
    said, merged = (load_policy(p).bundle.signature for p in (adapted.folder, adapted.merged))
    assert said == merged
    assert said.fps > 0


def test_plain_lerobot_loads_the_merged_folder(adapted: TrainedPolicy) -> None:
    from lerobot.policies.act.modeling_act import ACTPolicy

    policy = ACTPolicy.from_pretrained(adapted.merged)
    assert not policy.config.use_peft
    assert policy.config.normalization_mapping["ENV"].value == "MEAN_STD"


def test_the_bases_normalisation_is_kept(adapted: TrainedPolicy, base: Path) -> None:
    def scale(folder: Path) -> np.ndarray:
        steps = load_policy(folder).bundle.preprocessor.steps
        return next(s.stats["action"]["std"] for s in steps if hasattr(s, "stats"))

    assert np.array_equal(scale(adapted.folder), scale(base))


def test_run_json_names_what_went_in(adapted: TrainedPolicy, base: Path) -> None:
    run = json.loads((adapted.run / "run.json").read_text())
    assert run["lineage"]["base"] == policy_id(base)
    assert run["lineage"]["plans"] == ["pose-1"]
    assert len(run["lineage"]["takes"]) == 5
    assert [i["share"] for i in run["inputs"]] == pytest.approx([0.5, 0.5])
    assert run["result"]["policy"] == policy_id(adapted.folder) == adapted.id
    assert run["versions"]["lerobot"].startswith("0.6")


def test_a_mixture_file_brings_stages_and_weights(
    base: Path, write_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    write_dataset("real", [{"conditions": {"quality": "good"}}, {"conditions": {"quality": "bad"}}])
    write_dataset("sim", [{"domain": Domain.SIM}] * 2)
    path = tmp_path / "mixture.yaml"
    path.write_text(
        "sources: {sim: sim, real: real}\n"
        "stages: [{steps: 1, shares: {sim: 1}}, {shares: {real: 1}}]\n"
        "weights: {quality: {good: 3, bad: 1}}\n"
    )
    wanted = FinetuneConfig(
        StartPolicy(str(base)), mixture=path, output_dir=tmp_path / "out", **SPEC
    )
    done = adapt(wanted)
    run = json.loads((done.run / "run.json").read_text())
    assert [i["domain"] for i in run["inputs"]] == ["sim", "real"]
    assert [i["share"] for i in run["inputs"]] == pytest.approx(
        [1 / SPEC["steps"], 1 - 1 / SPEC["steps"]]
    )
    sources, stages = sources_in_memory(open_mixture(load_mixture(path)))
    assert [e.weight for e in sources[1].episodes] == [3.0, 1.0]
    batches = MixedBatches(sources, stages, chunk=4, batch_size=8, seed=0)
    assert [set(batches.batch(k).source.tolist()) for k in range(3)] == [{0}, {1}, {1}]
    with pytest.raises(UnusableInputError, match="one place"):
        adapt(replace(wanted, real=(tmp_path / "real",), output_dir=tmp_path / "out2"))


def test_full_fine_tuning_writes_a_plain_policy(
    base: Path, write_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    real = write_dataset("real", [{}] * 2)
    start, out = StartPolicy(str(base)), tmp_path / "out"
    done = adapt(FinetuneConfig(start, "full", real=(real,), output_dir=out, **SPEC))
    assert not (tmp_path / "out" / "adapter").exists()
    assert np.isfinite(load_policy(done.run).act(SEEN)).all()


def test_a_base_saves_and_loads_as_it_was(
    make_bundle: Callable[..., act.ActBundle], tmp_path: Path
) -> None:
    from gaploop.finetune.lerobot_policy import ActPolicy

    bundle = make_bundle()
    act.save(bundle, tmp_path / "p")
    loaded = load_policy(tmp_path / "p")
    assert loaded.act(SEEN) == pytest.approx(ActPolicy(bundle).act(SEEN), abs=1e-6)
    assert loaded.bundle.signature == bundle.signature


def test_a_chunk_is_executed_before_the_next_is_predicted(base: Path) -> None:
    policy = load_policy(base)
    first = [policy.act(SEEN) for _ in range(2)]
    other = replace(SEEN, state=SEEN.state + 5)
    policy.reset()
    again = [policy.act(SEEN), policy.act(other)]
    assert np.array_equal(first, again)
    assert not np.array_equal(policy.act(other), first[0])


def test_pretraining_and_held_out_error_without_gaps_domain_or_six_joints(
    write_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    root = write_dataset("foreign", [{"outcome": Outcome.UNLABELLED}] * 5)
    done = pretrain(
        FinetuneConfig(
            sim=(root,), select="all", where="episode=0,1,2", output_dir=tmp_path / "out", **SPEC
        ),
        size=TINY,
    )
    error = action_error(done.run, root, [3, 4])
    assert error.interval[0] <= error.value <= error.interval[1]
    assert set(error.by_episode) == {3, 4}
    assert error.value == pytest.approx(np.mean(list(error.by_joint.values())))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"fps": 30.0}, "fps"),
        ({"takes": [{"domain": Domain.SIM}]}, "--sim"),
        ({"takes": [{"outcome": Outcome.FAILURE}]}, "leaves none"),
    ],
)
def test_data_that_does_not_fit_is_refused_before_anything_is_written(
    base: Path,
    write_dataset: Callable[..., Path],
    tmp_path: Path,
    change: dict[str, object],
    word: str,
) -> None:
    real = write_dataset("bad", **{"takes": [{}], **change})
    start, out = StartPolicy(str(base)), tmp_path / "out"
    with pytest.raises(UnusableInputError, match=word):
        adapt(FinetuneConfig(start, real=(real,), output_dir=out, **SPEC))
    assert not (tmp_path / "out").exists()


def test_what_is_not_a_policy_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="not found"):
        load_policy(tmp_path / "nowhere")
    with pytest.raises(UnusableInputError, match="No policy in"):
        load_policy(tmp_path)
    (tmp_path / "model.safetensors").write_text("?")
    with pytest.raises(UnusableInputError, match="not a loadable"):
        load_policy(tmp_path)


def test_the_tracker_is_saved_only_where_the_scene_is_the_trackers(
    make_bundle: Callable[..., act.ActBundle],
) -> None:
    """Seven copied joint angles once got the camera tracker's step: only the count was compared."""
    from gaploop.finetune.batches import FeatureMoments
    from gaploop.sim.tracker import NAMES

    small = make_bundle().signature
    unit = FeatureMoments(np.zeros(7, dtype=np.float32), np.ones(7, dtype=np.float32))
    three = FeatureMoments(np.zeros(3, dtype=np.float32), np.ones(3, dtype=np.float32))
    moments = {"state": three, "environment": unit, "action": three}
    for names, expected in ((NAMES, 1), (tuple(f"joint_{i}.pos" for i in range(7)), 0)):
        signature = replace(small, environment_names=names)
        steps = act.build(signature, moments, TINY, seed=0).preprocessor.steps
        assert sum(type(s).__name__ == "TrackerStep" for s in steps) == expected


@pytest.mark.parametrize("part", ["adapter_model.safetensors", "base/model.safetensors"])
def test_damaged_weights_are_refused_in_a_line(adapted: TrainedPolicy, part: str) -> None:
    """A copy that broke off ended in a traceback of the file format's own."""
    weights = adapted.folder / part
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UnusableInputError, match=r"loadable|can't be loaded|holds sha256"):
        load_policy(adapted.folder)
