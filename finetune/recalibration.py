"""A policy that gets camera, table, joint zeros and delay as a station's twin has them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256, write_json
from gaploop.core.paths import refuse_links_out
from gaploop.core.run_record import write_run
from gaploop.core.twin import load_twin
from gaploop.finetune.lerobot_act import SIDECAR
from gaploop.finetune.lerobot_policy import (
    DELAY_S,
    PREPROCESSOR,
    TRACKER,
    cell_of,
    policy_id,
    resolve,
)
from gaploop.sim.recalibration import READ, ZEROS

POSTPROCESSOR: Final = "policy_postprocessor.json"
POLICY: Final = "policy"
DELAY: Final = "actuator_response.latency"
SEES: Final = "gaploop.sim.lerobot_recalibration_steps.RecalibrateStep"
SAYS: Final = "gaploop.sim.lerobot_recalibration_steps.ReadingGoalStep"


@dataclass(frozen=True)
class Recalibrated:
    """A policy whose processors were changed.

    Attributes:
        folder: the policy.
        id: its hash.
        taken_out: mechanism to the values that it now allows for.
    """

    folder: Path
    id: str
    taken_out: dict[str, dict[str, float]]


def recalibrate(policy: str | Path, twin: Path, output_dir: Path) -> Recalibrated:
    """Write OUT/policy: a copy of a policy that allows for what a twin says of the station.

    Camera pose, field of view, table height and joint zeros are taken out of what it sees, reads
    and commands; of a delayed arm it is told where the joints will be once its commands arrive.
    Nothing is trained. A policy that was recalibrated before allows for this twin only.

    Args:
        policy: as for `load_policy`.
        twin: a `station_twin.yaml`.
        output_dir: run folder to write.

    Raises:
        UnusableInputError: nothing to take out, a policy of another arm, or one that sees pictures
            where the camera has moved.
    """
    station, folder = load_twin(twin), resolve(policy)
    taken_out = station.values((*READ, DELAY))
    if not taken_out:
        raise UnusableInputError(
            f"{twin}: camera, table, zeros and delay are nominal or weren't measured; there is "
            f"nothing to recalibrate. It would be one of {', '.join((*READ, DELAY))}."
        )
    known = {mechanism: values for mechanism, values in taken_out.items() if mechanism != DELAY}
    cell = cell_of(folder)
    if cell is None and not set(known) <= {ZEROS}:
        raise UnusableInputError(
            f"{policy} sees pictures, not a tracked scene: a moved camera can't be taken out of "
            "them. Record takes in the twin and fine-tune: gaploop record --env.twin=FILE"
        )
    if DELAY in taken_out and not (folder / SIDECAR).exists():
        raise UnusableInputError(
            f"{policy} says no rate ({SIDECAR}), so nobody knows how many steps a delay is. Give a "
            "policy that gaploop trained."
        )
    task, arm = cell or ("pick_place", station.arm)
    if arm != station.arm:
        raise UnusableInputError(
            f"{twin} is of a station with {station.arm}, {policy} drives {arm}."
        )
    target = output_dir / POLICY
    if target.exists():
        raise UnusableInputError(f"{target} exists. Name another --output_dir, or remove it.")
    refuse_links_out(folder)
    shutil.copytree(folder, target)
    where: dict[str, Any] = {"known": known, "robot": arm}
    _insert(target / PREPROCESSOR, SEES, {**where, "task": task})
    _insert(target / POSTPROCESSOR, SAYS, where)
    if (sidecar := target / SIDECAR).exists():
        delay_s = taken_out.get(DELAY, {}).get("latency_s", 0.0)
        write_json(sidecar, {**read_json(sidecar), DELAY_S: delay_s})
    made = Recalibrated(target, policy_id(target), taken_out)
    write_run(
        output_dir,
        "calibrate from_twin",
        {"policy": str(policy), "twin": str(twin)},
        [{"root": str(twin), "sha256": sha256(twin)}],
        {"policy": made.id, "taken_out": taken_out},
        base=policy_id(folder),
        base_folder=folder,
    )
    return made


def _insert(file: Path, step: str, config: dict[str, Any]) -> None:
    """Put a step where it belongs in a saved pipeline, in the place of one from before."""
    pipeline = read_json(file)
    steps = [entry for entry in pipeline["steps"] if entry.get("class") != step]
    place = len(steps)
    if step == SEES:
        classes = [entry.get("class") for entry in steps]
        place = classes.index(TRACKER) + 1 if TRACKER in classes else 0
    steps.insert(place, {"class": step, "config": config})
    write_json(file, {**pipeline, "steps": steps})
