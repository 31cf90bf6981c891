"""One camera's pictures as a Matroska file that a kill leaves readable.

Which options survive was measured: flushed packet by packet a file loses a tenth of a second;
without the flush most files could not be opened at all. Without B-frames (zerolatency) packets
stand in the order of the rows, so that publishing can copy them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import cv2
import numpy as np
from av.video.frame import PictureType
from av.video.reformatter import VideoReformatter

from gaploop.core import platform_calls
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import DEPTH_CODEC, Image, is_depth

CODEC: Final = "h264"
SOFTWARE: Final = "libx264"
LOSSLESS: Final = DEPTH_CODEC
_NO_DELAY: Final = {"g": "10", "bf": "0"}
HARDWARE: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "h264_videotoolbox": ("yuv420p", {**_NO_DELAY, "realtime": "1"}),
    "h264_nvenc": (
        "yuv420p",
        {**_NO_DELAY, "preset": "p1", "tune": "ull", "zerolatency": "1", "delay": "0"},
    ),
    "h264_qsv": ("nv12", {**_NO_DELAY, "preset": "veryfast", "async_depth": "1"}),
    "h264_vaapi": ("nv12", {**_NO_DELAY, "async_depth": "1"}),
    "h264_v4l2m2m": ("yuv420p", _NO_DELAY),
}
"""Encoder to its pixel format and options: no B-frames, nothing kept back. Those of LeRobot's list
for `vcodec="auto"` that write H.264, and the one of small boards."""
_ENCODERS: Final = {
    SOFTWARE: (
        "yuv420p",
        {"preset": "ultrafast", "tune": "zerolatency", "g": "10", "threads": "1"},
    ),
    LOSSLESS: ("gray16le", {"level": "3", "threads": "1"}),
    **HARDWARE,
}
_COARSE: Final = {"qmin": "38"}
"""What libx264 does where it is behind: a coarser quantiser, 28 dB instead of 33 on a grainy scene,
which with a simpler conversion takes half the time. The quantiser's bounds aren't written into the
parameter sets, so that both encoders' pictures are one stream."""
MATROSKA: Final = {"live": "1", "cluster_time_limit": "100", "flush_packets": "1"}
"""A file that only grows. Else FFmpeg writes its header anew as it closes the file, and where the
power goes just then, the whole video can be gone. The price is an index: a player that seeks reads
from the start."""


def check_sizes(cameras: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UnusableInputError where a camera's pictures have an odd width or height."""
    for camera, spec in cameras.items():
        if spec["width"] % 2 or spec["height"] % 2:
            raise UnusableInputError(
                f"{camera}: pictures of {spec['width']}×{spec['height']} can't be encoded; width "
                "and height must be even. Change the camera's size."
            )


_PIXEL_BYTES: Final = {"rgb24": 3, "gray16le": 2}


class _Frame:
    """A frame in FFmpeg's own memory, used again and again: its routines read beyond a row's end,
    which in memory that isn't theirs may be no memory at all."""

    def __init__(self, width: int, height: int, kind: str) -> None:
        self.frame = av.VideoFrame(width, height, kind)
        self._planes = []
        for plane in self.frame.planes:
            rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
            self._planes.append(rows[:, : plane.width * _PIXEL_BYTES.get(kind, 1)])

    def fill(self, values: Image) -> None:
        """Copy all planes, one after another, shape (bytes,)."""
        start = 0
        for rows in self._planes:
            rows[:] = values[start : start + rows.size].reshape(rows.shape)
            start += rows.size


class VideoStream:
    """One camera's pictures, encoded as they come; picture k is shown at k/fps.

    The file must not exist; width and height are even [pixels].

    Raises:
        DeviceError: the file can't be written, or the encoder doesn't open.
    """

    def __init__(
        self, path: Path, width: int, height: int, fps: float, encoder: str = SOFTWARE
    ) -> None:
        self.pictures = self.packets = self.coarse = 0
        self._path, self._is_software = path, encoder == SOFTWARE
        self._is_lossless = encoder == LOSSLESS
        self._last: tuple[Image, av.VideoFrame] | None = None
        self._closing, self._is_named = threading.Lock(), False
        rate = Fraction(fps).limit_denominator(1000)
        self._time_base = 1 / rate
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            platform_calls.lock(self._handle)  # repair leaves a file alone that is written
            self._container = av.open(str(path), "w", format="matroska", options=MATROSKA)
        except (OSError, av.FFmpegError) as error:
            raise self._fault(error) from None
        self._format, self._options = _ENCODERS[encoder]
        self._reformatter = VideoReformatter()
        self._rgb: _Frame | None = None
        self._yuv: _Frame | None = None
        self._stream: av.VideoStream = self._container.add_stream(
            encoder, rate=rate, options=self._options
        )
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = self._format
        self._stream.codec_context.time_base = self._time_base
        self._coarse: av.VideoCodecContext | None = None
        self._was_coarse = False
        if encoder != SOFTWARE:
            try:
                self._stream.codec_context.open()
            except av.FFmpegError as error:
                os.close(self._handle)
                self._handle = -1
                why = error.strerror or error
                raise DeviceError(f"The encoder {encoder} doesn't open here ({why}).") from None

    def encode(self, picture: Image, *, coarse: bool = False) -> None:
        """Write the next picture; its memory isn't needed any more afterwards. Raises DeviceError.

        Args:
            picture: RGB, uint8, shape (height, width, 3); of depth uint16, shape (height, width).
            coarse: spend half the time on it, at the cost of its quality; software only.
        """
        coarse = coarse and self._is_software
        if self._last is None or self._last[0] is not picture:
            self._last = (picture, self._converted(picture, coarse))
        self._write(self._last[1], coarse)

    def _converted(self, picture: Image, coarse: bool) -> av.VideoFrame:
        """Return the picture as the encoder wants it; it is overwritten by the next one."""
        height, width = picture.shape[:2]
        if coarse:  # a quarter of the time; takes the colour of one pixel in four
            planes = cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420).reshape(-1)
            if self._yuv is None:
                self._yuv = _Frame(width, height, "yuv420p")
            self._yuv.fill(planes)
            return self._yuv.frame
        if self._rgb is None:
            self._rgb = _Frame(width, height, "gray16le" if self._is_lossless else "rgb24")
        self._rgb.fill(picture.reshape(-1).view(np.uint8))
        if self._is_lossless:
            return self._rgb.frame
        return self._reformatter.reformat(self._rgb.frame, format=self._format)

    def repeat_picture(self) -> None:
        """Write the picture before once more, so that the count keeps step with the rows.

        Raises DeviceError where there is none before, or the file can't be written.
        """
        if self._last is None:
            raise DeviceError(f"{self._path}: no picture to repeat. Record the take again.")
        self._write(self._last[1], self._was_coarse)

    def forget_source(self) -> None:
        """Let go of the last picture's memory, which somebody else is about to use."""
        if self._last is not None:
            self._last = (np.empty(0, np.uint8), self._last[1])

    def _write(self, frame: av.VideoFrame, coarse: bool) -> None:
        frame.pts, frame.time_base = self.pictures, self._time_base
        try:
            encoder = self._encoder(coarse)
            coarse = encoder is self._coarse
            # Each encoder knows its own pictures only: a change is a key frame.
            is_new = coarse != self._was_coarse
            frame.pict_type = PictureType.I if is_new else PictureType.NONE
            packets = encoder.encode(frame)
            for packet in packets:
                packet.stream = self._stream
            self._container.mux(packets)
        except av.FFmpegError as error:
            raise self._fault(error) from None
        self._was_coarse = coarse
        self.pictures += 1
        self.coarse += coarse
        self.packets += len(packets)

    def _encoder(self, coarse: bool) -> av.VideoCodecContext:
        fine = self._stream.codec_context
        if not coarse or not fine.is_open:
            return fine
        if self._coarse is None:
            self._coarse = av.VideoCodecContext.create(SOFTWARE, "w")
            self._coarse.width, self._coarse.height = fine.width, fine.height
            self._coarse.pix_fmt, self._coarse.time_base = fine.pix_fmt, fine.time_base
            self._coarse.framerate = fine.framerate
            self._coarse.flags |= fine.flags
            self._coarse.options = {**self._options, **_COARSE}
            self._coarse.open()
        if self._coarse.extradata != fine.extradata:  # not one stream with this FFmpeg, then
            return fine
        return self._coarse

    def sync(self) -> None:
        """Wait until what was written is on the disk, the file's name too; raises OSError.

        Any thread may ask.
        """
        with self._closing:
            if self._handle >= 0:
                platform_calls.sync(self._handle, data_only=True)
                if not self._is_named:
                    platform_calls.sync_path(self._path.parent)
                    self._is_named = True

    def close(self) -> None:
        """Finish and close the file; safe to call twice.

        Raises DeviceError where the end can't be written; the file is readable up to there.
        """
        with self._closing:
            if self._handle < 0:
                return
            try:
                if self.pictures:
                    self._container.mux(self._stream.encode(None))
                self._container.close()
            except av.FFmpegError as error:
                raise self._fault(error) from None
            finally:
                os.close(self._handle)
                self._handle = -1

    def _fault(self, error: Exception) -> DeviceError:
        why = getattr(error, "strerror", None) or error
        return DeviceError(f"{self._path} can't be written ({why}). Fix that and record again.")


def camera_stream(folder: Path, camera: str, spec: Mapping[str, Any], chosen: str) -> VideoStream:
    """Open a camera's video in a take's folder: of depth lossless, else with the encoder chosen."""
    encoder = LOSSLESS if is_depth(spec) else chosen
    path, size = folder / f"{camera}.mkv", (spec["width"], spec["height"])
    return VideoStream(path, *size, spec["fps"], encoder)
