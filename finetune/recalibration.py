"""A policy that allows for camera, table, zeros, light, delay and noise as a twin has them."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.arms import CELL_ARMS
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256, write_json
from gaploop.core.paths import refuse_links_out
from gaploop.core.run_record import write_run
from gaploop.core.twin import Twin, load_twin
from gaploop.failure_analysis.planning.remedies import NOISE
from gaploop.finetune import lerobot_policy as policies
from gaploop.finetune.lerobot_act import SIDECAR
from gaploop.sim.recalibration import LIGHT, READ, ZEROS

POSTPROCESSOR: Final = "policy_postprocessor.json"
POLICY: Final = "policy"
DELAY: Final = "actuator_response.latency"
PICTURES_LATE: Final = "sensor_noise.camera_delay"
DELAYS: Final = (DELAY, PICTURES_LATE)
CLEARS: Final = "gaploop.sim.lerobot_recalibration_steps.LightStep"
SEES: Final = "gaploop.sim.lerobot_recalibration_steps.RecalibrateStep"
SAYS: Final = "gaploop.sim.lerobot_recalibration_steps.ReadingGoalStep"


@dataclass(frozen=True)
class Recalibrated:
    """A policy whose processors were changed.

    Attributes:
        taken_out: mechanism to the values that it now allows for.
        left: mechanisms that it doesn't: a picture's camera stands where it stands.
    """

    folder: Path
    id: str
    taken_out: dict[str, dict[str, float]]
    left: tuple[str, ...] = ()


def recalibrate(policy: str | Path, twin: Path, output_dir: Path) -> Recalibrated:
    """Write OUT/policy: a copy of a policy that allows for what a twin says of the station.

    Camera pose, field of view, table height and joint zeros are taken out of what it sees, reads
    and commands, exposure, colour cast and flicker out of the overhead camera's pictures; of a
    delayed arm it is told where the joints will be once its commands arrive, of a late camera where
    they were, and of noisy readings what `collect.policy_leader.JointFilter` makes of them.
    Nothing is trained. A policy that was recalibrated before allows for this twin only.

    Raises:
        UnusableInputError: nothing to take out, a policy of another arm, or one that sees pictures
            where the camera has moved.
    """
    station, folder = load_twin(twin), policies.resolve(policy)
    cell = policies.cell_of(folder)
    known, light = station.values(READ if cell else (ZEROS,)), station.values(LIGHT)
    joints = CELL_ARMS[station.arm].joint_names if station.arm in CELL_ARMS else ()
    noise_rad = [noise_of(station, joint) for joint in joints]
    taken_out = {**known, **light, **station.values(DELAYS)}
    if any(noise_rad):
        noise = dict(zip(joints, noise_rad, strict=True))
        taken_out["sensor_noise"] = {f"{joint}.noise_rad": rad for joint, rad in noise.items()}
    if not taken_out and station.values(READ):
        raise UnusableInputError(
            f"{policy} sees pictures, not a tracked scene: a moved camera can't be taken out of "
            "them. Record episodes in the twin and fine-tune: gaploop record --robot.twin=FILE"
        )
    if not taken_out:
        raise UnusableInputError(
            f"{twin}: camera, light, table, zeros, delays and noise are nominal or weren't "
            "measured; there is nothing to recalibrate. It would be one of "
            f"{', '.join((*READ, *LIGHT, *DELAYS, *NOISE))}."
        )
    is_timed = any(noise_rad) or taken_out.keys() & set(DELAYS)
    if is_timed and not (folder / SIDECAR).exists():
        raise UnusableInputError(
            f"{policy} states no rate ({SIDECAR}), so neither a delay nor noise can be allowed for "
            "from step to step. Give a policy that gaploop trained."
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
    _insert(target / policies.PREPROCESSOR, SEES, {**where, "task": task})
    _insert(target / policies.PREPROCESSOR, CLEARS, {"known": light})
    _insert(target / POSTPROCESSOR, SAYS, where)
    if (sidecar := target / SIDECAR).exists():
        allowed = {
            policies.DELAY_S: taken_out.get(DELAY, {}).get("latency_s", 0.0),
            policies.CAMERA_DELAY_S: taken_out.get(PICTURES_LATE, {}).get("delay_s", 0.0),
            policies.NOISE_RAD: noise_rad if any(noise_rad) else [],
        }
        write_json(sidecar, {**read_json(sidecar), **allowed})
    left = tuple(m for m in station.values(READ) if m not in taken_out)
    made = Recalibrated(target, policies.policy_id(target), taken_out, left)
    write_run(
        output_dir,
        "calibrate from_twin",
        {"policy": str(policy), "twin": str(twin)},
        [{"root": str(twin), "sha256": sha256(twin)}],
        {"policy": made.id, "taken_out": taken_out},
        base=policies.policy_id(folder),
        base_folder=folder,
    )
    return made


def noise_of(station: Twin, joint: str) -> float:
    """Return the standard deviation of a joint's readings by a twin [rad]; 0 where it has none."""
    return math.hypot(*(
        p.estimate for p in station.parameters
        if p.differs and p.name in NOISE and p.joint in ("", joint)
    ))  # fmt: skip


def is_recalibrated(policy: Path) -> bool:
    """Say whether a policy's folder has the processors of `recalibrate`."""
    file = policy / POSTPROCESSOR
    steps = read_json(file)["steps"] if file.exists() else ()
    return any(entry.get("class") == SAYS for entry in steps)


def _insert(file: Path, step: str, config: dict[str, Any]) -> None:
    """Put a step where it belongs in a saved pipeline, in the place of one from before."""
    pipeline = read_json(file)
    steps = [entry for entry in pipeline["steps"] if entry.get("class") != step]
    place, classes = len(steps), [entry.get("class") for entry in steps]
    if step == SEES:
        place = classes.index(policies.TRACKER) + 1 if policies.TRACKER in classes else 0
    elif step == CLEARS:
        place = 0
    if config["known"] or step != CLEARS:
        steps.insert(place, {"class": step, "config": config})
    write_json(file, {**pipeline, "steps": steps})
