"""Tiny LeRobot policies built from configs alone, as a fixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lerobot_made_up import CHUNK, OPTIONS, make, without_downloads

__all__ = ["CHUNK"]

import gaploop.finetune.lerobot_keypoint  # noqa: F401  registers it

CAMERA = "observation.images.overhead"
SIZE = 64
JOINTS = 3


@pytest.fixture
def tiny_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that writes a tiny untrained policy of a type as a base folder."""

    def write(kind: str, camera: str = CAMERA, joints: int = JOINTS, stats: bool = True) -> Path:
        if kind == "diffusion":
            pytest.importorskip("diffusers", reason="LeRobot's diffusion policy needs it")
        without_downloads(monkeypatch.setattr, tmp_path / "vlm", is_tiny=True)
        return make(
            kind,
            tmp_path / f"base_{kind}",
            tmp_path / "vlm",
            camera=camera,
            pixels=SIZE,
            joints=joints,
            options=OPTIONS[kind],
            has_stats=stats,
        )

    return write
