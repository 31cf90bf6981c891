"""A dataset of any size to review: a few synthetic takes with video, repeated under other names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.files import uuid7
from gaploop.core.messages import FloatArray, Image
from gaploop.core.vocabulary import Outcome
from gaploop.teleop.emulator.arms import JOINTS

FPS: Final = 50.0
SIZE: Final = (120, 160)
CAMERAS: Final = ("overhead", "wrist")
TAKES: Final = 10
FRAMES: Final = 120
BITS: Final = 8
BLOCK_PX: Final = 16


def picture(frame: int, shade: int) -> Image:
    """Return a picture that says its number: white blocks at the top are the bits, low first."""
    image = np.full((*SIZE, 3), shade, dtype=np.uint8)
    for bit in range(BITS):
        on = 255 if frame >> bit & 1 else 0
        image[:BLOCK_PX, bit * BLOCK_PX : (bit + 1) * BLOCK_PX] = on
    left = 10 + frame
    image[70:90, left : left + 20] = (230, 40, 20)
    return image


def write_journal(
    journal: Path, takes: int, seed: int = 0, cameras: tuple[str, ...] = CAMERAS
) -> None:
    """Write sealed takes: smooth moves, readings that lag, a grasp; every third one went well."""
    from gaploop.collect.journal import JournalWriter
    from gaploop.core.journal_format import TakeHeader
    from gaploop.core.take import TakeInfo
    from gaploop.core.telemetry import joint_columns
    from gaploop.core.vocabulary import TakeKind

    draw = np.random.default_rng(seed)
    spec = {c: {"height": SIZE[0], "width": SIZE[1], "fps": FPS, "codec": "h264"} for c in cameras}
    for number in range(takes):
        info = TakeInfo(
            uuid7(),
            "Put the cube on the disc",
            FPS,
            TakeKind.ROLLOUT,
            joint_names=JOINTS,
            robot_type="synthetic",
            units="deg",
            conditions={"lighting": ("bright", "dim")[number % 2], "distractors": number % 3},
            session=f"session {number // 5}",
            policy="base",
            t0_ns=1_700_000_000_000_000_000 + number,
        )
        channels = {**joint_columns("follower", JOINTS), "loop.lateness_s": "s"}
        header = TakeHeader(info, (), spec, channels)
        with JournalWriter(journal, header) as writer:
            _write_take(writer, _moves(draw), number, tuple(channels), cameras)
            writer.seal(Outcome.SUCCESS if number % 3 == 2 else Outcome.FAILURE)


def _moves(draw: np.random.Generator) -> FloatArray:
    """Return joint commands [rad], shape (FRAMES, n_joints): between random poses, jaws shut."""
    t = np.arange(FRAMES) / FPS
    knots = draw.uniform(-0.6, 0.6, (4, len(JOINTS)))
    times = np.linspace(0.0, t[-1], 4)
    moves = np.stack([np.interp(t, times, knots[:, j]) for j in range(len(JOINTS))], axis=1)
    moves[:, -1] = np.interp(t, [0, 0.6, 0.8, 1.7, 1.9, t[-1]], [0.8, 0.8, -0.1, -0.1, 0.8, 0.8])
    return moves


def _write_take(
    writer: Any, sent: FloatArray, number: int, channels: tuple[str, ...], cameras: tuple[str, ...]
) -> None:
    from gaploop.collect.journal import FrameRow

    late = np.concatenate([np.repeat(sent[:1], 3, axis=0), sent])[: len(sent)]
    late[:, -1] = np.maximum(late[:, -1], 0.1)
    for k, (command, reading) in enumerate(zip(sent, late, strict=True)):
        writer.frame(
            FrameRow(
                t_s=k / FPS,
                state=np.degrees(reading),
                action=np.degrees(command),
                sent=np.degrees(command),
                environment_state=np.empty(0),
                intervention=60 <= k < 75,
                safety=4 if 30 <= k < 35 else 0,
                camera_age_s=dict.fromkeys(cameras, 0.012),
                pictures={c: picture(k, 60 + 12 * number) for c in cameras},
            )
        )
        values = {"loop.lateness_s": 0.0004 * (k % 5)}
        for j, joint in enumerate(JOINTS):
            values |= {
                f"follower.{joint}.sent_rad": command[j],
                f"follower.{joint}.position_rad": reading[j],
                f"follower.{joint}.current_a": 0.1 + 0.4 * abs(command[j] - reading[j]),
            }
        row = np.array([values.get(name, np.nan) for name in channels])
        writer.telemetry(int(k * 1e9 / FPS), row)


def write_dataset(root: Path, episodes: int, seed: int = 0) -> None:
    """Write a dataset of `episodes`; from `TAKES` on they repeat the first ones' frames and video.

    Args:
        root: a folder that isn't there yet.
        episodes: how many.
        seed: draws the motions.
    """
    from gaploop.datasets.lerobot_publish import publish

    journal = root.parent / f"{root.name}_journal"
    write_journal(journal, min(episodes, TAKES), seed)
    publish(journal, root, "local/review")
    if episodes > TAKES:
        _repeat(root, episodes)


def _repeat(root: Path, episodes: int) -> None:
    rows_path = next((root / "meta" / "episodes").glob("*/*.parquet"))
    rows = pq.read_table(rows_path)
    times = -(-episodes // len(rows))
    many = pa.concat_tables([rows] * times).slice(0, episodes).combine_chunks()
    first = many["gap_t0_ns"].to_numpy()
    numbers = np.arange(episodes)
    many = _set(many, "episode_index", numbers)
    many = _set(many, "gap_t0_ns", first + numbers)
    many = _set(many, "gap_uid", [f"019d0000-0000-7000-8000-{n:012x}" for n in range(episodes)])
    many = _set(many, "gap_session", [f"session {n // 50}" for n in range(episodes)])
    many = _set(many, "dataset_from_index", numbers * FRAMES)
    many = _set(many, "dataset_to_index", (numbers + 1) * FRAMES)
    pq.write_table(many, rows_path, compression="snappy")
    data_path = next((root / "data").glob("*/*.parquet"))
    frames = pq.read_table(data_path)
    tiled = pa.concat_tables([frames] * times).slice(0, episodes * FRAMES).combine_chunks()
    tiled = _set(tiled, "episode_index", np.repeat(numbers, FRAMES))
    tiled = _set(tiled, "index", np.arange(episodes * FRAMES))
    pq.write_table(tiled, data_path, compression="snappy", row_group_size=100 * FRAMES)
    info_path = root / "meta" / "info.json"
    info = json.loads(info_path.read_text())
    info |= {"total_episodes": episodes, "total_frames": episodes * FRAMES}
    info_path.write_text(json.dumps(info))


def _set(table: pa.Table, name: str, values: Any) -> pa.Table:
    place = table.column_names.index(name)
    field = table.schema.field(name)
    return table.set_column(place, field, pa.array(values, field.type))
