"""The embedded cell works through LeRobot's own look-up, loops and processors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from lerobot.processor.pipeline import PolicyProcessorPipeline
from lerobot.robots.config import RobotConfig
from lerobot.robots.utils import make_robot_from_config
from lerobot.teleoperators.config import TeleoperatorConfig
from lerobot.teleoperators.utils import make_teleoperator_from_config

from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.sim.cell import SimCell
from gaploop.sim.lerobot_devices import Scripted, ScriptedConfig, So101Sim, So101SimConfig
from gaploop.sim.lerobot_tracker_step import TrackerStep


@pytest.fixture
def robot(tmp_path: Path) -> Iterator[So101Sim]:
    config = So101SimConfig(id="sim", calibration_dir=tmp_path, image_size=96)
    device = make_robot_from_config(config)
    assert isinstance(device, So101Sim)
    device.connect()
    yield device
    device.disconnect()


def test_lerobot_finds_the_devices_by_name() -> None:
    assert RobotConfig.get_choice_class("so101_sim") is So101SimConfig
    assert TeleoperatorConfig.get_choice_class("scripted") is ScriptedConfig


def test_a_scripted_take_through_lerobots_interface(robot: So101Sim, tmp_path: Path) -> None:
    teleop = make_teleoperator_from_config(ScriptedConfig(id="script", calibration_dir=tmp_path))
    assert isinstance(teleop, Scripted)
    teleop.connect()  # LeRobot connects it before the robot: it must not need the cell yet
    done = False
    for _ in range(300):
        observation = robot.get_observation()
        assert set(observation) == set(robot.observation_features)
        robot.send_action(teleop.get_action())
        done = done or robot.cell.success()
    assert done
    teleop.disconnect()


def test_the_teleoperator_needs_a_cell_in_its_process(tmp_path: Path) -> None:
    teleop = Scripted(ScriptedConfig(id="script", calibration_dir=tmp_path, cell="elsewhere"))
    teleop.connect()
    with pytest.raises(DeviceError, match="so101_sim"):
        teleop.get_action()


def test_an_incomplete_action_is_refused(robot: So101Sim) -> None:
    with pytest.raises(UnusableInputError, match="gripper"):
        robot.send_action({"shoulder_pan.pos": 0.0})


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
