"""ROS 2 recordings in MCAP: topics of their own rates become frames of one rate.

A file is an episode, and so is a rosbag2 folder (metadata.yaml) with its parts. Every frame takes
the newest message of each topic at or before its time, never a later one; how old a picture then
is stands in `gap.cam_age.<camera>`. Episodes span the time in which every topic was there.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.telemetry import Telemetry
from gaploop.core.types import FloatArray, Image
from gaploop.datasets import columns
from gaploop.datasets.columns import CAMERA_AGE, IMAGES
from gaploop.datasets.formats.foreign import as_float32, natural
from gaploop.datasets.formats.mcap_topics import (
    JOINT_STATE,
    Stream,
    Topic,
    decoded,
    decoder,
    message_of,
    messages,
    picture,
    streams_of,
    topics_of,
)
from gaploop.datasets.formats.model import About, ForeignRecording, ImportSettings, Recording
from gaploop.datasets.formats.sink import (
    each_camera,
    foreign_recording,
    number_feature,
    picture_spec,
    with_gap_features,
)
from gaploop.datasets.telemetry_zarr import write_telemetry

_TAIL: Final = re.compile(r"/(image|image_raw|image_rect|image_color|compressed|color|rgb)$")
MOST_FRAMES: Final = 10_000_000
"""Frames of one recording: more than two days at 50 a second."""
ROS_UNITS: Final = "rad"
"""sensor_msgs/JointState defines positions as radians (metres where a joint slides)."""


def read_mcap(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open MCAP recordings.

    Raises:
        UnusableInputError: damaged files, or topics, units or a rate that nobody said.
    """
    bags = bags_in(path)
    if not bags:
        raise UnusableInputError(f"{path} holds no .mcap file. Name a file, a bag or their folder.")
    topics, notes = topics_of(bags[0])
    parts = _number_topics(path, topics, settings)
    cameras = _camera_topics(path, topics, settings)
    chosen = [topics[name] for part in parts.values() for name in part]
    if not settings.units and all(topic.schema == JOINT_STATE for topic in chosen):
        units = ROS_UNITS
        notes.append("units are rad (m where a joint slides): sensor_msgs/JointState says so.")
    else:
        units = settings.required_units(path)
    fps = settings.required_fps(path, ", the rate that frames are to have")
    streams = streams_of(bags[0], chosen)
    features: dict[str, Any] = {
        feature: number_feature(_names(part, streams)) for feature, part in parts.items()
    }
    for feature, topic in cameras.items():
        first = next(decoded(bags[0], topics[topic]), None)
        if first is None:
            raise UnusableInputError(f"{bags[0][0]}: {topic} holds no picture. Leave it out.")
        features[feature] = picture_spec(*first[1].shape[:2])
    about = About(fps, settings.robot_type or "ros2", with_gap_features(features), cameras)
    reader = _Reader(about, parts, topics, settings, units)
    return ForeignRecording(about, len(bags), lambda: reader.episodes(bags), notes=tuple(notes))


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


def _number_topics(
    path: Path, topics: Mapping[str, Topic], settings: ImportSettings
) -> dict[str, tuple[str, ...]]:
    held = {name: t for name, t in topics.items() if t.holds == "numbers"}
    parts = {n: keys for n, keys in settings.keys.items() if not n.startswith(IMAGES)}
    listed = ", ".join(f"{t.name} ({t.schema or 'JSON'})" for t in held.values()) or "none"
    for feature, keys in parts.items():
        for key in keys:
            if key not in held:
                raise UnusableInputError(
                    f"{path} has no topic {key} of numbers for {feature}. There are: {listed}."
                )
    if columns.STATE not in parts:
        used = {key for keys in parts.values() for key in keys}
        states = [n for n, t in held.items() if t.schema == JOINT_STATE and n not in used]
        if len(states) == 1:
            parts[columns.STATE] = (states[0],)
    for feature in (columns.STATE, columns.ACTION):
        if feature not in parts:
            raise UnusableInputError(
                f'{path}: which topic is {feature}? Say it with --keys=\'{{"{feature}": '
                f'"TOPIC"}}\'. There are: {listed}.'
            )
    return parts


def _camera_topics(
    path: Path, topics: Mapping[str, Topic], settings: ImportSettings
) -> dict[str, str]:
    held = [name for name, topic in topics.items() if topic.holds == "pictures"]
    given = {n: keys[0] for n, keys in settings.keys.items() if n.startswith(IMAGES)}
    for feature, key in given.items():
        if key not in held:
            raise UnusableInputError(
                f"{path} has no topic {key} of pictures for {feature}. There are: "
                f"{', '.join(held) or 'none'}."
            )
    # Sorted, a compressed topic comes behind the raw one of its camera and takes its place.
    return given or {f"{IMAGES}{_camera(name)}": name for name in sorted(held)}


def _camera(topic: str) -> str:
    name = topic
    while (shorter := _TAIL.sub("", name)) != name and shorter:
        name = shorter
    return name.strip("/").replace("/", "_") or "camera"


def _names(part: Sequence[str], streams: Mapping[str, Stream]) -> list[str]:
    several = len(part) > 1
    return [
        f"{topic.strip('/').replace('/', '_')}.{name}" if several else name
        for topic in part
        for name in streams[topic].names
    ]


@dataclass(frozen=True)
class BagPictures:
    """A topic's pictures, one per frame: the newest at each frame's time."""

    files: tuple[Path, ...]
    topic: Topic
    picked: NDArray[np.int64]

    def __call__(self) -> Iterator[Image]:
        """Yield the pictures in order, RGB, uint8; each is decoded once."""
        decode, k = None, 0
        for number, (_, schema, _, content) in enumerate(messages(self.files, [self.topic.name])):
            if k == len(self.picked):
                return
            if number != self.picked[k]:
                continue
            decode = decode or decoder(self.topic, schema)
            where = f"{self.files[0]}: {self.topic.name}"
            with message_of(self.files[0], self.topic):
                current = picture(self.topic, decode(content), where)
            while k < len(self.picked) and self.picked[k] == number:
                yield current
                k += 1


@dataclass(frozen=True)
class _Reader:
    about: About
    parts: Mapping[str, tuple[str, ...]]
    topics: Mapping[str, Topic]
    settings: ImportSettings
    units: str

    def episodes(self, bags: Sequence[Sequence[Path]]) -> Iterator[Recording]:
        for files in bags:
            yield self._episode(tuple(files))

    def _episode(self, files: tuple[Path, ...]) -> Recording:
        chosen = [self.topics[name] for part in self.parts.values() for name in part]
        streams = streams_of(files, chosen)
        for feature, part in self.parts.items():
            if _names(part, streams) != self.about.features[feature]["names"]:
                raise UnusableInputError(
                    f"{files[0]}: {feature} has other joints than the first recording. Import it "
                    "alone."
                )
        seen = {camera: self._times(files, key) for camera, key in each_camera(self.about)}
        grid_ns = self._grid(files, streams, seen)
        values: dict[str, NDArray[Any]] = {
            feature: as_float32(np.concatenate([streams[n].at(grid_ns) for n in part], axis=1))
            for feature, part in self.parts.items()
        }
        pictures = {}
        for camera, key in each_camera(self.about):
            picked = np.searchsorted(seen[camera], grid_ns, side="right") - 1
            pictures[camera] = BagPictures(files, self.topics[key], picked)
            age_s = (grid_ns - seen[camera][picked]) * 1e-9
            values[CAMERA_AGE + camera] = age_s.astype(np.float32)
        more = {
            "units": self.units,
            "t0_ns": int(grid_ns[0]),
            "telemetry": self._record(streams, grid_ns),
        }
        name = files[0].name
        return foreign_recording(self.about, self.settings, values, pictures, name, **more)

    def _times(self, files: tuple[Path, ...], topic: str) -> NDArray[np.int64]:
        with message_of(files[0], self.topics[topic]):
            return np.array([t for t, *_ in messages(files, [topic])], dtype=np.int64)

    def _grid(
        self,
        files: tuple[Path, ...],
        streams: Mapping[str, Stream],
        seen: Mapping[str, NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        """Return the times of the frames [ns], while every topic is there."""
        for camera, times in seen.items():
            if not len(times):
                raise UnusableInputError(f"{files[0]}: no picture of {camera}. Leave it out.")
        known = [s.t_ns[np.isfinite(s.values).all(axis=1)] for s in streams.values()]
        if not all(map(len, known)):
            raise UnusableInputError(f"{files[0]}: a topic never has all of its numbers.")
        spans = [*known, *seen.values()]
        first, last = max(int(t[0]) for t in spans), min(int(t[-1]) for t in spans)
        if last < first:
            raise UnusableInputError(
                f"{files[0]}: its topics don't overlap in time. Leave one out with --keys."
            )
        count = int((last - first) * 1e-9 * self.about.fps + 1e-6) + 1
        if count > MOST_FRAMES:
            raise UnusableInputError(
                f"{files[0]} spans {(last - first) / 3.6e12:.0f} hours, {count} frames: its clock "
                "was set meanwhile. Cut it with: mcap filter."
            )
        return first + np.round(np.arange(count) * (1e9 / self.about.fps)).astype(np.int64)

    def _record(self, streams: Mapping[str, Stream], grid_ns: NDArray[np.int64]) -> bytes | None:
        """Return the control-rate record of a JointState topic, at its own rate."""
        states, actions = self.parts[columns.STATE], self.parts[columns.ACTION]
        if len(states) != 1 or self.topics[states[0]].schema != JOINT_STATE:
            return None
        state, action = streams[states[0]], streams[actions[0]]
        during = (state.t_ns >= grid_ns[0]) & (state.t_ns <= grid_ns[-1])
        t_ns = state.t_ns[during]
        table: dict[str, FloatArray] = {}
        for i, joint in enumerate(state.names):
            if action.names == state.names and self.topics[actions[0]].schema == JOINT_STATE:
                table[f"follower.{joint}.requested_rad"] = action.at(t_ns)[:, i]
            table[f"follower.{joint}.position_rad"] = state.values[during, i]
            table[f"follower.{joint}.velocity_rad_s"] = state.velocity[during, i]
        units = {name: "rad/s" if name.endswith("_s") else "rad" for name in table}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "record.zarr.zip")
            write_telemetry(path, Telemetry((t_ns - grid_ns[0]) * 1e-9, table, units))
            return path.read_bytes()
