"""Video without re-encoding: packets of take videos into dataset videos, and back out again.

A Matroska file stores whole milliseconds, so a plain remux at 30 fps puts frames at times that
LeRobot refuses. Here every packet gets the exact time k / fps. That needs streams without
reordered frames, which is how takes are recorded. What can't be cut packet by packet is decoded
and encoded by itself. What a file holds is read without decoding it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import av.logging
import numpy as np
from numpy.typing import NDArray

from gaploop.core import platform_calls
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import open_video_file
from gaploop.core.messages import Image
from gaploop.core.take import Images

TICKS_PER_FRAME: Final = 512
"""Time base of the videos is 1 / (fps * 512): what FFmpeg's own mp4 writer picks at 30 fps."""
MAX_FILE_BYTES: Final = 200 * 1024 * 1024
"""A dataset video is closed at this size, as in LeRobot (`video_files_size_in_mb`)."""

SAME_S: Final = 1e-4
"""Times of a picture that differ less are the same to LeRobot (`tolerance_s`)."""
RATES_DIFFER: Final = 0.1
"""Share by which the mean rate of a video of uneven rate may differ from its rows'."""

# LeRobot points FFmpeg's log at the terminal after every video; errors are enough there.
av.logging.set_libav_level(av.logging.ERROR)

type Encoding = tuple[str, dict[str, str], str]
"""FFmpeg's encoder, its options, and its pixel format."""
ENCODERS: Final[dict[str, Encoding]] = {
    "h264": ("libx264", {"crf": "16", "g": "2", "bf": "0", "preset": "medium"}, "yuv420p"),
    "hevc": (
        "libx265",
        {"crf": "18", "g": "2", "bf": "0", "x265-params": "log-level=error"},
        "yuv420p",
    ),
    "av1": ("libsvtav1", {"crf": "20", "g": "2", "preset": "8"}, "yuv420p"),
}
"""By codec: key frames as close as in LeRobot, finer than it by default."""


_OF_A_TAKE: Final = {"probesize": "5000", "fflags": "noparse"}
"""Matroska says what is asked of a take's video. Without decoding pictures for what it doesn't, and
without looking into each packet, to open and read one takes half the processor time."""


class DamagedVideoError(UnusableInputError):
    """A video file can't be opened, or not read to the end."""


class VideoWriter:
    """One mp4 that take videos are appended to, packet by packet."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path
        self.frames = 0
        self._rate = Fraction(fps).limit_denominator(1001)
        self._container: Any = None
        self._stream: Any = None
        self._kind: tuple[Any, ...] = ()
        self._delay = 0

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size_bytes(self) -> int:
        """Size written so far [bytes]."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append_part(self, source: Path, start_s: float | None, frames: int) -> bool:
        """Append `frames` pictures of `source`, without decoding them.

        Args:
            start_s: time of the first one [s]; None where they are all that it holds, in order,
                at whatever times, as in the video of a take.

        Returns:
            False, with nothing written, where they fit only into another file: another codec or
            size, or more pictures stored out of order than before.

        Raises:
            UnusableInputError: there are fewer, or they can't be cut out without decoding.
        """
        with open_video(source, **({} if start_s is not None else _OF_A_TAKE)) as container:
            stream = container.streams.video[0]
            if start_s is None:
                with reading(source):
                    packets = [p for p in container.demux(stream) if p.size and p.pts is not None]
                if len(packets) != frames:
                    check_packets(packets, frames, source)
                part = _in_order(packets)
            else:
                part = find_part(container, start_s, frames, self._rate, source)
            fits = part.delay <= self._delay and self._kind == _kind(stream)
            if self._container is not None and not fits:
                return False
            ticks = 1 / (self._rate * TICKS_PER_FRAME)
            if self._container is None:
                self._delay = part.delay
                self.path.parent.mkdir(parents=True, exist_ok=True)
                options = {"movflags": "faststart"}
                self._container = av.open(str(self.path), "w", format="mp4", options=options)
                self._stream = self._container.add_stream_from_template(stream, opaque=True)
                self._stream.time_base = ticks
                self._kind = _kind(stream)
            for place, (packet, shown) in enumerate(zip(part.packets, part.shown, strict=True)):
                packet.time_base = ticks  # below 20 fps the file's own is a finer one
                packet.pts = (self.frames + shown) * TICKS_PER_FRAME
                packet.dts = (self.frames + place - self._delay) * TICKS_PER_FRAME
                packet.duration = TICKS_PER_FRAME
                packet.stream = self._stream
                self._container.mux(packet)
            self.frames += len(part.packets)
        return True

    def close(self) -> None:
        """Finish the file; safe to call twice."""
        if self._container is not None:
            self._container.close()


def _kind(stream: Any) -> tuple[Any, ...]:
    context = stream.codec_context
    return (context.name, context.width, context.height, bytes(context.extradata or b""))


@dataclass(frozen=True)
class VideoPart:
    """Consecutive pictures of a video as packets, in the order in which they are decoded.

    Attributes:
        shown: place of each packet's picture in the order in which they are shown.
        delay: by how many places the most delayed packet is decoded after it is shown.
    """

    packets: list[Any]
    shown: Sequence[int]
    delay: int


def find_part(
    container: Any, start_s: float, frames: int, rate_hz: Fraction, source: Path
) -> VideoPart:
    """Find the packets of `frames` pictures from `start_s` [s] on.

    Raises:
        UnusableInputError: they don't begin with a key frame, or pictures outside the part are
            decoded between them, and so may need them or be needed.
    """
    stream = container.streams.video[0]
    begin = round(start_s / stream.time_base)
    half = round(Fraction(1, 2) / rate_hz / stream.time_base)
    with reading(source):
        container.seek(max(0, begin), stream=stream)
        wanted = itertools.dropwhile(
            lambda p: abs(p.pts - begin) > half or not _begins(p),
            (p for p in container.demux(stream) if p.size and p.pts is not None),
        )
        packets = list(itertools.islice(wanted, frames))
    times = sorted(p.pts for p in packets)
    if not packets or packets[0].pts != times[0] or len(packets) < frames:
        raise UnusableInputError(
            f"{source} can't be cut at {start_s:g} s for {frames} pictures: no key frame there, or "
            "the file is too short."
        )
    end = begin + round(frames / rate_hz / stream.time_base)
    if times[-1] > end - half:
        raise UnusableInputError(
            f"{source} can't be cut at {float(end * stream.time_base):g} s: pictures on both sides "
            "need each other."
        )
    return _in_order(packets)


def _begins(packet: Any) -> bool:
    """Say whether a part can begin with a picture: a key frame at which decoders count anew.

    At others (CRA of HEVC, which x265 writes by default, and recovery points of H.264) numbers
    of pictures go on, by which a decoder puts them into their order: behind pictures that had
    higher ones it shows them too early, without any error.
    """
    context = packet.stream.codec_context
    hevc, head = context.name == "hevc", bytes(context.extradata or b"")
    if not packet.is_keyframe or context.name not in ("hevc", "h264") or head[:1] != b"\x01":
        return bool(packet.is_keyframe)
    data, at, size = bytes(packet), 0, (head[21 if hevc else 4] & 3) + 1  # of each unit's length
    while at + size < len(data):
        kind = data[at + size] >> 1 & 63 if hevc else data[at + size] & 31
        if kind < 32 if hevc else 1 <= kind <= 5:  # a picture's, not what describes it
            return kind in (19, 20) if hevc else kind == 5
        at += size + int.from_bytes(data[at : at + size], "big")
    return True


def _in_order(packets: list[Any]) -> VideoPart:
    """Return packets as they are decoded, with the order in which they are shown."""
    order = sorted(range(len(packets)), key=lambda k: packets[k].pts)
    shown = [0] * len(packets)
    for place, k in enumerate(order):
        shown[k] = place
    return VideoPart(packets, shown, max(k - place for k, place in enumerate(shown)))


def cut_points(source: Path, fps: float) -> tuple[frozenset[int], frozenset[int]]:
    """Return at which pictures a part can begin, and before which it can end, without decoding.

    Pictures are counted from the start of the file.

    Raises:
        DamagedVideoError: it can't be read.
    """
    with open_video(source) as container, reading(source):
        stream = container.streams.video[0]
        packets = [p for p in container.demux(stream) if p.size and p.pts is not None]
        places = [round(p.pts * stream.time_base * fps) for p in packets]
        keys = [_begins(p) for p in packets]
    starts, ends, newest = set(), set(), -1
    later = list(itertools.accumulate(reversed(places), min))[::-1]  # the first shown from here on
    for place, is_key, first in zip(places, keys, later, strict=True):
        if newest < first:  # nothing on either side needs the other's pictures
            ends.add(newest + 1)
            if is_key and place == first:
                starts.add(place)
        newest = max(newest, place)
    return frozenset(starts), frozenset(ends | {newest + 1})


def check_packets(packets: list[Any], frames: int, source: Path) -> None:
    """Refuse packets that aren't one per frame, in the order in which they are shown."""
    if len(packets) != frames:
        raise UnusableInputError(
            f"{source} holds {len(packets)} pictures for {frames} rows. Publishing it would give "
            "rows the wrong pictures; record the episode again."
        )
    times = [p.pts for p in packets]
    if any(b <= a for a, b in itertools.pairwise(times)):
        raise UnusableInputError(
            f"{source} has reordered frames (B-frames). Encode it with bf=0 (zerolatency)."
        )


def verify(source: Path, frames: int) -> None:
    """Refuse a take's video that can't be appended: whole, in order, one picture per row."""
    with open_video(source, **_OF_A_TAKE) as container, reading(source):
        check_packets([p for p in container.demux(video=0) if p.size], frames, source)


def open_video(path: Path, **options: str) -> Any:
    """Open a video file, with FFmpeg's options; raise UnusableInputError where that fails."""
    try:
        container = open_video_file(path, **options)
    except (UnusableInputError, av.FFmpegError, *DAMAGE) as error:
        raise DamagedVideoError(f"{path} can't be opened ({error}). Restore it.") from None
    if not container.streams.video:
        container.close()
        raise DamagedVideoError(f"{path} holds no video stream. Restore it.")
    return container


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise DamagedVideoError where a file's packets can't be read or decoded; for what reads."""
    try:
        yield
    except (av.FFmpegError, *DAMAGE) as error:
        raise DamagedVideoError(f"{path} can't be read ({error}). Restore it.") from None


def sample_pictures(path: Path, at_most: int = 100) -> Image:
    """Return key frames of a video, evenly spread: uint8, shape (n, 3, height, width).

    Key frames decode alone, so that only those that are wanted are decoded.
    """
    pictures: list[Image] = []
    with open_video(path) as container, reading(path):
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1  # to start threads takes longer than a few pictures
        keys = [p for p in container.demux(stream) if p.size and p.is_keyframe]
        chosen = set(np.linspace(0, len(keys) - 1, min(at_most, len(keys))).astype(int).tolist())
        for k in sorted(chosen):
            pictures += [frame.to_ndarray(format="rgb24") for frame in keys[k].decode()]
        pictures += [frame.to_ndarray(format="rgb24") for frame in stream.decode(None)]
    if not pictures:
        raise UnusableInputError(f"{path} holds no whole picture. Restore it.")
    return np.stack(pictures).transpose(0, 3, 1, 2)


@dataclass(frozen=True)
class VideoRange:
    """Some consecutive frames of a video file, from `start_s` [s] on, opened anew by every call."""

    path: Path
    start_s: float
    frames: int
    fps: float

    def __call__(self) -> Iterator[Image]:
        """Yield the pictures in order, RGB, uint8, shape (height, width, 3)."""
        with open_video(self.path) as container:
            for frame in shown_frames(self.path, container, self.start_s, self.frames, self.fps):
                yield frame.to_ndarray(format="rgb24")


def depth_in(shown: VideoRange, details: Mapping[str, Any]) -> Iterator[NDArray[np.float64]]:
    """Yield the depth that LeRobot packed into the 12 bits of a video, shape (height, width).

    `details` are its feature's: `depth_unit`, and how it was packed, by the logarithm or not.
    """
    low_m, high_m, shift_m = (details[f"video.{n}"] for n in ("depth_min", "depth_max", "shift"))
    ends = np.array([low_m, high_m], dtype=np.float64)
    ends = np.log(ends + shift_m) if details.get("video.use_log") else ends
    unit = 1.0 if details.get("depth_unit") == "m" else 1000.0
    with open_video(shown.path) as container:
        for frame in shown_frames(shown.path, container, shown.start_s, shown.frames, shown.fps):
            plane = frame.planes[0]
            codes = np.frombuffer(plane, dtype="<u2").reshape(plane.height, -1)[:, : plane.width]
            packed = ends[0] + codes * (ends[1] - ends[0]) / 4095
            yield unit * (np.exp(packed) - shift_m if details.get("video.use_log") else packed)


def pictures_at(images: Images, rows: Sequence[int]) -> Iterator[tuple[int, Image]]:
    """Yield some of a take's pictures by their row, in rising order of rows.

    In a video file only those are decoded and what they need; from elsewhere all come by.
    """
    if not isinstance(images, VideoRange):
        wanted = set(rows)
        for row, picture in enumerate(images()):
            if row in wanted:
                yield row, picture
            if row >= rows[-1]:
                return
        return
    with open_video(images.path) as container, reading(images.path):
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        frames: Iterator[av.VideoFrame] = iter(())
        at_s, spacing_s = -1.0, 0.0  # how far key frames are apart, as seen
        for row in rows:
            time_s = images.start_s + row / images.fps
            if at_s < 0 or time_s - at_s > max(spacing_s, 2.0 / images.fps):
                container.seek(max(0, int(time_s / stream.time_base)), stream=stream)
                frames, came_from_s, at_s = container.decode(stream), at_s, -1.0
            else:
                came_from_s = -1.0
            for frame in frames:
                if frame.time is None:
                    continue
                if at_s < 0 <= came_from_s and frame.time <= came_from_s:
                    spacing_s = max(spacing_s, time_s - frame.time)
                at_s = frame.time
                if at_s >= time_s - 0.5 / images.fps:
                    yield row, frame.to_ndarray(format="rgb24")
                    break


def shown_frames(
    path: Path, container: Any, start_s: float, frames: int, fps: float
) -> Iterator[Any]:
    """Yield at most `frames` decoded frames of an open video, from `start_s` [s] on."""
    stream, left = container.streams.video[0], frames
    with reading(path):
        container.seek(max(0, int(start_s / stream.time_base)), stream=stream)
        for frame in container.decode(stream):
            if frame.time is None or frame.time < start_s - 0.5 / fps:
                continue
            if left == 0:
                return
            left -= 1
            yield frame


def count_frames(path: Path) -> int:
    """Return the number of whole pictures in a video file, from its packets.

    The number in an mp4's header is not enough: it stands there though the file was cut.
    """
    return video_index(path).frames


def encode_part(source: Path, start_s: float, frames: int, fps: float, target: Path) -> None:
    """Write `frames` pictures of `source` from `start_s` [s] on to an mp4 of their own.

    Raises:
        UnusableInputError: there are fewer, the file is damaged, or can't be encoded here.
    """
    with open_video(source) as container:
        context = container.streams.video[0].codec_context
        codec = context.codec.canonical_name
        if codec not in ENCODERS:
            raise UnusableInputError(
                f"{source} can't be encoded again: its codec is {codec}, which must be one of "
                f"{', '.join(ENCODERS)}. Convert it first."
            )
        shown = shown_frames(source, container, start_s, frames, fps)
        encoder, options, _ = ENCODERS[codec]
        if codec == "hevc" and context.pix_fmt.startswith("gray"):  # depth: by its logarithm
            options = {**options, "x265-params": f"{options['x265-params']}:lossless=1"}
        count = encode(shown, target, fps, (encoder, options, context.pix_fmt))
    if count != frames:
        raise UnusableInputError(
            f"{source} holds {count} pictures from {start_s:g} s on, not {frames}. Restore it."
        )


def encode(frames: Iterator[Any], target: Path, fps: float, encoding: Encoding) -> int:
    """Write PyAV's frames to an mp4 of their own, at the exact times k / fps; return how many."""
    rate = Fraction(fps).limit_denominator(1001)
    encoder, options, pixels = encoding
    count, out = 0, None
    with av.open(str(target), "w", format="mp4") as written:
        for frame in frames:
            if out is None:
                out = written.add_stream(encoder, rate=rate, options=options)
                out.width, out.height, out.pix_fmt = frame.width, frame.height, pixels
                out.codec_context.time_base = 1 / (rate * TICKS_PER_FRAME)
            frame.pts, frame.time_base = count * TICKS_PER_FRAME, out.codec_context.time_base
            frame.pict_type = 0  # the source's key frames are not the encoder's
            written.mux(out.encode(frame))
            if not count:
                platform_calls.no_highest_priority()  # SVT-AV1 has just begun
            count += 1
        if out is not None:
            written.mux(out.encode(None))
    return count


@dataclass(frozen=True)
class VideoIndex:
    """What a video file holds, without decoding it.

    Attributes:
        times_s: when each picture is shown, in order [s]; None where the file wasn't read.
        size: width and height [pixels].
        rate_hz: average rate, as decoders compute it [Hz].
    """

    times_s: NDArray[np.float64] | None
    frames: int
    size: tuple[int, int]
    rate_hz: float

    @property
    def spacing_hz(self) -> float:
        """Rate at which pictures follow each other [Hz]; 0 where that isn't known."""
        if self.times_s is None or len(self.times_s) < 2:
            return 0.0
        step_s = float(np.median(np.diff(self.times_s)))
        return 1 / step_s if step_s > 0 else 0.0

    def is_uneven(self, fps: float) -> bool:
        """Say whether pictures are shown at other times than k / fps, though about as often."""
        times_s = self.times_s
        if times_s is None or len(times_s) < 2 or not times_s[-1] > times_s[0]:
            return False
        rate_hz = (len(times_s) - 1) / (times_s[-1] - times_s[0])
        off_s = np.abs(times_s - np.arange(len(times_s)) / fps).max()
        return bool(off_s > SAME_S and abs(rate_hz - fps) <= RATES_DIFFER * fps)


def video_index(path: Path, whole: bool = True) -> VideoIndex:
    """Read what a video file holds: every packet, or only the header and the last ones."""
    with open_video(path) as container, reading(path):
        stream = container.streams.video[0]
        size = (int(stream.width), int(stream.height))
        rate = float(stream.average_rate or 0)
        if whole or not stream.frames:
            times = _times(container, stream)
            return VideoIndex(times, len(times), size, rate)
        frames = int(stream.frames)
        last = (frames - 1) / rate if rate else 0.0
        container.seek(round(last / stream.time_base), stream=stream)
        if not len(_times(container, stream)):
            raise ValueError("its last pictures are missing")
        return VideoIndex(None, frames, size, rate)


def _times(container: Any, stream: Any) -> NDArray[np.float64]:
    packets = (p for p in container.demux(stream) if p.size and not p.is_corrupt)
    ticks = [p.pts for p in packets if p.pts is not None]
    return np.sort(np.asarray(ticks, dtype=np.float64)) * float(stream.time_base)
