"""How the base that sees is made: from scripted takes with pictures, in two rounds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.base_vision import backgrounds as made
from benchmarks.base_vision import pictures
from benchmarks.base_vision.backgrounds import Backgrounds
from benchmarks.base_vision.lerobot_training import pretrain_vision
from benchmarks.base_vision.pictures import PictureTakes
from gaploop.core.errors import UnusableInputError
from gaploop.finetune.config import FinetuneConfig, StartPolicy
from gaploop.finetune.demonstrations import TargetCell
from gaploop.finetune.lerobot_policy import PACKAGED, load_policy
from gaploop.sim.camera import read_photo

BASE = PACKAGED["base_vision"]


@pytest.fixture(autouse=True)
def _recorded_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more processes that import PyTorch, and all backgrounds, take longer than the takes."""
    monkeypatch.setattr(pictures, "record", partial(pictures.record, workers=1))
    monkeypatch.setattr(made, "BANK", 20)


@pytest.fixture(scope="module")
def takes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scripted takes, the same for every test that trains."""
    folder = tmp_path_factory.mktemp("takes")
    pictures.record(folder, TargetCell(), 2, size_px=96, workers=1)
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


def test_a_batch_puts_backgrounds_behind_as_a_policy_is_judged_with_them(
    takes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = tmp_path / "photo.png"
    rows = np.linspace(0, 255, 192)[:, None, None] * (1.0, 0.6, 0.3) + np.zeros((1, 192, 3))
    cv2.imwrite(str(photo), rows.astype(np.uint8))
    rig = TargetCell().rig({"backdrop": str(photo)})
    rig.reset(0)
    wanted = pictures.scaled(rig.cell.frame().image, 96).astype(int)
    rig.close()
    small = pictures.scaled(read_photo(photo, 192, 192), 96).astype(np.float32)
    backgrounds = Backgrounds(None, 96, smooth=True)
    monkeypatch.setattr(backgrounds, "draw", lambda _rng: small)
    monkeypatch.setattr(pictures, "LAMPS", 0.0)
    drawn = PictureTakes([takes], chunk=5, batch_size=64, seed=0, backgrounds=backgrounds)
    batch = drawn.batch(0)
    seen = batch.pictures[np.unique(batch.first)].astype(int)
    off = np.abs(seen - wanted).mean(axis=(1, 2, 3))
    assert off.min() < 1  # of 255; the other take's arm and object are elsewhere
    assert np.array_equal(batch.recorded.shape, batch.pictures.shape)


def test_photos_that_a_base_is_judged_by_are_never_trained_on(tmp_path: Path) -> None:
    for name in ("room_3.jpg", "bridge_sink.jpg", "1257_0_cleanup.jpg"):
        cv2.imwrite(str(tmp_path / name), np.full((8, 8, 3), 99, np.uint8))
    with pytest.raises(UnusableInputError, match="no photo to train on"):
        Backgrounds(tmp_path, 96)


def test_what_is_recorded_is_not_recorded_again(takes: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in takes.iterdir()}
    pictures.record(takes, TargetCell(), 2, size_px=96, workers=1)
    assert {p: p.stat().st_mtime_ns for p in takes.iterdir()} == before


@pytest.mark.slow
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


@pytest.mark.slow
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
