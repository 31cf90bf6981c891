"""Rules of `check` for `videos/`: every picture that LeRobot asks for is there, and moves.

Packets say how many pictures a file holds and when they are shown; that needs no decoding.
Pictures are decoded as far as `ReadEffort` allows: all of them in a small dataset, else those of
some episodes, spread evenly.
"""

from __future__ import annotations

import itertools
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.datasets import layout
from gaploop.datasets.check.episodes import EpisodeTable
from gaploop.datasets.check.findings import DAMAGE, Findings, numbers, reason
from gaploop.datasets.check.pictures import PictureRun, check_colours, look_at
from gaploop.datasets.check.scan import TIMESTAMP_TOLERANCE_S, Scan
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.video import VideoIndex, video_index

PICTURES: Final = 3000
"""Pictures decoded unless all are asked for: about 10 s at 640 x 480."""
BYTES: Final = 2 * 1024**3
"""Videos are read packet by packet up to this size in all; beyond it, only their last packets."""


@dataclass(frozen=True)
class ReadEffort:
    """How much is read.

    Attributes:
        pictures: how many pictures are decoded at most; None for all.
        bytes: videos larger than this in all are not read from end to end; None for no limit.
    """

    pictures: int | None = PICTURES
    bytes: int | None = BYTES


QUICK: Final = ReadEffort()
DEEP: Final = ReadEffort(None, None)


@dataclass(frozen=True)
class _Claim:
    """One episode's stretch of a file."""

    episode: int
    frames: int
    start_s: float
    end_s: float


def check_videos(
    info: DatasetInfo,
    episodes: EpisodeTable,
    scan: Scan | None,
    effort: ReadEffort,
    findings: Findings,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Check every camera's videos against the episode table."""
    files = {key: _claims(info, episodes, key, findings) for key in info.video_keys}
    present = {p for claims in files.values() for p in claims if p.is_file()}
    whole = effort.bytes is None or sum(p.stat().st_size for p in present) <= effort.bytes
    look = _spread(files, effort.pictures, scan)
    missing = {}
    colours: dict[str, dict[int, NDArray[np.float64]]] = {}
    for key, claims in files.items():
        absent = [p for p in claims if p not in present]
        if absent:
            missing[key] = [str(p.relative_to(info.root)) for p in absent]
        for path, claimed in claims.items():
            if path in present and _check_file(info, key, path, claimed, whole, findings):
                chosen = [c for c in claimed if c.episode in look]
                runs = [PictureRun(c.episode, c.start_s, c.frames) for c in chosen]
                with findings.guard(path.relative_to(info.root)):
                    colours.setdefault(key, {}).update(
                        look_at(info, key, path, runs, scan, findings)
                    )
            advance()
    with findings.guard(layout.EPISODES):
        check_colours(info, colours, findings)
    for key, names in missing.items():
        _report_missing(info, key, names, findings)


def _spread(
    files: Mapping[str, Mapping[Path, list[_Claim]]], pictures: int | None, scan: Scan | None
) -> frozenset[int]:
    """Return the episodes whose pictures are decoded; of some, those whose signals are known."""
    frames: dict[int, int] = defaultdict(int)
    for claims in files.values():
        for claimed in claims.values():
            for claim in claimed:
                frames[claim.episode] += claim.frames
    return decoded_episodes(frames, pictures, scan.signals if scan is not None else ())


def decoded_episodes(
    frames: Mapping[int, int], pictures: int | None, among: Collection[int] = ()
) -> frozenset[int]:
    """Return the episodes whose pictures are decoded, spread evenly.

    Args:
        frames: episode to its pictures, of all cameras.
        pictures: about how many pictures to decode; None for all.
        among: episodes to choose from, where not all can be; empty for any.
    """
    every = sorted(frames)
    if pictures is None or sum(frames.values()) <= pictures:
        return frozenset(every)
    mean = max(1.0, sum(frames.values()) / len(every))
    every = sorted(set(every) & set(among)) or every
    at = np.unique(np.linspace(0, len(every) - 1, max(1, int(pictures / mean))).astype(int))
    return frozenset(every[i] for i in at)


def _claims(
    info: DatasetInfo, episodes: EpisodeTable, key: str, findings: Findings
) -> dict[Path, list[_Claim]]:
    """Return each file of a camera with the stretches that episodes claim of it."""
    names = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    found = {name: episodes.numbers(f"videos/{key}/{name}") for name in names}
    present = {name: x for name, x in found.items() if x is not None}
    usable = np.isfinite(sum(present.values(), np.zeros(len(episodes))))
    if len(present) < len(names):
        usable[:] = False
    if not usable.all():
        lost = numbers(episodes.index[~usable].tolist())
        text = f"Episodes {lost} don't say in which file their {key} is."
        there = next((info.root / "videos" / key).glob("*/*.mp4"), None) is not None
        mend = findings.repair() if there else _without_videos(info)
        findings.error("no_video_columns", layout.EPISODES, text, mend)
    claims: dict[Path, list[_Claim]] = defaultdict(list)
    for i in np.flatnonzero(usable).tolist():
        chunk, file = int(present["chunk_index"][i]), int(present["file_index"][i])
        name = info.video_name(key, chunk, file)
        start, end = float(present["from_timestamp"][i]), float(present["to_timestamp"][i])
        claim = _Claim(int(episodes.index[i]), int(episodes.length[i]), start, end)
        claims[info.root / name].append(claim)
    return dict(claims)


def _report_missing(info: DatasetInfo, key: str, files: list[str], findings: Findings) -> None:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    folder = info.root / "videos"
    others = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    unclaimed = [n for n in others if n not in info.video_keys]
    hint = f" There is a folder videos/{unclaimed[0]}: was it renamed?" if unclaimed else ""
    findings.error(
        "missing_video",
        f"{files[0]}{more}",
        f"The video of {key} is missing.{hint}",
        findings.repair() if unclaimed else _without_videos(info),
    )


def _without_videos(info: DatasetInfo) -> str:
    source, target = shlex.quote(str(info.root)), shlex.quote(f"{info.root}_without_videos")
    return (
        f"gaploop import {source} --format=lerobot --drop_videos=true --output_dir={target}  "
        "# goes on without pictures; or copy the videos here"
    )


def _check_file(
    info: DatasetInfo,
    key: str,
    path: Path,
    claimed: list[_Claim],
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
        text = f"{key}: pictures are {index.size[0]} x {index.size[1]}, {layout.INFO} says {shape}."
        findings.error("video_size", name, text)
    rate_hz = index.spacing_hz or index.rate_hz
    if rate_hz and abs(rate_hz - info.fps) > 0.01 * info.fps:
        text = f"{key}: {rate_hz:g} pictures a second, {layout.INFO} says {info.fps:g}."
        findings.error("video_fps", name, text)
        return False
    return _check_claims(info, key, name, claimed, index, findings)


def _check_claims(
    info: DatasetInfo,
    key: str,
    name: Path,
    claimed: list[_Claim],
    index: VideoIndex,
    findings: Findings,
) -> bool:
    spans = [(round(c.start_s * info.fps), c) for c in sorted(claimed, key=lambda c: c.start_s)]
    short = [c.episode for first, c in spans if first + c.frames > index.frames]
    if short:
        needed = max(first + c.frames for first, c in spans)
        text = f"{key}: {index.frames} pictures for {needed} rows; episodes {numbers(short)} "
        findings.error("video_too_short", name, text + "show a wrong picture or none.")
        return False
    over = [b[1].episode for a, b in itertools.pairwise(spans) if a[0] + a[1].frames > b[0]]
    if over:
        text = f"{key}: episodes {numbers(over)} begin before the one before them ends."
        findings.error("video_overlap", name, text)
    odd = [c.episode for _, c in spans if _off(info.fps, c)]
    if odd:
        text = f"{key}: episodes {numbers(odd)} end at another time than start + frames / fps."
        findings.error("video_timestamps", layout.EPISODES, text)
    late = [c.episode for _, c in spans if not _on_time(info.fps, c, index.times_s)]
    if late:
        text = f"{key}: episodes {numbers(late)} have no picture within 0.1 ms of their rows."
        findings.error("video_timestamps", name, text)
    used = sum(c.frames for c in claimed)
    if used < index.frames and not (over or odd or late):
        text = f"{key}: {index.frames} pictures, of which episodes use {used}."
        mend = "None needed: an edit tool leaves pictures of removed episodes behind."
        findings.warn("video_too_long", name, text, mend)
    return not late


def _off(fps: float, claim: _Claim) -> bool:
    return abs(claim.end_s - claim.start_s - claim.frames / fps) > 0.5 / fps


def _on_time(fps: float, claim: _Claim, times_s: NDArray[np.float64] | None) -> bool:
    """Say whether there is a picture for each row within LeRobot's tolerance."""
    if times_s is None or not len(times_s):
        return True
    asked = claim.start_s + np.arange(claim.frames) / fps
    at = np.clip(np.searchsorted(times_s, asked), 1, max(1, len(times_s) - 1))
    before, after = times_s[at - 1], times_s[np.minimum(at, len(times_s) - 1)]
    nearest = np.minimum(np.abs(asked - before), np.abs(asked - after))
    return bool((nearest <= TIMESTAMP_TOLERANCE_S).all())
