"""`benchmarks identify`: what identification finds at hidden stations, from ordinary takes.

Stations are the embedded cell with gaps of the drives: mechanisms that were tuned on, the one held
out, those that nobody was told of, pairs, and none. Each records scripted demonstrations without
pictures and, where the drives let it, what comes of them; identification sees goals and readings.
Printed: whether the right mechanism is named first, and the error of its parameters; how often a
90 % interval holds the true value; what is named where nothing differs; the open-loop error on
held-out motion; seconds. Sim-to-sim.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.messages import FloatArray, Tick
from gaploop.core.take import TakeInfo
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.core.take import Take
    from gaploop.core.twin import TwinParameter

TAKES: Final = 3
MAX_S: Final = 10.0
FIRST_SEED: Final = 5000
"""Stations with smaller seeds were used while the method was made."""
KINDS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "shown": (("latency",), ("backlash",), ("weak",)),
    "held out": (("slow",),),
    "blind": (("torque_limit",), ("deaf_joint",)),
    "pair": (
        ("latency", "backlash"), ("latency", "weak"), ("latency", "slow"), ("backlash", "weak"),
        ("backlash", "slow"), ("weak", "slow"), ("weak", "torque_limit"),
    ),
    "nominal": ((),),
}  # fmt: skip
SEVERITIES: Final = (0.3, 0.9)
NAMED_AS: Final = {"torque_limit": ("drives", {"torque_factor": "torque_factor"})}
"""Mechanisms that are measured by other names; the others by their own."""


class _Motion:
    """A sink of the control loop that keeps goals and readings."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, FloatArray, FloatArray]] = []

    def tick(self, tick: Tick) -> None:
        self.rows.append((tick.t_s, tick.command.sent_rad.copy(), tick.state.position_rad.copy()))


def motion_takes(gaps: Mapping[str, float], seed: int, n: int = TAKES) -> tuple[list[Take], Any]:
    """Return scripted demonstrations of a station, without pictures, and its injected gaps."""
    from gaploop.collect.rig import embedded_rig
    from gaploop.collect.take import run_take
    from gaploop.core.take import Frames, Take
    from gaploop.core.telemetry import Telemetry

    rig = replace(embedded_rig(gaps=gaps, gap_seed=seed), cameras=(), tracker=None)
    joints, takes = rig.follower.joint_names, []
    header = replace(rig, cameras=()).header(TakeInfo("", "move the cube"))
    rig.reset(seed)
    leader = rig.scripted_leader(seed)
    for k in range(n):
        motion = _Motion()
        result = run_take(rig, leader, seed=seed + k, max_s=MAX_S, sinks=(motion,))
        times, sent, read = (np.array(values) for values in zip(*motion.rows, strict=True))
        columns = {
            f"follower.{joint}.{name}": values[:, j]
            for name, values in (("sent_rad", sent), ("position_rad", read))
            for j, joint in enumerate(joints)
        }
        info = replace(header.info, uid=f"{seed}-{k}")
        takes.append(
            Take(info, result.outcome, Frames.empty(), Telemetry(times - times[0], columns))
        )
    injected = rig.cell.injected
    rig.close()
    return takes, injected


def as_lerobot(take: Take) -> Take:
    """Return a take as a plain LeRobot dataset holds it: action and state, a frame each 20 ms."""
    from gaploop.core.take import Frames
    from gaploop.core.telemetry import Telemetry
    from gaploop.sim.catalogue import to_degrees

    rows = slice(None, None, 2)
    sent, read = (
        to_degrees(take.telemetry.stack("follower", name)[rows])
        for name in ("sent_rad", "position_rad")
    )
    flags = np.zeros(len(sent), dtype=np.int64)
    frames = Frames(
        take.telemetry.t_s[rows], read, sent, sent, np.empty((len(sent), 0)),
        flags.astype(bool), flags,
    )  # fmt: skip
    return replace(take, frames=frames, telemetry=Telemetry(np.empty(0), {}))


def _stations(n: int, seed: int) -> Iterator[tuple[str, tuple[str, ...], dict[str, float], int]]:
    """Yield kind, mechanisms, gaps and seed of each station; `n` of each kind, nominal twice."""
    for kind, sets in KINDS.items():
        for k in range(2 * n if kind == "nominal" else n):
            rng = np.random.default_rng([seed, len(kind), k])
            names = sets[k % len(sets)]
            gaps = {f"actuator_response.{m}": float(rng.uniform(*SEVERITIES)) for m in names}
            yield kind, names, gaps, FIRST_SEED + seed + 100 * k + len(kind)


def _truth(injected: Any) -> dict[str, float]:
    """Return what was injected, by the names that it is measured by."""
    true = {}
    for gap in injected:
        mechanism, names = NAMED_AS.get(gap.mechanism, (gap.mechanism, {}))
        for name, value in gap.parameters.items():
            true[f"{gap.dimension}.{mechanism}.{names.get(name, name)}"] = float(value)
    return true


def _station(
    names: tuple[str, ...], gaps: dict[str, float], seed: int, frames: bool
) -> dict[str, Any]:
    from gaploop.sim.catalogue import SO101
    from gaploop.sim.identification.drives import fit_drives

    takes, injected = motion_takes(gaps, seed)
    if frames:
        takes = [as_lerobot(take) for take in takes]
    began_s, used_s = time.perf_counter(), time.process_time()
    found = fit_drives(takes, SO101)
    true, parameters = _truth(injected), found.parameters
    differs = [p for p in parameters if p.differs]
    wanted = {key.rpartition(".")[0] for key in true}
    named = {p.mechanism for p in differs if not p.joint}
    return {
        "names": list(names),
        "frames": frames,
        "right": wanted <= named,
        "only": wanted == {p.mechanism for p in differs},
        "differs": [[p.name, p.joint, p.estimate, list(p.interval)] for p in differs],
        "true": true,
        "scores": [_score(p, true[p.name]) for p in parameters if not p.joint and p.name in true],
        "holds": [
            _holds(p, true.get(p.name, p.nominal) if not p.joint else p.nominal)
            for p in parameters
            if p.excited and "encoder" not in p.name
        ],
        "before_rad": found.fit["open_loop_error_before"],
        "after_rad": found.fit["open_loop_error_after"],
        "explained": found.fit["explained"],
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - used_s,
    }


def _score(p: TwinParameter, true: float) -> dict[str, Any]:
    change = abs(true - p.nominal) if np.isfinite(p.nominal) else true
    return {
        "name": p.name,
        "excited": p.excited,
        "named": p.differs,
        "error": abs(p.estimate - true) / change if p.differs else None,
        "holds": _holds(p, true) if p.excited else None,
    }


def _holds(p: TwinParameter, true: float) -> bool:
    return bool(p.interval[0] <= true <= p.interval[1])


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Identify stations, from telemetry and then from LeRobot's columns alone.

    Stations that the folder holds already aren't done again.
    """
    n, file = config.n or 8, folder / "stations.jsonl"
    work = [
        (frames, kind, names, gaps, seed)
        for frames in (False, True)
        for kind, names, gaps, seed in _stations(n, config.seed)
    ]
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    with options.progress("Identifying", len(work)) as advance, file.open("a") as kept:
        advance(len(rows))
        for frames, kind, names, gaps, seed in work[len(rows) :]:
            row = {"kind": kind, "seed": seed, **_station(names, gaps, seed, frames)}
            rows.append(json.loads(json.dumps(options.jsonable(row))))
            print(json.dumps(rows[-1]), file=kept, flush=True)
            advance()
    return {"evidence": "sim-to-sim", "takes": TAKES, "n": n, "rows": rows}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown tables."""
    lines = [
        f"{result['takes']} scripted demonstrations a station, sim-to-sim; stations that nothing "
        "was tuned on.",
    ]
    for frames, title in ((False, "telemetry"), (True, "LeRobot's columns only")):
        lines += ["", f"### {title}", ""]
        lines += [
            "| stations | n | mechanism named | nothing else | parameter error, median (worst) | "
            "true values of injected in 90 % intervals | of all excited | "
            "held-out error before → after [mrad] | seconds (CPU) |",
            "|---" * 9 + "|",
        ]
        for kind in KINDS:
            rows = [r for r in result["rows"] if (r["kind"], r["frames"]) == (kind, frames)]
            if not rows:
                continue
            scores = [s for r in rows for s in r["scores"]]
            errors = [s["error"] for s in scores if s["error"] is not None]
            holds = [s["holds"] for s in scores if s["holds"] is not None]
            every = [h for r in rows for h in r["holds"]]
            error = f"{np.median(errors):.1%} ({max(errors):.0%})" if errors else "–"
            held = f"{sum(holds)}/{len(holds)}" if holds else "–"
            right = sum(r["right"] for r in rows)
            named = f"{right}/{len(rows)}" if kind != "nominal" else "–"
            before, after = (
                1e3 * np.mean([r[f"{when}_rad"] for r in rows]) for when in ("before", "after")
            )
            lines.append(
                f"| {kind} | {len(rows)} | {named} | {sum(r['only'] for r in rows)}/{len(rows)} | "
                f"{error} | {held} | {np.mean(every):.1%} of {len(every)} | {before:.2f} → "
                f"{after:.2f} | {np.mean([r['wall_s'] for r in rows]):.0f} "
                f"({np.mean([r['cpu_s'] for r in rows]):.0f}) |"
            )
    return "\n".join(lines)
