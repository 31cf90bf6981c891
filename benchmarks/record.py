"""`benchmarks record`: two 640×480 cameras at 50 Hz, beside LeRobot's streaming encoder.

The cameras take numbered pictures in real time; afterwards every picture of every video is read
and compared with what its row should show. A picture that differs without the take saying so is
an unreported drop. Drawing the pictures costs processor time too, which is given apart.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.cameras import (
    HEIGHT,
    WIDTH,
    ExpectedPictures,
    NumberedCamera,
    StillFollower,
    Wave,
    filming,
    read_barcodes,
)
from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options
from gaploop.teleop.emulator.arms import JOINTS

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

FPS: Final = 50
CONTROL_HZ: Final = 200
CODECS: Final = {"lerobot": "", "lerobot_h264": "h264"}
"""LeRobot with its default codec, and with ours."""


@dataclass(frozen=True)
class Cpu:
    """Processor time of this process and its ended children [s], and when it was read."""

    spent_s: float
    at_s: float

    @classmethod
    def now(cls) -> Cpu:
        """Read it."""
        return cls(sum(os.times()[:4]), time.monotonic())

    def share_pct(self, cameras: tuple[NumberedCamera, ...]) -> dict[str, float]:
        """Return the share of one core since then [%], and that of drawing the pictures."""
        now = Cpu.now()
        took_s = now.at_s - self.at_s
        drawing_s = sum(camera.drawing_s for camera in cameras)
        spent_s = now.spent_s - self.spent_s - drawing_s
        return {
            "cpu_pct": round(100 * spent_s / took_s, 1),
            "drawing_pct": round(100 * drawing_s / took_s, 1),
        }


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record `seconds` with gaploop and with LeRobot, one after the other."""
    if config.seconds <= 0:
        raise UnusableInputError(f"--seconds must be above 0, got {config.seconds:g}.")
    results: dict[str, Any] = {}
    repeats = config.n or 1
    with options.progress("Recording", repeats * (1 + len(CODECS))) as advance, busy(config.load):
        for repeat in range(repeats):
            number = f" {repeat + 1}" if repeats > 1 else ""
            results[f"gaploop{number}"] = _gaploop(folder / "gaploop", config.seconds)
            advance()
            for name, codec in CODECS.items():
                results[f"{name}{number}"] = _lerobot(folder / name, config.seconds, codec)
                advance()
    sizes = {"seconds": config.seconds, "fps": FPS, "cameras": 2, "load": config.load}
    return {**sizes, "results": results}


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes busy beside; each in a session of its own, as from other terminals."""
    command = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in range(processes):
            process = stack.enter_context(subprocess.Popen(command, start_new_session=True))
            stack.callback(process.kill)
        yield


def _gaploop(folder: Path, seconds: float) -> dict[str, Any]:
    from gaploop.collect.encoder import Encoder
    from gaploop.collect.journal import JournalWriter, warm_up
    from gaploop.core.vocabulary import Outcome

    shutil.rmtree(folder, ignore_errors=True)
    warm_up()
    arm = StillFollower()
    with contextlib.ExitStack() as stack:
        cameras = stack.enter_context(filming(FPS))
        encoder = stack.enter_context(Encoder())
        header = _header(arm, cameras)
        encoder.start(header.cameras)
        cpu = Cpu.now()
        with JournalWriter(folder, header, encoder=encoder) as writer:
            expected, end = _drive(arm, cameras, writer, seconds)
            sealing_s = time.monotonic()
            take = writer.seal(Outcome.SUCCESS)
            sealed_s = time.monotonic() - sealing_s
        encoder.close()
        share = cpu.share_pct(cameras)
    figures = {
        "seal_ms": round(1e3 * sealed_s, 1),
    }
    return {**_judge(take, expected), **figures, **end, **share}


def _header(arm: StillFollower, cameras: tuple[NumberedCamera, ...]) -> Any:
    from gaploop.collect.journal import channels
    from gaploop.core.files import uuid7
    from gaploop.core.journal_format import TakeHeader
    from gaploop.core.take import TakeInfo

    info = TakeInfo(uuid7(), task="bench", fps=FPS, joint_names=JOINTS, robot_type=arm.robot_type)
    spec = {"width": WIDTH, "height": HEIGHT, "fps": float(FPS), "codec": "h264"}
    return TakeHeader(info, (), {camera.name: spec for camera in cameras}, channels(arm))


def _drive(
    arm: StillFollower, cameras: tuple[NumberedCamera, ...], writer: Any, seconds: float
) -> tuple[ExpectedPictures, dict[str, Any]]:
    """Run the control thread with a recorder; return what rows should show, how the loop went."""
    from gaploop.collect.journal import Recorder
    from gaploop.core.station import SIM_STATION
    from gaploop.teleop.control import ControlThread
    from gaploop.teleop.loop import Rates
    from gaploop.teleop.safety import make_safety

    rates = Rates(CONTROL_HZ, FPS)
    safety = make_safety(SIM_STATION, arm, rates.period_s)
    expected = ExpectedPictures(cameras)
    recorder = Recorder(writer, arm)
    with ControlThread(
        arm, Wave(), safety, rates, cameras=cameras, sinks=(recorder, expected), max_s=seconds
    ) as control:
        control.start()
        while not control.wait(0.5):
            pass
        realtime = control.snapshot().realtime
        end = control.finish()
    said = {
        "realtime": getattr(realtime, "granted", None),
        "turns": end.ticks,
        "turns_missed": end.missed,
        "faults": end.faults,
    }
    return expected, said


def _judge(take: Path, expected: ExpectedPictures) -> dict[str, Any]:
    """Compare every picture with what its row should show."""
    from gaploop.core.journal_format import DROPPED, EVENTS, read_end, read_take

    end, read = read_end(take), read_take(take)
    events = take / EVENTS
    lines = events.read_text().splitlines() if events.exists() else []
    said = [event for event in map(json.loads, lines) if event["event"] == DROPPED]
    told = {(event["camera"], event["frame"]) for event in said}
    wrong = shown_right = 0
    for camera in read.cameras:
        shown = read_barcodes(take / f"{camera}.mkv")
        rows = [expected.rows.get(t_s, {}).get(camera, -1) for t_s in read.frames.t_s]
        differ = [k for k, (a, b) in enumerate(zip(rows, shown, strict=False)) if a != b]
        wrong += sum((camera, k) not in told for k in differ) + abs(len(rows) - len(shown))
        shown_right += len(shown) - len(differ)
    return {
        "rows": len(read.frames),
        "rows_expected": len(expected.rows),
        "dropped": sum(end.dropped.values()) if end is not None else None,
        "pictures": shown_right,
        "unreported": wrong + abs(len(expected.rows) - len(read.frames)),
        **_period_errors(read.frames.t_s),
        "camera_age_p99_ms": round(
            1e3 * max(float(np.percentile(a, 99)) for a in read.frames.camera_age_s.values()), 2
        ),
    }


def _period_errors(t_s: Any) -> dict[str, float]:
    error_ms = 1e3 * np.abs(np.diff(np.asarray(t_s)) - 1 / FPS)
    if not len(error_ms):
        return {"period_error_p99_ms": math.nan, "period_error_max_ms": math.nan}
    return {
        "period_error_p99_ms": round(float(np.percentile(error_ms, 99)), 3),
        "period_error_max_ms": round(float(error_ms.max()), 3),
    }


def _lerobot(folder: Path, seconds: float, codec: str) -> dict[str, Any]:
    """Record as lerobot-record does, with its streaming encoder and its relative sleep."""
    import av.logging
    from lerobot.utils.robot_utils import precise_sleep

    av.logging.set_level(av.logging.PANIC)
    shutil.rmtree(folder, ignore_errors=True)
    dataset = _lerobot_dataset(folder, codec)
    zeros = np.zeros(len(JOINTS), dtype=np.float32)
    rows: dict[str, list[int]] = {}
    times_s: list[float] = []
    with filming(FPS) as cameras:
        cpu = Cpu.now()
        start_s = time.monotonic()
        while (began_s := time.monotonic()) < start_s + seconds:
            frame: dict[str, Any] = {"observation.state": zeros, "action": zeros, "task": "bench"}
            for camera in cameras:
                taken = camera.frame()
                frame[f"observation.images.{camera.name}"] = taken.image
                rows.setdefault(camera.name, []).append(camera.numbers[taken.t_capture_s])
            dataset.add_frame(frame)
            times_s.append(began_s - start_s)
            precise_sleep(1 / FPS - (time.monotonic() - began_s))
        dropped = _lerobot_drops(dataset)
        saving_s = time.monotonic()
        dataset.save_episode()
        dataset.finalize()
        saved_s = time.monotonic() - saving_s
        share = cpu.share_pct(cameras)
    wrong = {name: _wrong(folder, name, numbers) for name, numbers in rows.items()}
    return {
        "rows": len(times_s),
        "rows_expected": round(seconds * FPS),
        "dropped": dropped,
        "pictures": sum(stored for _, stored in wrong.values()),
        "unreported": sum(count for count, _ in wrong.values()),
        **_period_errors(times_s),
        "save_and_finalize_ms": round(1e3 * saved_s, 1),
        **share,
    }


def _lerobot_dataset(folder: Path, codec: str) -> Any:
    from lerobot.configs.video import RGBEncoderConfig
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names = list(JOINTS)
    joints = {"dtype": "float32", "shape": (len(names),), "names": names}
    image = {
        "dtype": "video",
        "shape": (HEIGHT, WIDTH, 3),
        "names": ["height", "width", "channels"],
    }
    images = {f"observation.images.{name}": image for name in ("top", "wrist")}
    features = {"observation.state": joints, "action": joints, **images}
    encoder = RGBEncoderConfig(vcodec=codec) if codec else None
    return LeRobotDataset.create(
        "bench/record", FPS, features, folder, rgb_encoder=encoder, streaming_encoding=True
    )


def _lerobot_drops(dataset: Any) -> int | None:
    """Return how many pictures its encoder says it dropped (0.6.1 keeps it to itself)."""
    encoder = getattr(getattr(dataset, "writer", None), "_streaming_encoder", None)
    counts: Mapping[str, int] | None = getattr(encoder, "_dropped_frames", None)
    return None if counts is None else sum(counts.values())


def _wrong(folder: Path, camera: str, rows: list[int]) -> tuple[int, int]:
    """Return how many rows stand beside another picture than theirs, or none; how many stored."""
    shown: list[int] = []
    for path in sorted((folder / "videos" / f"observation.images.{camera}").rglob("*.mp4")):
        shown += read_barcodes(path)
    same = sum(a == b for a, b in zip(rows, shown, strict=False))
    return len(rows) - same, len(shown)


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    keys = ("rows", "pictures", "dropped", "unreported", "period_error_p99_ms", "cpu_pct")
    wanted = round(result["seconds"] * FPS)
    lines = [
        f"{result['seconds']:g} s, two {WIDTH}×{HEIGHT} cameras at {FPS} Hz, beside them "
        f"{result['load']} busy processes: {wanted} rows and {2 * wanted} pictures wanted"
    ]
    lines.append("".join(f"{k:>21}" for k in ("", *keys)))
    for name, figures in result["results"].items():
        lines.append("".join(f"{v!s:>21}" for v in (name, *(figures.get(k) for k in keys))))
    return "\n".join(lines)
