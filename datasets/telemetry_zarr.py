"""`telemetry/<uid>.zarr.zip`: the control-rate record as a Zarr v3 group of named arrays.

Joints of one arm and quantity share one array (n, n_joints) whose attributes name them; every
other channel is an array (n,). Each array has its unit in its attributes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from gaploop.core.errors import DAMAGE
from gaploop.core.files import LARGEST_TEXT, regular_file
from gaploop.core.messages import FloatArray
from gaploop.core.paths import plain_name
from gaploop.core.telemetry import JOINT_QUANTITIES, Telemetry
from gaploop.datasets.layout import reraise_as_damaged

TIME: Final = "t_s"
SCHEMA: Final = "gaploop.telemetry.v1"
_SAME_S: Final = 1e-6
"""A turn of the loop that records a frame stamps both within this [s]."""
LARGEST_ARRAY: Final = 2 << 30
"""An hour of 30 channels at 1 kHz is 0.9 GB [bytes]."""
ZARR_DAMAGE: Final = (*DAMAGE, SystemError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged Zarr group may raise; Blosc's binding raises SystemError."""

_ZSTD: Final = pa.Codec("zstd", compression_level=3)
_GROUP: Final = {"zarr_format": 3, "node_type": "group"}
_ARRAY: Final = {
    "zarr_format": 3,
    "node_type": "array",
    "data_type": "float64",
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": "NaN",
    "codecs": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    ],
    "storage_transformers": [],
}


def _numbers(array: Any) -> FloatArray:
    """Return a Zarr array's numbers, or raise ValueError where nobody records such shapes.

    A few bytes of metadata can ask for any amount of memory.
    """
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{array.name} holds {array.dtype}, not numbers")
    for shape in (array.shape, array.chunks):
        if math.prod(shape) * array.dtype.itemsize > LARGEST_ARRAY:
            raise ValueError(f"{array.name} declares the shape {shape}")
    return np.asarray(array[:], dtype=np.float64)


def telemetry_path(root: Path, uid: str) -> Path:
    """Return where a dataset keeps a take's control-rate record, or refuse its uid as a name."""
    return root / "telemetry" / f"{plain_name(uid, 'gap_uid', root)}.zarr.zip"


def write_telemetry(path: Path, telemetry: Telemetry) -> None:
    """Write a record; NaN stays NaN. The name appears only when the file is whole."""
    arrays: dict[str, tuple[FloatArray, Mapping[str, Any]]] = {TIME: (telemetry.t_s, {"unit": "s"})}
    stacked: dict[str, list[str]] = {}
    for name, values in telemetry.columns.items():
        arm, _, rest = name.partition(".")
        joint, _, quantity = rest.partition(".")
        if quantity in JOINT_QUANTITIES:
            stacked.setdefault(f"{arm}.{quantity}", []).append(joint)
        else:
            arrays[name] = (values, {"unit": telemetry.units.get(name, "")})
    for key, joints in stacked.items():
        arm, _, quantity = key.partition(".")
        names = [f"{arm}.{joint}.{quantity}" for joint in joints]
        values = np.stack([telemetry.columns[n] for n in names], axis=1)
        unit = telemetry.units.get(names[0], JOINT_QUANTITIES[quantity])
        arrays[key] = (values, {"unit": unit, "joints": joints})
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    # What Zarr itself writes, without the event loop that it starts for every array.
    with zipfile.ZipFile(part, "w") as archive:
        order = {"schema": SCHEMA, "order": list(telemetry.columns)}
        archive.writestr("zarr.json", json.dumps({**_GROUP, "attributes": order}))
        for name, (values, notes) in arrays.items():
            place = plain_name(name, "channel", path)
            grid = {"name": "regular", "configuration": {"chunk_shape": values.shape}}
            array = {**_ARRAY, "shape": values.shape, "chunk_grid": grid, "attributes": notes}
            archive.writestr(f"{place}/zarr.json", json.dumps(array))
            if not np.isnan(values).all():  # else there is no chunk: its fill value says it
                chunk = np.ascontiguousarray(values, dtype="<f8")
                content = _ZSTD.compress(chunk, asbytes=True)
                archive.writestr("/".join((place, "c", *("0",) * values.ndim)), content)
    os.replace(part, path)


def read_telemetry(path: Path) -> Telemetry:
    """Read what `write_telemetry` wrote; UnusableInputError where it is missing or damaged."""
    with _opened(path) as group:
        found = {name: (_numbers(array), dict(array.attrs)) for name, array in group.arrays()}
        order = [str(name) for name in group.attrs["order"]]
        t_s = found.pop(TIME)[0]
        if t_s.ndim != 1:
            raise ValueError(f"{TIME} has shape {t_s.shape}")
        columns: dict[str, FloatArray] = {}
        units: dict[str, str] = {}
        for key, (values, notes) in found.items():
            arm, _, quantity = key.partition(".")
            joints = notes.get("joints")
            names = [f"{arm}.{j}.{quantity}" for j in joints] if joints else [key]
            for name, column in zip(names, values.T if joints else [values], strict=True):
                if column.shape != t_s.shape:
                    raise ValueError(f"{key} has shape {values.shape}, {TIME} {t_s.shape}")
                columns[name] = np.ascontiguousarray(column)
                units[name] = str(notes.get("unit", ""))
        return Telemetry(t_s, {n: columns[n] for n in order}, {n: units[n] for n in order})


def cut_telemetry(source: Path, target: Path, start_s: float, end_s: float, zero_s: float) -> None:
    """Write a record from `start_s` on to before `end_s`, with times counted from `zero_s` [s].

    Nothing is written where nothing falls into it.
    """
    whole = read_telemetry(source)
    kept = (whole.t_s >= start_s - _SAME_S) & (whole.t_s < end_s - _SAME_S)
    if kept.any():
        columns = {name: values[kept] for name, values in whole.columns.items()}
        write_telemetry(target, Telemetry(whole.t_s[kept] - zero_s, columns, whole.units))


def telemetry_rows(path: Path) -> int:
    """Return how many rows a record is said to have, without reading them."""
    with _opened(path) as group:
        arrays = dict(group.arrays())
        if not isinstance(group.attrs["order"], list):
            raise TypeError("its columns have no order")
        return int(arrays[TIME].shape[0])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import zarr  # takes half a second
    from zarr.storage import ZipStore

    fix = "Restore it from a copy, or publish the episode again."
    with reraise_as_damaged(f"{path} can't be read", fix, ZARR_DAMAGE):
        with zipfile.ZipFile(regular_file(path)) as archive:
            for entry in archive.infolist():
                if entry.compress_type != zipfile.ZIP_STORED and entry.file_size > LARGEST_TEXT:
                    raise ValueError(f"{entry.filename} unpacks to {entry.file_size >> 20} MiB")
        with ZipStore(path, mode="r") as store:
            yield zarr.open_group(store, mode="r")
