"""A dataset onto a Hub: looked at first, then pushed with a card, then tagged for LeRobot.

Nothing that is pushed may hold secrets or absolute paths: neither can be called back.
"""

import contextlib
import json
import re
import shlex
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import av
import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core import labels
from gaploop.core.consent import Place, Use, note_places
from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import (
    LARGEST_TEXT,
    existing_folder,
    open_video_file,
    parse_json,
    read_json,
    regular_file,
)
from gaploop.core.journal_format import TRUTH
from gaploop.core.paths import refuse_links_out
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR
from gaploop.datasets.edit.compose import require_dataset_consent
from gaploop.datasets.hub import upload
from gaploop.datasets.hub.card import PICTURE, dataset_card, sample_picture
from gaploop.datasets.hub.target import PUBLIC_ENDPOINT, HubTarget
from gaploop.datasets.hub.upload import README, ChangedError, Contents, HubFile, Patience, Pushed
from gaploop.datasets.layout import numbers

SECRETS: Final[dict[str, re.Pattern[str]]] = {
    "a Hugging Face token": re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}\b"),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})"),
    "a GitLab token": re.compile(r"\bglpat-[\w-]{20,}"),
    "an API key": re.compile(r"\b(?:sk-[\w-]{20,}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,})"),
    "a JSON web token": re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY"),
    "a password in an address": re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@\"']+:[^/\s:@\"']+@"),
    "a password or key": re.compile(
        r"(?i)\b\w*(?:passw(?:or)?d|api_?key|secret(?:_?key)?|(?:access|auth|hf|hub)_?token)"
        r"[\"']?\s*[:=]\s*[\"']?(?!null\b|none\b|true\b|false\b)[^\s\"',{}\[\]]{8,}"
    ),
}
"""What it is to how it looks: prefixes that their issuers publish, and assignments to names."""

PATHS: Final = re.compile(
    r"(?<![\w./:~-])(?:/(?:home|Users|root|mnt|media|tmp|var|opt|srv|data|scratch|Volumes|private)"
    r"(?:/[\w.@+-]+)+|~/[\w.@+-]+)"
    r"|\bfile://[^\s\"']+|(?<![\w\\])[A-Za-z]:\\{1,2}\w[^\s\"',:]*"
)
"""A path on somebody's computer, in running text."""
QUOTED_PATH: Final = re.compile(r"\"(/(?!dev/)[\w.@+ -]+(?:/[\w.@+ -]+)+)/?\"")
"""A JSON or YAML string that is an absolute path from its first letter to its last."""
_SNIFFED: Final = 1024
"""Without a zero byte in as many from its beginning, a file is text, whatever it is called."""
_CHUNK: Final = re.compile(r"(?:.*/)?(?:c/)?\d+(?:[./]\d+)*")
"""A chunk of numbers in a Zarr archive."""
_HEADER_LIMIT: Final = 100 << 20


@dataclass(frozen=True)
class Hit:
    """Something that must not leave: a secret, or a path.

    Attributes:
        where: file, and the part of it.
        shown: enough of it to find it, never all of a secret.
    """

    where: str
    what: str
    shown: str
    secret: bool


def require_clean(root: Path, files: Mapping[str, Path], allow_paths: bool) -> None:
    """Refuse files that hold a secret or, unless allowed, a path on somebody's computer."""
    hits = [hit for hit in scan(files.items()) if hit.secret or not allow_paths]
    hits.sort(key=lambda hit: not hit.secret)
    if not hits:
        return
    first, more = hits[0], f" ({len(hits) - 1} more)" if len(hits) > 1 else ""
    fix = (
        "Take it out, and revoke it: anybody with a copy of the folder has it."
        if first.secret
        else "Take it out, or push it anyway with --allow_paths."
    )
    raise UnusableInputError(
        f"{root} must not be pushed: {first.where} holds {first.what} ({first.shown}){more}. {fix}"
    )


def scan(files: Iterable[tuple[str, Path]]) -> Iterator[Hit]:
    """Yield what is found in files, the first of each kind in each part of each file.

    Text is read whole, whatever its name ends with; Parquet's string columns and metadata, text in
    zip archives, safetensors headers and the metadata of videos too. Numbers and pictures aren't
    text.
    """
    for name, path in files:
        # What is damaged ends a file, and is for `gaploop check` to say.
        with contextlib.suppress(OSError, pa.ArrowException, zipfile.BadZipFile, av.FFmpegError):
            for part, text in _texts(name, path):
                where = f"{name}{part}"
                for what, pattern in SECRETS.items():
                    found = pattern.search(text)
                    if found:
                        yield Hit(where + _line(text, found), what, f"{found[0][:6]}…", True)
                found = PATHS.search(text) or QUOTED_PATH.search(text)
                if found:
                    shown = found[found.lastindex or 0][:60]
                    yield Hit(where + _line(text, found), "an absolute path", shown, False)


def _line(text: str, found: re.Match[str]) -> str:
    lines = text.count("\n", 0, found.start())
    return f", line {lines + 1}" if "\n" in text.strip() else ""


def _texts(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the parts of a file that hold text, each with its name."""
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            for key, value in (file.schema_arrow.metadata or {}).items():
                yield f" ({key.decode()})", value.decode(errors="replace")
            leaves = [file.schema.column(k) for k in range(len(file.schema.names))]
            for leaf in (one.path for one in leaves if one.logical_type.type == "STRING"):
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=[leaf])
                    yield f" (column {leaf})", "\n".join(_strings(table.column(0)))
    elif suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if _CHUNK.fullmatch(entry.filename):
                    continue
                if entry.file_size > LARGEST_TEXT:
                    raise UnusableInputError(
                        f"{path} must not be pushed: {entry.filename} in it unpacks to "
                        f"{entry.file_size >> 20} MiB, too much to scan. Delete it."
                    )
                # RuntimeError: encrypted. The entries after one that can't be read are read.
                damaged = contextlib.suppress(RuntimeError, zipfile.BadZipFile, zlib.error)
                with damaged, archive.open(entry) as stream:
                    yield from _plain(f" ({entry.filename})", stream)
    elif suffix == ".safetensors":
        # Eight bytes of length, then JSON (the format's specification).
        with regular_file(path).open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))
            header = stream.read(min(length, _HEADER_LIMIT)).decode(errors="replace")
        try:
            yield " (header)", json.dumps(parse_json(header).get("__metadata__", {}))
        except (ValueError, AttributeError):
            yield " (header)", header
    elif suffix in (".mp4", ".mkv"):
        with open_video_file(path) as container:
            parts: list[Any] = [container, *container.streams]
            text = "\n".join(f"{k}={v}" for part in parts for k, v in part.metadata.items())
        yield " (metadata)", text
    else:
        with regular_file(path).open("rb") as stream:
            yield from _plain("", stream)


def _plain(part: str, stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    start = stream.read(_SNIFFED)
    if b"\0" not in start:
        yield part, (start + stream.read()).decode(errors="replace")


def _strings(column: pa.ChunkedArray) -> list[str]:
    """Return the distinct texts of a column of which only one leaf was read."""
    values = column.combine_chunks()
    while not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        if pa.types.is_dictionary(values.type):  # such as a pandas category
            values = values.dictionary_decode()
        elif pa.types.is_string_view(values.type):
            values = values.cast(pa.large_string())
        else:
            values = values.field(0) if pa.types.is_struct(values.type) else values.flatten()
    return [str(v) for v in values.unique().to_pylist() if v]


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
    """

    license: str = ""
    allow_paths: bool = False
    patience: Patience = field(default_factory=Patience)


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
        history = upload.read_remote(target, layout.LABELS, options.patience)
        _require_labels(look, target, history)
        note_places([episode.info for episode in look.episodes], place)
        try:
            parcel = pack(look, target, options, before)
            return upload.push(target, parcel.contents, options.patience, on_progress), parcel
        except ChangedError:
            continue  # so is what was looked at
    raise UnusableInputError(
        f"{root} is being changed by another process. Push it when that is done."
    )


def _require_labels(look: Look, target: HubTarget, history: str) -> None:
    """Refuse a push that would drop what others said about the same episodes.

    Args:
        history: the Hub's `labels.jsonl`, or "".
    """
    root, theirs = look.info.root, list[labels.LabelEvent]()
    for line in history.splitlines():
        with contextlib.suppress(UnusableInputError, *DAMAGE):
            theirs.append(labels.LabelEvent(**parse_json(line)))
    known = {labels.name(event) for event in labels.readable(root / layout.LABELS)}
    here = {episode.info.uid: episode.index for episode in look.episodes}
    lost = [e for e in theirs if e.uid in here and labels.name(e) not in known]
    if not lost:
        return
    who = ", ".join(sorted({event.author for event in lost}))
    of = numbers(sorted({here[event.uid] for event in lost}))
    ours, copy, both = (shlex.quote(f"{root}{end}") for end in ("", "_theirs", "_both"))
    raise UnusableInputError(
        f"{target.url} has labels that {root} lacks (by {who}; episodes {of}). Push both: "
        f"hf download {target.repo_id} --repo-type=dataset --local-dir={copy} && "
        f"gaploop edit merge {ours} {copy} --output_dir={both} && "
        f"gaploop push {both} --repo_id={target.repo_id}"
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
