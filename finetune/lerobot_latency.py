"""How long a policy takes here: its plans timed, in the number formats that may make it faster.

int8 is torch's dynamic quantisation of the linear layers: weights are stored in 8 bits, inputs are
quantised as they come, and nothing has to be calibrated. Attention's own projections stay as they
are: PyTorch's MultiheadAttention reads their weights as bare parameters. bf16 is `torch.autocast`,
as LeRobot's `--policy.use_amp`. `compile` is `torch.compile`, which needs a C++ compiler or a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.types import Observation
from gaploop.finetune.lerobot_policy import ActPolicy
from gaploop.teleop.checks.result import CheckResult, Level

VARIANTS: Final[Mapping[str, str]] = {
    "fp32": "as trained",
    "bf16": "torch.autocast to bfloat16",
    "int8": "linear layers by torch's dynamic quantisation",
    "compile": "torch.compile",
}
"""Variants by name, and what each is."""
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


def variant(policy: ActPolicy, name: str) -> ActPolicy:
    """Return a copy of a policy that computes in another way.

    Args:
        policy: as loaded.
        name: one of `VARIANTS`.

    Raises:
        UnusableInputError: an unknown name, or this machine can't compute so; why.
    """
    if name not in VARIANTS:
        raise unknown_choice("variant", name, VARIANTS)
    bundle = copy.deepcopy(policy.bundle)
    if name in ("int8", "compile") and not hasattr(bundle.policy, "model"):
        raise UnusableInputError(
            f"{name} is for policies that keep their network in `model`; "
            f"{bundle.policy.config.type} doesn't."
        )
    with _said(name):
        if name == "bf16":
            _autocast(bundle.policy)
        if name == "int8":
            quantised: Any = torch.ao.quantization.quantize_dynamic  # PyTorch's isn't typed
            bundle.policy.model = quantised(
                bundle.policy.model, {torch.nn.Linear}, dtype=torch.qint8
            )
        if name == "compile":
            bundle.policy.model = torch.compile(bundle.policy.model)
        return type(policy)(bundle, policy.execute)


def _autocast(policy: Any) -> None:
    """Let a LeRobot policy plan in bfloat16 where PyTorch holds that safe."""
    plan, kind = policy.predict_action_chunk, torch.device(str(policy.config.device)).type

    def planned(*given: Any, **options: Any) -> torch.Tensor:
        with torch.autocast(kind, torch.bfloat16):
            made: torch.Tensor = plan(*given, **options)
        return made.float()

    policy.predict_action_chunk = planned


def warm_up(policy: ActPolicy, observation: Observation, name: str = "") -> None:
    """Let a policy plan a few times.

    Raises:
        UnusableInputError: it can't compute so on this machine; why.
    """
    with _said(name):
        for _ in range(WARM_UP):
            policy.plan(observation)


@contextlib.contextmanager
def _said(name: str) -> Iterator[None]:
    """Say in one line why a variant can't be computed here."""
    try:
        yield
    except (RuntimeError, NotImplementedError, ImportError, OSError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        raise UnusableInputError(f"{name} can't be computed on this machine: {why[:200]}") from None


def time_plans(plan: Callable[[], object], n: int) -> PlanTiming:
    """Time `n` plans."""
    took_s, cpu_s = [], []
    for _ in range(n):
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        plan()
        took_s.append(time.perf_counter() - start_s)
        cpu_s.append(time.thread_time() - start_cpu_s)
    return PlanTiming(tuple(took_s), tuple(cpu_s))


def check_latency(timing: PlanTiming, fps: float, execute: int) -> CheckResult:
    """Return whether plans come in time.

    Args:
        timing: of plans on this machine.
        fps: frames a second that the policy drives at [Hz].
        execute: steps of a plan that are executed before the next one.
    """
    median_s, worst_s = timing.quantile_s(0.5), timing.quantile_s(0.99)
    period_s, bridged_s = 1.0 / fps, execute / fps
    found = f"a plan takes {median_s * 1e3:.1f} ms, p99 {worst_s * 1e3:.1f}; a frame lasts "
    found += f"{period_s * 1e3:.0f} ms, a plan {bridged_s * 1e3:.0f}"
    data = {"p50_s": median_s, "p99_s": worst_s, "period_s": period_s, "plan_s": bridged_s}
    if worst_s <= period_s:
        return CheckResult("latency", Level.OK, found, data=data)
    fix = "See which number format is faster here: gaploop latency"
    if worst_s <= bridged_s:
        found += "; it is made ahead, so the arm doesn't wait, but answers late"
        return CheckResult("latency", Level.WARN, found, fix, data)
    return CheckResult("latency", Level.FAIL, f"{found}; the arm would wait", fix, data)
