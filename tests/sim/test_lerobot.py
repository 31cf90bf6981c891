"""The embedded cell works through LeRobot's own look-up, loops and processors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lerobot.processor.pipeline import PolicyProcessorPipeline
from lerobot.robots.config import RobotConfig
from lerobot.teleoperators.config import TeleoperatorConfig

from gaploop.core.errors import UnusableInputError
from gaploop.sim.cell import SimCell
from gaploop.sim.lerobot_devices import ScriptedConfig, So101SimConfig
from gaploop.sim.lerobot_tracker_step import TrackerStep


def test_lerobot_finds_the_devices_by_name() -> None:
    assert RobotConfig.get_choice_class("so101_sim") is So101SimConfig
    assert TeleoperatorConfig.get_choice_class("scripted") is ScriptedConfig


def test_the_tracker_step_survives_saving_without_a_registry(tmp_path: Path) -> None:
    """Plain lerobot-rollout must load it without having imported gaploop."""
    pipeline = PolicyProcessorPipeline(steps=[TrackerStep(domain=1.0)], name="pre")
    pipeline.save_pretrained(tmp_path)
    text = (tmp_path / "pre.json").read_text()
    assert "gaploop.sim.lerobot_tracker_step.TrackerStep" in text
    loaded = PolicyProcessorPipeline.from_pretrained(tmp_path, config_filename="pre.json")
    assert loaded.steps[0].get_config() == TrackerStep(domain=1.0).get_config()


def test_the_tracker_step_sees_the_same_in_every_layout() -> None:
    with SimCell() as cell:
        cell.reset(4)
        image = cell.frame().image
    key = "observation.images.overhead"
    channels_first = torch.from_numpy(image).permute(2, 0, 1)
    layouts = [
        torch.from_numpy(image),
        channels_first,
        channels_first.float() / 255.0,
        (channels_first.float() / 255.0)[None],
    ]
    states = [TrackerStep().observation({key: x})["observation.environment_state"] for x in layouts]
    for state in states:
        assert torch.allclose(state.reshape(-1), states[0], atol=1e-6)
    assert states[-1].shape == (1, 7)
    assert np.isfinite(states[0].numpy()).all()


def test_the_tracker_step_leaves_recorded_states_alone() -> None:
    recorded = {"observation.environment_state": torch.zeros(7)}
    assert TrackerStep().observation(dict(recorded)).keys() == recorded.keys()


def test_the_tracker_step_names_the_missing_camera() -> None:
    with pytest.raises(UnusableInputError, match="overhead"):
        TrackerStep().observation({"observation.images.wrist": torch.zeros(3, 8, 8)})
