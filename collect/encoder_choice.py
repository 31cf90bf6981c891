"""Which of the machine's H.264 encoders a take's videos are written with: tried, measured, kept.

FFmpeg may have an encoder and the machine no device for it, so each candidate encodes some pictures
in a process of its own, for a driver may crash. It qualifies if it hands out every picture's packet
at once and in order, which a take needs to survive a kill, if the pictures come back as they were,
and if it keeps up. Of those that do, the one that costs the processor least is used.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import av
import numpy as np

from gaploop.collect.video_stream import HARDWARE, SOFTWARE, VideoStream
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import Image

log = logging.getLogger(__name__)

PICTURES: Final = 40
FPS: Final = 50.0
KEEPS_UP_MS: Final = 8.0
"""Two cameras at 50 Hz leave 10 ms for a picture [ms]."""
LEAST_PSNR_DB: Final = 28.0
"""Pictures that come back worse than this are not the ones that went in [dB]."""
PATIENCE_S: Final = 30.0
"""A candidate's process that takes longer hangs [s]."""


@dataclass(frozen=True)
class EncoderTrial:
    """What a candidate did: median time for a picture, and the processor's for it [ms]."""

    encoder: str
    ms: float = 0.0
    cpu_ms: float = 0.0
    why_not: str = ""


def choose(
    width: int,
    height: int,
    candidates: tuple[str, ...] | None = None,
    memory: Path | None = None,
    trial: Callable[[str, int, int], EncoderTrial] | None = None,
) -> str:
    """Return the encoder for pictures of a size; measured once on a machine, then remembered.

    Unless given, the `candidates` beside software are the hardware encoders that PyAV offers.
    """
    offered = tuple(name for name in HARDWARE if name in av.codecs_available)
    candidates = offered if candidates is None else candidates
    if not candidates:
        return SOFTWARE
    memory = memory or _memory()
    key = f"{platform.node()}, PyAV {av.__version__}, {width}x{height}: {', '.join(candidates)}"
    try:
        known = dict(read_json(memory)) if memory.exists() else {}
    except (UnusableInputError, OSError):  # a memory that can't be read is made anew
        known = {}
    if key not in known:
        found = [(trial or measure)(name, width, height) for name in (SOFTWARE, *candidates)]
        known[key] = {"encoder": best(found), "measured": [asdict(one) for one in found]}
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_json(memory, known)
        except OSError as error:
            log.info("The measured cost of encoders can't be saved (%s).", error)
        costs = "{0.encoder}: {0.cpu_ms:g} ms of processor time a picture, {0.ms:g} ms in all"
        words = [
            f"{one.encoder}: {one.why_not.rstrip('.')}" if one.why_not else costs.format(one)
            for one in found
        ]
        log.info("Videos are encoded by %s. %s", known[key]["encoder"], "; ".join(words))
    return str(known[key]["encoder"])


def forget(memory: Path | None = None) -> None:
    """Measure anew the next time: an encoder that was chosen has failed."""
    with contextlib.suppress(OSError):  # as where it couldn't be written
        (memory or _memory()).unlink(missing_ok=True)


def best(found: list[EncoderTrial]) -> str:
    """Return the encoder that costs least of those that qualify; software where none does."""
    fit = [one for one in found if not one.why_not and one.ms <= KEEPS_UP_MS]
    return min(fit, key=lambda one: one.cpu_ms).encoder if fit else SOFTWARE


def measure(encoder: str, width: int, height: int) -> EncoderTrial:
    """Try an encoder in a process of its own."""
    command = [sys.executable, "-P", "-m", "gaploop.collect.encoder_choice"]
    try:
        done = subprocess.run(
            [*command, encoder, str(width), str(height)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            start_new_session=True,
        )
        said = json.loads("{" + done.stdout.rpartition("{")[2])
    except subprocess.TimeoutExpired:
        return EncoderTrial(encoder, why_not="it hangs")
    except ValueError:
        return EncoderTrial(encoder, why_not=f"it crashed (exit code {done.returncode})")
    return EncoderTrial(**said)


def tried(encoder: str, width: int, height: int) -> EncoderTrial:
    """Encode some pictures, here, and look at what comes of them."""
    shown = [_picture(number, width, height) for number in range(PICTURES)]
    times_ms, count, worst_db = list[float](), 0, math.inf
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "try.mkv"
        try:
            stream = VideoStream(path, width, height, FPS, encoder)
            stream.encode(shown[0])  # what is set up once isn't a picture's cost
            is_prompt, cpu_s = stream.packets == 1, time.process_time()
            for number, picture in enumerate(shown[1:], start=2):
                start_s = time.perf_counter()
                stream.encode(picture)
                times_ms.append(1e3 * (time.perf_counter() - start_s))
                is_prompt = is_prompt and stream.packets == number
            cpu_ms = 1e3 * (time.process_time() - cpu_s) / max(len(times_ms), 1)
            stream.close()
            for picture in _decoded(path):
                if count < len(shown):
                    errors = shown[count].astype(float).mean(axis=2) - picture.mean(axis=2)
                    psnr_db = 10 * math.log10(255**2 / max(float((errors**2).mean()), 1e-9))
                    worst_db = min(worst_db, psnr_db)
                count += 1
        except (DeviceError, av.FFmpegError, ValueError, OSError) as error:
            return EncoderTrial(encoder, why_not=" ".join(str(error).split()))
    why = ""
    if not is_prompt:
        why = "it keeps pictures back"
    elif count != PICTURES:
        why = f"it lost {PICTURES - count} pictures"
    elif worst_db < LEAST_PSNR_DB:
        why = f"it spoils pictures ({worst_db:.0f} dB)"
    return EncoderTrial(encoder, round(float(np.median(times_ms)), 2), round(cpu_ms, 2), why)


def _decoded(path: Path) -> Iterator[Image]:
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def _picture(number: int, width: int, height: int) -> Image:
    """Return a picture with edges and slopes that move on."""
    y, x = np.mgrid[0:height, 0:width]
    red = (x * 255 // width + 3 * number) % 256
    green = y * 255 // height
    blue = np.where((x // 16 + y // 16 + number) % 2, 60, 190)
    return np.stack((red, green, blue), axis=2).astype(np.uint8)


def _memory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gaploop" / "encoders.json"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(tried(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
