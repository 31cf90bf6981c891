"""A mixture behind LeRobot's DataLoader, accelerate's ranks and LeRobot's own training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.sampler import compute_sampler_state
from torch.utils.data import BatchSampler, DataLoader

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.mixing.lerobot_mixture import (
    MixtureDataset,
    MixtureSampler,
    common_meta,
)
from gaploop.datasets.mixing.mixture import Mixture, MixtureStage, Pool
from gaploop.datasets.mixing.sources import (
    MixtureSpec,
    OpenMixture,
    SourceSpec,
    StageSpec,
    open_mixture,
)
from gaploop.finetune.lerobot_train import held_out
from gaploop.scripts import cli

type Write = Callable[..., str]

FRAMES = 12
CHUNK = 4


@pytest.fixture
def folders(tmp_path: Path, write_take: Write) -> tuple[Path, Path]:
    """Two datasets of different tasks: two demonstrations; one, and a rollout taken over."""
    for number in range(2):
        write_take(tmp_path / "a_journal", FRAMES, code=20 * number, task="Stack")
    write_take(tmp_path / "b_journal", FRAMES, code=100, task="Sort")
    kind = {"kind": TakeKind.ROLLOUT, "outcome": Outcome.FAILURE}
    write_take(tmp_path / "b_journal", FRAMES, code=140, task="Stack", **kind)
    for name in "ab":
        publish(tmp_path / f"{name}_journal", tmp_path / name, f"me/{name}")
    return tmp_path / "a", tmp_path / "b"


def opened(folders: tuple[Path, ...], *stages: StageSpec, seed: int = 0) -> OpenMixture:
    sources = tuple(SourceSpec(f.name, (f,)) for f in folders)
    return open_mixture(MixtureSpec(sources, stages, seed=seed))


def whole(mixture: OpenMixture, chunk: int = CHUNK) -> tuple[MixtureDataset, list[LeRobotDataset]]:
    offsets = {"action": [k / 50 for k in range(chunk)]}
    parts = [
        LeRobotDataset(f"me/{i.root.name}", root=i.root, delta_timestamps=offsets)
        for i in mixture.datasets
    ]
    shares = mixture.mixture(4).mean_shares(10)
    meta = common_meta(mixture, [p.meta for p in parts], shares)
    return MixtureDataset(mixture, parts, meta, range(chunk)), parts


def test_samples_are_lerobots_own(
    folders: tuple[Path, Path], barcodes: tuple[Any, Callable[[np.ndarray], int]]
) -> None:
    """Pictures, states and chunks of the frame that was drawn; tasks numbered over both."""
    mixture = opened(folders)
    dataset, parts = whole(mixture)
    drawn = [(1, 3), (0, 14), (1, 0)]
    for (number, frame), sample in zip(drawn, dataset.__getitems__(drawn), strict=True):
        own = parts[number][frame]
        for name in ("observation.state", "observation.images.overhead", "action"):
            assert torch.equal(sample[name], own[name])
        assert sample["task"] == own["task"]
        assert dataset.meta.tasks.index[int(sample["task_index"])] == own["task"]
        assert int(sample["dataset_index"]) == number
        picture = sample["observation.images.overhead"].permute(1, 2, 0).numpy() * 255
        first = {0: 0, 1: 100}[number] if frame < FRAMES else 20 - FRAMES
        assert barcodes[1](picture) == first + frame


def test_actions_behind_a_span_that_a_person_drove_are_padding(
    folders: tuple[Path, Path],
) -> None:
    """A chunk that began in the person's hands went on into what the failing policy did."""
    mixture = opened(folders)
    dataset, parts = whole(mixture)
    taken_over = next(t for t in mixture.takes if t.episode.info.kind is TakeKind.ROLLOUT)
    frame = int(taken_over.frames[1])
    assert parts[1][frame]["action_is_pad"].tolist() == [False] * CHUNK
    assert dataset[1, frame]["action_is_pad"].tolist() == [False, True, True, True]
    assert dataset[1, FRAMES - 2]["action_is_pad"].tolist() == [False, False, True, True]


def test_a_batch_is_what_the_stream_says_and_counts_are_true(folders: tuple[Path, Path]) -> None:
    mixture = opened(folders, StageSpec({"a": 1}, 2), StageSpec({"a": 1, "b": 3}))
    stream = mixture.mixture(4)
    loader = DataLoader(whole(mixture)[0], batch_size=4, sampler=MixtureSampler(stream))
    seen = np.zeros(2, dtype=int)
    for step, batch in zip(range(5), loader, strict=False):
        drawn = stream.batch(step)
        assert batch["index"].tolist() == drawn.frame.tolist()
        assert batch["dataset_index"].tolist() == drawn.dataset.tolist()
        seen += np.bincount(batch["dataset_index"], minlength=2)
        assert seen.tolist() == stream.counts(step + 1).tolist()


def sharded(ranks: int, steps: int, first: int = 0) -> list[list[list[tuple[int, int]]]]:
    """Return rank to step to keys, dealt out by accelerate, resumed as LeRobot resumes."""
    pools = [Pool(str(k), np.full(n, k), np.arange(n), np.ones(n)) for k, n in enumerate((50, 500))]
    stages = (MixtureStage((1, 0), 3), MixtureStage((0.5, 0.5)))
    mixture = Mixture(pools, stages, batch_size=3, world_size=ranks, seed=7)
    result = []
    for rank in range(ranks):
        sampler = MixtureSampler(mixture)
        sampler.load_state_dict(compute_sampler_state(first, len(sampler), 3, ranks))
        batches = iter(BatchSamplerShard(BatchSampler(sampler, 3, False), ranks, rank))
        result.append([next(batches) for _ in range(first, steps)])
    return result


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_accelerate_deals_out_every_sample_once(ranks: int) -> None:
    """No two ranks read the same sample, no step repeats one within an epoch of its source."""
    steps = 20
    dealt = sharded(ranks, steps)
    for step in range(steps):
        together = [key for rank in dealt for key in rank[step]]
        assert len(set(together)) == len(together) == 3 * ranks
    rare = [k for step in range(steps) for rank in dealt for k in rank[step] if k[0] == 0]
    assert len(set(rare[:50])) == min(50, len(rare))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_resuming_as_lerobot_does_goes_on_with_the_very_next_sample(ranks: int) -> None:
    uninterrupted = sharded(ranks, 12)
    for first in (0, 1, 3, 5, 11):
        assert sharded(ranks, 12, first) == [rank[first:] for rank in uninterrupted]


def test_statistics_are_those_of_what_is_drawn(folders: tuple[Path, Path]) -> None:
    """Of each frame as often as it is drawn: repeating frames accordingly gives the same."""
    mixture = opened(folders, StageSpec({"a": 1, "b": 1}))
    dataset, parts = whole(mixture, chunk=1)
    states = []
    for take, share in zip(mixture.takes, mixture.take_shares(np.array([0.5, 0.5])), strict=True):
        rows = np.stack([parts[take.dataset][int(f)]["observation.state"] for f in take.frames])
        states.append(np.repeat(rows, round(share / len(rows) * 72 * 4), axis=0))
    repeated = np.concatenate(states)
    stats = dataset.meta.stats["observation.state"]
    assert np.allclose(stats["mean"], repeated.mean(axis=0))
    assert np.allclose(stats["std"], repeated.std(axis=0))
    assert np.allclose(stats["min"], repeated.min(axis=0))
    assert np.allclose(stats["q50"], np.quantile(repeated, 0.5, axis=0, method="inverted_cdf"))
    picture = dataset.meta.stats["observation.images.overhead"]
    assert picture["mean"].shape == (3, 1, 1)
    own = [p.meta.stats["observation.images.overhead"]["mean"] for p in parts]
    assert np.minimum(*own).min() - 0.05 <= picture["mean"].min() <= np.maximum(*own).max() + 0.05


def test_takes_held_out_are_the_last_of_each_source_and_task(folders: tuple[Path, Path]) -> None:
    """As LeRobot's eval_split does it; a source of which nothing is left says so."""
    mixture = opened(folders[:1])
    train, aside = held_out(mixture, 0.4)
    assert [t.episode.index for t in train.takes] == [0]
    assert [t.episode.index for t in aside] == [1]
    with pytest.raises(UnusableInputError, match="no episode of source 'b'"):
        held_out(opened(folders), 0.4)


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--policy.typ=act"], "unrecognized arguments: --policy.typ=act"),
        (["--policy.type=act"], "--policy.push_to_hub=false"),
        (["--policy.type=act", "--steps=two"], "Couldn't parse 'two'"),
        (["--dataset.root=x"], "doesn't go with a mixture"),
    ],
)
def test_what_lerobot_cannot_use_is_one_line(
    folders: tuple[Path, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    options: list[str],
    says: str,
) -> None:
    """A misspelt option printed 500 lines of usage."""
    (tmp_path / "mix.yaml").write_text(f"sources: {{a: {folders[0]}}}\n")
    run = f"--output_dir={tmp_path / 'run'}"
    assert (
        cli.main(["finetune", "--method=lerobot", str(tmp_path / "mix.yaml"), run, "--", *options])
        == 2
    )
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert says in said[0]


RANK = """
import json, sys
import numpy as np
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from gaploop.datasets.mixing.lerobot_mixture import MixtureSampler
from gaploop.datasets.mixing.mixture import Mixture, MixtureStage as Stage, Pool

class Keys(Dataset):
    def __len__(self): return 550
    def __getitem__(self, key): return np.array(key)

accelerator = Accelerator(cpu=True)
pools = [Pool(str(k), np.full(n, k), np.arange(n), np.ones(n)) for k, n in enumerate((50, 500))]
mixture = Mixture(pools, [Stage((1, 0), 3), Stage((0.5, 0.5))], batch_size=3,
                  world_size=accelerator.num_processes, seed=7)
loader = accelerator.prepare(DataLoader(Keys(), batch_size=3, sampler=MixtureSampler(mixture)))
steps = [batch.tolist() for _, batch in zip(range(12), loader)]
open(f"{sys.argv[1]}/{accelerator.process_index}.json", "w").write(json.dumps(steps))
accelerator.end_training()
"""


def torchrun(*command: str, cwd: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*launcher, f"--master_port={port}", *command],
        cwd=cwd, env=environment, check=True, capture_output=True, timeout=600,
    )  # fmt: skip


@pytest.mark.slow
def test_two_real_processes_read_one_stream(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    torchrun("rank.py", str(tmp_path), cwd=tmp_path)
    read = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    expected = [[[list(k) for k in step] for step in rank] for rank in sharded(2, 12)]
    assert read == expected


@pytest.mark.slow
def test_lerobots_own_training_resumes_to_the_same_weights(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two processes, stopped after 2 of 4 steps and resumed, end where 4 steps end.

    With ACT's dropout and latent noise: LeRobot draws from the restored random numbers once more
    when its loader begins anew, and resumed runs ended with other weights.
    """
    del folders
    (tmp_path / "mix.yaml").write_text(
        "sources: {a: a, b: b}\nstages: [{steps: 1, shares: {a: 1}}, {shares: {a: 1, b: 1}}]\n"
    )
    policy = [
        "--policy.type=act", "--policy.push_to_hub=false", "--policy.device=cpu",
        "--policy.chunk_size=4", "--policy.n_action_steps=4", "--policy.dim_model=16",
        "--policy.n_heads=2", "--policy.dim_feedforward=16", "--policy.use_vae=true",
        "--policy.dropout=0.1", "--policy.pretrained_backbone_weights=null", "--batch_size=2",
        "--num_workers=0", "--steps=4", "--save_freq=2",
    ]  # fmt: skip
    train = ["-m", "gaploop.scripts.cli", "finetune", "--method=lerobot", "mix.yaml"]
    torchrun(*train, "--output_dir=run", "--", *policy, cwd=tmp_path)
    config = "run/checkpoints/000002/pretrained_model/train_config.json"
    again = ["--", "--resume=true", f"--config_path={config}"]
    torchrun(*train, "--output_dir=again", *again, cwd=tmp_path)
    weights = [
        (tmp_path / run / "checkpoints/000004/pretrained_model/model.safetensors").read_bytes()
        for run in ("run", "again")
    ]
    assert weights[0] == weights[1]
    assert json.loads((tmp_path / "run" / "mixture.json").read_text())["ranks"] == 2
