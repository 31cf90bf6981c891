"""Repair: where each episode's pictures are, and which episodes have none.

Pictures are never made up. Where the episode table doesn't say where they are, they lie one
episode after the other, as LeRobot writes them; that is only believed where the lengths fit.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.check.findings import DAMAGE
from gaploop.datasets.check.frames import TIMESTAMP_TOLERANCE_S
from gaploop.datasets.repair.description import RepairDraft
from gaploop.datasets.video import VideoIndex, VideoWriter, open_video, video_index

_NUMBERS: Final = re.compile(r"chunk-(\d+)/file-(\d+)\.\w+$")
type Place = tuple[int, int, float]
"""Chunk, file, and start in it [s]."""


@dataclass(frozen=True)
class Camera:
    """One camera's files that can be read, by (chunk, file): what each holds, and its path.

    `places` are where each episode's pictures are.
    """

    key: str
    files: Mapping[tuple[int, int], VideoIndex]
    paths: Mapping[tuple[int, int], Path]
    places: Mapping[int, Place] = field(default_factory=dict)

    def holds(self, place: Place, frames: int, fps: float) -> bool:
        """Say whether `frames` pictures are there."""
        file, start_s = self.files.get(place[:2]), place[2]
        return file is not None and start_s >= 0 and round(start_s * fps) + frames <= file.frames


def numbers_of(path: Path) -> tuple[int, int]:
    """Return chunk and file number of `chunk-000/file-000.…`; (0, 0) for other names."""
    match = _NUMBERS.search(path.as_posix())
    return (int(match[1]), int(match[2])) if match else (0, 0)


def read_cameras(draft: RepairDraft) -> list[Camera]:
    """Read every camera's files; cut-off ones are written anew with the pictures they hold."""
    cameras = []
    for key, spec in draft.info["features"].items():
        if spec["dtype"] != "video":
            continue
        files, paths = {}, {}
        for path in sorted((draft.root / "videos" / key).glob("*/*.mp4")):
            if not _NUMBERS.search(path.as_posix()):
                continue  # another name: LeRobot doesn't look for it
            try:
                index = video_index(path)
                with open_video(path) as container:  # whose header may promise more than is there
                    claimed = int(container.streams.video[0].frames)
                if index.frames and claimed > index.frames:
                    part = path.with_suffix(".part.mp4")
                    with VideoWriter(part, float(draft.info["fps"])) as video:
                        video.append_part(path, 0.0, index.frames)
                    os.replace(part, path)
                    name = path.relative_to(draft.root)
                    left = f"its first {index.frames} of {claimed} pictures are left"
                    draft.did("cut_video", f"{name}: {left}")
                    index = video_index(path)
            except DAMAGE:
                continue
            files[numbers_of(path)] = index
            paths[numbers_of(path)] = path
        cameras.append(Camera(key, files, paths))
    return cameras


def set_sizes(draft: RepairDraft, cameras: Sequence[Camera]) -> None:
    """Describe pictures as large as all videos of a camera are."""
    for camera in cameras:
        sizes = {tuple(index.size) for index in camera.files.values()}
        spec = draft.info["features"][camera.key]
        shape = list(spec["shape"])
        if len(sizes) == 1 and len(shape) == 3:
            [(width, height)] = sizes
            if [height, width] not in (shape[:2], shape[1:]):
                spec["shape"] = [height, width, 3]
                draft.save()
                text = f"{layout.INFO}: {camera.key} is {width} x {height}, as its videos are"
                draft.did("rebuilt_info", text)


def settled(
    draft: RepairDraft, camera: Camera, known: Mapping[int, Place], lengths: Mapping[int, int]
) -> tuple[Camera, dict[int, Place]]:
    """Set right when pictures are shown, in files that hold just those of their episodes.

    Each row has its picture there, in order, whatever the table or the file say of the time: both
    are made to say k / fps. `known` is what the table says, `lengths` are frames of episodes.
    """
    fps = float(draft.info["fps"])
    files, result = dict(camera.files), dict(known)
    claims: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for episode, (chunk, file, start_s) in known.items():
        if episode in lengths:
            claims.setdefault((chunk, file), []).append((start_s, episode))
    for number, claim in claims.items():
        index = files.get(number)
        if index is None:
            continue
        if index.frames != sum(lengths[e] for _, e in claim):
            for start_s, episode in claim:  # one between two pictures means the nearer one
                result[episode] = (*number, round(start_s * fps) / fps)
            continue
        path, name = camera.paths[number], camera.paths[number].relative_to(draft.root)
        if index.is_uneven(fps):
            part = path.with_suffix(".part.mp4")
            try:
                with VideoWriter(part, fps) as video:
                    video.append_part(path, None, index.frames)
            except UnusableInputError:
                part.unlink(missing_ok=True)
                continue
            os.replace(part, path)
            files[number] = video_index(path)
            draft.did(
                "retimed_video", f"{name}: its {index.frames} pictures are shown {fps:g} a second"
            )
        at = 0
        for _, episode in sorted(claim):
            result[episode] = (*number, at / fps)
            at += lengths[episode]
    return replace(camera, files=files), result


def places(
    camera: Camera, known: Mapping[int, Place], lengths: Sequence[tuple[int, int]], fps: float
) -> dict[int, Place]:
    """Return where each episode's pictures are, for those that have any.

    Args:
        known: what the episode table says.
        lengths: (episode, frames) of all episodes there were, as far as known, in order.
    """
    found = {
        episode: known[episode]
        for episode, frames in lengths
        if episode in known and camera.holds(known[episode], frames, fps)
    }
    frames_of = dict(lengths)
    spans = sorted((place[:2], place[2] * fps, frames_of[e]) for e, place in found.items())
    between = any(abs(at - round(at)) > TIMESTAMP_TOLERANCE_S * fps for _, at, _ in spans)
    muddled = between or any(  # one begins between two pictures, or they overlap
        a[0] == b[0] and round(a[1]) + a[2] > round(b[1]) for a, b in itertools.pairwise(spans)
    )
    if len(found) == len(lengths) and not muddled:
        return found
    in_order = _in_order(camera, lengths, fps)
    pictures = sum(index.frames for index in camera.files.values())
    if muddled and len(in_order) == len(lengths) and pictures == sum(n for _, n in lengths):
        return in_order  # every picture is claimed once
    agrees = all(
        (laid := in_order.get(e)) is not None
        and laid[:2] == place[:2]
        and abs(laid[2] - place[2]) < 0.5 / fps
        for e, place in found.items()
    )
    return {**in_order, **found} if agrees else found


def _in_order(camera: Camera, lengths: Sequence[tuple[int, int]], fps: float) -> dict[int, Place]:
    """Lay episodes one after the other, up to the first that isn't known.

    {} where the files' lengths say otherwise.
    """
    left = sorted(camera.files)
    result: dict[int, Place] = {}
    at = 0
    for number, (episode, frames) in enumerate(lengths):
        if episode != number:
            break  # an episode of unknown length: nothing says where those after it begin
        while left and at + frames > camera.files[left[0]].frames:
            if at != camera.files[left[0]].frames and len(left) > 1:
                return {}  # pictures nobody claims, and more files after them: no telling
            left, at = left[1:], 0
        if not left:
            break
        result[episode] = (*left[0], at / fps)
        at += frames
    return result
