"""robomimic's layout: one HDF5 file with a group per demonstration.

As ARISE-Initiative/robomimic reads it (`utils/dataset.py`, docs/datasets/overview.md):
`data` has attributes `total` and `env_args`; `data/demo_<i>` has attribute `num_samples` and holds
`actions`, `rewards`, `dones`, `states`, `obs/*`, `next_obs/*`; `mask/<name>` lists demonstrations.
Actions must lie in [-1, 1].
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json
from gaploop.core.types import Image
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.datasets import columns
from gaploop.datasets.columns import IMAGES
from gaploop.datasets.formats import hdf5
from gaploop.datasets.formats.foreign import Maker, as_float32, chosen_key, described, named, taken
from gaploop.datasets.formats.model import (
    About,
    Advance,
    ForeignRecording,
    ImportSettings,
    Outgoing,
    Recording,
    carry,
)
from gaploop.datasets.layout import explained

RAW: Final = "actions_raw"
"""Actions in the robot's units; `actions` beside them are scaled to [-1, 1]."""
GYM_TYPE: Final = 2
"""`EnvType.GYM_TYPE` of robomimic; roll-outs in an environment need one of your own."""
DEFAULT_STATE: Final = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""What robomimic's own default config observes beside `object`."""


def write_robomimic(out: Outgoing, path: Path, advance: Advance) -> None:
    """Write a dataset as one file.

    `actions` are scaled to [-1, 1] by their range over the dataset wherever they leave it;
    `data` then has attributes `action_min` and `action_max`, and `actions_raw` keeps the units.
    Rewards are 1 in the last row of a success, `mask` has a list per outcome, domain and gap
    dimension. `next_obs` costs no space: it is a view of `obs`.
    """
    observed = {n: n.removeprefix(IMAGES).removeprefix("observation.") for n in out.about.features}
    keys = {columns.ACTION: RAW}
    keys |= {n: f"obs/{key}" for n, key in observed.items() if n.startswith("observation.")}
    keys |= {n: f"lerobot/{n}" for n in out.about.features if n not in keys}
    low = high = np.empty(0)
    for k, episode in enumerate(out.episodes(whole=False)):
        action = episode.columns[columns.ACTION].reshape(episode.length, -1).astype(np.float64)
        low = np.minimum(low, action.min(axis=0)) if k else action.min(axis=0)
        high = np.maximum(high, action.max(axis=0)) if k else action.max(axis=0)
    if (low >= -1).all() and (high <= 1).all():
        low, high = -np.ones_like(low), np.ones_like(high)
    high[high <= low] = low[high <= low] + 1.0  # a joint that never moves
    with hdf5.new_hdf5(path) as (file, written):
        hdf5.keep_carried(file, carry(out, keys))
        data = file.create_group("data")
        data.attrs["total"] = out.total_frames
        data.attrs["env_args"] = json.dumps(
            {
                "env_name": out.about.robot_type or "real_robot",
                "type": GYM_TYPE,
                "env_type": GYM_TYPE,
                "env_kwargs": {
                    "control_freq": out.about.fps,
                    "tasks": list(dict.fromkeys(out.tasks)),
                },
            }
        )
        data.attrs["action_min"], data.attrs["action_max"] = low, high
        for index, episode in enumerate(out.episodes()):
            n, demo = episode.length, data.create_group(f"demo_{index}")
            demo.attrs["num_samples"] = n
            demo.attrs["task"], demo.attrs["uid"] = episode.task, episode.uid
            action = episode.columns[columns.ACTION].reshape(n, -1).astype(np.float64)
            demo["actions"] = as_float32(np.clip(2 * (action - low) / (high - low) - 1, -1, 1))
            last = (np.arange(n) == n - 1).astype(np.float32)
            demo["rewards"] = last * float(episode.row["gap_outcome"] == Outcome.SUCCESS.value)
            demo["dones"] = last.astype(np.int64)
            # "dummy values for non-robosuite datasets"
            demo["states"] = np.zeros((n, 1), np.float32)
            demo.create_group("obs")
            for name, values in episode.columns.items():
                demo[keys[name]] = values
            written()
            hdf5.write_pictures(demo, out.about, keys, episode, written)
            for name, stored in demo["obs"].items():
                demo.create_virtual_dataset(f"next_obs/{name}", hdf5.next_rows(stored))
            hdf5.keep_telemetry(file, episode)
            advance()
        masks: dict[str, list[str]] = {}
        for index, row in enumerate(out.rows):
            names = {row["gap_outcome"], row["gap_domain"], row["gap_kind"], *row["gap_dimensions"]}
            for name in sorted(map(str, names - {""})):
                masks.setdefault(name, []).append(f"demo_{index}")
        for name, demos in masks.items():
            file[f"mask/{name}"] = np.array(demos, dtype="S")


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
            f"{path}: the action is data/demo_<i>/actions. Leave action out of --keys."
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
    with explained(f"{path}: env_args is not JSON", "Fix it."):
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
