"""How long a policy takes for a plan here, and whether that is in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gaploop.core.messages import Observation
from gaploop.finetune.lerobot_policy import ActPolicy
from gaploop.teleop.checks.result import CheckResult, Level

WARM_UP: Final = 5
"""Plans before the first that is timed; compiling happens in these."""


@dataclass(frozen=True)
class PlanTiming:
    """How long plans took.

    Attributes:
        took_s: each plan, by the clock [s].
        cpu_s: each plan, by the processor time of the thread that asked [s]; what other programs
            do doesn't count.
    """

    took_s: tuple[float, ...]
    cpu_s: tuple[float, ...] = ()

    def quantile_s(self, share: float) -> float:
        """Return the time that this share of the plans stayed below [s]."""
        return float(np.quantile(self.took_s, share))


def warm_up(policy: ActPolicy, observation: Observation) -> None:
    """Let a policy plan a few times."""
    for _ in range(WARM_UP):
        policy.plan(observation)


def time_plans(plan: Callable[[], object], n: int) -> PlanTiming:
    """Time `n` plans."""
    took_s, cpu_s = [], []
    for _ in range(n):
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        plan()
        took_s.append(time.perf_counter() - start_s)
        cpu_s.append(time.thread_time() - start_cpu_s)
    return PlanTiming(tuple(took_s), tuple(cpu_s))


def check_latency(timing: PlanTiming, fps: float, steps: int) -> CheckResult:
    """Return whether plans come in time.

    Args:
        fps: frames a second that the policy drives at [Hz].
        steps: of a plan; half of them can bridge the making of the next one.
    """
    median_s, worst_s = timing.quantile_s(0.5), timing.quantile_s(0.99)
    period_s, bridged_s = 1.0 / fps, steps // 2 / fps
    found = f"a plan takes {median_s * 1e3:.1f} ms, p99 {worst_s * 1e3:.1f}; a frame lasts "
    found += f"{period_s * 1e3:.0f} ms, a plan bridges {bridged_s * 1e3:.0f}"
    data = {"p50_s": median_s, "p99_s": worst_s, "period_s": period_s, "bridged_s": bridged_s}
    if worst_s <= period_s:
        return CheckResult("latency", Level.OK, found, data=data)
    fix = "See which number format is faster here: gaploop doctor --policy.path=DIR"
    if worst_s <= bridged_s:
        found += "; it is made ahead, so the arm doesn't wait, but answers late"
        return CheckResult("latency", Level.WARN, found, fix, data)
    return CheckResult("latency", Level.FAIL, f"{found}; a rollout would be refused", fix, data)
