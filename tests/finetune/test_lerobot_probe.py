"""Asking a policy about its pictures: it drives on as if never asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Observation
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy
from gaploop.finetune.lerobot_probe import LeRobotProbe


@pytest.fixture(scope="module")
def base() -> ActPolicy:
    return load_policy("base")


def test_a_policy_without_cameras_is_not_asked(base: ActPolicy) -> None:
    with pytest.raises(UnusableInputError, match="looks at no pictures"):
        LeRobotProbe(base)


def test_asking_changes_nothing_about_driving(tiny_policy: Callable[..., Path]) -> None:
    policy = load_policy(tiny_policy("act"))
    image = np.full((64, 64, 3), 90, np.uint8)
    seen = [Observation(np.full(3, float(k)), None, {"overhead": image + k}) for k in range(25)]
    policy.reset()
    alone = [policy.act(one) for one in seen]
    asked = LeRobotProbe(policy)
    policy.reset()
    beside = []
    for one in seen:
        asked.maps(one)
        beside.append(policy.act(one))
    np.testing.assert_allclose(alone, beside)


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_what_a_cameras_cells_show_hangs_on_its_own_picture_and_place(
    tiny_policy: Callable[..., Path], kind: str
) -> None:
    asked = LeRobotProbe(load_policy(tiny_policy(kind)))
    rng = np.random.default_rng(0)
    grey = np.full((64, 64, 3), 120, np.uint8)
    spotted = grey.copy()
    spotted[8:16, 40:48] = rng.integers(0, 255, (8, 8, 3), np.uint8)

    def layers(image: np.ndarray) -> Sequence[np.ndarray]:
        asked.reset()
        return asked.maps(Observation(np.zeros(3), None, {"overhead": image}))["overhead"]

    plain, changed = layers(grey), layers(spotted)
    assert len({layer.shape[:2] for layer in plain}) == 1
    apart = np.abs(changed[0] - plain[0]).sum(axis=2)
    row, column = np.array(np.unravel_index(apart.argmax(), apart.shape)) / apart.shape
    assert abs(row - 12 / 64) < 0.12
    assert abs(column - 44 / 64) < 0.12
    np.testing.assert_array_equal(layers(grey)[1], plain[1])


def test_takes_that_the_policy_cannot_have_driven_are_refused(
    tiny_policy: Callable[..., Path],
) -> None:
    asked = LeRobotProbe(load_policy(tiny_policy("act")))
    with pytest.raises(UnusableInputError, match="overhead"):
        asked.maps(Observation(np.zeros(3), None, {}))
