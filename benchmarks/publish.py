"""`benchmarks publish`: how fast takes become a dataset, and whether each row has its picture.

Takes with a number drawn into every picture go through the journal's own writer and are published;
then plain LeRobot decodes the dataset row by row. LeRobot encodes at the end of an episode what
gaploop encoded while it was recorded, so its `save_episode` on the same pictures stands beside.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

TAKES: Final = 8
TAKE_S: Final = 15.0
RATES_HZ: Final = (50, 30)
"""Milliseconds, in which Matroska counts, divide the period of the first but not of the second."""
REPEATS: Final = 3
CHECKED: Final = 400
"""Rows that plain LeRobot decodes, drawn from all of them; a row has two pictures."""
PEER_TAKES: Final = 2
PEER_S: Final = 5.0
"""LeRobot keeps every picture as a PNG until then, which takes longer than recording did."""
TELEMETRY_PER_FRAME: Final = 4


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Write, publish and read back takes at each rate."""
    takes = config.n or TAKES
    rates = {f"{fps}_hz": _one_rate(folder / str(fps), fps, takes, config.seed) for fps in RATES_HZ}
    return {"takes": takes, "take_s": TAKE_S, "cameras": 2, "rates": rates}


def _one_rate(folder: Path, fps: int, takes: int, seed: int) -> dict[str, Any]:
    from gaploop.datasets.lerobot_publish import publish_takes

    shutil.rmtree(folder, ignore_errors=True)
    journal, frames = folder / "journal", round(TAKE_S * fps)
    with options.progress(f"Writing takes of {fps} Hz", takes) as advance:
        for take in range(takes):
            _write(journal, fps, take * frames, frames)
            advance()
    speeds, of_processor = [], []
    for n in range(REPEATS):
        began_s, spent_s = time.monotonic(), time.process_time()
        published = publish_takes(journal, folder / f"set_{n}", "bench/publish").published
        speeds.append(len(published) * TAKE_S / (time.monotonic() - began_s))
        of_processor.append(len(published) * TAKE_S / (time.process_time() - spent_s))
    peer = _lerobot_speed(folder / "lerobot", fps, round(min(PEER_S, TAKE_S) * fps))
    return {
        "times_real_time": _spread(speeds),
        "times_processor_time": _spread(of_processor),
        "lerobot_times_real_time": _spread(peer),
        **_check(folder / "set_0", seed, takes * frames),
    }


def _write(journal: Path, fps: int, first: int, frames: int) -> None:
    from benchmarks.cameras import CAMERAS
    from benchmarks.journal_jobs import header, pictures
    from gaploop.collect.journal import FrameRow, JournalWriter
    from gaploop.core.vocabulary import Outcome
    from gaploop.teleop.emulator.arms import JOINTS

    with JournalWriter(journal, header(fps)) as writer:
        numbers = np.arange(len(writer.header.channels), dtype=np.float64)
        ages = dict.fromkeys(CAMERAS, 0.0)
        for k in range(frames):
            for part in range(TELEMETRY_PER_FRAME):
                writer.telemetry(round((k + part / TELEMETRY_PER_FRAME) / fps * 1e9), numbers)
            joints = np.full(len(JOINTS), float(k))
            shown = pictures(first + k)
            writer.frame(
                FrameRow(k / fps, joints, joints, joints, camera_age_s=ages, pictures=shown)
            )
        writer.seal(Outcome.SUCCESS)


def _check(root: Path, seed: int, expected: int) -> dict[str, int]:
    """Let plain LeRobot decode rows drawn from the dataset, and read their numbers."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from benchmarks.cameras import CAMERAS, read_barcode

    dataset = LeRobotDataset("bench/publish", root=root)
    rows = np.sort(
        np.random.default_rng(seed).choice(expected, min(CHECKED, expected), replace=False)
    )
    wrong = 0
    with options.progress("Decoding with LeRobot", len(rows)) as advance:
        for row in rows.tolist():
            item = dataset[row]
            for k, camera in enumerate(CAMERAS):
                picture = item[f"observation.images.{camera}"].numpy().transpose(1, 2, 0) * 255
                wrong += read_barcode(picture) != 2 * row + k
            advance()
    return {
        "rows": len(dataset),
        "rows_expected": expected,
        "pictures_checked": len(rows) * len(CAMERAS),
        "pictures_wrong": wrong,
    }


def _lerobot_speed(folder: Path, fps: int, frames: int) -> list[float]:
    """Return recorded seconds per second of LeRobot's `save_episode`, encoding H.264 as we do."""
    from benchmarks.journal_jobs import lerobot_dataset, pictures, silent
    from gaploop.teleop.emulator.arms import JOINTS

    speeds = []
    with silent():
        dataset = lerobot_dataset(folder, fps=fps, streaming=False)
        joints = np.zeros(len(JOINTS), dtype=np.float32)
        for take in range(PEER_TAKES):
            for k in range(frames):
                row = {"observation.state": joints, "action": joints, "task": "bench"}
                for camera, picture in pictures(take * frames + k).items():
                    row[f"observation.images.{camera}"] = picture
                dataset.add_frame(row)
            began_s = time.monotonic()
            dataset.save_episode()
            speeds.append(frames / fps / (time.monotonic() - began_s))
        dataset.finalize()
    return speeds


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(float(np.median(values)), 2),
        "min": round(min(values), 2),
        "max": round(max(values), 2),
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    lines = [f"{result['takes']} takes of {result['take_s']:g} s, two 640×480 cameras, 200 Hz"]
    for name, found in result["rates"].items():
        ours, peer = found["times_real_time"], found["lerobot_times_real_time"]
        spent = found["times_processor_time"]
        lines.append(
            f"{name:>6}: published {ours['median']:g}× real time ({ours['min']:g} to "
            f"{ours['max']:g}), {spent['median']:g}× ({spent['min']:g} to {spent['max']:g}) by "
            f"processor time; LeRobot's save_episode {peer['median']:g}×; "
            f"{found['pictures_wrong']} of {found['pictures_checked']} pictures wrong; "
            f"{found['rows']} of {found['rows_expected']} rows"
        )
    return "\n".join(lines)
