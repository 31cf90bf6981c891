"""What cameras showed in training: kept beside a policy, and whether one has moved since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from failure_analysis_makers import take
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import Image
from gaploop.core.take import Take
from gaploop.failure_analysis.cameras.policy_cameras import CameraReference, moved


def scene(seed: int, right: float = 0.0, down: float = 0.0) -> Image:
    """Return a picture of 192 px of a textured place, moved by some pixels."""
    rng = np.random.default_rng(seed)
    whole = np.full((232, 232, 3), 120.0)
    for size in (6, 12, 29, 58, 116):
        grey, tint = rng.uniform(-26, 26, (size, size, 1)), rng.uniform(-6, 6, (size, size, 3))
        whole += cv2.resize(grey + tint, (232, 232), interpolation=cv2.INTER_CUBIC)
    shift = np.array([[1, 0, right - 20], [0, 1, down - 20]], dtype=np.float64)
    return np.clip(cv2.warpAffine(whole, shift, (192, 192)), 0, 255).astype(np.uint8)


TOP, WRIST = scene(1), scene(2)


def attempt(seed: int, top: Image, wrist: Image) -> Take:
    """Return a take of two cameras: noise, and something that moves across from elsewhere."""
    rng = np.random.default_rng(seed)
    pictures = {}
    for name, usual in {"top": top, "wrist": wrist}.items():
        shown = np.clip(usual + rng.normal(0, 1.5, usual.shape), 0, 255).astype(np.uint8)
        column = 20 + 11 * (seed % 13)
        shown[30:44, column : column + 14] = (40, 45, 50)
        pictures[name] = shown
    cameras = {n: lambda p=p: iter([p] * 3) for n, p in pictures.items()}
    return replace(take(uid=f"take-{seed}", seed=seed), cameras=cameras)


@settings(max_examples=6, deadline=None)
@given(right=st.floats(-15, 15), down=st.floats(-15, 15))
def test_a_moved_camera_is_measured(right: float, down: float) -> None:
    found = moved(TOP, scene(1, right, down))
    assert found is not None
    np.testing.assert_allclose(found.shift_px, (right, down), atol=0.3)
    assert found.scale == pytest.approx(1.0, abs=0.01)


def test_a_reference_keeps_what_does_not_move_and_comes_back_as_it_was(tmp_path: Path) -> None:
    top, wrist = scene(1), cv2.resize(scene(2), (96, 96), interpolation=cv2.INTER_AREA)
    made = CameraReference.build([attempt(k, top, wrist) for k in range(12)], "training")
    assert made is not None
    assert list(made.cameras) == ["top", "wrist"]
    assert np.abs(made.cameras["top"].astype(int) - top).max() < 6
    assert made.shown_by("top", top) == "top"
    assert made.shown_by("top", wrist) == "wrist"
    assert made.shown_by("top", scene(9)) == "top"  # none of them: not swapped
    file = tmp_path / "cameras.npz"
    made.save(file)
    assert file.stat().st_size < 500_000
    again = CameraReference.load(file)
    assert again.name == "training"
    for name, usual in made.cameras.items():
        np.testing.assert_array_equal(again.cameras[name], usual)
    file.write_bytes(b"PK nothing")
    with pytest.raises(UnusableInputError, match="--save_reference"):
        CameraReference.load(file)


def test_takes_without_pictures_are_no_reference() -> None:
    assert CameraReference.build([take(seed=k) for k in range(6)], "training") is None
