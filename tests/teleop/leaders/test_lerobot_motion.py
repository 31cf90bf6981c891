"""The scripted motion through LeRobot's own look-up of teleoperators."""

from __future__ import annotations

import numpy as np
import pytest
from lerobot.teleoperators.config import TeleoperatorConfig
from lerobot.teleoperators.utils import make_teleoperator_from_config

from gaploop.core.errors import UnusableInputError
from gaploop.teleop.leaders.options import MotionOptions
from gaploop.teleop.lerobot_motion import Motion, MotionConfig

START = [0.0, -17.0, 34.0, 34.0, 0.0, 20.0]


def test_lerobot_finds_it_and_gets_actions_in_its_units() -> None:
    config = MotionConfig(
        script="chirp", joints=["wrist_roll"], seconds=4.0, robot_model="so101", start=START
    )
    assert TeleoperatorConfig.get_choice_class("motion") is MotionConfig
    teleop = make_teleoperator_from_config(config)
    assert isinstance(teleop, Motion)
    teleop.connect()
    action = teleop.get_action()
    assert list(action) == list(teleop.action_features)
    np.testing.assert_allclose(list(action.values()), START, atol=0.5)
    teleop.disconnect()
    teleop.disconnect()


def test_options_are_handed_on_whole() -> None:
    config = MotionConfig(script="grid", points=[2, 2, 1], seed=7)
    assert config.options() == MotionOptions(script="grid", points=[2, 2, 1], seed=7)
    with pytest.raises(UnusableInputError, match=r"teleop\.dwell_s"):
        MotionConfig(dwell_s=-1.0)


def test_lerobot_must_be_told_where_the_arm_is() -> None:
    with pytest.raises(UnusableInputError, match=r"--teleop\.start"):
        Motion(MotionConfig(robot_model="so101"))
    with pytest.raises(UnusableInputError, match="6 numbers"):
        Motion(MotionConfig(robot_model="so101", start=[0.0])).connect()
