"""Pictures: every one that LeRobot asks for is there and decodes.

Packets say how many pictures a file holds and when they are shown; that needs no decoding.
All pictures of a small dataset are decoded, else those of some episodes, spread evenly.

`--fix` never makes pictures up. Where the episode table doesn't say where they are, they lie one
episode after the other, as LeRobot writes them; that is only believed where the lengths fit.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.check.findings import DAMAGE, WARNING, Findings, FixDraft, reason
from gaploop.datasets.check.frames import TIMESTAMP_TOLERANCE_S, Rows
from gaploop.datasets.check.stats import stat_columns
from gaploop.datasets.layout import DatasetInfo, data_files, episode_files, numbers
from gaploop.datasets.video import VideoIndex, VideoWriter, open_video, shown_frames, video_index

if TYPE_CHECKING:
    from gaploop.datasets.check.episodes import EpisodeTable

PICTURES: Final = 3000
"""Pictures decoded unless all are asked for: about 10 s at 640 x 480."""
BYTES: Final = 2 * 1024**3
"""Videos are read packet by packet up to this size in all; beyond it, only their last packets."""
THUMB: Final = 160
"""Pictures are compared at this width at most [pixels]."""
COLOUR: Final = 0.25
"""Difference of mean colour [share of full scale] that no sampling of pictures explains."""
MIXED_UP: Final = 0.01
"""The same between two cameras whose pictures fit each other's statistics."""
_STORED_ROWS: Final = 64
type Colour = NDArray[np.float64]
"""Mean colour of an episode's pictures, RGB in [0, 1]."""
type Colours = dict[str, dict[int, Colour]]
"""Camera to episode to mean colour."""


def episodes_of_pictures(frames: Mapping[int, int], deep: bool) -> frozenset[int]:
    """Return the episodes whose pictures are decoded: all, or some spread evenly.

    `frames` is episode to its pictures, of all cameras.
    """
    total, episodes = sum(frames.values()), sorted(frames)
    if deep or total <= PICTURES:
        return frozenset(episodes)
    count = min(len(episodes), max(1, int(PICTURES * len(episodes) / total)))
    at = np.unique(np.linspace(0, len(episodes) - 1, count).astype(int))
    return frozenset(episodes[i] for i in at)


@dataclass(frozen=True)
class EpisodeClip:
    """One episode's stretch of a video file, from and to which time of it [s]."""

    episode: int
    frames: int
    start_s: float
    end_s: float = 0.0


def check_videos(
    info: DatasetInfo,
    episodes: EpisodeTable,
    deep: bool,
    findings: Findings,
) -> Stretches:
    """Check every camera's videos against the episode table; return what to look at."""
    files: dict[str, dict[Path, list[EpisodeClip]]] = {}  # the stretches that episodes claim
    for key in info.video_keys:
        names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        stated = np.array([episodes.numbers(f"videos/{key}/{name}") for name in names])
        usable = np.isfinite(stated).all(axis=0)
        if not usable.all():
            lost = episodes.index[~usable].tolist()
            text = f"the episode table doesn't give the file of their {key}."
            there = next((info.root / "videos" / key).glob("*/*.mp4"), None) is not None
            fix = "" if there else _without_videos(info)
            findings.about(lost, "no_video_columns", layout.EPISODES, text, fix)
        claimed = files[key] = {}
        for i in np.flatnonzero(usable).tolist():
            chunk, file, start_s, end_s = stated[:, i].tolist()
            clip = EpisodeClip(int(episodes.index[i]), int(episodes.length[i]), start_s, end_s)
            path = info.root / info.video_name(key, chunk, file)
            claimed.setdefault(path, []).append(clip)
    present = {p for clips in files.values() for p in clips if p.is_file()}
    whole = deep or sum(p.stat().st_size for p in present) <= BYTES
    frames = Counter[int]()
    for clip in (c for paths in files.values() for clips in paths.values() for c in clips):
        frames[clip.episode] += clip.frames
    look = episodes_of_pictures(frames, deep)
    stretches: Stretches = []
    for key, paths in files.items():
        for path, clips in paths.items():
            if path in present and _check_file(info, key, path, clips, whole, findings):
                stretches.append((key, path, [c for c in clips if c.episode in look]))
    others = sorted(p.name for p in (info.root / "videos").glob("*"))
    unclaimed = [n for n in others if n not in info.video_keys]
    hint = f" There is a folder videos/{unclaimed[0]}: was it renamed?" if unclaimed else ""
    for key, paths in files.items():
        absent = [str(p.relative_to(info.root)) for p in paths if p not in present]
        if absent:
            fix = "" if unclaimed else _without_videos(info)
            text = f"The video of {key} is missing.{hint}"
            findings.error("missing_video", numbers(absent, 1), text, fix)
    return stretches


def check_pictures(info: DatasetInfo, stretches: Stretches, findings: Findings) -> None:
    """Decode pictures: whether that works, and whether they are those of their camera."""
    colours: Colours = {}
    for key, path, clips in stretches:
        with findings.guard(path.relative_to(info.root)):
            found = _look_at(info, key, path, clips, findings)
            colours.setdefault(key, {}).update(found)
    with findings.guard(layout.EPISODES):
        _check_colours(info, colours, findings)


def _without_videos(info: DatasetInfo) -> str:
    source, target = shlex.quote(str(info.root)), shlex.quote(f"{info.root}_without_videos")
    return (
        f"gaploop convert {source} --drop_videos=true --output_dir={target}  "
        "# goes on without pictures; or copy the videos here"
    )


def _check_file(
    info: DatasetInfo,
    key: str,
    path: Path,
    clips: Sequence[EpisodeClip],
    whole: bool,
    findings: Findings,
) -> bool:
    """Check one file; False where its pictures can't be looked at."""
    name = path.relative_to(info.root)
    try:
        index = video_index(path, whole)
    except DAMAGE as error:
        findings.error("unreadable", name, f"{key}: {reason(error)}")
        return False
    shape = list(info.features[key].get("shape") or ())
    if len(shape) == 3 and tuple(index.size) not in {(shape[1], shape[0]), (shape[2], shape[1])}:
        text = f"{key}: pictures are {index.size[0]} x {index.size[1]}, {layout.INFO} has {shape}."
        findings.error("video_size", name, text)
    rate_hz = index.spacing_hz or index.rate_hz
    if rate_hz and abs(rate_hz - info.fps) > 0.01 * info.fps:
        text = f"{key}: {rate_hz:g} pictures a second, {layout.INFO} has {info.fps:g}."
        # Where all pictures are there, or timestamps are wrong, too, `--fix` sets the rate right.
        mends = index.is_uneven(info.fps) and sum(c.frames for c in clips) == index.frames
        mends |= any(f.code == "bad_timestamp" for f in findings.items)
        findings.error("video_fps", name, text, "" if mends else _without_videos(info))
        return False
    spans = [(round(c.start_s * info.fps), c) for c in sorted(clips, key=lambda c: c.start_s)]
    short = [c.episode for first, c in spans if first + c.frames > index.frames]
    if short:
        needed = max(first + c.frames for first, c in spans)
        text = f"{index.frames} pictures for {needed} rows of {key}: a wrong picture or none."
        fix = findings.command("--drop=true")
        if sum(c.frames for c in clips) == index.frames:
            fix = ""  # all pictures are there, and only their places are wrong
        elif len(short) >= findings.episodes:
            fix = _without_videos(info)
        findings.about(short, "video_too_short", name, text, fix)
        return False
    over = [b[1].episode for a, b in itertools.pairwise(spans) if a[0] + a[1].frames > b[0]]
    text = f"{key} begins before the one before them ends."
    findings.about(over, "video_overlap", name, text)
    ends = {c.episode: (c.end_s - c.start_s) * info.fps - c.frames for _, c in spans}
    # Some tools name the last picture instead of its end; every picture is found all the same.
    short_by_one = [e for e, frames in ends.items() if abs(frames + 1) <= 0.5]
    odd = [e for e, frames in ends.items() if abs(frames) > 0.5 and e not in short_by_one]
    text, code = f"{key} ends at another time than start + frames / fps", "video_timestamps"
    findings.about(odd, code, layout.EPISODES, f"{text}.")
    less = f"{text}; one frame short."
    findings.about(short_by_one, code, layout.EPISODES, less, severity=WARNING)
    late = []
    if index.times_s is not None and len(index.times_s):
        times_s = index.times_s
        for _, clip in spans:
            asked = clip.start_s + np.arange(clip.frames) / info.fps
            at = np.clip(np.searchsorted(times_s, asked), 1, max(1, len(times_s) - 1))
            before, after = times_s[at - 1], times_s[np.minimum(at, len(times_s) - 1)]
            nearest = np.minimum(np.abs(asked - before), np.abs(asked - after))
            if not (nearest <= TIMESTAMP_TOLERANCE_S).all():
                late.append(clip.episode)
    used = sum(c.frames for c in clips)
    fix = _without_videos(info) if index.is_uneven(info.fps) and used != index.frames else ""
    findings.about(late, code, name, f"{key} has no picture within 0.1 ms of their rows.", fix)
    if used < index.frames and not (over or odd or short_by_one or late):
        text = f"{key}: {index.frames} pictures, of which episodes use {used}."
        fix = "None needed: an edit tool leaves pictures of removed episodes behind."
        findings.warn("video_too_long", name, text, fix)
    return not late


def _look_at(
    info: DatasetInfo,
    key: str,
    path: Path,
    clips: Sequence[EpisodeClip],
    findings: Findings,
) -> dict[int, Colour]:
    """Decode some episodes of one file; return each one's mean colour."""
    broken = []
    colours: dict[int, Colour] = {}
    for clip in clips:
        seen, total = 0, np.zeros(3, np.uint32)[None, None]
        with contextlib.suppress(*DAMAGE):
            for thumb in _thumbs(info.fps, path, clip):
                total = np.asarray(total + thumb)  # a tenth of the time that each one's mean takes
                seen += 1
        if seen < clip.frames:
            broken.append(clip.episode)
        elif seen:
            colours[clip.episode] = total.mean(axis=(0, 1)) / (255 * seen)
    name = path.relative_to(info.root)
    text, fix = f"pictures of {key} can't be decoded.", findings.command("--drop=true")
    findings.about(broken, "bad_pictures", name, text, fix)
    return colours


def decodes(fps: float, path: Path, clip: EpisodeClip) -> bool:
    """Say whether all pictures of a stretch can be decoded."""
    try:
        return sum(1 for _ in _thumbs(fps, path, clip)) == clip.frames
    except DAMAGE:
        return False


def _thumbs(fps: float, path: Path, clip: EpisodeClip) -> Iterator[NDArray[np.uint8]]:
    """Yield an episode's pictures, small, RGB, shape (height, width, 3)."""
    with open_video(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.options = {"err_detect": "explode"}
        stream.thread_type = "AUTO"
        for frame in shown_frames(path, container, clip.start_s, clip.frames, fps):
            if frame.is_corrupt:  # the decoder had to make up part of it
                raise UnusableInputError(f"{path}: a picture is damaged.")
            width = min(THUMB, frame.width)
            height = max(2, frame.height * width // frame.width)
            yield frame.reformat(width=width, height=height, format="rgb24").to_ndarray()


def _check_colours(info: DatasetInfo, colours: Colours, findings: Findings) -> None:
    """Compare mean colours of decoded pictures with the statistics that were recorded with them."""
    said: Colours = {key: {} for key in colours}
    for path in episode_files(info.root):
        for key, table in stat_columns(path, colours):
            if table["mean"].shape[1] == 3:
                index = table["episode_index"].astype(int).tolist()
                said[key] |= dict(zip(index, table["mean"], strict=True))
    apart: dict[tuple[str, str], float] = {}  # 0 where statistics aren't in [0, 1]
    for a, b in itertools.product(colours, colours):
        far = [
            float(np.abs(mean - said[b][e]).max())
            for e, mean in colours[a].items()
            if e in said[b] and ((said[b][e] >= 0) & (said[b][e] <= 1)).all()
        ]
        apart[a, b] = float(np.mean(far)) if far else 0.0

    def fits_rather(a: str, b: str) -> bool:
        """Say whether pictures of `a` fit the statistics of `b` and not their own."""
        return apart[a, a] > MIXED_UP and 3 * apart[a, b] < apart[a, a]

    mixed: set[str] = set()
    for a, b in itertools.combinations(colours, 2):
        if fits_rather(a, b) and fits_rather(b, a):
            mixed |= {a, b}
            text = f"Pictures of {a} have the colours that {b} was recorded with, and the other "
            text += "way round: their files are mixed up."
            fix = "Put the video files of the two cameras back in each other's place."
            findings.error("wrong_pictures", f"videos/{a}", text, fix)
    for key in colours:
        off = apart[key, key]
        if key not in mixed and off > COLOUR:
            text = f"Pictures of {key} are {off:.0%} brighter or darker than their statistics."
            fix = "Look at them: the file may be another video, or the statistics were copied."
            findings.warn("wrong_pictures", f"videos/{key}", text, fix)


def check_stored(info: DatasetInfo, deep: bool, findings: Findings) -> None:
    """Check pictures that stand in the data files themselves (dtype `image`)."""
    keys = [k for k, spec in info.features.items() if spec.get("dtype") == "image"]
    step = 1 if deep else max(1, math.ceil(info.total_frames * len(keys) / PICTURES))
    for key in keys:
        shape = list(info.features[key]["shape"])
        for path in data_files(info.root):
            name = path.relative_to(info.root)
            with findings.guard(f"{name}: {key}"):
                bad = bad_stored(path, key, shape, step)
                if bad:
                    text = f"Pictures in rows {numbers(bad)} are missing, damaged or not {shape}."
                    fix = findings.command("--drop=true")
                    findings.error("bad_pictures", f"{name}: {key}", text, fix)


def bad_stored(path: Path, key: str, shape: list[int], step: int = 1) -> list[int]:
    """Return rows of a data file whose picture is missing, damaged or not of `shape` [pixels].

    Every `step`-th row is looked at.
    """
    bad, at = [], 0
    sizes = {(shape[1], shape[0]), (shape[-1], shape[1])}  # width, height; channels last or first
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_STORED_ROWS, columns=[key]):
            column = batch.column(0)
            for i in range(-at % step, len(column), step):
                fine = False
                with contextlib.suppress(*DAMAGE, SyntaxError):  # as Pillow says of a broken PNG
                    picture = Image.open(io.BytesIO(column[i].as_py()["bytes"]))
                    picture.load()
                    fine = picture.size in sizes
                if not fine:
                    bad.append(at + i)
            at += len(column)
    return bad


_NUMBERS: Final = re.compile(r"chunk-(\d+)/file-(\d+)\.\w+$")
type Stretches = list[tuple[str, Path, list[EpisodeClip]]]
"""Cameras and files, with the stretches of each to be decoded."""
type Place = tuple[int, int, float]
"""Chunk, file, and start in it [s]."""


def mark_damaged_pictures(info: DatasetInfo, paths: list[Path], rows: Rows) -> None:
    """Mark rows whose stored pictures can't be decoded as not whole."""
    for key, spec in info.features.items():
        if spec["dtype"] != "image":
            continue
        for number, path in enumerate(paths):
            try:
                bad = bad_stored(path, key, list(spec["shape"]))
            except DAMAGE:
                continue  # a column under another name; it is not looked at
            rows.finite[(rows.file == number) & np.isin(rows.row, bad)] = False


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


def read_cameras(draft: FixDraft) -> list[Camera]:
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


def set_sizes(draft: FixDraft, cameras: Sequence[Camera]) -> None:
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
    draft: FixDraft, camera: Camera, known: Mapping[int, Place], lengths: Mapping[int, int]
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
