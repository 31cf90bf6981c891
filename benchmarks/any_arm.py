"""`benchmarks any_arm`: drives planted into arms by their MJCF files, and whether they are found.

Each station is an arm whose drives have a delay and two faults of single joints; it is recorded as
LeRobot would, at 30 frames a second, and identified by its file alone. Printed: what was named, how
often a 90 % interval holds the true value, errors on held-out motion. Sim-to-sim: fit and station
share one model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.messages import FloatArray
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Outcome
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

FPS: Final = 30
STEP_RAD: Final = 0.0015
"""Steps of the readings [rad]."""
FAULTS: Final[Mapping[str, tuple[float, float]]] = {
    "speed_limit_rad_s": (0.3, 1.0), "gain_factor": (0.05, 0.3), "backlash_rad": (0.03, 0.08),
    "torque_factor": (0.1, 0.3),
}  # fmt: skip


def models() -> list[Path]:
    """Return the model files of arms that are installed here."""
    import gaploop.core.arms as arms
    from gaploop.core.arm import ModelFile

    nexus = ModelFile("so101_nexus", "assets/SO101/so101_new_calib.xml", "pip install so101-nexus")
    return [Path(arms.__file__).parent / "openmanipulator.xml", nexus.find("SO-101")]


def planted_take(mjcf: Path, planted: Mapping[str, Any], seed: int, seconds: float = 8.0) -> Take:
    """Return frames of an arm with these drives: goals as a person might send them, readings."""
    from gaploop.sim.identification.open_loop import DriveLog, OpenLoopArm
    from gaploop.sim.identification.servo_arm import ServoArm

    arm, rng = ServoArm(mjcf), np.random.default_rng(seed)
    n, t_s = len(arm.joint_names), np.arange(round(seconds * FPS)) / FPS
    hz, size_rad = rng.uniform(0.1, 0.5, (2, n)), 0.12 * np.ptp(arm.limits_rad, axis=1)
    waves = np.sin(2 * np.pi * hz[0] * t_s[:, None]) + np.sin(2 * np.pi * hz[1] * t_s[:, None])
    goals: FloatArray = arm.limits_rad.mean(axis=1) + size_rad * waves
    log = DriveLog("", t_s, np.repeat(goals[:1], len(t_s), 0), t_s, goals, True, arm.arm_columns)
    read = np.round(OpenLoopArm(arm, [log]).readings([planted])[0][0] / STEP_RAD) * STEP_RAD
    flags = np.zeros(len(t_s), dtype=np.int64)
    frames = Frames(t_s, read, goals, goals, np.empty((len(t_s), 0)), flags.astype(bool), flags)
    info = TakeInfo(f"take{seed}", joint_names=arm.joint_names, units="rad", fps=FPS)
    return Take(info, Outcome.SUCCESS, frames, Telemetry(np.empty(0), {}))


def _station(mjcf: Path, seed: int) -> dict[str, Any]:
    from gaploop.sim.identification.drives import fit_drives
    from gaploop.sim.identification.servo_arm import ServoArm

    rng, arm = np.random.default_rng([seed, 42]), ServoArm(mjcf)
    joints = rng.choice(arm.joint_names, 2, replace=False)
    faults = rng.choice(list(FAULTS), 2, replace=False)
    true = {"latency_s": float(rng.uniform(0.03, 0.15))}
    drives = {
        f"{j}.{f}": float(rng.uniform(*FAULTS[f])) for j, f in zip(joints, faults, strict=True)
    }
    planted = {"actuator_response.latency": dict(true), "actuator_response.drives": drives}
    takes = [planted_take(mjcf, planted, 100 * seed + k) for k in range(2)]
    began_s, true = time.process_time(), true | drives
    found = fit_drives(takes, arm)
    by_key = {p.key: p for p in found.parameters if p.name.startswith("actuator_response")}
    return {
        "model": mjcf.stem, "seed": seed, "true": true,
        "named": [k for k in true if by_key[k].differs],
        "others": [p.key for p in by_key.values() if p.differs and p.key not in true],
        "holds": [k for k in true if by_key[k].interval[0] <= true[k] <= by_key[k].interval[1]],
        "error_by_joint": found.fit["error_by_joint"],
        "cpu_s": time.process_time() - began_s,
    }  # fmt: skip


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Identify `n` stations of each model; those that the folder holds aren't done again."""
    file = folder / "arms.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    work = [(m, config.seed + k) for k in range(config.n or 2) for m in models()]
    with options.progress("Identifying", len(work)) as advance, file.open("a") as kept:
        advance(len(rows))
        for mjcf, seed in work[len(rows) :]:
            rows.append(json.loads(json.dumps(options.jsonable(_station(mjcf, seed)))))
            print(json.dumps(rows[-1]), file=kept, flush=True)
            advance()
    return {"evidence": "sim-to-sim", "rows": rows}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| model | stations | planted | named | in the 90 % interval | others named | "
        "held-out error [mrad]: did as told, nominal, fitted | seconds (CPU) |",
        "|---" * 8 + "|",
    ]
    for model in dict.fromkeys(r["model"] for r in result["rows"]):
        rows = [r for r in result["rows"] if r["model"] == model]
        planted, named, holds, others = (
            sum(len(r[k]) for r in rows) for k in ("true", "named", "holds", "others")
        )
        errors = np.mean([list(r["error_by_joint"].values()) for r in rows], axis=(0, 1)) * 1e3
        lines.append(
            f"| {model} | {len(rows)} | {planted} | {named} | {holds} | {others} | "
            f"{', '.join(f'{e:.1f}' for e in errors)} | {np.mean([r['cpu_s'] for r in rows]):.0f} |"
        )
    return "\n".join(lines)
