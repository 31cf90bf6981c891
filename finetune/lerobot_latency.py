"""How long a policy takes for a plan here, in which format, and whether that is in time."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from gaploop.collect.policy_leader import Planner
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Observation
from gaploop.finetune.lerobot_formats import (
    FORMATS,
    REFERENCE,
    planned,
    possible_views,
    weights_mb,
)
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy, policy_id, resolve
from gaploop.teleop.checks import CheckResult, Level

WARM_UP: Final = 5
"""Plans before the first that is timed; compiling happens in these."""
PLANS: Final = 200
"""Plans that a check times: p99 of fewer says little."""
LONGEST_S: Final = 60.0
"""A check of a slow policy times fewer, for this long [s]."""
BLOCKS: Final = 20
BLOCK: Final = 30
"""Plans in a format in a block."""
VIEWS: Final = 20
"""In so many views actions are compared."""
LEAST_LEFT_MB: Final = 500.0
"""Of the GPU's memory that must be left beside a policy: cameras' pictures, other programs [MB]."""


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


def time_plans(plan: Callable[[], object], n: int, longest_s: float = math.inf) -> PlanTiming:
    """Time `n` plans, or as many as begin within `longest_s`, one at least."""
    took_s, cpu_s = list[float](), list[float]()
    while len(took_s) < n and (not took_s or sum(took_s) < longest_s):
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


def check_timing(policy: Planner, seen: Observation, fps: float) -> Iterator[CheckResult]:
    """Yield whether a policy plans in time, in its format, where it runs, and fits into a GPU.

    Args:
        seen: what it sees now; of a policy on another machine the way there and back counts.
    """
    made = [policy.plan(seen) for _ in range(WARM_UP)]
    timing = time_plans(lambda: policy.plan(seen), PLANS, LONGEST_S)
    result = check_latency(timing, fps, len(made[-1]))
    runs, left_mb = getattr(policy, "runs", ""), getattr(policy, "gpu_left_mb", None)
    yield replace(result, found=f"{runs}: {result.found}" if runs else result.found)
    if left_mb is None:
        return
    found, data = f"{left_mb:.0f} MB of the GPU's are left", {"left_mb": left_mb}
    if left_mb >= LEAST_LEFT_MB:
        yield CheckResult("GPU memory", Level.OK, found, data=data)
    else:
        fix = "End what else uses the GPU, or choose a smaller format: --policy.format=int8_ao"
        yield CheckResult("GPU memory", Level.FAIL, found, fix, data)


def action_error(made: ActPolicy, plans: list[FloatArray], views: list[Observation]) -> FloatArray:
    """Return how far a format's actions are from those as trained.

    Args:
        plans: what the policy as trained plans in each view.

    Returns:
        Mean and largest absolute difference of what is executed, in the arm's units.
    """
    numbered = enumerate(zip(views, plans, strict=True))
    off = [np.abs(planned(made, view, i) - plan) for i, (view, plan) in numbered]
    return np.array([np.mean(off), np.max(off)])


def measure(path: str, given: Mapping[str, Any], advance: Callable[[], object]) -> dict[str, Any]:
    """Time the formats that this machine can compute: all, or the one that is given, and fp32.

    Plans in all formats are timed in turn, block by block, so that what else the machine does
    falls on all of them; ratios are of processor time, which other programs don't change.

    Args:
        advance: called after each of `BLOCKS`.
    """
    folder, only = resolve(path), given.get("format") or ""
    policy = load_policy(folder, **{**given, "format": REFERENCE})
    views = possible_views(folder, VIEWS)
    plans = [planned(policy, view, i) for i, view in enumerate(views)]
    made, lacking = {REFERENCE: policy}, dict[str, str]()
    if only and only != REFERENCE:
        made[only] = load_policy(folder, **given)
    for name in () if only else (n for n in FORMATS if n != REFERENCE):
        try:
            made[name] = load_policy(folder, **{**given, "format": name})
        except UnusableInputError as error:
            lacking[name] = str(error).removeprefix(f"--policy.format={name} ")
    variants: dict[str, dict[str, Any]] = {}
    for name, one in made.items():
        mean, worst = action_error(one, plans, views)
        variants[name] = {
            "file_mb": weights_mb(one), "error_mean": float(mean), "error_max": float(worst)
        }  # fmt: skip

    def plan(policy: ActPolicy) -> object:
        policy.reset()  # one that looks back would hand out what is left of its last plan
        return policy.plan(views[0])

    timed: dict[str, list[tuple[tuple[float, ...], ...]]] = {name: [] for name in made}
    for block in range(BLOCKS):
        first = block % len(made)
        for name in [*list(made)[first:], *list(made)[:first]]:
            timing = time_plans(lambda name=name: plan(made[name]), BLOCK)  # type: ignore[misc]
            timed[name].append((timing.took_s, timing.cpu_s))
        advance()
    cpu_s = {name: np.median(np.array(rows)[:, 1], axis=1) for name, rows in timed.items()}
    draws = np.random.default_rng(0).integers(BLOCKS, size=(2000, BLOCKS))
    for name, rows in timed.items():
        clock_s, ratios = np.array(rows)[:, 0], cpu_s[name] / cpu_s[REFERENCE]
        variants[name] |= {
            "p50_ms": 1e3 * float(np.median(clock_s)),
            "p99_ms": 1e3 * float(np.quantile(clock_s, 0.99)),
            "cpu_p50_ms": 1e3 * float(np.median(np.array(rows)[:, 1])),
            "ratio": float(np.median(ratios)),
            "ratio_interval": np.quantile(np.median(ratios[draws], 1), [0.025, 0.975]).tolist(),
        }
    return {
        "policy": policy_id(folder),
        "fps": policy.fps,
        "execute": policy.execute,
        "plan_lasts_ms": 1e3 * policy.execute / policy.fps,
        "device": str(policy.bundle.policy.config.device),
        "units": policy.bundle.signature.units,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "plans": BLOCKS * BLOCK,
        "variants": variants,
        "lacking": lacking,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return what `measure` returned as text."""
    lines = [
        f"{result['policy']}, {result['threads']} thread(s), {result['plans']} plans each; a plan "
        f"of {result['execute']} steps lasts {result['plan_lasts_ms']:.0f} ms",
        f"{'':10}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms':>8}{'MB file':>9}{'error':>8}{'worst':>8}"
        "   CPU, times fp32",
    ]
    for name, one in result["variants"].items():
        low, high = one["ratio_interval"]
        lines.append(
            f"{name:<10}{one['p50_ms']:>8.2f}{one['p99_ms']:>8.2f}{one['cpu_p50_ms']:>8.2f}"
            f"{one['file_mb']:>9.1f}{one['error_mean']:>8.3f}{one['error_max']:>8.3f}   "
            f"{one['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        )
    lines += [f"{name}: left out: {why}" for name, why in result["lacking"].items()]
    units = result["units"] or "the policy's units"
    lines.append(f"Error, worst: difference of actions to fp32 in {VIEWS} views [{units}].")
    return "\n".join(lines)
