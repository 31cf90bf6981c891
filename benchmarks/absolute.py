"""Which faults absolute tests name, from which size on, and what they say of clean recordings.

Faults of every kind are put into emulated arms on their bus (what they are sent, their drives,
their stops), and into copies of real logs in the folder that `--data` names; ten episodes a set. A
fault is named where a finding of its kind is about the right joint and wasn't there before, or is
larger by about what was put in: real logs carry faults of their own. The limits in
`datasets/absolute` come from a Piper and OpenMANIPULATORs: where the Piper's logs are measured,
they are in-sample. What was recorded stays in the output folder, and is used again.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.bench import BenchConfig
from benchmarks.emulated_episodes import record
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import FloatArray
from gaploop.core.statistics import percent, rate
from gaploop.datasets.absolute import joint_fits
from gaploop.datasets.absolute.arm_findings import ArmTests
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.recording import (
    MotionRecording,
    read_recording,
    recording_of,
)
from gaploop.teleop.emulator.joint import Joint

ARMS: Final = ("so101", "koch")
IN_READINGS: Final = ("speed limit", "repeated rows", "coarse steps", "noise at rest")
"""Put into readings of emulated arms, too: encoders and packets, which the emulator hasn't got."""
EPISODES: Final = 10
SECONDS: Final = 6.0
FPS: Final = 30.0
SETS: Final = 20


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and how it is put into readings.

    Attributes:
        finding: kinds that name it rightly.
        put: readings of one episode, shape (n, joints), joint, size, share of the session that has
            passed, frames a second and randomness to changed readings.
        is_signed: it may go either way.
        sent: on an emulated arm commands are changed so before they reach the bus, instead.
        servo: or its joint is: size, half of what its commands span [deg].
    """

    finding: tuple[str, ...]
    unit: str
    sizes: tuple[float, ...]
    put: Callable[[FloatArray, int, float, float, float, np.random.Generator], FloatArray]
    is_signed: bool = False
    sent: Callable[[FloatArray, int, float, float, float], FloatArray] | None = None
    servo: Callable[[Joint, float, float], None] | None = None


def _stick(joint: Joint, width_deg: float, _half_deg: float) -> None:
    """Add friction until the drive's error is `width_deg` larger from side to side."""
    added = joint.gain * joint.motor.stall_nm * math.radians(width_deg) / 2
    joint.motor = replace(joint.motor, friction_nm=joint.motor.friction_nm + added)


def _stop(joint: Joint, below_deg: float, half_deg: float) -> None:
    joint.high_rad = (joint.low_rad + joint.high_rad) / 2 + math.radians(half_deg - below_deg)


def _hang(joint: Joint, _size: float, _half_deg: float) -> None:
    joint.stuck = True


def _changed(values: FloatArray, joint: int, column: FloatArray) -> FloatArray:
    out = values.copy()
    out[:, joint] = column
    return out


def _late(x: FloatArray, j: int, ms: float, _s: float, fps: float, _r: Any) -> FloatArray:
    k = np.arange(len(x))
    return _changed(x, j, np.interp(k - ms / 1e3 * fps, k, x[:, j]))


def _play(x: FloatArray, j: int, width: float, _s: float, _f: float, _r: Any) -> FloatArray:
    return _changed(x, j, joint_fits.play(x[:, [j]], np.array([width]))[0, :, 0])


def _reversed(x: FloatArray, j: int, _size: float, _s: float, _f: float, _r: Any) -> FloatArray:
    return _changed(x, j, -x[:, j])


def _slow(x: FloatArray, j: int, deg_s: float, _s: float, fps: float, _r: Any) -> FloatArray:
    out, now = x[:, j].copy(), x[0, j]
    for k, goal in enumerate(x[:, j]):
        now += np.clip(goal - now, -deg_s / fps, deg_s / fps)
        out[k] = now
    return _changed(x, j, out)


def _repeats(x: FloatArray, _j: int, share: float, _s: float, _f: float, r: Any) -> FloatArray:
    out = x.copy()
    for k in np.flatnonzero(r.random(len(x)) < share / 100):
        if k:
            out[k] = out[k - 1]
    return out


FAULTS: Final[Mapping[str, Fault]] = {
    "delay of one joint": Fault(
        ("joint_delay",), "ms", (30, 45, 60), _late,
        sent=lambda u, j, ms, _share, fps: _late(u, j, ms, 0.0, fps, None),
    ),
    "dead band at reversals": Fault(("dead_band",), "°", (1.5, 2.0, 3.0), _play, servo=_stick),
    "offset at rest": Fault(
        ("offset",), "°", (3.0, 5.0),
        lambda x, j, size, *_: _changed(x, j, x[:, j] + size), True,
        sent=lambda u, j, size, *_: _changed(u, j, u[:, j] + size),
    ),
    "gain": Fault(
        ("gain",), "%", (10, 15, 20),
        lambda x, j, size, *_: _changed(x, j, x[:, j] * (1 - size / 100)),
        sent=lambda u, j, size, *_: _changed(u, j, u[:, j] * (1 - size / 100)),
    ),
    "drift over the session": Fault(
        ("drift",), "°", (2.0, 3.0),
        lambda x, j, size, share, *_: _changed(x, j, x[:, j] + size * share), True,
        sent=lambda u, j, size, share, _fps: _changed(u, j, u[:, j] + size * share),
    ),
    "zero changes midway": Fault(
        ("zero_change",), "°", (3.0, 5.0),
        lambda x, j, size, share, *_: _changed(x, j, x[:, j] + size * (share > 0.5)), True,
        sent=lambda u, j, size, share, _fps: _changed(u, j, u[:, j] + size * (share > 0.5)),
    ),
    "reversed joint": Fault(
        ("reversed_joint",), "", (1.0,), _reversed,
        sent=lambda u, j, *_: _changed(u, j, -u[:, j]),
    ),
    "swapped joints": Fault(("swapped_joints",), "", (1.0,), lambda x, *_: x),
    "stops at a limit": Fault(
        ("clipped_joint",), "° below", (10.0, 5.0),
        lambda x, *_: x,  # below the largest command, which all episodes together tell
        servo=_stop,
    ),
    "speed limit": Fault(("speed_limit",), "°/s", (45.0, 30.0), _slow),
    "dead joint": Fault(
        ("dead_joint",), "", (1.0,), lambda x, j, *_: _changed(x, j, np.full(len(x), x[0, j])),
        servo=_hang,
    ),
    "repeated rows": Fault(("repeats",), "%", (1.0, 3.0), _repeats),
    "coarse steps": Fault(
        ("quantum",), "°", (0.35,),
        lambda x, j, size, *_: _changed(x, j, np.round(x[:, j] / size) * size),
    ),
    "noise at rest": Fault(
        ("noise",), "°", (0.15, 0.3),
        lambda x, j, size, _s, _f, r: _changed(x, j, x[:, j] + r.normal(0, size, len(x))),
    ),
}  # fmt: skip


def report(of: MotionRecording) -> AbsoluteReport:
    """Run the arm's tests."""
    found = AbsoluteReport(of.info.root)
    ArmTests(of, found).run()
    found.rank()
    return found


def _named(found: AbsoluteReport, fault: Fault, name: str) -> bool:
    return any(
        f.kind in fault.finding and (name in f.about.split(", ") or not f.about)
        for f in found.findings
    )


class _ById:
    """A recording as a key: by which object it is."""

    def __init__(self, log: MotionRecording) -> None:
        self.log = log

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.log is self.log

    def __hash__(self) -> int:
        return id(self.log)


@cache
def _before(of: _ById, chosen: tuple[int, ...]) -> AbsoluteReport:
    return report(replace(of.log, episodes=tuple(of.log.episodes[k] for k in chosen)))


def _chosen(of: MotionRecording, rng: np.random.Generator) -> tuple[int, int] | None:
    """Draw a joint that moves, and another; None where too few do."""
    moves = [
        k for k in of.arm
        if np.median([np.ptp(e.command[:, k]) for e in of.episodes]) > 2 * joint_fits.MOVES_DEG
    ]  # fmt: skip
    if len(moves) < 2:
        return None
    joint = int(rng.choice(moves))
    return joint, moves[(moves.index(joint) + 1) % len(moves)]


def _is_new(
    before: AbsoluteReport, after: AbsoluteReport, fault: Fault, size: float, name: str
) -> tuple[bool, list[str]]:
    """Say whether a fault is named, or larger by about its size, and what is said beside it."""
    beside = sorted({f.kind for f in after.findings} - {f.kind for f in before.findings})
    beside = [kind for kind in beside if kind not in fault.finding]
    if not _named(after, fault, name) or not _named(before, fault, name):
        return _named(after, fault, name), beside
    was, now = (
        max((abs(f.estimate.value) for f in r.findings if f.kind in fault.finding), default=0.0)
        for r in (before, after)
    )
    return bool(now - was > 0.5 * size), beside


def _kept(file: Path, model: str, seed: int, **faults: Any) -> MotionRecording:
    """Record on an emulated arm, unless a run before did; see `record`."""
    if not file.exists():
        names, made = record(
            model, seed + 1000, episodes=EPISODES, seconds=SECONDS, fps=FPS, **faults
        )
        np.savez_compressed(file, made=np.array(made), names=names)
    kept = np.load(file)
    return recording_of(kept["names"].tolist(), [(u, y) for u, y in kept["made"]], FPS)


def _on_the_bus(
    of: MotionRecording, model: str, kind: str, size: float, seed: int, folder: Path
) -> tuple[bool, list[str]] | None:
    """Record the same motion on an emulated arm with a fault; what is recorded is kept."""
    fault, rng = FAULTS[kind], np.random.default_rng(seed)
    if (drawn := _chosen(of, rng)) is None:
        return None
    joint, other = drawn
    signed = size * (rng.choice([-1.0, 1.0]) if fault.is_signed else 1.0)
    name = of.joints[joint].name

    def sent(u: FloatArray, episode: int) -> FloatArray:
        if fault.finding == ("swapped_joints",):
            out = u.copy()
            out[:, [joint, other]] = u[:, [other, joint]]
            return out
        if fault.sent is None:
            return u
        return fault.sent(u, joint, signed, episode / (EPISODES - 1), FPS)

    def prepare(joints: Mapping[str, Joint]) -> None:
        if fault.servo is not None:
            top = max(float(e.command[:, joint].max()) for e in of.episodes)
            fault.servo(joints[name], size, top)

    file = folder / f"{model} {kind} {size:g} {seed}.npz"
    after = report(_kept(file, model, seed, sent=sent, prepare=prepare))
    return _is_new(_before(_ById(of), tuple(range(len(of.episodes)))), after, fault, size, name)


def _planted(
    of: MotionRecording, fault: Fault, size: float, seed: int
) -> tuple[bool, list[str]] | None:
    """Put a fault into at most ten episodes' readings; as `_on_the_bus`."""
    rng = np.random.default_rng(seed)
    count = min(EPISODES, len(of.episodes))
    chosen = sorted(rng.choice(len(of.episodes), count, replace=False).tolist())
    plain = replace(of, episodes=tuple(of.episodes[k] for k in chosen))
    if (drawn := _chosen(plain, rng)) is None:
        return None
    joint, other = drawn
    top = max(float(e.reading[:, joint].max()) for e in plain.episodes)
    signed = size * (rng.choice([-1.0, 1.0]) if fault.unit == "°" and fault.is_signed else 1.0)

    def put(y: FloatArray, n: int) -> FloatArray:
        if fault.finding == ("clipped_joint",):
            return _changed(y, joint, np.minimum(y[:, joint], top - size))
        if fault.finding == ("swapped_joints",):
            out = y.copy()
            out[:, [joint, other]] = y[:, [other, joint]]
            return out
        return fault.put(y, joint, signed, n / max(count - 1, 1), of.info.fps, rng)

    planted = tuple(replace(e, reading=put(e.reading, n)) for n, e in enumerate(plain.episodes))
    before = _before(_ById(of), tuple(chosen))
    return _is_new(
        before, report(replace(plain, episodes=planted)), fault, size, of.joints[joint].name
    )


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Put faults of every kind and size into emulated arms and real logs; count what is named."""
    sets = config.n or SETS
    seeds = range(config.seed, config.seed + sets)
    logs = {m: [_kept(folder / f"{m} {n}.npz", m, n) for n in seeds] for m in ARMS}
    logs |= {name: [log] for name, log in _real_logs(config.data, folder).items()}
    clean = {
        name: [sorted({f.kind for f in report(log).findings}) for log in some]
        for name, some in logs.items()
    }
    chosen = {k: f for k, f in FAULTS.items() if not config.tasks or k in config.tasks}
    rows, beside = list[dict[str, Any]](), Counter[str]()
    for kind, fault in chosen.items():
        for size in fault.sizes[: 1 if config.quick else None]:
            row: dict[str, Any] = {"kind": kind, "size": size, "unit": fault.unit}
            for name, some in logs.items():
                times = sets if name in ARMS else max(1, sets // 2)
                is_bus = name in ARMS and kind not in IN_READINGS
                tried = [
                    _on_the_bus(some[n], name, kind, size, config.seed + n, folder)
                    if is_bus
                    else _planted(some[n % len(some)], fault, size, config.seed + n)
                    for n in range(times)
                ]
                known = [t for t in tried if t is not None]
                row[name] = [sum(hit for hit, _ in known), len(known)]
                beside.update(f"{name}: {k} beside {kind}" for _, more in known for k in more)
            rows.append(row)
            with (folder / "rows.jsonl").open("a") as file:
                print(json.dumps(row), file=file)
    return {"sets": sets, "rows": rows, "clean": clean, "beside": dict(beside)}


def _real_logs(data: Path | None, folder: Path) -> dict[str, MotionRecording]:
    """Read joints of the LeRobot datasets below a folder; those of v2.1 are found alike."""
    logs = {}
    for path in sorted(data.rglob("meta/info.json")) if data is not None else []:
        root = folder / path.parent.parent.name
        shutil.copytree(path.parent.parent / "data", root / "data", dirs_exist_ok=True)
        (root / "meta").mkdir(exist_ok=True)
        kept = {k: v for k, v in read_json(path).items() if "_path" not in k}
        write_json(root / "meta/info.json", {**kept, "codebase_version": "v3.0"})
        logs[root.name] = read_recording(root)
    return logs


def table(result: Mapping[str, Any]) -> str:
    """As printed: per kind and size, how many were named, emulated and real side by side."""
    columns = list(result["clean"])
    lines = [
        "| fault | size | " + " | ".join(columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for row in result["rows"]:
        size = f"{row['size']:g} {row['unit']}" if row["unit"] else "–"
        cells = [f"{a} of {b}" if b else "–" for a, b in (row[c] for c in columns)]
        lines.append(f"| {row['kind']} | {size} | " + " | ".join(cells) + " |")
    for name, alarms in result["clean"].items():
        false = sum(bool(kinds) for kinds in alarms)
        told = sorted({kind for kinds in alarms for kind in kinds})
        share = percent(rate(false, len(alarms)))
        lines.append(f"clean {name}: {false} of {len(alarms)} say something ({share}): {told}")
    beside = [f"{what} ({n})" for what, n in result["beside"].items()]
    return "\n".join([*lines, f"said beside what was put in: {'; '.join(beside) or 'nothing'}"])
