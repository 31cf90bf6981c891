"""A dataset onto a Hub: looked at first, then pushed with a card, then tagged for LeRobot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.core.consent import Place, Use
from gaploop.core.consent_store import note_places
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder, read_json
from gaploop.core.journal_format import TRUTH
from gaploop.core.paths import refuse_links_out
from gaploop.datasets import layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR, numbers
from gaploop.datasets.consented import require_dataset_consent
from gaploop.datasets.hub import card as hub_card
from gaploop.datasets.hub import facts as hub_facts
from gaploop.datasets.hub import push as hub
from gaploop.datasets.hub.client import PUBLIC_ENDPOINT, README
from gaploop.datasets.hub.errors import Patience
from gaploop.datasets.hub.scan import scan
from gaploop.datasets.hub.target import ChangedError, Contents, HubFile, HubTarget, Pushed

FOLDERS: Final = ("data", "meta", "videos", layout.TELEMETRY)
"""What LeRobot and gaploop write into a dataset; nothing else goes along."""
IMAGES: Final = "images"
"""Where LeRobot keeps pictures until they are encoded; its own push leaves them out too."""
NOTICES: Final = ("LICENSE", "LICENCE", "NOTICE", "CITATION")
TEMPLATE: Final = Path(__file__).parent / "dataset_card.md"
ATTEMPTS: Final = 3
"""How often a dataset that changes while it is pushed is read anew."""
_UNFINISHED: Final = (".lock", ".tmp", ".partial")

type Stamp = Mapping[Path, tuple[int, int, int]]


@dataclass(frozen=True)
class PushOptions:
    """How to push.

    Attributes:
        license: for the card; "" for the one that it states already, or LeRobot's default.
        tags: for the card.
        consents: the consent register; the default one where None.
        allow_paths: push although a file names a path on this computer.
        patience: how long to go on over a bad network.
    """

    license: str = ""
    tags: tuple[str, ...] = ()
    consents: Path | None = None
    allow_paths: bool = False
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class Look:
    """A dataset that may be pushed.

    Attributes:
        info: what it says about itself.
        episodes: its takes.
        stamp: its files as they were looked at.
        warnings: what the user should know and may ignore.
    """

    info: layout.DatasetInfo
    episodes: tuple[layout.EpisodeRow, ...]
    stamp: Stamp
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Parcel:
    """What would be pushed.

    Attributes:
        contents: files, with the card.
        card: README.md.
        picture: JPEG, or b"".
        warnings: what the user should know and may ignore.
    """

    contents: Contents
    card: str
    picture: bytes
    warnings: tuple[str, ...]


def push_dataset(
    root: Path,
    target: HubTarget,
    options: PushOptions = PushOptions(),
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Pushed, Parcel]:
    """Push a dataset, so that plain LeRobot loads it by its name.

    Raises:
        UnusableInputError: it must not be pushed, or the Hub refuses; why, and how to fix it.
        HubUnreachableError: the Hub can't be reached or goes on failing; try again later.
    """
    root = Path(root).absolute()
    for _ in range(ATTEMPTS):
        look = inspect(root, options)  # before anything is asked of the Hub
        before = _card_before(root, target, options)
        infos = [episode.info for episode in look.episodes]
        note_places(options.consents, infos, Place("hub", _place(target)))
        try:
            parcel = pack(look, target, options, before)
            return hub.push(target, parcel.contents, options.patience, on_progress), parcel
        except ChangedError:
            continue  # so is what was looked at
    raise UnusableInputError(
        f"{root} is being changed by another process. Push it when that is done."
    )


def _card_before(root: Path, target: HubTarget, options: PushOptions) -> str:
    """Return the card that people may have written in.

    That is the folder's, which replaces the Hub's, or the Hub's where the folder has none.
    """
    if (root / README).is_file():
        return (root / README).read_text(errors="replace")
    return hub.read_remote(target, README, options.patience)


def inspect(root: Path, options: PushOptions) -> Look:
    """Refuse a dataset that must not be pushed.

    Raises:
        UnusableInputError: it doesn't load, a consent is missing, or it holds a secret or a path.
    """
    refuse_links_out(existing_folder(root, "Dataset"), of_snapshot=False)
    info, stamp = layout.read_info(root), _stamp(root)
    require_dataset_consent(root, Use.PUSH, options.consents)
    files, left_out = files_of(root)
    card = {README: root / README} if (root / README).is_file() else {}
    require_clean(root, {**files, **card}, options.allow_paths)
    _require_sound(root)
    episodes = tuple(layout.read_episodes(info))
    return Look(info, episodes, stamp, tuple(_warnings(info, episodes, left_out)))


def _require_sound(root: Path) -> None:
    errors = [f for f in check(root) if f.severity == ERROR]
    if errors:
        more = f" And {len(errors) - 1} more." if len(errors) > 1 else ""
        raise UnusableInputError(
            f"{root} isn't sound: {errors[0].where}: {errors[0].message}{more} Fix it first; see "
            f"what is wrong and how with: gaploop check {root}"
        )
    from gaploop.datasets.lerobot_loads import require_loads  # here: it imports torch

    require_loads(root)


def pack(look: Look, target: HubTarget, options: PushOptions, before: str) -> Parcel:
    """Return what would be pushed. `before` is the card that there is, or ""."""
    root, info, episodes = look.info.root, look.info, look.episodes
    picture = hub_facts.picture(info, episodes)
    card = _card(look, target, options, before, bool(picture))
    files = [HubFile(name, path) for name, path in files_of(root)[0].items()]
    files.append(HubFile(README, card.encode()))
    files += [HubFile(hub_facts.PICTURE, picture)] if picture else []

    def still_allowed() -> None:
        if _stamp(root) != look.stamp:
            raise ChangedError(f"{root} was changed while it was pushed.")
        require_dataset_consent(root, Use.PUSH, options.consents)

    takes = f"{len(episodes)} take" + "s" * (len(episodes) != 1)
    message = f"gaploop push: {takes}, {info.total_frames} frames"
    contents = Contents(tuple(files), message, _owns, _version_tag(root), still_allowed)
    return Parcel(contents, card, picture, look.warnings)


def require_clean(root: Path, files: Mapping[str, Path], allow_paths: bool) -> None:
    """Refuse files that hold a secret or, unless allowed, a path on somebody's computer.

    Raises:
        UnusableInputError: the first thing found, and how many more there are.
    """
    hits = [hit for hit in scan(files.items()) if hit.secret or not allow_paths]
    hits.sort(key=lambda hit: not hit.secret)
    if not hits:
        return
    first, more = hits[0], f" ({len(hits) - 1} more)" if len(hits) > 1 else ""
    mend = (
        "Take it out, and revoke it: who has a copy of the folder has it."
        if first.secret
        else "Take it out, or push it all the same with --allow_paths."
    )
    raise UnusableInputError(
        f"{root} must not be pushed: {first.where} holds {first.what} ({first.shown}){more}. {mend}"
    )


def files_of(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Return what belongs to a dataset, name to file, and what lies there besides."""
    files: dict[str, Path] = {}
    left_out = []
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name in FOLDERS:
            files |= {
                file.relative_to(root).as_posix(): file
                for file in sorted(path.rglob("*"))
                if file.is_file() and not _is_hidden(file.relative_to(root))
            }
        elif path.is_file() and path.name.partition(".")[0].upper() in NOTICES:
            files[path.name] = path
        elif path.name not in (README, IMAGES, TRUTH) and not path.name.startswith("."):
            left_out.append(path.name + "/" * path.is_dir())
    return files, left_out


def _is_hidden(name: Path) -> bool:
    return any(p.startswith(".") for p in name.parts) or name.suffix in _UNFINISHED


def _owns(name: str) -> bool:
    """Say whether a file on the Hub is part of the dataset, so that it goes where it is gone."""
    return name.partition("/")[0] in FOLDERS or name == hub_facts.PICTURE


def _stamp(root: Path) -> Stamp:
    """Return what tells one state of the folder from another."""
    files = files_of(root)[0].values()
    found = {path: path.stat() for path in [*files, root / README] if path.exists()}
    return {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in found.items()}


def _version_tag(root: Path) -> str:
    """Return the tag by which LeRobot looks for a dataset: its format's version."""
    return str(read_json(root / layout.INFO)["codebase_version"])


def _warnings(
    info: layout.DatasetInfo, episodes: Sequence[layout.EpisodeRow], left_out: list[str]
) -> list[str]:
    found = []
    bare = hub_facts.unlabelled(episodes)
    if bare:
        found.append(
            f"{len(bare)} of {len(episodes)} takes have no outcome (episodes {numbers(bare)}): "
            f"gaploop label {info.root} --episode={bare[0]} --outcome=success"
        )
    if left_out:
        found.append(f"Not part of the dataset, not pushed: {', '.join(left_out)}.")
    return found


def _card(look: Look, target: HubTarget, options: PushOptions, before: str, picture: bool) -> str:
    facts = hub_facts.facts(look.info, look.episodes)
    facts |= {
        "repo_id": target.repo_id,
        "licence": hub_card.licence_of(before, options.license),
        "picture": hub_facts.PICTURE if picture else "",
    }
    tags = ["LeRobot", "gaploop", "robotics", *(["sim-to-sim"] if facts["simulated"] else [])]
    metadata = {
        "task_categories": ["robotics"],
        "tags": tags,
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    title = target.repo_id.partition("/")[2]
    body = hub_card.render(TEMPLATE, facts)
    return hub_card.card(before, title, body, metadata, options.license, options.tags)


def _place(target: HubTarget) -> str:
    """Return how the consent register names the place."""
    return target.repo_id if target.endpoint == PUBLIC_ENDPOINT else target.url
