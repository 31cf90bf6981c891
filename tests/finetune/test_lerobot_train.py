"""LeRobot's own training, given other things behind its names."""

from __future__ import annotations

import pytest
from lerobot.datasets import factory
from lerobot.scripts import lerobot_train

from gaploop.core.errors import GaploopError
from gaploop.finetune.lerobot_train import calling


def test_lerobots_module_stays_as_it_is() -> None:
    """Two trainings at once, or one that broke off, left LeRobot patched for the next."""
    before = factory.LeRobotDataset
    given = calling(factory.make_dataset, LeRobotDataset=dict)
    assert given.__globals__["LeRobotDataset"] is dict
    assert factory.LeRobotDataset is before


def test_a_lerobot_that_works_otherwise_is_an_error() -> None:
    """Not a training without the mixture: a patched name that nobody calls does nothing."""
    with pytest.raises(GaploopError, match="without calling EpisodeSampler"):
        calling(lerobot_train.train, EpisodeSampler=object, update_policy=object)
