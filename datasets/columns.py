"""The gap columns: what gaploop adds to a LeRobot v3 dataset, per frame and per episode.

Frame columns never begin with `action` or `observation`: LeRobot would feed them to policies.
Episode columns stand on every episode with a fixed Arrow type, never null: LeRobot checks that
all files of `meta/episodes` share one schema.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json
from gaploop.core.journal_format import TakeHeader
from gaploop.core.messages import FloatArray, feature_of, is_depth
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import HELD_S, Telemetry
from gaploop.core.vocabulary import Domain, FailureMode, GapDimension, Outcome, Phase, TakeKind

STATE: Final = "observation.state"
ACTION: Final = "action"
ENVIRONMENT: Final = "observation.environment_state"
IMAGES: Final = "observation.images."
FORCE: Final = "observation.force."
"""Begins what a sensor beside the arm reads at each frame, `observation.force.<sensor>`."""

AUTOMATIC: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Features that every LeRobot dataset has: its writer makes them itself."""
PICTURES: Final = ("video", "image")
"""LeRobot's dtypes of features that hold pictures."""
NUMERIC: Final = ("float", "int", "uint", "bool")
"""How dtypes of features that hold numbers begin."""

TIME: Final = "gap.t"
TAKE: Final = "gap.take"
SENT: Final = "gap.sent"
INTERVENTION: Final = "gap.intervention"
SAFETY: Final = "gap.safety"
CAMERA_AGE: Final = "gap.cam_age."
AGE_UNKNOWN_S: Final = -1.0
"""Written where a camera's age is unknown: NaN would spoil LeRobot's statistics."""

EPISODE_COLUMNS: Final[dict[str, pa.DataType]] = {
    "gap_uid": pa.string(),
    "gap_kind": pa.string(),
    "gap_domain": pa.string(),
    "gap_outcome": pa.string(),
    "gap_failure_mode": pa.string(),
    "gap_phase": pa.string(),
    "gap_dimensions": pa.list_(pa.string()),
    "gap_dimension_weights": pa.list_(pa.float64()),
    "gap_conditions": pa.string(),
    "gap_session": pa.string(),
    "gap_operator": pa.string(),
    "gap_station": pa.string(),
    "gap_calibration": pa.string(),
    "gap_policy": pa.string(),
    "gap_plan": pa.string(),
    "gap_consent": pa.string(),
    "gap_units": pa.string(),
    "gap_t0_ns": pa.int64(),
}
"""Episode column to Arrow type, in the order in which they are written."""

EPISODE_WORDS: Final[dict[str, frozenset[str]]] = {
    "gap_kind": frozenset(TakeKind),
    "gap_domain": frozenset(Domain),
    "gap_outcome": frozenset(Outcome),
    "gap_failure_mode": frozenset(FailureMode) | {""},
    "gap_phase": frozenset(Phase) | {""},
    "gap_dimensions": frozenset(GapDimension),
}
"""Episode column to the words it may hold."""

_TEXTS: Final = (
    "session", "operator", "station", "calibration", "policy", "plan", "consent", "units",
)  # fmt: skip


def take_hash(uid: str) -> int:
    """Return `gap.take`: the first 63 bits of the uid's SHA-256, so that it fits an int64."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big") >> 1


def age_column(camera: str) -> str:
    """Return the column that holds the ages of a camera's pictures.

    `image` stands in it as `IMAGE`: LeRobot takes every feature with `image` in its name for a
    picture, and refuses statistics of one number.
    """
    return f"{CAMERA_AGE}{camera.replace('image', 'IMAGE')}"


def camera_of_age(column: str) -> str:
    """Return the camera of such a column."""
    return column.removeprefix(CAMERA_AGE).replace("IMAGE", "image")


def take_features(header: TakeHeader) -> dict[str, dict[str, Any]]:
    """Return LeRobot's feature table for takes of one shape."""
    joints = [feature_of(name) for name in header.info.joint_names]
    vectors = {ACTION: joints, STATE: joints}
    if header.environment_state_names:
        vectors[ENVIRONMENT] = list(header.environment_state_names)
    for sensor in header.observed:
        names = [name for name in header.channels if name.startswith(f"{sensor}.")]
        vectors[f"{FORCE}{sensor}"] = [name.removeprefix(f"{sensor}.") for name in names]
    features = {feature: vector_feature(names) for feature, names in vectors.items()}
    for camera, spec in header.cameras.items():
        depth = is_depth(spec)
        features[f"{IMAGES}{camera}"] = {
            "dtype": "image" if depth else "video",
            "shape": (int(spec["height"]), int(spec["width"]), 1 if depth else 3),
            "names": ["height", "width", "channels"],
            **({"info": {"is_depth_map": True, "depth_unit": "mm"}} if depth else {}),
        }
    return features | gap_features(features[ACTION], header.cameras)


def vector_feature(names: list[str]) -> dict[str, Any]:
    """Return LeRobot's description of a feature of such entries."""
    return {"dtype": "float32", "shape": (len(names),), "names": names}


def gap_features(sent: Mapping[str, Any], cameras: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the gap columns of frames; `sent` is the feature of what was sent, the action's."""
    types = {TIME: "float64", TAKE: "int64", SENT: "", INTERVENTION: "bool", SAFETY: "int64"}
    types |= {age_column(camera): "float32" for camera in cameras}
    numbers = {n: {"dtype": kind, "shape": (1,), "names": None} for n, kind in types.items()}
    return {**numbers, SENT: dict(sent)}


def filled_columns(
    uid: str, action: NDArray[Any], fps: float, cameras: Iterable[str]
) -> dict[str, NDArray[Any]]:
    """Return gap columns of frames of which no more is known than what was requested."""
    n = len(action)
    columns: dict[str, NDArray[Any]] = {
        TIME: np.arange(n) / fps,
        TAKE: np.full(n, take_hash(uid), dtype=np.int64),
        SENT: action,
        INTERVENTION: np.zeros(n, dtype=bool),
        SAFETY: np.zeros(n, dtype=np.int64),
    }
    unknown = np.full(n, AGE_UNKNOWN_S, dtype=np.float32)
    return columns | {age_column(camera): unknown for camera in cameras}


def force_columns(
    telemetry: Telemetry, t_s: FloatArray, sensors: Iterable[str]
) -> dict[str, NDArray[Any]]:
    """Return what sensors beside the arm read at some times [s], as dataset columns.

    Raises:
        UnusableInputError: one gave no reading for too long.
    """
    found, known = dict[str, NDArray[Any]](), telemetry.sensors()
    for sensor in sensors:
        values = telemetry.readings_at(known.get(sensor, ()), t_s)
        unknown = ~np.isfinite(values).all(axis=1) if values.size else np.ones(len(t_s), dtype=bool)
        if unknown.any():
            raise UnusableInputError(
                f"sensor '{sensor}' has no reading of the last {HELD_S:g} s in {unknown.sum()} of "
                f"{len(t_s)} frames, first at frame {unknown.argmax()}"
            )
        found[f"{FORCE}{sensor}"] = values.astype(np.float32)
    return found


def frame_columns(take: Take, observed: Iterable[str] = ()) -> dict[str, NDArray[Any]]:
    """Return a take's frames as dataset columns, without pictures.

    What the sensors `observed` read at each frame is among them; see `force_columns`.

    Where a requested action isn't finite, what was sent instead stands in `action`; bit
    `SafetyReason.NON_FINITE` of `gap.safety` marks such rows.
    """
    frames = take.frames
    action = np.where(np.isfinite(frames.action), frames.action, frames.sent)
    columns: dict[str, NDArray[Any]] = {
        ACTION: action.astype(np.float32),
        STATE: frames.state.astype(np.float32),
    }
    if frames.environment_state.shape[1]:
        columns[ENVIRONMENT] = frames.environment_state.astype(np.float32)
    columns |= force_columns(take.telemetry, frames.t_s, observed)
    columns |= {
        TIME: frames.t_s.astype(np.float64),
        TAKE: np.full(len(frames), take_hash(take.info.uid), dtype=np.int64),
        SENT: frames.sent.astype(np.float32),
        INTERVENTION: frames.intervention.astype(bool),
        SAFETY: frames.safety.astype(np.int64),
    }
    for camera in (*take.cameras, *take.depth):
        ages = frames.camera_age_s.get(camera, np.full(len(frames), np.nan))
        known = np.where(np.isfinite(ages), ages, AGE_UNKNOWN_S)
        columns[age_column(camera)] = known.astype(np.float32)
    return columns


def episode_row(take: Take) -> dict[str, Any]:
    """Return a take's episode columns, in the order of `EPISODE_COLUMNS`."""
    info = take.info
    row: dict[str, Any] = {
        "gap_uid": info.uid,
        "gap_kind": info.kind.value,
        "gap_domain": info.domain.value,
        "gap_outcome": take.outcome.value,
        "gap_failure_mode": take.failure_mode,
        "gap_phase": take.phase,
        **dimension_columns(info.dimensions),
        "gap_conditions": json.dumps(dict(info.conditions)),
        **{f"gap_{name}": str(getattr(info, name)) for name in _TEXTS},
        "gap_t0_ns": int(info.t0_ns),
    }
    return {name: row[name] for name in EPISODE_COLUMNS}


def dimension_columns(dimensions: Mapping[str, float]) -> dict[str, list[Any]]:
    """Return the two episode columns that hold gap dimensions and their weights."""
    return {
        "gap_dimensions": [str(name) for name in dimensions],
        "gap_dimension_weights": [float(weight) for weight in dimensions.values()],
    }


def info_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `TakeInfo` fields that an episode's gap columns hold; the inverse of a row."""
    weights = zip(row["gap_dimensions"], row["gap_dimension_weights"], strict=True)
    return {
        "uid": str(row["gap_uid"]),
        "kind": TakeKind(row["gap_kind"]),
        "domain": Domain(row["gap_domain"]),
        "dimensions": {str(name): float(weight) for name, weight in weights},
        "conditions": dict(parse_json(row["gap_conditions"] or "{}")),
        **{name: str(row[f"gap_{name}"] or "") for name in _TEXTS},
        "t0_ns": int(row["gap_t0_ns"]),
    }


def default_row(info: TakeInfo, outcome: Outcome) -> dict[str, Any]:
    """Return episode columns for an episode of which only `info` and its outcome are known."""
    return episode_row(Take(info, outcome, Frames.empty(), Telemetry(np.empty(0), {})))
