"""ROS 2 recordings in MCAP: topics of their own rates become frames of one rate.

A file is an episode, and so is a rosbag2 folder (metadata.yaml) with its parts. Every frame takes
the newest message of each topic at or before its time, never a later one; how old a picture then
is stands in `gap.cam_age.<camera>`. Episodes span the time in which every topic was there.

Messages are ROS 2's (CDR) and JSON. Times are log times: one clock for all topics of a file, where
header stamps may come from several machines.
"""

from __future__ import annotations

import base64
import contextlib
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from gaploop.core.messages import FloatArray, Image
from gaploop.core.telemetry import Telemetry
from gaploop.datasets import columns
from gaploop.datasets.columns import IMAGES, age_column
from gaploop.datasets.formats.foreign import (
    as_float32,
    described,
    foreign_recording,
    natural,
    unpacked,
)
from gaploop.datasets.formats.model import About, ForeignRecording, ImportSettings, Recording
from gaploop.datasets.layout import reraise_as_damaged
from gaploop.datasets.telemetry_zarr import write_telemetry

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
_TAIL: Final = re.compile(r"/(image|image_raw|image_rect|image_color|compressed|color|rgb)$")
MOST_FRAMES: Final = 10_000_000
"""Frames of one recording: more than two days at 50 a second."""
ROS_UNITS: Final = "rad"
"""sensor_msgs/JointState defines positions as radians (metres where a joint slides)."""


def read_mcap(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open MCAP recordings."""
    bags = bags_in(path)
    if not bags:
        raise UnusableInputError(f"{path} holds no .mcap file. Name a file, a bag or their folder.")
    topics, notes = topics_of(bags[0])
    with_numbers = {name: t for name, t in topics.items() if t.holds == "numbers"}
    listed = ", ".join(f"{t.name} ({t.schema or 'JSON'})" for t in with_numbers.values()) or "none"
    parts = {n: keys for n, keys in settings.keys.items() if not n.startswith(IMAGES)}
    for feature, keys in parts.items():
        for key in keys:
            if key not in with_numbers:
                raise UnusableInputError(
                    f"{path} has no topic {key} of numbers for {feature}. There are: {listed}."
                )
    if columns.STATE not in parts:
        used = {key for keys in parts.values() for key in keys}
        states = [n for n, t in with_numbers.items() if t.schema == JOINT_STATE and n not in used]
        if len(states) == 1:
            parts[columns.STATE] = (states[0],)
    for feature in (columns.STATE, columns.ACTION):
        if feature not in parts:
            raise UnusableInputError(
                f"{path}: which topic is {feature}? Name it with --rename_map="
                f"'{{TOPIC: {feature}}}'. There are: {listed}."
            )
    with_pictures = [name for name, topic in topics.items() if topic.holds == "pictures"]
    camera_topics = {n: keys[0] for n, keys in settings.keys.items() if n.startswith(IMAGES)}
    for feature, key in camera_topics.items():
        if key not in with_pictures:
            raise UnusableInputError(
                f"{path} has no topic {key} of pictures for {feature}. There are: "
                f"{', '.join(with_pictures) or 'none'}."
            )
    if not camera_topics:
        # Sorted, a compressed topic comes behind the raw one of its camera and takes its place.
        for topic in sorted(with_pictures):
            name = topic
            while (shorter := _TAIL.sub("", name)) != name and shorter:
                name = shorter
            camera_topics[IMAGES + (name.strip("/").replace("/", "_") or "camera")] = topic
    chosen = [topics[name] for part in parts.values() for name in part]
    if not settings.units and all(topic.schema == JOINT_STATE for topic in chosen):
        units = ROS_UNITS
        notes.append("units are rad (m where a joint slides), as sensor_msgs/JointState defines.")
    else:
        units = settings.required_units(path)
    fps = settings.required_fps(path, ", the rate that frames are to have")
    streams = streams_of(bags[0], chosen)
    vectors = {feature: _names(part, streams) for feature, part in parts.items()}
    cameras: dict[str, tuple[str, Sequence[int]]] = {}
    for feature, topic in camera_topics.items():
        first = next(pictures_in(bags[0], topics[topic], np.zeros(1, np.int64)), None)
        if first is None:
            raise UnusableInputError(f"{bags[0][0]}: {topic} holds no picture. Leave it out.")
        cameras[feature.removeprefix(IMAGES)] = topic, first.shape[:2]
    about = described(fps, settings.robot_type or "ros2", vectors, cameras)

    def episodes() -> Iterator[Recording]:
        return (_episode(tuple(f), about, parts, topics, settings, units) for f in bags)

    return ForeignRecording(about, len(bags), episodes, notes=tuple(notes))


def bags_in(path: Path) -> list[list[Path]]:
    """Return the recordings at a path, each as its files in order."""
    if path.is_file():
        return [[path]]
    files = sorted(path.glob("*.mcap"), key=natural)
    if files and (path / "metadata.yaml").is_file():
        return [files]
    folders = sorted((p.parent for p in path.glob("*/metadata.yaml")), key=natural)
    inside = [sorted(folder.glob("*.mcap"), key=natural) for folder in folders]
    return [[file] for file in files] or [bag for bag in inside if bag]


def _names(part: Sequence[str], streams: Mapping[str, Stream]) -> list[str]:
    several = len(part) > 1
    return [
        f"{topic.strip('/').replace('/', '_')}.{name}" if several else name
        for topic in part
        for name in streams[topic].names
    ]


def pictures_in(files: Sequence[Path], topic: Topic, picked: NDArray[np.int64]) -> Iterator[Image]:
    """Yield a topic's pictures, RGB, uint8: `picked` numbers its messages, one per frame.

    Each is decoded once.
    """
    decode, k = None, 0
    for number, (_, schema, _, content) in enumerate(messages(files, [topic.name])):
        if k == len(picked):
            return
        if number != picked[k]:
            continue
        decode = decode or decoder(topic, schema)
        with message_of(files[0], topic):
            current = picture(topic, decode(content), f"{files[0]}: {topic.name}")
        while k < len(picked) and picked[k] == number:
            yield current
            k += 1


def _episode(
    files: tuple[Path, ...],
    about: About,
    parts: Mapping[str, tuple[str, ...]],
    topics: Mapping[str, Topic],
    settings: ImportSettings,
    units: str,
) -> Recording:
    streams = streams_of(files, [topics[name] for part in parts.values() for name in part])
    for feature, part in parts.items():
        if _names(part, streams) != about.features[feature]["names"]:
            raise UnusableInputError(
                f"{files[0]}: {feature} has other joints than the first recording. Import it alone."
            )
    seen: dict[str, NDArray[np.int64]] = {}
    for camera, topic in about.keys.items():
        with message_of(files[0], topics[topic]):
            seen[camera] = np.array([t for t, *_ in messages(files, [topic])], dtype=np.int64)
        if not len(seen[camera]):
            name = about.pictures[camera]
            raise UnusableInputError(f"{files[0]}: no picture of {name}. Leave it out.")
    known = [s.t_ns[np.isfinite(s.values).all(axis=1)] for s in streams.values()]
    if not all(map(len, known)):
        raise UnusableInputError(
            f"{files[0]}: a topic never has all of its numbers. Leave it out of --rename_map."
        )
    spans = [*known, *seen.values()]
    first, last = max(int(t[0]) for t in spans), min(int(t[-1]) for t in spans)
    if last < first:
        raise UnusableInputError(
            f"{files[0]}: its topics don't overlap in time. Leave one out with --rename_map."
        )
    count = int((last - first) * 1e-9 * about.fps + 1e-6) + 1
    if count > MOST_FRAMES:
        raise UnusableInputError(
            f"{files[0]} spans {(last - first) / 3.6e12:.0f} hours, {count} frames: its clock "
            "was set while recording. Cut it with: mcap filter."
        )
    grid_ns = first + np.round(np.arange(count) * (1e9 / about.fps)).astype(np.int64)
    values: dict[str, NDArray[Any]] = {
        feature: as_float32(np.concatenate([streams[n].at(grid_ns) for n in part], axis=1))
        for feature, part in parts.items()
    }
    pictures = {}
    for camera, topic in about.keys.items():
        picked = np.searchsorted(seen[camera], grid_ns, side="right") - 1
        pictures[camera] = partial(pictures_in, files, topics[topic], picked)
        age_s = (grid_ns - seen[camera][picked]) * 1e-9
        values[age_column(about.pictures[camera])] = age_s.astype(np.float32)
    record = None
    states, actions = parts[columns.STATE], parts[columns.ACTION]
    if len(states) == 1 and topics[states[0]].schema == JOINT_STATE:
        # The control-rate record, at the topic's own rate.
        state, action = streams[states[0]], streams[actions[0]]
        requested = topics[actions[0]].schema == JOINT_STATE and action.names == state.names
        during = (state.t_ns >= grid_ns[0]) & (state.t_ns <= grid_ns[-1])
        t_ns = state.t_ns[during]
        table: dict[str, FloatArray] = {}
        for i, joint in enumerate(state.names):
            if requested:
                table[f"follower.{joint}.requested_rad"] = action.at(t_ns)[:, i]
            table[f"follower.{joint}.position_rad"] = state.values[during, i]
            table[f"follower.{joint}.velocity_rad_s"] = state.velocity[during, i]
        named = {name: "rad/s" if name.endswith("_s") else "rad" for name in table}
        with tempfile.TemporaryDirectory() as folder:
            held = Path(folder, "record.zarr.zip")
            write_telemetry(held, Telemetry((t_ns - grid_ns[0]) * 1e-9, table, named))
            record = held.read_bytes()
    more = {"units": units, "t0_ns": int(grid_ns[0]), "telemetry": record}
    return foreign_recording(about, settings, values, pictures, files[0].name, **more)


# -- Topics, and their messages as numbers or pictures ---------------------------------------------


@dataclass(frozen=True)
class Topic:
    """A topic that can be read.

    Attributes:
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
    """Return the topics that can be read, by schema and first message; notes about the others."""
    seen: dict[str, tuple[str, str]] = {}
    first: dict[str, bytes] = {}
    for _, schema, channel, content in messages(files):
        name = schema.name if schema is not None else ""
        seen.setdefault(channel.topic, (name, channel.message_encoding))
        first.setdefault(channel.topic, content)
    found, notes = {}, []
    for topic, (schema_name, encoding) in sorted(seen.items()):
        holds = ""
        if encoding == "cdr" and schema_name in _PICTURES:
            holds = "" if topic.endswith("compressedDepth") else "pictures"
        elif encoding == "cdr" and schema_name in _NUMBERS:
            holds = "numbers"
        elif encoding == "json":
            with contextlib.suppress(ValueError):
                value = parse_json(first[topic])
                is_text = isinstance(value, dict) and isinstance(value.get("data"), str)
                if is_text and "format" in value:
                    holds = "pictures"
                elif _json_numbers(value):
                    holds = "numbers"
        if holds:
            found[topic] = Topic(topic, schema_name, encoding, holds)
        else:
            notes.append(f"{topic} ({schema_name or encoding}) is left out.")
    return found, notes


@contextlib.contextmanager
def message_of(path: Path, topic: Topic) -> Iterator[None]:
    """Name the file and topic in an UnusableInputError where a message can't be used."""
    try:
        yield
    except MCAP_DAMAGE as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:160]
        raise UnusableInputError(
            f"{path}: a message of {topic.name} can't be used ({reason}). Leave the topic out by "
            "naming the others with --rename_map."
        ) from None


def decoder(topic: Topic, schema: Any) -> Callable[[bytes], Any]:
    """Return what decodes a topic's messages; UnusableInputError where its schema can't be used."""
    if topic.encoding == "json":
        return parse_json
    problem, fix = f"{topic.name}: its schema can't be used", "Leave it out of --rename_map."
    with reraise_as_damaged(problem, fix, MCAP_DAMAGE):
        found = DecoderFactory().decoder_for(topic.encoding, schema)
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
        last = message.points[-1].positions if message.points else ()
        return dict(zip(message.joint_names, map(float, last), strict=False))
    pose = getattr(message, "pose", message)
    entries = {f"p{axis}": getattr(pose.position, axis) for axis in "xyz"}
    entries |= {f"q{axis}": getattr(pose.orientation, axis) for axis in "xyzw"}
    return {name: float(value) for name, value in entries.items()}


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
            "topic out by naming the others with --rename_map."
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
            "the topic out by naming the others with --rename_map."
        )
    return np.asarray(cv2.cvtColor(found, cv2.COLOR_BGR2RGB))


def streams_of(files: Sequence[Path], topics: Sequence[Topic]) -> dict[str, Stream]:
    """Return the numbers of some topics; UnusableInputError where one has none."""
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
            raise UnusableInputError(
                f"{files[0]}: topic {name} has no messages with numbers. Leave it "
                "out of --rename_map."
            )
    result = {}
    for topic_name, rows in seen.items():
        names = tuple(dict.fromkeys(name for _, values, _ in rows for name in values))
        place = {name: i for i, name in enumerate(names)}
        table = np.full((2, len(rows), len(names)), np.nan)
        now = np.full((2, len(names)), np.nan)  # what a message doesn't name keeps its value
        for k, (_, *parts) in enumerate(rows):
            for which, part in enumerate(parts):
                for name, value in part.items():
                    if name in place:  # else a speed of what never says where it is
                        now[which, place[name]] = value
            table[:, k] = now
        at_ns = np.array([t for t, _, _ in rows], dtype=np.int64)
        result[topic_name] = Stream(at_ns, names, table[0], table[1])
    return result
