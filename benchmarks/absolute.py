"""Which faults absolute tests name, from which size on, and what they say of clean recordings.

Faults of every kind are put between the recording loop and the bus of emulated arms, and into
copies of real logs in the folder that `--data` names. In emulated arms a fault is named where a
finding of its kind is about the right joint. Real logs carry faults of their own: there it counts
where the same recording, as it was, has no such finding, or one that is smaller by about what was
put in. The limits in `datasets/absolute` come from a Piper and OpenMANIPULATORs: a Piper's clean
figures are in-sample, and marked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.bench import BenchConfig
from benchmarks.emulated_episodes import Between, record
from gaploop.core.files import read_json, write_json
from gaploop.core.statistics import percent, rate
from gaploop.core.types import FloatArray
from gaploop.datasets.absolute import arm
from gaploop.datasets.absolute.arm_findings import ArmTests
from gaploop.datasets.absolute.findings import Report
from gaploop.datasets.absolute.recording import Episode, Joint, Recording, read_recording
from gaploop.datasets.layout import DatasetInfo

ARMS: Final = ("so101", "koch")
EPISODES: Final = 10
SECONDS: Final = 8.0
FPS: Final = 30.0
SETS: Final = 20


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and how it is put into commands on their way or readings on theirs.

    Attributes:
        finding: kinds that name it rightly.
        put: values of one episode, shape (n, joints), joint, size, share of the session that has
            passed, frames a second and randomness to changed values.
        on: "sent" or "read".
    """

    finding: tuple[str, ...]
    unit: str
    sizes: tuple[float, ...]
    put: Callable[[FloatArray, int, float, float, float, np.random.Generator], FloatArray]
    on: str = "sent"


def _changed(values: FloatArray, joint: int, column: FloatArray) -> FloatArray:
    out = values.copy()
    out[:, joint] = column
    return out


def _late(x: FloatArray, j: int, ms: float, _s: float, fps: float, _r: Any) -> FloatArray:
    k = np.arange(len(x))
    return _changed(x, j, np.interp(k - ms / 1e3 * fps, k, x[:, j]))


def _play(x: FloatArray, j: int, width: float, _s: float, _f: float, _r: Any) -> FloatArray:
    return _changed(x, j, arm.play(x[:, [j]], np.array([width]))[0, :, 0])


def _reversed(x: FloatArray, j: int, _size: float, _s: float, _f: float, _r: Any) -> FloatArray:
    return _changed(x, j, -x[:, j])


def _swapped(x: FloatArray, j: int, _size: float, _s: float, _f: float, _r: Any) -> FloatArray:
    other = (j + 1) % 5
    out = x.copy()
    out[:, [j, other]] = x[:, [other, j]]
    return out


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
    "delay of one joint": Fault(("joint_delay",), "ms", (30, 45, 60), _late),
    "dead band at reversals": Fault(("dead_band",), "°", (1.5, 2.0, 3.0), _play),
    "offset at rest": Fault(
        ("offset",), "°", (2.0, 3.0, 5.0),
        lambda x, j, size, *_: _changed(x, j, x[:, j] + size),
    ),
    "gain": Fault(
        ("gain",), "%", (10, 15, 20),
        lambda x, j, size, *_: _changed(x, j, x[:, j] * (1 - size / 100)),
    ),
    "drift over the session": Fault(
        ("drift",), "°", (2.0, 3.0),
        lambda x, j, size, share, *_: _changed(x, j, x[:, j] + size * share),
    ),
    "zero changes midway": Fault(
        ("zero_change",), "°", (3.0, 5.0),
        lambda x, j, size, share, *_: _changed(x, j, x[:, j] + size * (share > 0.5)),
    ),
    "reversed joint": Fault(("reversed_joint",), "", (1.0,), _reversed),
    "swapped joints": Fault(("swapped_joints",), "", (1.0,), _swapped),
    "stops at a limit": Fault(
        ("clipped_joint",), "° beyond", (5.0, 10.0),
        lambda x, *_: x,  # below the largest command, which all episodes together tell
    ),
    "speed limit": Fault(("speed_limit",), "°/s", (45.0, 30.0), _slow),
    "dead joint": Fault(
        ("dead_joint",), "", (1.0,), lambda x, j, *_: _changed(x, j, np.full(len(x), x[0, j])),
    ),
    "repeated rows": Fault(("repeats",), "%", (1.0, 3.0), _repeats, "read"),
    "coarse steps": Fault(
        ("quantum",), "°", (0.35,),
        lambda x, j, size, *_: _changed(x, j, np.round(x[:, j] / size) * size), "read",
    ),
    "noise at rest": Fault(
        ("noise",), "°", (0.15, 0.3),
        lambda x, j, size, _s, _f, r: _changed(x, j, x[:, j] + r.normal(0, size, len(x))), "read",
    ),
}  # fmt: skip


def recording(
    names: Sequence[str], made: Sequence[tuple[FloatArray, FloatArray]], fps: float
) -> Recording:
    """Return episodes as a recording, as if read from a plain dataset."""
    feature = {"dtype": "float32", "shape": (len(names),), "names": [f"{n}.pos" for n in names]}
    features = {"action": feature, "observation.state": feature}
    info = DatasetInfo(Path("made"), fps, features, "", len(made), sum(len(u) for u, _ in made))
    joints = tuple(Joint(n, k, k, 1.0, "grip" in n) for k, n in enumerate(names))
    episodes = tuple(Episode(i, u, y) for i, (u, y) in enumerate(made))
    return Recording(info, {e.index: len(e.command) for e in episodes}, joints, episodes)


def report(of: Recording) -> Report:
    """Run the arm's tests."""
    found = Report(of.info.root)
    ArmTests(of, found).run()
    found.rank()
    return found


def _named(found: Report, fault: Fault, name: str) -> bool:
    return any(
        f.kind in fault.finding and (name in f.about.split(", ") or not f.about)
        for f in found.findings
    )


def _emulated(model: str, fault: Fault, size: float, seed: int) -> tuple[bool, list[str]]:
    """Put a fault into one set on the bus; return whether it was named, and what else was."""
    rng = np.random.default_rng(seed)
    joint = int(rng.integers(0, 5))
    sign = float(rng.choice([-1.0, 1.0])) if fault.unit in ("°",) and fault.on == "sent" else 1.0
    size = sign * size if fault.finding[0] in ("offset", "drift", "zero_change") else size

    def put(values: FloatArray, episode: int) -> FloatArray:
        return fault.put(values, joint, size, episode / (EPISODES - 1), FPS, rng)

    between = Between(sent=put) if fault.on == "sent" else Between(read=put)
    if fault.finding == ("clipped_joint",):  # one limit for all: commands are known beforehand
        _, clean = record(model, seed, episodes=EPISODES, seconds=SECONDS, fps=FPS)
        top = max(float(u[:, joint].max()) for u, _ in clean) - size
        between = Between(sent=lambda x, _e: _changed(x, joint, np.minimum(x[:, joint], top)))
    names, made = record(model, seed, episodes=EPISODES, seconds=SECONDS, fps=FPS, between=between)
    found = report(recording(names, made, FPS))
    wrong = [f.kind for f in found.findings if f.kind not in fault.finding]
    return _named(found, fault, names[joint]), wrong


def _in_real(of: Recording, fault: Fault, size: float, seed: int) -> bool | None:
    """Put a fault into some episodes of a real log; None where no joint moves enough."""
    rng = np.random.default_rng(seed)
    count = min(EPISODES, len(of.episodes))
    chosen = sorted(rng.choice(len(of.episodes), count, replace=False).tolist())
    plain = replace(of, episodes=tuple(of.episodes[k] for k in chosen))
    moves = [
        k for k in of.arm
        if np.median([np.ptp(e.command[:, k]) for e in plain.episodes]) > 2 * arm.MOVES_DEG
    ]  # fmt: skip
    if len(moves) < 2:
        return None
    joint = int(rng.choice(moves))
    top = max(float(e.reading[:, joint].max()) for e in plain.episodes)

    def put(values: FloatArray, n: int) -> FloatArray:
        share = n / max(count - 1, 1)
        if fault.finding == ("clipped_joint",):
            return _changed(values, joint, np.minimum(values[:, joint], top - size))
        if fault.finding == ("swapped_joints",):
            other = moves[(moves.index(joint) + 1) % len(moves)]
            out = values.copy()
            out[:, [joint, other]] = values[:, [other, joint]]
            return out
        return fault.put(values, joint, size, share, of.info.fps, rng)

    planted = replace(
        plain,
        episodes=tuple(replace(e, reading=put(e.reading, n)) for n, e in enumerate(plain.episodes)),
    )
    name = of.joints[joint].name
    before, after = report(plain), report(planted)
    if not _named(after, fault, name):
        return False
    if not _named(before, fault, name):
        return True
    was, now = (
        max((abs(f.estimate.value) for f in r.findings if f.kind in fault.finding), default=0.0)
        for r in (before, after)
    )
    return now - was > 0.5 * size


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Put faults of every kind and size into emulated arms and real logs; count what is named."""
    sets = config.n or SETS
    rows = []
    real = _real_logs(config.data, folder) if config.data else {}
    chosen = {k: f for k, f in FAULTS.items() if not config.tasks or k in config.tasks}
    for kind, fault in chosen.items():
        for size in fault.sizes:
            row: dict[str, Any] = {"kind": kind, "size": size, "unit": fault.unit}
            for model in ARMS:
                named = [_emulated(model, fault, size, config.seed + 1000 + n) for n in range(sets)]
                row[model] = [sum(hit for hit, _ in named), sets]
                row[f"{model}_beside"] = sum(len(wrong) for _, wrong in named)
            for name, log in real.items():
                hits = [_in_real(log, fault, size, config.seed + n) for n in range(sets)]
                known = [h for h in hits if h is not None]
                row[name] = [sum(known), len(known)]
            rows.append(row)
    clean = {}
    for model in ARMS:
        alarms = []
        for n in range(sets):
            names, made = record(
                model, config.seed + 5000 + n, episodes=EPISODES, seconds=SECONDS, fps=FPS
            )
            alarms.append(sorted({f.kind for f in report(recording(names, made, FPS)).findings}))
        clean[model] = alarms
    for name, log in real.items():
        clean[name] = [sorted({f.kind for f in report(log).findings})]
    return {"sets": sets, "rows": rows, "clean": clean, "real": list(real)}


def _real_logs(data: Path, folder: Path) -> dict[str, Recording]:
    """Read joints of the LeRobot datasets below a folder; those of v2.1 are found alike."""
    logs = {}
    for path in sorted(data.rglob("meta/info.json")):
        root = folder / path.parent.parent.name
        shutil.copytree(path.parent.parent / "data", root / "data", dirs_exist_ok=True)
        (root / "meta").mkdir(exist_ok=True)
        kept = {k: v for k, v in read_json(path).items() if "_path" not in k}
        write_json(root / "meta/info.json", {**kept, "codebase_version": "v3.0"})
        logs[root.name] = read_recording(root)
    return logs


def table(result: Mapping[str, Any]) -> str:
    """As printed: per kind and size, how many were named, emulated and real side by side."""
    columns = [*ARMS, *result["real"]]
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
    return "\n".join(lines)
