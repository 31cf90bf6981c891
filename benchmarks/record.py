"""`benchmarks record`: 640×480 cameras, two at 50 Hz or more at 30, beside LeRobot's encoder.

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
from dataclasses import dataclass, replace
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
    from gaploop.core.messages import Tick

NAMES: Final = ("top", "wrist", "left", "right", "front", "back")
CONTROL_HZ: Final = 200
CODECS: Final = {"lerobot": "", "lerobot_h264": "h264"}
"""LeRobot with its default codec, and with ours."""
PEER_S: Final = 60.0
"""LeRobot records no longer than this: what it loses, it loses from the first seconds on."""


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


@dataclass(frozen=True)
class Setting:
    """For how long [s] which cameras film, at how many pictures a second.

    Attributes:
        unplugged: the last camera gives nothing in the middle third.
    """

    seconds: float
    names: tuple[str, ...]
    fps: int
    unplugged: bool = False


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record `seconds` with gaploop and with LeRobot, one after the other."""
    if config.seconds <= 0:
        raise UnusableInputError(f"--seconds must be above 0, got {config.seconds:g}.")
    if not 1 <= config.cameras <= len(NAMES):
        raise UnusableInputError(f"--cameras must be 1 to {len(NAMES)}, got {config.cameras}.")
    results: dict[str, Any] = {}
    setting = Setting(config.seconds, NAMES[: config.cameras], 50 if config.cameras <= 2 else 30)
    repeats = config.n or 1
    with options.progress("Recording", repeats * (2 + len(CODECS))) as advance, busy(config.load):
        for repeat in range(repeats):
            number = f" {repeat + 1}" if repeats > 1 else ""
            shorter = replace(setting, seconds=min(setting.seconds, PEER_S))
            results[f"gaploop{number}"] = _gaploop(folder / "gaploop", setting)
            advance()
            without = replace(shorter, unplugged=True)
            results[f"gaploop, unplugged{number}"] = _gaploop(folder / "gaploop", without)
            advance()
            for name, codec in CODECS.items():
                results[f"{name}{number}"] = _lerobot(folder / name, shorter, codec)
                advance()
    sizes = {"seconds": config.seconds, "fps": setting.fps, "cameras": config.cameras}
    sizes["load"] = config.load
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


def _gaploop(folder: Path, setting: Setting) -> dict[str, Any]:
    from gaploop.collect.encoder import Encoder
    from gaploop.collect.journal import JournalWriter, warm_up
    from gaploop.core.vocabulary import Outcome

    shutil.rmtree(folder, ignore_errors=True)
    warm_up()
    arm = StillFollower()
    with contextlib.ExitStack() as stack:
        cameras = stack.enter_context(filming(setting.fps, setting.names))
        encoder = stack.enter_context(Encoder())
        header = _header(arm, cameras, setting.fps)
        encoder.start(header.cameras)
        cpu = Cpu.now()
        with JournalWriter(folder, header, encoder=encoder) as writer:
            expected, end = _drive(arm, cameras, writer, setting)
            sealing_s = time.monotonic()
            take = writer.seal(Outcome.SUCCESS)
            sealed_s = time.monotonic() - sealing_s
        encoder.close()
        share = cpu.share_pct(cameras)
    figures = {
        "seal_ms": round(1e3 * sealed_s, 1),
    }
    return {**_judge(take, expected, setting.fps), **figures, **end, **share}


def _header(arm: StillFollower, cameras: tuple[NumberedCamera, ...], fps: int) -> Any:
    from gaploop.collect.journal import channels
    from gaploop.core.files import uuid7
    from gaploop.core.journal_format import TakeHeader
    from gaploop.core.take import TakeInfo

    info = TakeInfo(uuid7(), task="bench", fps=fps, joint_names=JOINTS, robot_type=arm.robot_type)
    spec = {"width": WIDTH, "height": HEIGHT, "fps": float(fps), "codec": "h264"}
    return TakeHeader(info, (), {camera.name: spec for camera in cameras}, channels(arm))


def _drive(
    arm: StillFollower, cameras: tuple[NumberedCamera, ...], writer: Any, setting: Setting
) -> tuple[ExpectedPictures, dict[str, Any]]:
    """Run the control thread with a recorder; return what rows should show, how the loop went."""
    from benchmarks.memory import now_mb
    from gaploop.collect.journal import Recorder
    from gaploop.core.station import SIM_STATION
    from gaploop.teleop.control import ControlThread
    from gaploop.teleop.loop import Rates
    from gaploop.teleop.safety import make_safety

    took_s = list[float]()

    class TimedRecorder(Recorder):
        def tick(self, tick: Tick) -> None:
            began_s = time.monotonic()
            super().tick(tick)
            took_s.append(time.monotonic() - began_s)

    rates = Rates.near(setting.fps, CONTROL_HZ)
    safety = make_safety(SIM_STATION, arm, rates.period_s)
    expected = ExpectedPictures(cameras)
    recorder, memory = TimedRecorder(writer, arm), list[dict[str, float]]()
    with ControlThread(
        arm,
        Wave(),
        safety,
        rates,
        cameras=cameras,
        sinks=(recorder, expected),
        max_s=setting.seconds,
    ) as control:
        control.start()
        start_s = time.monotonic()
        while not control.wait(0.5):
            memory.append(dict(now_mb()))
            third = 3 * (time.monotonic() - start_s) // setting.seconds
            if setting.unplugged and third == 1:
                cameras[-1].unplugged.set()
            else:
                cameras[-1].unplugged.clear()
        realtime = control.snapshot().realtime
        end = control.finish()
    said = {
        "realtime": getattr(realtime, "granted", None),
        "turns": end.ticks,
        "turns_missed": end.missed,
        "faults": end.faults,
        "hand_over_p99_ms": round(1e3 * float(np.quantile(took_s, 0.99)), 2),
        "hand_over_max_ms": round(1e3 * max(took_s), 2),
        "hand_overs_over_10_ms": sum(one_s > 0.01 for one_s in took_s),
        "memory_mb": {  # after 1, 2 and 3 quarters; the recorder's holds what is compared, too
            name: [round(memory[len(memory) * k // 4].get(name, 0)) for k in (1, 2, 3)]
            for name in memory[-1]
        },
    }
    return expected, said


def _judge(take: Path, expected: ExpectedPictures, fps: int) -> dict[str, Any]:
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
        **_period_errors(read.frames.t_s, fps),
        "camera_age_p99_ms": round(
            1e3 * max(float(np.percentile(a, 99)) for a in read.frames.camera_age_s.values()), 2
        ),
    }


def _period_errors(t_s: Any, fps: int) -> dict[str, float]:
    error_ms = 1e3 * np.abs(np.diff(np.asarray(t_s)) - 1 / fps)
    if not len(error_ms):
        return {"period_error_p99_ms": math.nan, "period_error_max_ms": math.nan}
    return {
        "period_error_p99_ms": round(float(np.percentile(error_ms, 99)), 3),
        "period_error_max_ms": round(float(error_ms.max()), 3),
    }


def _lerobot(folder: Path, setting: Setting, codec: str) -> dict[str, Any]:
    """Record as lerobot-record does, with its streaming encoder and its relative sleep."""
    import av.logging
    from lerobot.utils.robot_utils import precise_sleep

    av.logging.set_level(av.logging.PANIC)
    shutil.rmtree(folder, ignore_errors=True)
    dataset = _lerobot_dataset(folder, setting, codec)
    zeros = np.zeros(len(JOINTS), dtype=np.float32)
    rows: dict[str, list[int]] = {}
    times_s: list[float] = []
    with filming(setting.fps, setting.names) as cameras:
        cpu = Cpu.now()
        start_s = time.monotonic()
        while (began_s := time.monotonic()) < start_s + setting.seconds:
            frame: dict[str, Any] = {"observation.state": zeros, "action": zeros, "task": "bench"}
            for camera in cameras:
                taken = camera.frame()
                frame[f"observation.images.{camera.name}"] = taken.image
                rows.setdefault(camera.name, []).append(camera.numbers[taken.t_capture_s])
            dataset.add_frame(frame)
            times_s.append(began_s - start_s)
            precise_sleep(1 / setting.fps - (time.monotonic() - began_s))
        dropped = _lerobot_drops(dataset)
        saving_s = time.monotonic()
        dataset.save_episode()
        dataset.finalize()
        saved_s = time.monotonic() - saving_s
        share = cpu.share_pct(cameras)
    wrong = {name: _wrong(folder, name, numbers) for name, numbers in rows.items()}
    return {
        "rows": len(times_s),
        "rows_expected": round(setting.seconds * setting.fps),
        "dropped": dropped,
        "pictures": sum(stored for _, stored in wrong.values()),
        "unreported": sum(count for count, _ in wrong.values()),
        **_period_errors(times_s, setting.fps),
        "save_and_finalize_ms": round(1e3 * saved_s, 1),
        **share,
    }


def _lerobot_dataset(folder: Path, setting: Setting, codec: str) -> Any:
    from lerobot.configs.video import RGBEncoderConfig
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names = list(JOINTS)
    joints = {"dtype": "float32", "shape": (len(names),), "names": names}
    image = {
        "dtype": "video",
        "shape": (HEIGHT, WIDTH, 3),
        "names": ["height", "width", "channels"],
    }
    images = {f"observation.images.{name}": image for name in setting.names}
    features = {"observation.state": joints, "action": joints, **images}
    encoder = RGBEncoderConfig(vcodec=codec) if codec else None
    return LeRobotDataset.create(
        "bench/record", setting.fps, features, folder, rgb_encoder=encoder, streaming_encoding=True
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
    keys = (
        *("rows", "pictures", "dropped", "unreported", "period_error_p99_ms"),
        *("hand_over_p99_ms", "hand_over_max_ms", "hand_overs_over_10_ms"),
    )
    cameras, wanted = result["cameras"], round(result["seconds"] * result["fps"])
    lines = [
        f"{result['seconds']:g} s, {cameras} {WIDTH}×{HEIGHT} cameras at {result['fps']} Hz, "
        f"{result['load']} busy processes beside: {wanted} rows, {cameras * wanted} pictures wanted"
    ]
    if result["seconds"] > PEER_S:
        lines.append(f"LeRobot, and with a camera unplugged: {PEER_S:g} s of these")
    lines.append("".join(f"{k:>22}" for k in ("", *keys)))
    for name, figures in result["results"].items():
        lines.append("".join(f"{v!s:>22}" for v in (name, *(figures.get(k) for k in keys))))
    lines += [
        f"{name}: {one['cpu_pct']} % of a core"
        + (f"; memory {one['memory_mb']} MB" if "memory_mb" in one else "")
        for name, one in result["results"].items()
    ]
    return "\n".join(lines)
