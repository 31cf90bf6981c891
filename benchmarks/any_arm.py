"""`benchmarks any_arm`: drives planted into arms by their MJCF files, and whether they are found.

Each station is an arm with one fault of its drives, none, or a delay and the faults of two joints;
it is recorded as LeRobot would, at 30 frames a second, and identified by its file alone. Printed:
what was named, how often a 90 % interval holds the true value, errors on held-out motion.
Sim-to-sim: fit and station share one model.
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
from gaploop.sim.identification.drives import fit_drives
from gaploop.sim.identification.open_loop import DriveLog, OpenLoopArm, ServoArm

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

FPS: Final = 30
STEP_RAD: Final = 0.0015
"""Steps of the readings [rad]."""
FAULTS: Final[Mapping[str, tuple[float, float]]] = {
    "speed_limit_rad_s": (0.3, 1.0), "gain_factor": (0.03, 0.15), "backlash_rad": (0.03, 0.08),
    "torque_factor": (0.05, 0.15), "friction_nm": (0.02, 0.05),
    "acceleration_limit_rad_s2": (1.5, 4.0),
}  # fmt: skip
"""Of one joint; friction as the angle [rad] by which its servo stays behind."""
DELAYS_S: Final = (0.06, 0.15, 0.27)
TWO: Final = "a delay and two joints"
OFF: Final = ", masses off"
"""A station whose masses differ from the file's by up to `OFF_BY`, which nothing here fits."""
OFF_BY: Final = 0.15
LATE: Final = {f"{s * 1e3:.0f} ms": s for s in DELAYS_S}
KINDS: Final = ("nominal", *LATE, *FAULTS, TWO, *(k + OFF for k in ("nominal", *LATE)))


def models() -> list[Path]:
    """Return the model files of arms that are installed here."""
    import gaploop.core.arms as arms
    from gaploop.core.arm import ModelFile

    nexus = ModelFile("so101_nexus", "assets/SO101/so101_new_calib.xml", "pip install so101-nexus")
    return [Path(arms.__file__).parent / "openmanipulator.xml", nexus.find("SO-101")]


def planted_take(
    mjcf: Path, planted: Mapping[str, Any], seed: int, seconds: float = 8.0, off_by: float = 0.0
) -> Take:
    """Return frames of an arm with these drives: goals as a person might send them, readings.

    Masses differ from the file's by up to the share `off_by`, the same ones in all takes.
    """
    arm, rng = ServoArm(mjcf), np.random.default_rng(seed)
    shares = 1.0 + off_by * np.random.default_rng(0).uniform(-1, 1, arm.model.nbody)
    arm.model.body_mass *= shares
    arm.model.body_inertia *= shares[:, None]
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


def _planted(kind: str, mjcf: Path, seed: int) -> dict[str, dict[str, float]]:
    """Draw the faults of a station of this kind."""
    arm, rng = ServoArm(mjcf), np.random.default_rng([seed, KINDS.index(kind)])
    late_s = LATE.get(kind.removesuffix(OFF), 0.0)
    faults = [kind] if kind in FAULTS else []
    if kind == TWO:
        late_s, faults = float(rng.uniform(0.03, 0.15)), list(rng.choice(list(FAULTS), 2, False))
    drives = dict[str, float]()
    for joint, fault in zip(rng.choice(arm.joint_names, len(faults), False), faults, strict=True):
        value = float(rng.uniform(*FAULTS[fault]))
        if fault == "friction_nm":
            servo = arm.model.actuator(joint)
            value *= servo.gainprm[0]
            value = min(value, 3.0, 0.3 * (float(servo.forcerange[1]) or np.inf))
        drives[f"{joint}.{fault}"] = value
    late = {"actuator_response.latency": {"latency_s": late_s}} if late_s else {}
    return late | ({"actuator_response.drives": drives} if drives else {})


def _station(kind: str, mjcf: Path, seed: int) -> dict[str, Any]:
    planted = _planted(kind, mjcf, seed)
    off_by = OFF_BY if kind.endswith(OFF) else 0.0
    takes = [planted_take(mjcf, planted, 100 * seed + k, off_by=off_by) for k in range(2)]
    began_s, true = time.process_time(), {k: v for p in planted.values() for k, v in p.items()}
    found = fit_drives(takes, ServoArm(mjcf))
    by_key = {p.key: p for p in found.parameters if p.name.startswith("actuator_response")}
    return {
        "kind": kind, "model": mjcf.stem, "seed": seed, "true": true,
        "named": [k for k in true if by_key[k].differs],
        "others": [p.key for p in by_key.values() if p.differs and p.key not in true],
        "holds": [k for k in true if by_key[k].interval[0] <= true[k] <= by_key[k].interval[1]],
        "error_by_joint": found.fit["error_by_joint"],
        "cut_short": found.fit["cut_short"], "cpu_s": time.process_time() - began_s,
    }  # fmt: skip


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Identify `n` stations of each kind and model; those that the folder holds aren't done again.

    Models in the folder `config.data` are taken instead of those that come with packages.
    """
    file = folder / "arms.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    files = sorted(config.data.glob("*.xml")) if config.data else models()
    work = [(k, m, config.seed + n) for n in range(config.n or 1) for k in KINDS for m in files]
    with options.progress("Identifying", len(work)) as advance, file.open("a") as kept:
        advance(len(rows))
        for station in work[len(rows) :]:
            rows.append(json.loads(json.dumps(options.jsonable(_station(*station)))))
            print(json.dumps(rows[-1]), file=kept, flush=True)
            advance()
    return {"evidence": "sim-to-sim", "rows": rows}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as a Markdown table; right is what names all that is planted, no more."""
    lines = [
        "| planted | stations | right | with others named | faults: planted, named, in the 90 % "
        "interval | held-out error [mrad]: did as told, nominal, fitted | seconds (CPU) |",
        "|---" * 7 + "|",
    ]
    for kind in (*dict.fromkeys(r["kind"] for r in result["rows"]), "all"):
        rows = [r for r in result["rows"] if kind in (r["kind"], "all")]
        planted, named, holds = (sum(len(r[k]) for r in rows) for k in ("true", "named", "holds"))
        right = sum(len(r["named"]) == len(r["true"]) and not r["others"] for r in rows)
        errors = np.mean([np.mean(list(r["error_by_joint"].values()), 0) for r in rows], 0) * 1e3
        lines.append(
            f"| {kind} | {len(rows)} | {right} | {sum(bool(r['others']) for r in rows)} | "
            f"{planted}, {named}, {holds} | {', '.join(f'{e:.1f}' for e in errors)} | "
            f"{np.mean([r['cpu_s'] for r in rows]):.0f} |"
        )
    return "\n".join(lines)
