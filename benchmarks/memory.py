"""`benchmarks memory`: what a recording session's processes hold after each of many takes.

The embedded cell records short takes as fast as it can. A slope that isn't zero
beside its own spread is a leak.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, LeaderSample
from gaploop.core.take import TakeInfo
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

TAKES: Final = 200
TAKE_S: Final = 1.0
WARM_UP: Final = 40
"""The first takes fill caches and pools, and are left out of the slope."""
BLOCKS: Final = 4
"""The slope's spread is the standard error between so many stretches of takes."""
NAMES: Final = {"encoder_process": "encoder"}


class Home:
    """A leader that asks for the home pose."""

    def reset(self) -> None:
        """Nothing to reset."""

    def read(self, t_s: float) -> LeaderSample:
        """Ask for all joints at 0."""
        return LeaderSample(t_s, np.zeros(6))

    def done(self) -> bool:
        """Say no."""
        return False


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Record `n` takes and read what every process holds after each."""
    from gaploop.collect.campaign import Quota
    from gaploop.collect.rig import embedded_rig
    from gaploop.collect.take import TakeResult, record_takes
    from gaploop.core.vocabulary import TakeKind

    if not Path("/proc/self/status").exists():
        raise UnusableInputError("bench memory reads /proc, which this system hasn't. Use Linux.")
    n = config.n or TAKES
    if n < WARM_UP + 2 * BLOCKS:
        raise UnusableInputError(f"--n must be {WARM_UP + 2 * BLOCKS} or more, got {n}.")
    journal = folder / "journal"
    shutil.rmtree(journal, ignore_errors=True)
    held: dict[str, list[tuple[int, float]]] = {}
    takes = 0
    with options.progress("Recording", n) as advance:

        def on_take(_result: TakeResult, _counts: bool) -> None:
            nonlocal takes
            takes += 1
            for name, megabytes in now_mb():
                held.setdefault(name, []).append((takes, megabytes))
            advance()

        record_takes(
            journal,
            TakeInfo("", "bench", kind=TakeKind.ROLLOUT),
            [Quota(n)],
            lambda _conditions: embedded_rig(),
            lambda _rig, _seed: Home(),
            on_take=on_take,
            max_s=TAKE_S,
        )
    return {
        "takes": n,
        "take_s": TAKE_S,
        "processes": {name: _figures(points) for name, points in held.items()},
    }


def now_mb() -> Iterator[tuple[str, float]]:
    """Yield this process and its children with the memory that they hold [MB]."""
    yield "recorder", _rss_mb(os.getpid())
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            words = (stat.parent / "cmdline").read_text().split("\0")
            if parent == os.getpid():
                for word, name in NAMES.items():
                    if any(said.endswith(word) for said in words):
                        yield name, _rss_mb(int(stat.parent.name))
        except (OSError, ValueError):  # it ended meanwhile
            continue


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} says nothing of its memory")


def _figures(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return first and last value [MB], and the slope after warming up [kB per take]."""
    taken = np.array([p for p in points if p[0] > WARM_UP], dtype=np.float64)
    values = [p[1] for p in points]
    figures = {
        "first_mb": round(values[0], 1),
        "last_mb": round(values[-1], 1),
        "most_mb": round(max(values), 1),
        "readings": len(values),
    }
    if len(taken) < 2 * BLOCKS:
        return figures
    slopes = [_slope(block) for block in np.array_split(taken, BLOCKS)]
    return {
        **figures,
        "slope_kb_per_take": round(1e3 * _slope(taken), 2),
        "spread_kb_per_take": round(1e3 * float(np.std(slopes, ddof=1) / BLOCKS**0.5), 2),
        "series_mb": [round(value, 1) for value in values[:: max(1, len(values) // 20)]],
    }


def _slope(points: FloatArray) -> float:
    """Return the slope of memory over takes [MB per take], shape of points (n, 2)."""
    return float(np.polyfit(points[:, 0], points[:, 1], 1)[0])


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    keys = ("first_mb", "last_mb", "most_mb", "slope_kb_per_take", "spread_kb_per_take")
    lines = [f"{result['takes']} takes of {result['take_s']:g} s"]
    lines.append("".join(f"{key:>19}" for key in ("", *keys)))
    for name, figures in result["processes"].items():
        lines.append("".join(f"{v!s:>19}" for v in (name, *(figures.get(k, "") for k in keys))))
    return "\n".join(lines)
