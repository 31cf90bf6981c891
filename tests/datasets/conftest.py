"""Tiny takes with barcodes in their pictures, written through the journal's own writer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.core.files import uuid7
from gaploop.core.journal_format import TakeHeader
from gaploop.core.take import TakeInfo
from gaploop.core.telemetry import joint_columns
from gaploop.core.vocabulary import Outcome

sys.path.insert(0, str(Path(__file__).parent))  # damage.py is a module of this folder

JOINTS = ("pan", "lift", "gripper")
SCENE = ("object_azimuth_rad", "visible")
RECORDED = ("sent_rad", "position_rad", "current_a")
"""Of the ten quantities of a joint: each is one more array to write and to read."""
SIZE = 64
BITS = 16


def barcode(number: int) -> np.ndarray:
    """Return a picture that shows `number` in 4x4 black and white blocks."""
    bits = [(number >> i) & 1 for i in range(BITS)]
    blocks = np.array(bits, dtype=np.uint8).reshape(4, 4) * 200 + 20
    picture = np.kron(blocks, np.ones((SIZE // 4, SIZE // 4), dtype=np.uint8))
    return np.repeat(picture[:, :, None], 3, axis=2)


def read_barcode(picture: np.ndarray) -> int:
    """Return the number that `barcode` drew, from a picture (height, width, 3), 0 to 255."""
    cell = SIZE // 4
    means = picture.mean(axis=2).reshape(4, cell, 4, cell).mean(axis=(1, 3)).reshape(-1)
    return sum(1 << i for i, mean in enumerate(means) if mean > 120)


@pytest.fixture(scope="session")
def barcodes() -> tuple[Callable[[int], np.ndarray], Callable[[np.ndarray], int]]:
    return barcode, read_barcode


@pytest.fixture(scope="session")
def write_take() -> Callable[..., str]:
    """Return a function that writes a sealed take and returns its uid."""

    def write(
        journal: Path,
        frames: int = 7,
        outcome: Outcome | None = Outcome.SUCCESS,
        *,
        code: int = 0,
        fps: float = 50.0,
        joints: tuple[str, ...] = JOINTS,
        cameras: tuple[str, ...] = ("overhead",),
        scene: tuple[str, ...] = SCENE,
        bad_state_at: int | None = None,
        **info: Any,
    ) -> str:
        uid = uuid7()
        known = TakeInfo(
            uid,
            task=info.pop("task", "Put the cube on the disc"),
            fps=fps,
            joint_names=joints,
            robot_type="so101_sim",
            units=info.pop("units", "deg"),
            t0_ns=1_700_000_000_000_000_000,
            **info,
        )
        spec = {c: {"width": SIZE, "height": SIZE, "fps": fps, "codec": "h264"} for c in cameras}
        recorded = joint_columns("follower", joints).items()
        channels = {n: u for n, u in recorded if n.endswith(RECORDED)} | {"wrist.fx_n": "N"}
        header = TakeHeader(known, scene, spec, channels)
        draw = np.random.default_rng(code)
        with JournalWriter(journal, header) as writer:
            for k in range(frames):
                state = draw.normal(size=len(joints))
                if k == bad_state_at:
                    state[0] = np.nan
                writer.frame(
                    FrameRow(
                        t_s=k / fps,
                        state=state,
                        action=state + 1,
                        sent=state + 2,
                        environment_state=draw.normal(size=len(scene)),
                        intervention=k % 2 == 1,
                        safety=k,
                        camera_age_s=dict.fromkeys(cameras, 0.01),
                        pictures={c: barcode(code + k) for c in cameras},
                    )
                )
                writer.telemetry(int(k * 1e9 / fps), draw.normal(size=len(channels)))
            if outcome is not None:
                writer.seal(outcome)
        return uid

    return write
