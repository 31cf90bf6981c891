"""What a dataset's card says about its takes: counts, people, how real they are, a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import cv2
import numpy as np
import pyarrow.parquet as pq

from gaploop.core.consent import takes_part
from gaploop.core.errors import UnusableInputError
from gaploop.core.types import Image
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.datasets.frames import data_file
from gaploop.datasets.layout import LABELS, TELEMETRY, DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import video_of
from gaploop.datasets.video import VideoRange

PICTURE: Final = "assets/sample.jpg"
PICTURE_HEIGHT: Final = 240
"""Of every camera's part of the picture [pixels]."""
MOST_CAMERAS: Final = 4
PICTURES_AT_ONCE: Final = 16
"""Read together while looking for an episode's first one."""
MOST_ROWS: Final = 40
"""Rows of a table before the rest is summed up."""

type Table = list[tuple[str, int]]


def facts(info: DatasetInfo, episodes: Sequence[EpisodeRow]) -> dict[str, Any]:
    """Return what the dataset's card is filled with, but for picture, licence and name."""
    return {
        "takes": len(episodes),
        "frames": info.total_frames,
        "minutes": f"{info.total_frames / info.fps / 60:.1f}",
        "fps": f"{info.fps:g}",
        "robot": info.robot_type or "an unnamed robot",
        "cameras": [
            key.rpartition(".")[2]
            for key, spec in info.features.items()
            if spec.get("dtype") in ("video", "image")
        ],
        "tasks": sorted({e.info.task for e in episodes if e.info.task}),
        "tables": [(title, rows) for title, rows in _tables(episodes) if rows],
        "dimensions": _dimensions(episodes),
        "simulated": _simulated(episodes),
        "consent": _consent(episodes),
        "labelled": any(_is_ours(e) for e in episodes),
        "history": (info.root / LABELS).exists(),
        "telemetry": (info.root / TELEMETRY).is_dir(),
    }


def _tables(episodes: Sequence[EpisodeRow]) -> list[tuple[str, Table]]:
    failed = [e for e in episodes if e.outcome is Outcome.FAILURE]
    conditions = Counter(
        f"{name}: {value}" for e in episodes for name, value in e.info.conditions.items()
    )
    bare = sum(not e.info.conditions for e in episodes)
    if conditions and bare:
        conditions["none set up"] = bare
    modes = (", ".join(w for w in (e.failure_mode, e.phase) if w) or "unlabelled" for e in failed)
    return [
        ("outcome", _counted(e.outcome.value for e in episodes)),
        ("domain", _counted(_domain(e) for e in episodes)),
        ("kind", _counted(e.info.kind.value for e in episodes)),
        ("condition", _cut(conditions.most_common())),
        ("failure mode, phase", _counted(modes)),
    ]


def _is_ours(episode: EpisodeRow) -> bool:
    """Say whether an episode has gap columns; without, domain and people are unknown."""
    return bool(episode.row.get("gap_uid"))


def _domain(episode: EpisodeRow) -> str:
    domain = episode.info.domain
    if not _is_ours(episode):
        return "not stated"
    return f"{domain.value} (sim-to-sim)" if domain is Domain.SIM_TARGET else domain.value


def _dimensions(episodes: Iterable[EpisodeRow]) -> list[tuple[str, int, int]]:
    """Return dimension, takes whose failure it caused, demonstrations against it."""
    cause, purpose = Counter[str](), Counter[str]()
    for episode in episodes:
        failed = episode.outcome is Outcome.FAILURE
        against = episode.info.kind is TakeKind.DEMONSTRATION and not failed
        for name in episode.info.dimensions:
            (purpose if against else cause)[str(name)] += 1
    return [(n, cause[n], purpose[n]) for n in sorted(cause | purpose)]


def _simulated(episodes: Sequence[EpisodeRow]) -> str:
    count = Counter(e.info.domain for e in episodes)
    target = count[Domain.SIM_TARGET]
    if not target:
        return ""
    which = "All" if target == len(episodes) else f"{target} of the {len(episodes)}"
    return (
        f"{which} takes come from a simulated cell that stands in for the real one "
        "(domain `sim_target`). Nothing learned from them is evidence about a real robot."
    )


def _consent(episodes: Sequence[EpisodeRow]) -> str:
    """Say in one paragraph whether people take part, and that they agree."""
    people = sum(has_people(e) for e in episodes)
    if people:
        verb = "shows" if people == 1 else "show"
        return (
            f"{people} of the {len(episodes)} takes {verb} people who take part. Each of them has "
            "agreed to recording, publication and this upload (pseudonymous ids in `gap_consent`); "
            "the agreement was valid when this was pushed. Who withdraws is removed from later "
            "versions: use the latest one."
        )
    if not all(_is_ours(e) for e in episodes):
        return "Not all takes were recorded with gaploop: nothing here says who is in those."
    simulated = all(e.info.domain is not Domain.REAL for e in episodes)
    return (
        "The takes are simulated; nobody is in them."
        if simulated
        else "No take names a participant or was recorded with people taking part."
    )


def has_people(episode: EpisodeRow) -> bool:
    """Say whether somebody takes part in a take."""
    info = episode.info
    part = takes_part(info.conditions, info.dimensions, info.domain, info.kind)
    return bool(info.consent or part)


def unlabelled(episodes: Iterable[EpisodeRow]) -> list[int]:
    """Return the episodes of which nobody has said how they went."""
    return [e.index for e in episodes if e.outcome is Outcome.UNLABELLED]


def picture(info: DatasetInfo, episodes: Sequence[EpisodeRow]) -> bytes:
    """Return the first picture of a take by every camera, side by side, as JPEG; b"" without.

    A success and a take without people are preferred.

    Raises:
        UnusableInputError: a picture can't be read.
    """
    kinds = {key: spec.get("dtype") for key, spec in info.features.items()}
    cameras = [key for key, kind in kinds.items() if kind in ("video", "image")][:MOST_CAMERAS]
    if not episodes or not cameras:
        return b""
    best = min(episodes, key=lambda e: (has_people(e), e.outcome is not Outcome.SUCCESS, e.index))
    parts = []
    for key in cameras:
        read = _video_picture if kinds[key] == "video" else _stored_picture
        image = read(info, best, key)
        if image is None:
            raise UnusableInputError(
                f"{info.root}: no picture of {key} in episode {best.index} can be read. "
                "Find out more with: gaploop check"
            )
        width = max(1, round(image.shape[1] * PICTURE_HEIGHT / image.shape[0]))
        parts.append(cv2.resize(image, (width, PICTURE_HEIGHT), interpolation=cv2.INTER_AREA))
    # JPEG wants BGR.
    done, jpeg = cv2.imencode(".jpg", np.hstack(parts)[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 85])
    return bytes(jpeg) if done else b""


def _video_picture(info: DatasetInfo, episode: EpisodeRow, key: str) -> Image | None:
    path, start_s = video_of(info, episode.row, key)
    return None if path is None else next(VideoRange(path, start_s, 1, info.fps)(), None)


def _stored_picture(info: DatasetInfo, episode: EpisodeRow, key: str) -> Image | None:
    """Read a picture that LeRobot keeps in the data file itself, as {bytes, path}."""
    path = data_file(info, episode)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(PICTURES_AT_ONCE, columns=["episode_index", key]):
            for row in batch.to_pylist():
                if row["episode_index"] == episode.index:
                    encoded = np.frombuffer(row[key]["bytes"], dtype=np.uint8)
                    image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
                    return None if image is None else np.asarray(image[:, :, ::-1], dtype=np.uint8)
    return None


def _counted(words: Iterable[str]) -> Table:
    return _cut(Counter(words).most_common())


def _cut(rows: Table) -> Table:
    rest = sum(count for _, count in rows[MOST_ROWS:])
    return rows[:MOST_ROWS] + ([(f"{len(rows) - MOST_ROWS} others", rest)] if rest else [])
