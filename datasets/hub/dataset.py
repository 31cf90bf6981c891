"""A dataset onto a Hub: looked at first, then pushed with a card, then tagged for LeRobot."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gaploop.core.consent import Place, Use, note_places
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, read_json
from gaploop.core.journal_format import TRUTH
from gaploop.core.paths import refuse_links_out
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import layout, staging
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR, numbers
from gaploop.datasets.edit.compose import DatasetPiece, VideosDone, compose, require_dataset_consent
from gaploop.datasets.hub import upload
from gaploop.datasets.hub.card import PICTURE, dataset_card, sample_picture
from gaploop.datasets.hub.scan import require_clean
from gaploop.datasets.hub.target import PUBLIC_ENDPOINT, HubTarget
from gaploop.datasets.hub.upload import README, ChangedError, Contents, HubFile, Patience, Pushed
from gaploop.datasets.people import PeopleDetector, blurred, note_people, people_record

FOLDERS: Final = ("data", "meta", "videos", layout.TELEMETRY)
"""What LeRobot and gaploop write into a dataset; nothing else goes along."""
IMAGES: Final = "images"
"""Where LeRobot keeps pictures until they are encoded; its own push leaves them out too."""
NOTICES: Final = ("LICENSE", "LICENCE", "NOTICE", "CITATION")
ATTEMPTS: Final = 3
"""How often a dataset that changes while it is pushed is read anew."""
UNFINISHED: Final = (".lock", ".tmp", ".partial")

type Stamp = Mapping[Path, tuple[int, int, int]]


@dataclass(frozen=True)
class PushOptions:
    """How to push; as the options of `gaploop push`.

    Attributes:
        license: for the card; "" for the one that it states already, or LeRobot's default.
        blur: finds the people of a dataset to blur; None to push pictures as they are.
    """

    license: str = ""
    allow_paths: bool = False
    patience: Patience = field(default_factory=Patience)
    blur: PeopleDetector | None = None


@dataclass(frozen=True)
class Look:
    """A dataset that may be pushed, with its files as they were looked at."""

    info: layout.DatasetInfo
    episodes: tuple[layout.EpisodeRow, ...]
    stamp: Stamp
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class UploadPlan:
    """What would be pushed; card and picture (JPEG, or b"") are among the contents, too."""

    contents: Contents
    card: str
    warnings: tuple[str, ...]
    picture: bytes = b""


def push_dataset(
    root: Path,
    target: HubTarget,
    options: PushOptions = PushOptions(),
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Pushed, UploadPlan]:
    """Push a dataset, so that plain LeRobot loads it by its name.

    Raises:
        UnusableInputError: it must not be pushed, or the Hub refuses; why, and how to fix it.
        HubUnreachableError: the Hub can't be reached or goes on failing; try again later.
    """
    root = Path(root).absolute()
    public = target.endpoint == PUBLIC_ENDPOINT
    place = Place("hub", target.repo_id if public else target.url)
    for _ in range(ATTEMPTS):
        look = inspect(root, options)  # before anything is asked of the Hub
        # The card that people may have written in: the folder's, which replaces the Hub's.
        if (root / README).is_file():
            before = (root / README).read_text(errors="replace")
        else:
            before = upload.read_remote(target, README, options.patience)
        note_places([episode.info for episode in look.episodes], place)
        try:
            with outgoing(look, options) as copy:
                parcel = pack(copy, target, options, before)
                return upload.push(target, parcel.contents, options.patience, on_progress), parcel
        except ChangedError:
            continue  # so is what was looked at
    raise UnusableInputError(
        f"{root} is being changed by another process. Push it when that is done."
    )


def inspect(root: Path, options: PushOptions) -> Look:
    """Refuse a dataset that must not be pushed.

    Raises:
        UnusableInputError: it doesn't load, a consent is missing, or it holds a secret or a path.
    """
    refuse_links_out(existing_folder(root, "Dataset"), of_snapshot=False)
    info, stamp = layout.read_info(root), _stamp(root)
    require_dataset_consent(root, Use.PUSH)
    files, left_out = files_of(root)
    card = {README: root / README} if (root / README).is_file() else {}
    require_clean(root, {**files, **card}, options.allow_paths)
    errors = [f for f in check(root) if f.severity == ERROR]
    if errors:
        more = f" And {len(errors) - 1} more." if len(errors) > 1 else ""
        raise UnusableInputError(
            f"{root} isn't sound: {errors[0].where}: {errors[0].message}{more} Fix it first; see "
            f"what is wrong and how with: gaploop check {root}"
        )
    episodes = tuple(layout.read_episodes(info))
    warnings = []
    bare = [e.index for e in episodes if e.outcome is Outcome.UNLABELLED]
    if bare:
        warnings.append(
            f"{len(bare)} of {len(episodes)} episodes have no outcome (episodes {numbers(bare)}): "
            f"gaploop label {root} --episodes={bare[0]} --outcome=success"
        )
    if left_out:
        warnings.append(f"Not part of the dataset, not pushed: {', '.join(left_out)}.")
    return Look(info, episodes, stamp, tuple(warnings))


@contextlib.contextmanager
def outgoing(look: Look, options: PushOptions) -> Iterator[Look]:
    """Yield what leaves: the dataset itself, or its copy with people blurred, gone afterwards.

    Episodes whose people the same detector has blurred already stay as they are.
    """
    root, detector = look.info.root, options.blur
    if detector is None:
        yield look
        return
    copy = staging.sibling(root, "blurred")
    try:
        shutil.rmtree(copy, ignore_errors=True)  # of a push that was killed
        with staging.locked(root):
            piece, done = DatasetPiece.whole(root), people_record(root)
            new = [
                e.index for e in piece.held
                if done.get(e.info.uid, {}).get("detector") != detector.name
            ]  # fmt: skip
            changes, found = blurred(piece.only(new), detector)
            compose((replace(piece, changes=changes),), copy, VideosDone(), True, reencode=True)
        note_people(copy, detector, found)
        boxes = sum(people.count for cameras in found.values() for people in cameras.values())
        text = (
            f"{boxes} faces and people blurred in {len(changes)} of {len(new)} episodes. Detectors "
            "miss people: look at the pictures. Versions pushed before keep what they show."
        )
        more = (text,) if new else ()
        yield replace(inspect(copy, options), warnings=(*look.warnings, *more))
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def pack(look: Look, target: HubTarget, options: PushOptions, before: str) -> UploadPlan:
    """Return what would be pushed. `before` is the card that there is, or ""."""
    root, info, episodes = look.info.root, look.info, look.episodes
    picture = sample_picture(info, episodes)
    card = dataset_card(info, episodes, target, before, options.license, bool(picture))
    files = [HubFile(name, path) for name, path in files_of(root)[0].items()]
    files.append(HubFile(README, card.encode()))
    files += [HubFile(PICTURE, picture)] if picture else []

    def owns(name: str) -> bool:
        return name.partition("/")[0] in FOLDERS or name == PICTURE

    def still_allowed() -> None:
        if _stamp(root) != look.stamp:
            raise ChangedError(f"{root} was changed while it was pushed. Push it again.")
        require_dataset_consent(root, Use.PUSH)

    takes = f"{len(episodes)} episode" + "s" * (len(episodes) != 1)
    message = f"gaploop push: {takes}, {info.total_frames} frames"
    # LeRobot looks for a dataset by its format's version.
    tag = str(read_json(root / layout.INFO)["codebase_version"])
    contents = Contents(tuple(files), message, owns, tag, still_allowed)
    return UploadPlan(contents, card, look.warnings, picture)


def files_of(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Return what belongs to a dataset, name to file, and what lies there besides."""

    def is_hidden(name: Path) -> bool:
        return any(p.startswith(".") for p in name.parts) or name.suffix in UNFINISHED

    files: dict[str, Path] = {}
    left_out = []
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name in FOLDERS:
            files |= {
                file.relative_to(root).as_posix(): file
                for file in sorted(path.rglob("*"))
                if file.is_file() and not is_hidden(file.relative_to(root))
            }
        elif path.is_file() and path.name.partition(".")[0].upper() in NOTICES:
            files[path.name] = path
        elif path.name not in (README, IMAGES, TRUTH) and not path.name.startswith("."):
            left_out.append(path.name + "/" * path.is_dir())
    return files, left_out


def _stamp(root: Path) -> Stamp:
    """Return what tells one state of the folder from another."""
    files = files_of(root)[0].values()
    found = {path: path.stat() for path in [*files, root / README] if path.exists()}
    return {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in found.items()}
