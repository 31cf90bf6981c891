"""Tiny takes of a made-up arm: in memory for most laws, published for those about selection."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny_policies import tiny_policy

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader
from gaploop.core.take import TakeInfo
from gaploop.core.telemetry import joint_columns
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.mixing.mixture import MixtureStage
from gaploop.finetune import lerobot_act as act
from gaploop.finetune.batches import MixedBatches, Signature, TrainingEpisode, TrainingSource

__all__ = ["tiny_policy"]

JOINTS = ("pan", "lift", "gripper")
SCENE = ("object_azimuth_rad", "visible", "domain")
NAMES = tuple(f"{joint}.pos" for joint in JOINTS)
SIGNATURE = Signature(50.0, NAMES, SCENE, NAMES, "deg", "so101_sim")
TINY = act.ActSize(chunk=4, execute=2, width=16, heads=2, feedforward=32)


def make_episode(index: int, frames: int = 12, domain: float = 0.0) -> TrainingEpisode:
    """Return a take whose action is the state plus what the scene says."""
    rng = np.random.default_rng(index)
    state = rng.normal(size=(frames, 3)).astype(np.float32)
    scene = np.tile(np.array([rng.normal(), 1.0, domain], dtype=np.float32), (frames, 1))
    action = state * 10 + scene[:, :1]
    return TrainingEpisode(f"u{index}", index, state, scene, action, np.ones(frames, dtype=bool))


@pytest.fixture(scope="session")
def make_source() -> Callable[..., TrainingSource]:
    def make(
        takes: int = 4, first: int = 0, domain: Domain = Domain.SIM, **changes: Any
    ) -> TrainingSource:
        flag = 0.0 if domain is Domain.SIM else 1.0
        episodes = tuple(make_episode(first + i, domain=flag) for i in range(takes))
        return TrainingSource(f"memory-{first}", domain, replace(SIGNATURE, **changes), episodes)

    return make


@pytest.fixture(scope="session")
def make_bundle(make_source: Callable[..., TrainingSource]) -> Callable[..., act.ActBundle]:
    def make(seed: int = 0) -> act.ActBundle:
        stages = [MixtureStage((1.0,))]
        batches = MixedBatches([make_source()], stages, chunk=TINY.chunk, batch_size=4, seed=0)
        return act.build(SIGNATURE, batches.moments(), TINY, seed=seed)

    return make


@pytest.fixture(scope="session")
def _base(
    tmp_path_factory: pytest.TempPathFactory, make_bundle: Callable[..., act.ActBundle]
) -> Path:
    folder = tmp_path_factory.mktemp("untrained") / "base"
    act.save(make_bundle(), folder)
    return folder


@pytest.fixture
def base(tmp_path: Path, _base: Path) -> Path:
    """Return the folder of an untrained base; it was made once, and this is the test's own copy."""
    return shutil.copytree(_base, tmp_path / "base")


@pytest.fixture(scope="session")
def _published(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that publishes takes, the same ones only once."""
    folder, made = tmp_path_factory.mktemp("published"), dict[str, Path]()

    def publish_once(name: str, takes: list[dict[str, Any]], fps: float) -> Path:
        key = repr((name, takes, fps))
        if key not in made:
            root = folder / str(len(made)) / name
            for number, take in enumerate(takes):
                _write_take(root.parent / "journal", number, fps, **take)
            publish(root.parent / "journal", root, f"test/{name}")
            made[key] = root
        return made[key]

    return publish_once


@pytest.fixture
def write_dataset(tmp_path: Path, _published: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that gives published takes, each given by what differs from the default."""

    def write(name: str, takes: list[dict[str, Any]], fps: float = 50.0) -> Path:
        return shutil.copytree(_published(name, takes, fps), tmp_path / name)

    return write


def _write_take(
    journal: Path,
    number: int,
    fps: float,
    outcome: Outcome = Outcome.SUCCESS,
    intervened: bool = False,
    pictures: bool = False,
    **info: Any,
) -> None:
    known = TakeInfo(
        uuid7(), "Move", fps, joint_names=JOINTS, robot_type="so101_sim", units="deg", **info
    )
    channels = dict(joint_columns("follower", JOINTS))
    episode = make_episode(number)
    video = {"width": 64, "height": 64, "fps": fps, "codec": "h264"}
    cameras = {"overhead": video} if pictures else {}
    rng = np.random.default_rng((7, number))
    with JournalWriter(journal, TakeHeader(known, SCENE, cameras, channels)) as writer:
        for k in range(len(episode.action)):
            writer.frame(
                FrameRow(
                    t_s=k / fps,
                    state=episode.state[k].astype(float),
                    action=episode.action[k].astype(float),
                    sent=episode.action[k].astype(float),
                    environment_state=episode.environment[k].astype(float),
                    intervention=intervened and 3 <= k < 7,
                    safety=0,
                    camera_age_s=dict.fromkeys(cameras, 0.01),
                    pictures={c: rng.integers(0, 255, (64, 64, 3), np.uint8) for c in cameras},
                )
            )
            writer.telemetry(int(k * 1e9 / fps), np.zeros(len(channels)))
        writer.seal(outcome)
