"""ALOHA's layout: one `episode_<i>.hdf5` per episode.

As tonyzhaozh/act and MarkFzp/act-plus-plus read it (`utils.py`, `EpisodicDataset`): `/action`,
`/observations/qpos`, `/observations/qvel`, `/observations/images/<camera>`, attribute `sim`; with
attribute `compress`, pictures are JPEG, padded to equal length, and `/compress_len` (cameras,
frames) has their lengths. Those projects hand RGB to cv2.imencode and take what cv2.imdecode
returns as RGB, so that is done here, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.datasets import columns
from gaploop.datasets.formats import hdf5
from gaploop.datasets.formats.foreign import Maker, as_float32, described, named, natural
from gaploop.datasets.formats.model import (
    Advance,
    ForeignRecording,
    ImportSettings,
    Outgoing,
    Recording,
    carry,
)

QPOS: Final = "observations/qpos"
QVEL: Final = "observations/qvel"
PICTURES: Final = "observations/images"
SUFFIXES: Final = (".hdf5", ".h5")
_STANDARD: Final = {
    columns.ACTION: "action",
    columns.STATE: QPOS,
    "observation.velocity": QVEL,
    "observation.effort": "observations/effort",
}
_FOUND: Final = {**_STANDARD, "extra.base_action": "base_action"}
"""Feature to where recordings of others have it."""


def write_aloha(out: Outgoing, path: Path, advance: Advance) -> None:
    """Write a dataset as a folder of episodes.

    Where the dataset has no joint velocities, `qvel` is the gradient of `qpos` [its units / s]:
    ALOHA's readers open it.
    """
    if columns.STATE not in out.about.features:
        raise UnusableInputError(
            f"{out.root} has no {columns.STATE}; ALOHA's readers need it as qpos. Convert it with "
            "--to=diffusion_policy."
        )
    keys = {n: _STANDARD.get(n, f"lerobot/{n}") for n in out.about.numbers}
    keys |= {name: f"{PICTURES}/{camera}" for name, camera in out.about.pictures.items()}
    path.mkdir()
    for index, episode in enumerate(out.episodes()):
        part = path / f"episode_{index}.hdf5"
        with hdf5.new_hdf5(part, rdcc_nbytes=2 * 1024**2) as (file, written):
            file.attrs["sim"] = episode.row["gap_domain"] != Domain.REAL.value
            file.attrs["fps"], file.attrs["units"] = out.about.fps, episode.row["gap_units"]
            hdf5.keep_carried(file, carry(out, keys, [index]))
            state = episode.columns[columns.STATE]
            for name, values in episode.columns.items():
                file[keys[name]] = values
            if QVEL not in file:
                slope = np.zeros_like(state, dtype=np.float32)
                if len(state) > 1:
                    step_s = 1 / out.about.fps
                    slope = as_float32(np.gradient(state.astype(np.float64), step_s, axis=0))
                file[QVEL] = slope
                file[QVEL].attrs["made_from"] = "gradient of qpos"
            written()
            file.create_group(PICTURES)
            hdf5.write_pictures(file, out.about, keys, episode, written)
            hdf5.keep_telemetry(file, episode)
        advance()


def episode_paths(path: Path) -> list[Path]:
    """Return the episodes of a folder in the order of their numbers, or a single file."""
    if path.is_file():
        return [path]
    return sorted((p for p in path.iterdir() if p.suffix in SUFFIXES), key=natural)


def read_aloha(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open a folder of ALOHA episodes, or one of them."""
    files = episode_paths(path)
    if not files:
        raise UnusableInputError(f"{path} holds no .hdf5 file. Name the folder of the episodes.")
    parts: dict[str, tuple[str, ...]] = {}
    with hdf5.open_hdf5(files[0]) as file:
        carried = hdf5.carried_in(file, files[0])
        _require(file, files[0])
        sim = bool(file.attrs.get("sim", False))
        if carried is None:
            settings.required_units(files[0], " (ALOHA's own recorder: rad, grippers normalised)")
            fps = settings.required_fps(files[0], " (ALOHA's own recorder: 50)")
            vectors: dict[str, list[str]] = {}
            for name, key in _FOUND.items():
                if key in file:
                    stored, parts[name] = file[key], (key,)
                    width = int(stored.shape[1]) if stored.ndim > 1 else 1
                    vectors[name] = named({key.rsplit("/", 1)[-1]: width})
            cameras: dict[str, tuple[str, Sequence[int]]] = {}
            for camera in _cameras(file):
                key = f"{PICTURES}/{camera}"
                first = next(hdf5.pictures_in(files[0], key), None)
                if first is None or first.ndim != 3:
                    raise UnusableInputError(
                        f"{files[0]}: {key} holds no picture. Fix it, or leave it out."
                    )
                cameras[camera] = key, first.shape[:2]
            about = described(fps, settings.robot_type or "aloha", vectors, cameras)
    if carried is not None:
        about = carried.about
        every = []
        for one in files:
            with hdf5.open_hdf5(one) as file:
                own = hdf5.carried_in(file, one)
            if own is None or own.about.features != about.features:
                raise UnusableInputError(
                    f"{one} was not exported together with the other files beside it. Import it "
                    "alone."
                )
            every.append(own)
        rows, tasks, lines = (
            tuple(part for one in every for part in getattr(one, name))
            for name in ("rows", "tasks", "labels")
        )
        carried = replace(carried, rows=rows, tasks=tasks, labels=lines)
    make = Maker(about, settings, parts, carried)

    def episodes() -> Iterator[Recording]:
        for index, path in enumerate(files):
            with hdf5.open_hdf5(path) as file:
                if carried is None:
                    _require(file, path)
                    lacking = any(key not in file for keys in parts.values() for key in keys)
                    if lacking or set(_cameras(file)) != set(about.pictures.values()):
                        raise UnusableInputError(
                            f"{path} has other cameras or columns than {files[0].name}. Import it "
                            "alone."
                        )
                yield make(
                    index,
                    f"{path.name} {index}",
                    partial(hdf5.rows_of, file),
                    partial(hdf5.pictures_in, path),
                    partial(hdf5.telemetry_of, file),
                    domain=Domain.SIM if file.attrs.get("sim", False) else Domain.REAL,
                )

    notes = () if settings.domain else (f"domain is {'sim' if sim else 'real'}: attribute sim.",)
    return make.source(len(files), episodes, notes)


def _require(file: Any, path: Path) -> None:
    found: list[str] = []
    file.visititems(lambda n, v: found.append(n) if isinstance(v, h5py.Dataset) else None)
    for key in ("action", QPOS):
        if key not in found:
            raise UnusableInputError(
                f"{path} has no /{key}: not ALOHA's layout. It holds "
                f"{', '.join(found[:12]) or 'nothing'}."
            )


def _cameras(file: Any) -> list[str]:
    group = file.get(PICTURES, {})
    return [name for name in group if not name.endswith("_depth")]
