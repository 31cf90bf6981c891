"""Asking a policy: its own features and plans, and it drives on as if never asked."""

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


def seen(k: int) -> Observation:
    rng = np.random.default_rng(k)
    return Observation(
        rng.uniform(-20, 20, 6), np.array([0.2, 0.2, 0.0, -0.3, 0.2, 1.0, 0.0]) + 0.01 * k, {}
    )


def test_a_probe_tells_the_features_and_the_plan_that_the_policy_drives_by(base: ActPolicy) -> None:
    asked = LeRobotProbe(base)
    assert asked.features(seen(0)).shape == (base.bundle.policy.config.dim_model,)
    assert not asked.needs_images
    base.reset()
    base.act(seen(0))
    assert base.chunk is not None
    np.testing.assert_allclose(asked.chunk(seen(0)), base.chunk, atol=1e-4)
    assert not np.allclose(asked.features(seen(1)), asked.features(seen(2)))


def test_asking_changes_nothing_about_driving(base: ActPolicy) -> None:
    asked = LeRobotProbe(base)
    base.reset()
    alone = [base.act(seen(k)) for k in range(25)]
    base.reset()
    beside = []
    for k in range(25):
        asked.features(seen(k + 100))
        if k == 7:
            asked.reset()
        beside.append(base.act(seen(k)))
    np.testing.assert_array_equal(alone, beside)


def test_an_encoder_that_is_not_there_is_named_with_those_that_are(
    base: ActPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaploop.finetune.lerobot_probe.ENCODERS", ("nowhere",))
    with pytest.raises(UnusableInputError, match=r"model\.encoder"):
        LeRobotProbe(base)


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


def test_takes_that_the_policy_cannot_have_driven_are_refused(base: ActPolicy) -> None:
    without = Observation(np.zeros(6), None, {})
    with pytest.raises(UnusableInputError, match="environment_state"):
        LeRobotProbe(base).chunk(without)
    other = Observation(np.zeros(7), seen(0).environment_state, {})
    with pytest.raises(UnusableInputError, match=r"state of shape \(6,\)"):
        LeRobotProbe(base).chunk(other)
