"""robomimic's layout: one HDF5 file with a group per demonstration.

As ARISE-Initiative/robomimic reads it (`utils/dataset.py`, docs/datasets/overview.md):
`data` has attributes `total` and `env_args`; `data/demo_<i>` has attribute `num_samples` and holds
`actions`, `rewards`, `dones`, `states`, `obs/*`, `next_obs/*`; `mask/<name>` lists demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json
from gaploop.core.messages import Image
from gaploop.core.vocabulary import Domain
from gaploop.datasets import columns
from gaploop.datasets.formats import hdf5
from gaploop.datasets.formats.foreign import Maker, chosen_key, described, named, taken
from gaploop.datasets.formats.model import (
    About,
    ForeignRecording,
    ImportSettings,
    Recording,
)
from gaploop.datasets.layout import reraise_as_damaged

DEFAULT_STATE: Final = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""What robomimic's own default config observes beside `object`."""


def read_robomimic(path: Path, settings: ImportSettings) -> ForeignRecording:
    """Open a robomimic file."""
    with hdf5.open_hdf5(path) as file:
        data = file.get("data")
        found = [n for n in data if n.startswith("demo_")] if isinstance(data, h5py.Group) else []
        for name in found:
            for key in ("actions", "obs"):
                if key not in data[name]:
                    raise UnusableInputError(
                        f"{path}: data/{name} has no {key}. Extract observations first "
                        "(robomimic's dataset_states_to_obs.py)."
                    )
        if not found:
            raise UnusableInputError(
                f"{path} has no data/demo_0: not robomimic's layout. It holds "
                f"{', '.join(file) or 'nothing'}."
            )
        demos = sorted(found, key=lambda name: int(name[5:]))
        carried = hdf5.carried_in(file, path)
        if carried is None:
            about, parts, known, notes = _foreign_about(file, path, demos[0], settings)
        else:
            about, parts, known, notes = carried.about, {}, {}, []
    make = Maker(about, settings, parts, carried)

    def episodes() -> Iterator[Recording]:
        with hdf5.open_hdf5(path) as file:
            for index, name in enumerate(demos):

                def pictures(key: str, swap: bool, name: str = name) -> Iterator[Image]:
                    return hdf5.pictures_in(path, f"data/{name}/{key}", swap)

                rows = partial(hdf5.rows_of, file[f"data/{name}"])
                record = partial(hdf5.telemetry_of, file)
                yield make(index, f"{path.name} {name}", rows, pictures, record, **known)

    return make.source(len(demos), episodes, notes)


def _foreign_about(
    file: Any, path: Path, first: str, settings: ImportSettings
) -> tuple[About, dict[str, tuple[str, ...]], dict[str, Any], list[str]]:
    obs = file[f"data/{first}/obs"]
    numbers = {k: int(np.prod(obs[k].shape[1:], dtype=int)) for k in obs if obs[k].ndim <= 2}
    keys = settings.keys
    if columns.ACTION in keys:
        raise UnusableInputError(
            f"{path}: the action is data/demo_<i>/actions. Leave action out of --rename_map."
        )
    state = taken(keys, columns.STATE, numbers, path)
    if not state and all(k in numbers for k in DEFAULT_STATE):
        state = DEFAULT_STATE
    state = state or chosen_key(columns.STATE, (), numbers, path)
    parts = {columns.STATE: state}
    parts |= {n: taken(keys, n, numbers, path) for n in keys if n != columns.STATE}
    if columns.ENVIRONMENT not in parts and "object" in numbers:
        parts[columns.ENVIRONMENT] = ("object",)
    used = {key for part in parts.values() for key in part}
    parts |= {f"extra.{key}": (key,) for key in numbers if key not in used}
    width = int(file[f"data/{first}/actions"].shape[1])
    vectors = {columns.ACTION: named({"action": width})}
    vectors |= {n: named({k: numbers[k] for k in part}) for n, part in parts.items()}
    cameras = {
        key.removesuffix("_image"): (f"obs/{key}", obs[key].shape[1:3])
        for key in obs
        if obs[key].ndim == 4 and obs[key].shape[3] == 3
    }
    with reraise_as_damaged(f"{path}: env_args is not JSON", "Fix it."):
        env = parse_json(file["data"].attrs.get("env_args", "{}"))
        kwargs = env.get("env_kwargs") or {}
        rate, name, kind = kwargs.get("control_freq"), str(env.get("env_name", "")), env.get("type")
        robots = kwargs.get("robots") or ""
    notes = []
    if settings.fps is None and isinstance(rate, int | float) and rate == int(rate) > 0:
        notes.append(f"fps is {rate:g}: control_freq of env_args.")
        fps = float(rate)
    else:
        fps = settings.required_fps(path, " (robosuite's default: 20)")
    # 1 robosuite, 2 gym, 3 iGibson: all of robomimic's environment types are simulators.
    sim = kind in (1, 2, 3)
    if settings.domain is None:
        notes.append(f"domain is {'sim' if sim else 'real'}: environment type {kind} of env_args.")
    settings.required_units(path)
    notes.append(f"observation.state is {' + '.join(state)}.")
    robot = robots if isinstance(robots, str) else "_".join(map(str, robots))
    robot_type = settings.robot_type or robot.lower() or "robomimic"
    about = described(fps, robot_type, vectors, cameras)
    held = {n: tuple(f"obs/{key}" for key in part) for n, part in parts.items()}
    known = {"task": settings.task or name, "domain": Domain.SIM if sim else Domain.REAL}
    return about, {**held, columns.ACTION: ("actions",)}, known, notes
