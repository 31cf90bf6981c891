"""`benchmarks loop`: gaploop's teleoperation beside lerobot-teleoperate's, on one emulated pair.

Both run as programs of their own, in turn, several times, on arms that are emulated in two more
processes. Both are measured from outside in the same way: processor time from /proc, the loop's
period and the way from leader to follower by what arrives on the wires. gaploop reads position,
speed, current or load, temperature, voltage and status of twelve servos in every turn;
lerobot-teleoperate reads twelve positions.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.loop_arm import GOAL, PLACE, READ
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.files import write_json
from gaploop.core.messages import FloatArray
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

HZ: Final = 200
PAIRS: Final = ("so101", "koch")
REPEATS: Final = 3
SETTLE_S: Final = 3.0
"""Left out after the first goal [s]: the arm comes to the leader's pose, caches warm up."""
ATTEMPTS: Final = 6
LEAST_S: Final = 5.0
"""A run that broke off is measured if it drove for at least this long [s]."""
START_S: Final = 90.0
"""A program that hasn't sent a goal after this long has failed [s]."""
_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class LoopRun:
    """What one run of one program showed from outside.

    Attributes:
        period_error_s: of each turn [s]: the time between two goals against the nominal one.
        latency_s: of each turn [s]: from the leader's positions asked for to the goals arriving.
        missed: goals fewer than the nominal rate gives.
        turns: goals that came.
        duration_s: over which this was measured [s].
        cpu_s: processor time of the program over that time [s].
        said: what the program says about itself.
        broke: why it ended before its time, or empty.
    """

    period_error_s: FloatArray
    latency_s: FloatArray
    missed: int
    turns: int
    duration_s: float
    cpu_s: float
    said: Mapping[str, Any]
    broke: str = ""


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Run both programs `n` times each (3 unless given) on both pairs, in turn."""
    if config.seconds <= 0:
        raise UnusableInputError(f"--seconds must be above 0, got {config.seconds:g}.")
    repeats = config.n or REPEATS
    pairs: dict[str, Any] = {}
    with options.progress("Driving", len(PAIRS) * repeats * 2) as advance:
        for model in PAIRS:
            runs: dict[str, list[LoopRun]] = {"gaploop": [], "lerobot": []}
            crashes: dict[str, list[str]] = {"gaploop": [], "lerobot": []}
            for _ in range(repeats):
                for program in runs:
                    runs[program].append(
                        _until_seen(program, model, config.seconds, crashes[program])
                    )
                    advance()
            pairs[model] = {**_compare(runs), "crashes": crashes}
            write_json(folder / f"loop_{model}.json", options.jsonable(pairs[model]))
    return {
        "hz": HZ,
        "seconds": config.seconds,
        "repeats": repeats,
        "realtime": _rights(),
        "load_before": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("gaploop", "lerobot", "numpy")},
        "pairs": pairs,
    }


def _rights() -> dict[str, Any]:
    from gaploop.core.clock import realtime_rights

    rights = realtime_rights()
    return {"granted": rights.granted, "hint": rights.hint}


def _until_seen(program: str, model: str, seconds: float, crashes: list[str]) -> LoopRun:
    """Return a run that lasted long enough to be measured; note each that broke off."""
    for _ in range(ATTEMPTS):
        try:
            run = _one(program, model, seconds)
        except DeviceError as error:
            crashes.append(str(error))
            continue
        if run.broke:
            crashes.append(f"after {run.duration_s:.0f} s: {run.broke}")
        return run
    raise DeviceError(f"{ATTEMPTS} runs broke off in turn, the last: {crashes[-1]}")


# -- one run --------------------------------------------------------------------------------


def _one(program: str, model: str, seconds: float) -> LoopRun:
    """Drive a fresh pair with one program and return what was seen."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _arm(model, "leader", folder), _arm(model, "follower", folder):
            cpu, said, broke = _drive(_command(program, model, folder, seconds), folder, seconds)
        leader, follower = (np.load(folder / f"{role}.npy") for role in ("leader", "follower"))
    return replace(_seen(leader, follower, cpu, said, seconds, broke), broke=broke)


@contextlib.contextmanager
def _arm(model: str, role: str, folder: Path) -> Iterator[None]:
    """Emulate an arm in a process of its own; its log is there when the block is left."""
    from gaploop.teleop.emulator.arms import arm_plan

    kind = "robots" if role == "follower" else "teleoperators"
    write_json(folder / f"{role}.json", arm_plan(model, role).calibrated().calibration())
    module = "benchmarks.loop_arm"
    command = [sys.executable, "-m", module, model, role, folder / role, folder / f"{role}.npy"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([str(word) for word in command], **pipes) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise DeviceError(f"The emulated {kind} didn't start; see above why.")
            yield
        finally:
            process.communicate()


def _command(program: str, model: str, folder: Path, seconds: float) -> list[str]:
    devices = [
        f"--robot.type={model}_follower",
        f"--robot.port={folder / 'follower'}",
        "--robot.id=follower",
        f"--robot.calibration_dir={folder}",
        f"--teleop.type={model}_leader",
        f"--teleop.port={folder / 'leader'}",
        "--teleop.id=leader",
        f"--teleop.calibration_dir={folder}",
        f"--fps={HZ}",
        f"--teleop_time_s={SETTLE_S + seconds + 1.0}",
    ]
    if program == "gaploop":
        return [sys.executable, "-m", "gaploop.scripts.cli", "teleoperate", *devices, "--json"]
    found = shutil.which("lerobot-teleoperate", path=_path())
    if found is None:
        raise UnusableInputError("lerobot-teleoperate isn't installed beside gaploop: make setup")
    return [found, *devices]


def _path() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def _drive(
    command: Sequence[str], folder: Path, seconds: float
) -> tuple[list[tuple[int, float]], Mapping[str, Any], str]:
    """Run a program to its end.

    Returns:
        Processor time by the clock, what it said as JSON, and why it broke off, if it did.
    """
    samples: list[tuple[int, float]] = []
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        try:
            until_s = time.monotonic() + START_S + SETTLE_S + seconds
            while process.poll() is None and time.monotonic() < until_s:
                with contextlib.suppress(OSError):
                    samples.append((time.monotonic_ns(), _cpu_s(process.pid)))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=20)
    if process.returncode != 0:
        name = "gaploop" if "--json" in command else "lerobot-teleoperate"
        return samples, {}, f"{name} broke off: {_error_in(folder / 'err')}"
    text = (folder / "out").read_text()
    said: Mapping[str, Any] = json.loads(text) if "--json" in command else {}
    return samples, said, ""


def _error_in(log: Path) -> str:
    """Return the last line that tells of an error, else the last of all."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1]).strip()


def _cpu_s(pid: int) -> float:
    """Return the processor time that a process and its threads have used [s]."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


# -- what was seen --------------------------------------------------------------------------


def _seen(
    leader: Any,
    follower: Any,
    cpu: Sequence[tuple[int, float]],
    said: Mapping[str, Any],
    seconds: float,
    broke: str,
) -> LoopRun:
    """Work out one run from the taps on both wires."""
    goals_ns = follower[follower[:, 1] == GOAL, 0]
    places_ns, reads_ns = (leader[leader[:, 1] == kind, 0] for kind in (PLACE, READ))
    start_ns = (goals_ns[0] if len(goals_ns) else 0) + round(SETTLE_S * 1e9)
    end_ns = start_ns + round(seconds * 1e9)
    if broke:  # what it did until then counts, but not its end
        end_ns = min(end_ns, max(goals_ns, default=0) - round(1e9))
    goals_ns = goals_ns[(goals_ns >= start_ns) & (goals_ns < end_ns)]
    if (end_ns - start_ns) * 1e-9 < LEAST_S or len(goals_ns) < HZ:
        raise DeviceError(broke or "no goal ever reached the follower")
    at_ns = np.array([at for at, _ in cpu], dtype=np.float64)
    used_s = np.array([used for _, used in cpu])
    spent_s = float(np.diff(np.interp([start_ns, end_ns], at_ns, used_s))[0])
    period_s = np.diff(goals_ns) * 1e-9
    # Goals follow the positions that were asked for alone, in the turns in which they were.
    latency_s = _since(places_ns, goals_ns)
    latency_s = np.where(latency_s < 1.0 / HZ, latency_s, _since(reads_ns, goals_ns))
    latency_s = np.where(np.isfinite(latency_s), latency_s, _since(places_ns, goals_ns))
    latency_s = latency_s[np.isfinite(latency_s)]
    return LoopRun(
        np.abs(period_s - 1.0 / HZ),
        latency_s,
        max(0, round(float(period_s.sum()) * HZ) - len(period_s)),
        len(goals_ns),
        (end_ns - start_ns) * 1e-9,
        spent_s,
        said,
    )


def _since(asked_ns: Any, goals_ns: Any) -> FloatArray:
    """Return the time from the last of `asked_ns` to each goal [s]; infinite without one."""
    asked_ns = np.concatenate([[-np.inf], asked_ns])
    last_ns = asked_ns[np.searchsorted(asked_ns, goals_ns) - 1]
    return np.asarray((goals_ns - last_ns) * 1e-9, dtype=np.float64)


def _compare(runs: Mapping[str, Sequence[LoopRun]]) -> dict[str, Any]:
    """Return both programs' figures, the spread of each over its runs, and their ratio."""
    result: dict[str, Any] = {name: _figures(several) for name, several in runs.items()}
    ours = [run.cpu_s / run.turns for run in runs["gaploop"]]
    theirs = [run.cpu_s / run.turns for run in runs["lerobot"]]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    result["cpu_per_turn_ratio"] = {"median": float(np.median(ratios)), "runs": ratios}
    inside = [run.said for run in runs["gaploop"] if run.said]
    result["gaploop"]["inside"] = [
        {k: said.get(k) for k in ("rate_hz", "missed", "period_error", "latency", "bus_faults")}
        for said in inside
    ]
    return result


def _figures(several: Sequence[LoopRun]) -> dict[str, Any]:
    return {
        "rate_hz": [run.turns / run.duration_s for run in several],
        "missed": [run.missed for run in several],
        "turns": [run.turns for run in several],
        "period_error_ms": [_spread_ms(run.period_error_s) for run in several],
        "latency_ms": [_spread_ms(run.latency_s) for run in several],
        "cpu_ms_per_turn": [1e3 * run.cpu_s / run.turns for run in several],
    }


def _spread_ms(values_s: FloatArray) -> dict[str, float]:
    p50, p99, most = np.quantile(values_s, (0.5, 0.99, 1.0)) * 1e3
    return {"p50": float(p50), "p99": float(p99), "max": float(most)}


def table(result: Mapping[str, Any]) -> str:
    """Return the figures for a terminal."""
    rights = result["realtime"]
    lines = [
        f"{result['repeats']} runs of {result['seconds']:g} s each at {result['hz']} Hz, in turn; "
        f"real-time rights: {'granted' if rights['granted'] else rights['hint']}",
        "",
        "| pair | program | rate Hz | missed | period error p50 / p99 / max ms | "
        "leader to follower p50 / p99 ms | CPU per turn ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, pair in result["pairs"].items():
        for program in ("gaploop", "lerobot"):
            lines.append(f"| {model} | {program} | {_row(pair[program])} |")
    for model, pair in result["pairs"].items():
        ratio = pair["cpu_per_turn_ratio"]
        words = ", ".join(f"{r:.2f}" for r in ratio["runs"])
        lines.append(f"{model}: CPU per turn, gaploop / lerobot: {ratio['median']:.2f} ({words})")
        lines += [f"{model}: {line}" for program, said in pair["crashes"].items() for line in said]
    return "\n".join(lines)


def _row(figures: Mapping[str, Any]) -> str:
    error, latency = figures["period_error_ms"], figures["latency_ms"]
    cells = [
        _range(figures["rate_hz"], 1),
        _range(figures["missed"], 0),
        " / ".join(_range([run[q] for run in error], 2) for q in ("p50", "p99", "max")),
        " / ".join(_range([run[q] for run in latency], 2) for q in ("p50", "p99")),
        _range(figures["cpu_ms_per_turn"], 2),
    ]
    return " | ".join(cells)


def _range(values: Sequence[float], digits: int) -> str:
    """Return the median of the runs and, where they differ, their range."""
    low, mid, high = (f"{v:.{digits}f}" for v in (min(values), np.median(values), max(values)))
    return mid if low == high else f"{mid} ({low}–{high})"
