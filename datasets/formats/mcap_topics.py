"""Topics of MCAP files: which there are, and their messages as numbers or pictures.

ROS 2 messages (CDR) and JSON. Times are log times: one clock for all topics of a file, where
header stamps may come from several machines.
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from mcap.exceptions import McapError
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from numpy.typing import NDArray
from zstandard import ZstdError

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import parse_json, regular_file
from gaploop.core.types import FloatArray, Image
from gaploop.datasets.formats.foreign import unpacked

JOINT_STATE: Final = "sensor_msgs/msg/JointState"
_NUMBERS: Final = (
    JOINT_STATE,
    "std_msgs/msg/Float64MultiArray",
    "std_msgs/msg/Float32MultiArray",
    "trajectory_msgs/msg/JointTrajectory",
    "geometry_msgs/msg/PoseStamped",
    "geometry_msgs/msg/Pose",
)
_PICTURES: Final = ("sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image")
_RAW: Final[Mapping[str, tuple[int, int | None]]] = {
    "rgb8": (3, None),
    "bgr8": (3, cv2.COLOR_BGR2RGB),
    "rgba8": (4, cv2.COLOR_RGBA2RGB),
    "bgra8": (4, cv2.COLOR_BGRA2RGB),
    "mono8": (1, cv2.COLOR_GRAY2RGB),
}
"""Encoding of sensor_msgs/Image to its channels and OpenCV's conversion to RGB."""
MCAP_DAMAGE: Final = (*DAMAGE, McapError, ZstdError, struct.error, cv2.error)
"""What reading damaged messages may raise."""
_JSON_VECTORS: Final = ("position", "positions", "data", "values")


@dataclass(frozen=True)
class Topic:
    """A topic that can be read.

    Attributes:
        name: such as `/joint_states`.
        schema: name of its message type; "" for JSON without one.
        encoding: `cdr` or `json`.
        holds: `numbers` or `pictures`.
    """

    name: str
    schema: str
    encoding: str
    holds: str


@dataclass(frozen=True)
class Stream:
    """One topic's numbers.

    Attributes:
        t_ns: log times [ns], shape (n,).
        names: of the columns.
        values: newest known values at each time, NaN before the first, shape (n, width).
        velocity: of a JointState [rad/s], shape (n, width); NaN where it has none.
    """

    t_ns: NDArray[np.int64]
    names: tuple[str, ...]
    values: FloatArray
    velocity: FloatArray

    def at(self, t_ns: NDArray[np.int64]) -> FloatArray:
        """Return the newest values at or before each time, shape (len(t_ns), width)."""
        rows = np.searchsorted(self.t_ns, t_ns, side="right") - 1
        return np.asarray(self.values[np.maximum(rows, 0)])


def messages(
    files: Sequence[Path], topics: Sequence[str] | None = None
) -> Iterator[tuple[int, Any, Any, bytes]]:
    """Yield (log time [ns], schema, channel, content) of messages, in order of time per file.

    Raises:
        UnusableInputError: a file is damaged or no MCAP file.
    """
    for path in files:
        try:
            with regular_file(path).open("rb") as stream:
                for schema, channel, message in make_reader(stream).iter_messages(topics):
                    yield message.log_time, schema, channel, message.data
        except MCAP_DAMAGE as error:
            reason = f"{type(error).__name__} {error}".strip()[:160]
            raise UnusableInputError(
                f"{path} can't be read as MCAP ({reason}). Fix it with: mcap recover {path}"
            ) from None


def topics_of(files: Sequence[Path]) -> tuple[dict[str, Topic], list[str]]:
    """Return the topics that can be read, and notes about the others."""
    seen: dict[str, tuple[str, str]] = {}
    first: dict[str, bytes] = {}
    for _, schema, channel, content in messages(files):
        name = schema.name if schema is not None else ""
        seen.setdefault(channel.topic, (name, channel.message_encoding))
        first.setdefault(channel.topic, content)
    found, notes = {}, []
    for topic, (schema_name, encoding) in sorted(seen.items()):
        holds = _holds(topic, schema_name, encoding, first[topic])
        if holds:
            found[topic] = Topic(topic, schema_name, encoding, holds)
        else:
            notes.append(f"{topic} ({schema_name or encoding}) is left out.")
    return found, notes


def _holds(topic: str, schema: str, encoding: str, content: bytes) -> str:
    if encoding == "cdr":
        if schema in _PICTURES:
            return "" if topic.endswith("compressedDepth") else "pictures"
        return "numbers" if schema in _NUMBERS else ""
    if encoding != "json":
        return ""
    try:
        value = parse_json(content)
    except ValueError:
        return ""
    if isinstance(value, dict) and isinstance(value.get("data"), str) and "format" in value:
        return "pictures"
    return "numbers" if _json_numbers(value) else ""


@contextlib.contextmanager
def message_of(path: Path, topic: Topic) -> Iterator[None]:
    """Name the file and topic where a message can't be used.

    Raises:
        UnusableInputError: that is so.
    """
    try:
        yield
    except MCAP_DAMAGE as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:160]
        raise UnusableInputError(
            f"{path}: a message of {topic.name} can't be used ({reason}). Leave the topic out by "
            "naming the others with --keys."
        ) from None


def decoder(topic: Topic, schema: Any) -> Callable[[bytes], Any]:
    """Return what decodes a topic's messages.

    Raises:
        UnusableInputError: its schema can't be used.
    """
    if topic.encoding == "json":
        return parse_json
    try:
        found = DecoderFactory().decoder_for(topic.encoding, schema)
    except MCAP_DAMAGE as error:
        raise UnusableInputError(f"{topic.name}: its schema can't be used ({error}).") from None
    if found is None:
        raise UnusableInputError(
            f"{topic.name}: messages are {topic.encoding} with a schema in {schema.encoding}, not "
            "ROS 2's. Record it with ros2 bag, or convert it."
        )
    return found  # type: ignore[no-any-return]  # mcap_ros2 is not typed here


def numbers(topic: Topic, message: Any) -> dict[str, float]:
    """Return the numbers of a decoded message by name, in their order."""
    if topic.encoding == "json":
        return _json_numbers(message)
    if topic.schema == JOINT_STATE:
        return dict(zip(message.name, map(float, message.position), strict=False))
    if topic.schema.endswith("MultiArray"):
        return {str(i): float(v) for i, v in enumerate(message.data)}
    if topic.schema.endswith("JointTrajectory"):
        points = message.points
        return dict(zip(message.joint_names, map(float, points[-1].positions), strict=False)) if (
            points
        ) else {}  # fmt: skip
    pose = getattr(message, "pose", message)
    entries = [(pose.position, "xyz"), (pose.orientation, "xyzw")]
    prefix = ("p", "q")
    return {
        f"{prefix[i]}{axis}": float(getattr(part, axis))
        for i, (part, axes) in enumerate(entries)
        for axis in axes
    }


def _json_numbers(value: Any) -> dict[str, float]:
    if isinstance(value, list):
        return {str(i): float(v) for i, v in enumerate(value) if _is_number(v)}
    if not isinstance(value, dict):
        return {}
    for key in _JSON_VECTORS:
        vector = value.get(key)
        if isinstance(vector, list) and vector and all(map(_is_number, vector)):
            names = value.get("name") or value.get("names") or [str(i) for i in range(len(vector))]
            return dict(zip(map(str, names), map(float, vector), strict=False))
    return {str(k): float(v) for k, v in value.items() if _is_number(v)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def picture(topic: Topic, message: Any, where: str) -> Image:
    """Return a decoded message's picture, RGB, uint8, shape (height, width, 3).

    Raises:
        UnusableInputError: it isn't one that can be decoded.
    """
    if topic.encoding == "json":
        return _unpacked(base64.b64decode(message["data"]), where)
    if topic.schema.endswith("CompressedImage"):
        return _unpacked(bytes(message.data), where)
    if message.encoding not in _RAW:
        raise UnusableInputError(
            f"{where}: pictures are {message.encoding}; {', '.join(_RAW)} can be read. Leave the "
            "topic out by naming the others with --keys."
        )
    channels, conversion = _RAW[message.encoding]
    rows = np.frombuffer(bytes(message.data), np.uint8).reshape(message.height, message.step)
    pixels = rows[:, : message.width * channels].reshape(message.height, message.width, channels)
    return pixels if conversion is None else cv2.cvtColor(pixels, conversion)


def _unpacked(content: bytes, where: str) -> NDArray[np.uint8]:
    found = unpacked(content)
    if found is None:
        raise UnusableInputError(
            f"{where}: a picture is neither JPEG nor PNG. Compressed video can't be read; leave "
            "the topic out by naming the others with --keys."
        )
    return np.asarray(cv2.cvtColor(found, cv2.COLOR_BGR2RGB))


def streams_of(files: Sequence[Path], topics: Sequence[Topic]) -> dict[str, Stream]:
    """Return the numbers of some topics.

    Raises:
        UnusableInputError: a damaged file, or a topic without numbers.
    """
    wanted = {topic.name: topic for topic in topics}
    seen: dict[str, list[tuple[int, dict[str, float], dict[str, float]]]] = {n: [] for n in wanted}
    decoders: dict[str, Any] = {}
    for t_ns, schema, channel, content in messages(files, list(wanted)):
        topic = wanted[channel.topic]
        if topic.name not in decoders:
            decoders[topic.name] = decoder(topic, schema)
        with message_of(files[0], topic):
            message = decoders[topic.name](content)
            velocity = {}
            if topic.schema == JOINT_STATE:
                velocity = dict(zip(message.name, map(float, message.velocity), strict=False))
            seen[topic.name].append((t_ns, numbers(topic, message), velocity))
    for name, rows in seen.items():
        if not any(values for _, values, _ in rows):
            raise UnusableInputError(f"{files[0]}: topic {name} has no messages with numbers.")
    with message_of(files[0], topics[0]):
        return {name: _stream(rows) for name, rows in seen.items()}


def _stream(rows: list[tuple[int, dict[str, float], dict[str, float]]]) -> Stream:
    """Return messages as a table; what a message doesn't name keeps its newest value."""
    names = tuple(dict.fromkeys(name for _, values, _ in rows for name in values))
    place = {name: i for i, name in enumerate(names)}
    table = np.full((2, len(rows), len(names)), np.nan)
    now = np.full((2, len(names)), np.nan)
    for k, (_, *parts) in enumerate(rows):
        for which, part in enumerate(parts):
            for name, value in part.items():
                now[which, place[name]] = value
        table[:, k] = now
    return Stream(np.array([t for t, _, _ in rows], dtype=np.int64), names, table[0], table[1])


def decoded(files: Sequence[Path], topic: Topic) -> Iterator[tuple[int, Image]]:
    """Yield log time [ns] and picture of a topic's messages."""
    decode = None
    for t_ns, schema, _, content in messages(files, [topic.name]):
        decode = decode or decoder(topic, schema)
        with message_of(files[0], topic):
            found = picture(topic, decode(content), f"{files[0]}: {topic.name}")
        yield t_ns, found
