"""Episodes changed on their way into a new dataset: what was recorded wrongly, and idle ends.

A joint that read a constant too much, encoder ticks for angles, and cameras whose pictures went
under each other's names are put right exactly. Idle frames at the ends, from which a policy learns
to stand still, are found from state and action: nothing moves in them, every entry stays within
what it wavers by itself around where it begins (or ends). Pauses in between stay.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import read_json
from gaploop.core.messages import FloatArray
from gaploop.datasets import columns, layout
from gaploop.datasets.edit.compose import DatasetPiece, EpisodeChange
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.datasets.lerobot_read import read_episode, video_of
from gaploop.datasets.v3_files import FrameTable, load_frames
from gaploop.datasets.video import cut_points


def corrections(
    piece: DatasetPiece,
    chosen: Collection[int],
    subtract: Mapping[str, Mapping[str, Any]],
    swap: Sequence[str] = (),
) -> dict[int, EpisodeChange]:
    """Return what becomes of the chosen episodes.

    Args:
        subtract: feature to its entries and what each reads too much, in its units. What was sent
            (`gap.sent`) is shifted as the action is.
        swap: two cameras whose pictures are under each other's names.

    Raises:
        UnusableInputError: no such feature, entry or camera, or cameras of unlike pictures.
    """
    info = piece.info
    vectors: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
    for feature, entries in subtract.items():
        by = _subtracted(info, feature, entries)
        vectors[feature] = by
        if feature == columns.ACTION and info.width(columns.SENT) == len(by):
            vectors[columns.SENT] = by
    cameras = _swapped(info, swap) if swap else {}
    return dict.fromkeys(chosen, EpisodeChange(subtract=vectors, cameras=cameras))


def with_forces(piece: DatasetPiece) -> DatasetPiece:
    """Return a piece whose episodes get what sensors beside the arm read, as policies see it.

    The control-rate record has it: each frame gets the newest reading of its time.

    Raises:
        UnusableInputError: no sensor was recorded, it is there already, or it read nothing for a
            while in an episode, or isn't the same in all.
    """
    info, sensors = piece.info, dict[str, tuple[str, ...]]()
    changes, lacking = dict[int, EpisodeChange](), list[str]()
    for episode in piece.held:
        take = read_episode(info, episode)
        known = take.telemetry.sensors()
        sensors = sensors or known
        if not known or known != sensors:
            what = "of other sensors" if known else "of no sensor"
            lacking.append(f"episode {episode.index} has readings {what}")
            continue
        try:
            added = columns.force_columns(take.telemetry, take.frames.t_s, known)
        except UnusableInputError as error:
            lacking.append(f"episode {episode.index}: {error}")
            continue
        changes[episode.index] = EpisodeChange(added=added)
    if lacking:
        more = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise UnusableInputError(
            f"{info.root}: {lacking[0]}{more}. Delete such episodes first: gaploop edit delete; "
            "sensors are recorded with --sensors."
        )
    features = dict[str, Any]()
    for name, channels in sensors.items():
        if f"{columns.FORCE}{name}" in info.features:
            raise UnusableInputError(f"{info.root} has {columns.FORCE}{name} already.")
        names = [channel.removeprefix(f"{name}.") for channel in channels]
        features[f"{columns.FORCE}{name}"] = columns.vector_feature(names)
    return replace(piece, changes=changes, features=features)


NO_DEGREES: Final = 1080.0
"""Three turns: what reads more is no angle."""
TICKS: Final = 4095
"""The last tick of a turn: LeRobot 0.6's degrees are (tick - middle of range) 360 / 4095."""


def ticks_to_degrees(
    info: DatasetInfo, calibration: Sequence[Path], values: FloatArray
) -> EpisodeChange:
    """Return what makes encoder ticks LeRobot's degrees, and its 0 to 100 of a gripper.

    Args:
        calibration: what lerobot-calibrate wrote, a file for each arm in the order of the joints:
            of each motor range_min, range_max, drive_mode. Joints with names of their own, as many
            as motors, are the motors in their order.
        values: some of the states, shape (n, joints).

    Raises:
        UnusableInputError: no such file, a joint that isn't in it, or values that are no ticks.
    """
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low < 0 or not NO_DEGREES < high <= TICKS + 1:
        raise UnusableInputError(
            f"--calibration: {columns.STATE} goes from {low:.0f} to {high:.0f}, which are no "
            f"encoder ticks (0 to {TICKS}). Leave --calibration out."
        )
    subtract, scale = dict[str, FloatArray](), dict[str, FloatArray]()
    for feature in (columns.STATE, columns.ACTION, columns.SENT):
        if not info.width(feature):
            continue
        less, times = [], []
        for motor, (low, high), turned in _motors(info.names(feature), calibration):
            grips = "gripper" in motor
            less.append((low, high)[turned] if grips else (low + high) / 2.0)
            percent = 100.0 / (high - low) * (-1.0 if turned else 1.0)
            times.append(percent if grips else 360.0 / TICKS)
        subtract[feature], scale[feature] = np.array(less), np.array(times)
    return EpisodeChange(subtract=subtract, scale=scale)


def _motors(
    joints: Sequence[str], files: Sequence[Path]
) -> list[tuple[str, tuple[float, float], bool]]:
    """Return the motor of each joint: its name, its range [ticks], and whether it is turned round.

    By name, the k-th of a name being the k-th file's; by order where no joint has a motor's name.
    """
    where, motors = ", ".join(map(str, files)), list[tuple[str, tuple[float, float], bool]]()
    for file in files:
        try:
            for name, said in read_json(file).items():
                ends = float(said["range_min"]), float(said["range_max"])
                motors.append((name, ends, bool(said.get("drive_mode", 0))))
        except DAMAGE:
            raise UnusableInputError(
                f"{file} has no range_min and range_max of each motor. Name the file that "
                "lerobot-calibrate wrote of this arm."
            ) from None
    found = list[tuple[str, tuple[float, float], bool]]()
    for joint in (name.removesuffix(".pos") for name in joints):
        alike = [motor for motor in motors if joint.endswith(motor[0])]
        before = sum(motor[0] == alike[0][0] for motor in found) if alike else 0
        found += alike[before : before + 1]
    if not found and len(motors) == len(joints):
        return motors
    if len(found) < len(joints):
        raise UnusableInputError(
            f"{where}: {len(motors)} motors with range_min and range_max, and {len(found)} of "
            f"{len(joints)} joints are among them ({', '.join(joints)}). Name the files that "
            "lerobot-calibrate wrote, one for each arm, in the order of the joints: "
            "--calibration='[left.json, right.json]'."
        )
    return found


def _subtracted(
    info: DatasetInfo, feature: str, values: Mapping[str, Any]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    numbers = [
        n for n, spec in info.features.items()
        if str(spec.get("dtype")).startswith("float")
        and len(spec.get("shape") or (1,)) == 1
        and n not in columns.AUTOMATIC
    ]  # fmt: skip
    if feature not in numbers:
        raise unknown_choice("feature", feature, numbers, "--subtract")
    names = info.names(feature)
    by = np.zeros(len(names))
    for name, value in values.items():
        if name not in names:
            raise unknown_choice("entry", str(name), names, f"--subtract, {feature}")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise UnusableInputError(f"--subtract: {name} is {value!r}; give a number.")
        by[names.index(name)] = value
    return by


def _swapped(info: DatasetInfo, swap: Sequence[str]) -> dict[str, str]:
    known = {key.removeprefix(columns.IMAGES): key for key in info.picture_keys}
    names = [str(name).removeprefix(columns.IMAGES) for name in swap]
    for name in names:
        if name not in known:
            raise unknown_choice("camera", name, known, "--swap")
    if len(set(names)) != 2 or len(names) != 2:
        raise UnusableInputError(f"--swap: name two cameras, such as '[top, wrist]'; got {names}.")
    a, b = (known[name] for name in names)
    for what in ("dtype", "shape", "info"):
        mine, other = (info.features[key].get(what) for key in (a, b))
        if mine != other:
            raise UnusableInputError(
                f"--swap: {what} of {names[0]} is {mine}, of {names[1]} {other}. Pictures can only "
                "be swapped between cameras that are alike."
            )
    return {a: b, b: a}


SIGMAS: Final = 5.0
MARGIN_S: Final = 0.2
"""Idle time kept at each end [s]: motion begins before it shows in the numbers."""
STEPS: Final = 2.5
"""Standard deviations of an entry's noise, and steps of its encoder, that are no motion."""
SHARE: Final = 0.005
"""Share of what an entry covers in the dataset that is no motion: an arm settles, or sags."""
MOST: Final = 0.03
"""Noise and steps are no more than this share of what the widest entry covers."""
_QUARTER: Final = 0.3186
"""A quarter of normal numbers is nearer to 0 than this many standard deviations."""

type Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trim:
    """What would stay of one episode: frames [first, end); all of one that never moves.

    Attributes:
        more: idle frames beyond the margin that stay because the videos can't be cut there.
    """

    episode: EpisodeRow
    first: int
    end: int
    never_moves: bool = False
    more: int = 0

    @property
    def left_out(self) -> int:
        """How many frames go."""
        return self.episode.length - (self.end - self.first)


def find_idle(piece: DatasetPiece, chosen: Collection[int], *, exact: bool) -> list[Trim]:
    """Return what would stay of each chosen episode.

    Args:
        exact: pictures may be encoded again. Otherwise, so that none is, an episode begins at a
            key frame at or before the margin, and ends where its videos can be cut.

    Raises:
        UnusableInputError: neither state nor action, or a damaged file.
    """
    info = piece.info
    names = [n for n in (columns.STATE, columns.ACTION) if n in info.features]
    if not names:
        raise UnusableInputError(
            f"{info.root} has neither {columns.STATE} nor {columns.ACTION}: whether anything "
            "moves can't be told."
        )
    table = load_frames(info.root, names)
    values = np.concatenate(
        [np.asarray(table.columns[n], np.float64).reshape(len(table), -1) for n in names], axis=1
    )
    parts = np.cumsum([table.columns[n].reshape(len(table), -1).shape[1] for n in names])[:-1]
    still = np.concatenate([_still(part, table) for part in np.split(values, parts, axis=1)])
    margin = math.ceil(MARGIN_S * info.fps - 1e-6)
    points: dict[object, tuple[frozenset[int], frozenset[int]]] = {}
    found = []
    for episode in (e for e in piece.held if e.index in chosen):
        own = values[table.rows_of(episode.index)]
        if len(own) != episode.length or not len(own):
            what = f"episode {episode.index} has {len(own)} rows, its table says {episode.length}."
            raise layout.damaged(info.root, what)
        starts, ends = _moved(own, still), _moved(own[::-1], still)
        if starts is None or ends is None:
            found.append(Trim(episode, 0, episode.length, never_moves=True))
            continue
        first, end = max(0, starts - margin), min(episode.length, len(own) - ends + margin)
        fewest = end - first
        if not exact and (first or end < episode.length):
            can_start, can_end = set(range(first + 1)), set(range(end, episode.length + 1))
            for key in info.video_keys:
                path, start_s = video_of(info, episode.row, key)
                if path is None or not path.exists():
                    continue  # who writes it says so
                if path not in points:
                    points[path] = cut_points(path, info.fps)
                here = round(start_s * info.fps)
                can_start &= {place - here for place in points[path][0]}
                can_end &= {place - here for place in points[path][1]}
            first, end = max(can_start, default=0), min(can_end, default=episode.length)
        found.append(Trim(episode, first, end, more=end - first - fewest))
    return found


def _still(values: Floats, table: FrameTable) -> Floats:
    """Return by how much each entry of a feature may be off and not have moved, shape (width,).

    Args:
        values: of all frames, shape (n, width).
    """
    finite = np.isfinite(values).all(axis=1)
    values, episodes = values[finite], table.episode_index[finite]
    if not len(values):
        return np.zeros(values.shape[1])
    low, high = np.quantile(values, [0.002, 0.998], axis=0)  # a torn reading is far off
    span = high - low
    same = np.diff(episodes) == 0
    steps = np.abs(np.diff(values, axis=0))[same]
    steps[~(steps > 1e-5 * span)] = np.inf
    step = np.min(steps, axis=0, initial=np.inf)
    step[np.isinf(step)] = 0.0
    # Differences of differences are noise, as far as anything is: motion is smooth.
    bends = np.abs(np.diff(values, n=2, axis=0))[same[1:] & same[:-1]]
    bends = bends if len(bends) else np.zeros((1, values.shape[1]))
    noise = np.quantile(bends, 0.25, axis=0) / _QUARTER / math.sqrt(6.0)
    own = np.maximum(SIGMAS * noise, STEPS * step)
    return np.asarray(np.maximum(np.minimum(own, MOST * np.max(span)), SHARE * span))


def _moved(values: Floats, still: Floats) -> int | None:
    """Return the first frame in which an entry has left where it began, for two frames or more.

    None where none does. A single frame is a torn reading. A value that is no number moves.
    """
    about = np.median(values[:5], axis=0)
    away = ~(np.abs(values - about) <= still)
    places = np.flatnonzero((away[1:] & away[:-1]).any(axis=1))
    return int(places[0]) if len(places) else None


def trims(piece: DatasetPiece, trims: Collection[Trim]) -> dict[int, EpisodeChange]:
    """Return what becomes of the episodes of which something is left out."""
    info = piece.info
    cut = [t for t in trims if t.left_out]
    name = columns.TIME if columns.TIME in info.features else ""
    table = load_frames(info.root, [name], [t.episode.index for t in cut]) if name and cut else None
    found = {}
    for trim in cut:
        n = trim.episode.length
        t_s = np.arange(n) / info.fps
        if table is not None:
            recorded_s = table.columns[name][table.rows_of(trim.episode.index)].reshape(-1)
            t_s = recorded_s if np.isfinite(recorded_s).all() else t_s
        edges = (
            float(t_s[trim.first]) if trim.first else -math.inf,
            float(t_s[trim.end]) if trim.end < n else math.inf,
        )
        found[trim.episode.index] = EpisodeChange((trim.first, trim.end), edges)
    return found
