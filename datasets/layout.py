"""What a LeRobot v3 dataset says about itself, read without LeRobot: JSON and Parquet only."""

import contextlib
import logging
import re
import shlex
import string
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.files import (
    existing_folder,
    parse_json,
    read_content,
    refuse_lfs_pointers,
    regular_file,
)
from gaploop.core.paths import plain_name, refuse_links_out, relative_path
from gaploop.core.take import TakeInfo, frames_per_second
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.datasets import columns

log = logging.getLogger(__name__)

INFO: Final = "meta/info.json"
STATS: Final = "meta/stats.json"
TASKS: Final = "meta/tasks.parquet"
EPISODES: Final = "meta/episodes"
LABELS: Final = "meta/gap/labels.jsonl"
TELEMETRY: Final = "telemetry"
DATA_PATH: Final = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH: Final = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
MOST_FPS: Final = 1000.0
"""Frames per second; a policy's rate is 10 to 100 [Hz]."""
MOST_AXES: Final = 5
LONGEST_AXIS: Final = 1 << 20
"""Entries of a vector, or pixels of a side."""
MANY_ROWS: Final = 1_000_000
"""Rows of a file that may be as well packed as they like."""
ROWS_PER_BYTE: Final = 0.5
"""More than that are no signals: 20 rows of a robot take a kilobyte."""
LONGEST_EPISODE: Final = 1 << 31
"""Frames of one episode."""
FOREIGN: Final = uuid.UUID("6f2f1e0a-5f0f-5c53-9a53-1d6f5e3f9b10")
"""Name space of the uids that episodes of foreign datasets get."""
_FIELDS: Final = ("chunk_index", "file_index", "video_key")
_DIGITS: Final = re.compile(r"0?\d?d?")
FINGERPRINT: Final = "stats/action/mean"
"""A column of `meta/episodes` that differs between recordings of equal length and task."""


@dataclass(frozen=True)
class DatasetInfo:
    """`meta/info.json`; its paths are templates, relative to `root`."""

    root: Path
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    robot_type: str
    total_episodes: int
    total_frames: int
    data_path: str = DATA_PATH
    video_path: str = VIDEO_PATH

    def __post_init__(self) -> None:
        """Raise ValueError for a rate, count or shape that no recording has."""
        frames_per_second(self.fps, MOST_FPS)
        if self.total_episodes < 0 or self.total_frames < 0:
            raise ValueError("total_episodes and total_frames must be 0 or more")
        for name, spec in self.features.items():
            if not isinstance(name, str) or not isinstance(spec, Mapping):
                raise ValueError(f"feature {name} is no table")
            shape = spec.get("shape")
            if shape is None:
                continue
            is_list = isinstance(shape, list | tuple) and len(shape) <= MOST_AXES
            if not is_list or any(type(n) is not int or not 0 <= n <= LONGEST_AXIS for n in shape):
                raise ValueError(f"feature {name} has shape {str(shape)[:80]}")

    @property
    def video_keys(self) -> tuple[str, ...]:
        """Features that are stored as videos."""
        return tuple(k for k, f in self.features.items() if f.get("dtype") == "video")

    @property
    def camera_keys(self) -> tuple[str, ...]:
        """Pictures of colours, in videos or rows: depth, which LeRobot packs into both, is none."""

        def is_depth(spec: Mapping[str, Any]) -> bool:
            details = spec.get("info") or spec.get("video_info") or {}
            told = details.get("is_depth_map") or details.get("video.is_depth_map")
            return bool(told) or (spec.get("dtype") == "image" and 1 in (spec.get("shape") or ()))

        return tuple(k for k in self.picture_keys if not is_depth(self.features[k]))

    @property
    def picture_keys(self) -> tuple[str, ...]:
        """Features that hold pictures, in videos or in the rows."""
        return tuple(k for k, f in self.features.items() if f.get("dtype") in columns.PICTURES)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Joints of `observation.state`, without the `.pos` of LeRobot's names."""
        return tuple(n.removesuffix(".pos") for n in self.names(columns.STATE))

    def names(self, feature: str) -> tuple[str, ...]:
        """Return the names of a vector feature's entries, numbered where it has none."""
        spec = self.features.get(feature)
        if spec is None:
            return ()
        names = spec.get("names")
        if isinstance(names, Mapping):
            of = dict(names)
            lists = [v for v in of.values() if isinstance(v, list | tuple)]
            if sorted(map(str, of.values())) == sorted(map(str, range(len(of)))):
                names = sorted(of, key=lambda n: int(of[n]))  # {"x": 0, "y": 1}
            elif 1 < len(lists) == len(of):  # {"left": [...], "right": [...]}
                names = [f"{side}_{n}" for side, those in of.items() for n in those]
            else:  # {"motors": [...]}
                names = next(iter(of.values()), None)
        if isinstance(names, list | tuple) and len(names) == 1 and isinstance(names[0], list):
            names = names[0]  # as some converters of v2.1 wrote them
        width = self.width(feature)
        if isinstance(names, Sequence) and not isinstance(names, str) and len(names) == width:
            return tuple(str(n) for n in names)
        return tuple(f"{feature.rsplit('.', 1)[-1]}_{i}" for i in range(width))

    def data_name(self, chunk: Any, file: Any) -> str:
        """Return the path of a data file below `root`, from the numbers in an episode's row."""
        return self.data_path.format(chunk_index=int(chunk), file_index=int(file))

    def video_name(self, key: str, chunk: Any, file: Any) -> str:
        """Return the path of a camera's video file below `root`; see `data_name`."""
        place = {"chunk_index": int(chunk), "file_index": int(file)}
        return self.video_path.format(video_key=key, **place)

    def width(self, feature: str) -> int:
        """Return the length of a vector feature, 0 where it doesn't exist or is no vector."""
        shape = self.features.get(feature, {}).get("shape") or (0,)
        return int(shape[0]) if len(shape) == 1 else 0


@dataclass(frozen=True)
class EpisodeRow:
    """One row of `meta/episodes`.

    Attributes:
        length: number of frames.
        info: from the gap columns; of a foreign dataset kind import and `foreign_uid`.
        row: the row itself, without statistics.
    """

    index: int
    length: int
    info: TakeInfo
    outcome: Outcome
    failure_mode: str
    phase: str
    row: Mapping[str, Any]


def axes_of(spec: Mapping[str, Any]) -> list[str]:
    """Return the names by which LeRobot tells how a camera's shape counts; [] if they are there."""
    shape, names = list(spec.get("shape") or ()), spec.get("names")
    if spec.get("dtype") not in columns.PICTURES or len(shape) != 3:
        return []
    first = shape[0] in (1, 3) and shape[2] not in (1, 3)
    last = names[2] if isinstance(names, list | tuple) and len(names) == 3 else None
    if last is not None and (last in ("channel", "channels")) != first:
        return []
    return ["channels", "height", "width"] if first else ["height", "width", "channels"]


def is_dataset(root: Path) -> bool:
    """Say whether `root` looks like a LeRobot dataset."""
    return (root / INFO).is_file()


def read_info(root: Path) -> DatasetInfo:
    """Read `meta/info.json`: the door through which every dataset comes in.

    Raises:
        UnusableInputError: no such folder, not a dataset, another version, keys missing, names
            or templates that lead out of the folder, or links in it that do.
    """
    refuse_links_out(existing_folder(root, "Dataset"))
    return parse_info(root)


def parse_info(root: Path) -> DatasetInfo:
    """Read `meta/info.json` where somebody has looked at the folder's links: `check`."""
    existing_folder(root, "Dataset")
    refuse_lfs_pointers(root)
    if not is_dataset(root):
        what = "is empty" if not any(root.iterdir()) else f"has no {INFO}"
        if data_files(root):
            raise UnusableInputError(
                f"{root} {what}. Make it anew: gaploop check {shlex.quote(str(root))} --fix"
            )
        raise UnusableInputError(f"{root} {what}: not a LeRobot dataset. Name a dataset's folder.")
    where = root / INFO
    content = read_content(where)  # a file that can't be read isn't a damaged one
    try:
        value = parse_json(content)
        version = str(value["codebase_version"])
        if not version.startswith("v3"):
            fix = f"Convert it with: {convert(root)}"
            if version.startswith("v1"):
                fix = (
                    "Convert it to v2 with an older LeRobot (0.1), then to v3 with gaploop convert."
                )
            raise UnusableInputError(f"{where}: dataset version {version}, gaploop reads v3. {fix}")
        if value.get("storage_format") == "lance":
            raise UnusableInputError(
                f"{where}: stored as Lance, which LeRobot reads from 0.7 on and gaploop doesn't. "
                "Name the dataset that it was converted from (Parquet and videos)."
            )
        features = dict(value["features"])
        for name in features:
            plain_name(name, "feature", where)
        return DatasetInfo(
            root=root,
            fps=float(value["fps"]),
            features=features,
            robot_type=str(value.get("robot_type") or ""),
            total_episodes=int(value["total_episodes"]),
            total_frames=int(value["total_frames"]),
            data_path=_template(value.get("data_path"), DATA_PATH, f"{where}: data_path"),
            video_path=_template(value.get("video_path"), VIDEO_PATH, f"{where}: video_path"),
        )
    except DAMAGE as error:
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        if isinstance(error, KeyError):
            reason = f"it has no {error.args[0]}"
        fix = "Restore it from a copy"
        if data_files(root):
            fix += f", or make it anew: gaploop check {shlex.quote(str(root))} --fix"
        raise UnusableInputError(
            f"{where} is not a dataset description ({reason}). {fix}"
        ) from None


def damaged(root: Path, what: str) -> UnusableInputError:
    """Return the error for a dataset that is not what it says."""
    return UnusableInputError(f"{root}: {what} Find out more with: gaploop check {root}")


def convert(root: Path) -> str:
    """Return the command that writes a dataset of v2.0 or v2.1 as v3 beside it."""
    source, target = shlex.quote(str(root)), shlex.quote(f"{root}_v3")
    return f"gaploop convert {source} --output_dir={target}"


def is_template(value: object) -> bool:
    """Say whether a path template can be filled in, and doesn't lead out of the dataset."""
    try:
        return bool(relative_path(_filled(value), "path"))
    except UnusableInputError:
        return False


def _filled(value: object) -> str | None:
    """Return a template with names in it; None where it isn't one.

    Only numbers with a few digits: a template may not look into what it is given, nor ask for a
    text of a gigabyte.
    """
    try:
        if not isinstance(value, str):
            return None
        for _, field, spec, conversion in string.Formatter().parse(value):
            if field is not None and (field not in _FIELDS or conversion):
                return None
            if spec and not _DIGITS.fullmatch(spec):
                return None
        return value.format(chunk_index=0, file_index=0, video_key="x")
    except (LookupError, ValueError):
        return None


def pattern(template: str) -> re.Pattern[str]:
    """Return what matches the paths that a template makes, with its fields as groups."""
    text, seen = "", set[str]()
    for literal, field, _, _ in string.Formatter().parse(template):
        text += re.escape(literal)
        if field is not None:
            what = "[^/]+" if field == "video_key" else r"\d+"
            text += f"(?:{what})" if field in seen else f"(?P<{field}>{what})"
            seen.add(field)
    return re.compile(text)


def _template(value: object, default: str, what: str) -> str:
    filled = _filled(value)
    if not filled:
        return default
    try:
        relative_path(filled, what)
    except UnusableInputError as error:
        raise UnusableInputError(f"{error} Or make it anew: gaploop check --fix") from None
    return str(value)


def data_files(root: Path) -> list[Path]:
    """Return the dataset's data files, in LeRobot's order."""
    return _tables(root / "data")


def read_parquet(path: Path, names: list[str] | None = None, filters: Any = None) -> pa.Table:
    """Read one Parquet file, or raise UnusableInputError where it is damaged.

    Args:
        filters: as PyArrow takes them; parts of the file without such rows aren't read.
    """
    fix = "Restore it from a copy; check with: gaploop check."
    with reraise_as_damaged(f"{path} can't be read", fix):
        # Opened once: given a path, PyArrow opens it several times, and reads a mixture where
        # somebody who labels puts a new file in its place meanwhile.
        with pa.OSFile(str(regular_file(path))) as file:
            parquet = pq.ParquetFile(file)
            require_plausible(parquet.metadata, path)
            if filters is not None:
                file.seek(0)
                table = pq.read_table(file, columns=names, filters=filters, partitioning=None)
            elif lacking := set(names or ()) - set(parquet.schema_arrow.names):
                raise pa.ArrowInvalid(f"it has no column {', '.join(sorted(lacking))}")
            else:  # without what filters need: importing that takes a quarter of a second
                table = parquet.read(names)
                table = table if names is None else table.select(names)
        table.validate(full=True)  # what a damaged page left would end us where it is used
        kinds = [(f, _small(f.type)) for f in table.schema]
        if all(f.type.equals(kind) for f, kind in kinds):
            return table
        schema = pa.schema([f.with_type(kind) for f, kind in kinds], table.schema.metadata)
        return table.cast(schema)


def _small(kind: pa.DataType) -> pa.DataType:
    """Return a type as LeRobot writes it: polars writes lists and text with 64-bit offsets."""
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_small(kind.value_type)))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return kind


@contextlib.contextmanager
def reraise_as_damaged(
    problem: str, fix: str, errors: tuple[type[Exception], ...] = (pa.ArrowException, *DAMAGE)
) -> Iterator[None]:
    """Make an UnusableInputError of what reading raises: the problem (the reason), and the fix."""
    try:
        yield
    except errors as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise UnusableInputError(f"{problem} ({reason}). {fix}") from None


@contextlib.contextmanager
def reraise_for(*roots: Path) -> Iterator[None]:
    """Name the datasets where computing with what was read from them fails.

    Readers refuse what they can't read; this is for what each of them takes and only fails
    together, such as statistics of unequal width. Not for what can't be written.
    """
    try:
        yield
    except OSError:
        raise
    except (pa.ArrowException, *DAMAGE) as error:
        log.debug("Reading %s failed.", roots, exc_info=True)
        named = " or ".join(map(str, roots))
        checks = " and ".join(f"gaploop check {shlex.quote(str(root))}" for root in roots)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise UnusableInputError(
            f"{named} is damaged ({reason}). Find out more with: {checks}"
        ) from None


def read_tasks(path: Path) -> list[str]:
    """Return the tasks by index: LeRobot takes row i for task i, its name from pandas' index.

    Raises:
        UnusableInputError: rows out of order, or without a name.
    """
    table = read_parquet(path)
    pandas = (table.schema.pandas_metadata or {}).get("index_columns") or []
    names = [c for c in pandas if isinstance(c, str) and c in table.column_names]
    if len(names) != 1 or "task_index" not in table.column_names:
        raise UnusableInputError(f"{path} has no index of task names next to task_index.")
    if table["task_index"].to_pylist() != list(range(len(table))):
        raise UnusableInputError(f"{path}: task_index doesn't count 0, 1, 2 …")
    tasks = table[names[0]].to_pylist()
    if not all(isinstance(task, str) for task in tasks) or len(set(tasks)) != len(tasks):
        raise UnusableInputError(f"{path}: a task has no name, or the name of another task.")
    return [str(task) for task in tasks]


class ImplausibleError(UnusableInputError):
    """A Parquet file claims more than it can hold."""


def require_plausible(metadata: pq.FileMetaData, path: Path) -> None:
    """Refuse a Parquet file that claims more rows than a recording of its size can hold.

    What repeats one value takes next to no room, and filling memory with it takes minutes.

    Raises:
        ImplausibleError: it does.
    """
    rows, size = metadata.num_rows, path.stat().st_size
    if rows > MANY_ROWS and rows > ROWS_PER_BYTE * size:
        raise ImplausibleError(
            f"{path} claims {rows} rows in {size} bytes: no recording. Restore it from a copy."
        )


def episode_files(root: Path) -> list[Path]:
    """Return the files of `meta/episodes`, in order."""
    return _tables(root / EPISODES)


def _tables(folder: Path) -> list[Path]:
    """Return its tables; macOS puts a `._name`, which is none, beside each name of an archive."""
    found = (p for p in folder.glob("*/*.parquet") if not p.name.startswith("._"))
    return sorted(p for p in found if p.is_file())


def episode_rows(root: Path) -> list[dict[str, Any]]:
    """Return the rows of `meta/episodes` in order of episode, almost without statistics.

    Raises:
        UnusableInputError: the table is damaged, or a uid in it can't name a file.
    """
    rows: list[dict[str, Any]] = []
    for path in episode_files(root):
        with reraise_as_damaged(f"{path} can't be read", "Restore it."):
            schema = pq.read_schema(regular_file(path))
        names = [n for n in schema.names if not n.startswith("stats/") or n == FINGERPRINT]
        rows += read_parquet(path, names).to_pylist()
    fix = f"Give such episodes new ones with: gaploop check {shlex.quote(str(root))} --fix"
    for row in rows:
        if row.get("gap_uid"):
            plain_name(row["gap_uid"], "gap_uid", root / EPISODES, fix)
    try:
        return sorted(rows, key=lambda row: int(row["episode_index"]))
    except DAMAGE as error:
        raise UnusableInputError(
            f"{root / EPISODES}: episode_index is missing or empty ({error!r}). "
            "Restore meta/episodes from a copy."
        ) from None


def read_episodes(info: DatasetInfo, only: Sequence[int] | None = None) -> list[EpisodeRow]:
    """Return the dataset's episodes, or `only` some, with their gap columns as `TakeInfo`.

    Raises:
        UnusableInputError: the table is damaged, or an episode asked for doesn't exist.
    """
    rows = {int(row["episode_index"]): row for row in episode_rows(info.root)}
    if only is not None:
        for index in only:
            if index not in rows:
                raise UnusableInputError(
                    f"{info.root} has no episode {index}; it has {len(rows)} (0 to "
                    f"{len(rows) - 1}). Name others with --episodes."
                )
        rows = {index: rows[index] for index in only}
    common: dict[str, Any] = {
        "fps": info.fps,
        "joint_names": info.joint_names,
        "robot_type": info.robot_type,
    }
    episodes = []
    for index, row in rows.items():
        try:
            common["task"] = str((row.get("tasks") or [""])[0])
            if row.get("gap_uid"):
                known = TakeInfo(**common, **columns.info_fields(row))
                mode, phase = (str(row[f"gap_{name}"] or "") for name in ("failure_mode", "phase"))
                words = (Outcome(row["gap_outcome"]), mode, phase)
            else:
                known = TakeInfo(uid=foreign_uid(row), kind=TakeKind.IMPORT, **common)
                words = (Outcome.UNLABELLED, "", "")
            length = int(row["length"])
            if not 0 <= length <= LONGEST_EPISODE:
                raise ValueError(f"length is {length}")
            episodes.append(EpisodeRow(index, length, known, *words, row=row))
        except DAMAGE as error:
            raise UnusableInputError(
                f"{info.root / EPISODES}: episode {index} can't be used ({error!r}). "
                f"Find out more with: gaploop check {info.root}"
            ) from None
    return episodes


def foreign_uid(row: Mapping[str, Any]) -> str:
    """Return a uid for an episode without one: the same for the same row, wherever it lies."""
    keys = ("episode_index", "length", "tasks", FINGERPRINT)
    return str(uuid.uuid5(FOREIGN, repr([row.get(k) for k in keys])))


def parse_episodes(text: str, total: int) -> list[int]:
    """Return the episodes that `text` names: `0:30`, `:30`, `45:`, `[0, 3]`, `0:5,9`.

    Args:
        total: how many there are; ranges end there, negative numbers count from it.

    Raises:
        UnusableInputError: it can't be read, or names an episode that isn't there.
    """
    chosen: list[int] = []
    try:
        for part in text.strip().strip("[]").split(","):
            first, colon, stop = part.strip().partition(":")
            if colon:
                chosen += range(total)[
                    slice(*(int(n) if n.strip() else None for n in (first, stop)))
                ]
            else:
                chosen.append(range(total)[int(first)])
    except (ValueError, IndexError):
        raise UnusableInputError(
            f"--episodes={text}: name episodes 0 to {total - 1}, such as '0:30' or '[0, 3]'."
        ) from None
    if not chosen:
        raise UnusableInputError(f"--episodes={text} names no episode; there are {total}.")
    return sorted(set(chosen))


def numbers(values: Sequence[object], at_most: int = 8) -> str:
    """Return a short list of numbers or names, such as `3, 7, 8 and 12 more`."""
    shown = ", ".join(str(v) for v in values[:at_most])
    more = len(values) - at_most
    return f"{shown} and {more} more" if more > 0 else shown
