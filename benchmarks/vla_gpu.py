"""ACT, SmolVLA and pi0.5 trained and adapted on whichever GPU is there: step time, memory.

Without `--policies` the policies have random weights and their full size: time and memory don't
depend on the weights, and nothing is downloaded. Without a GPU they are tiny, and the table says
so: that shows that every row runs, and nothing else.
"""

from __future__ import annotations

import gc
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.finetune.config import FinetuneConfig

CAMERA: Final = "observation.images.overhead"
PIXELS, JOINTS = 192, 6
GAP: Final = {"spatial_geometry.camera_pose": 0.3}
"""The cell that takes are recorded in and the policy is tried in; a stand-in for a real one."""


@dataclass(frozen=True)
class Budget:
    """How much of everything: takes, steps, samples of a step (the preset's if 0), rollouts."""

    takes: int
    steps: int
    batch_size: int
    rollouts: int


WITH_GPU: Final = Budget(takes=20, steps=40, batch_size=0, rollouts=10)
WITHOUT: Final = Budget(takes=2, steps=3, batch_size=2, rollouts=0)


@dataclass(frozen=True)
class Row:
    """A way to train a policy.

    Attributes:
        full: all weights instead of an adapter.
        spec: what differs from the preset.
    """

    full: bool
    spec: Mapping[str, Any]

    @property
    def words(self) -> str:
        """What it is."""
        changed = ", ".join(k if v is True else f"{k} {v}" for k, v in self.spec.items())
        return ("all weights" if self.full else "LoRA") + (f", {changed}" if changed else "")


ROWS: Final = (
    Row(full=True, spec={}),
    Row(full=False, spec={}),
    Row(full=False, spec={"precision": "no"}),
    Row(full=False, spec={"accumulation": 2}),
    Row(full=False, spec={"gradient_checkpointing": True}),
)
KINDS: Final = ("act", "smolvla", "pi05")


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Train every row of every policy for a few steps; what a policy hasn't is said in its row."""
    import torch

    from benchmarks.starts import record_demonstrations
    from gaploop.finetune.demonstrations import TargetCell

    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu else "cpu"
    budget = WITH_GPU if has_gpu else WITHOUT
    data = config.data or folder / "takes"
    if config.data is None:
        data = record_demonstrations(TargetCell(GAP, 0), folder, budget.takes, 0)
    named = config.policies or [str(p) for p in _made_up(folder / "bases", has_gpu)]
    rows = []
    with options.progress("Training", len(named) * len(ROWS)) as advance:
        for name in named:
            for row in ROWS:
                one = _row(name, row, data, folder / "runs", budget, device, config)
                if one is not None:
                    rows.append(one)
                    with (folder / "rows.jsonl").open("a") as file:  # a kill costs one row
                        file.write(json.dumps(one) + "\n")
                advance()
    return {
        "device": torch.cuda.get_device_name() if has_gpu else "no GPU: tiny policies on the CPU",
        "weights": "given" if config.policies else "random",
        "budget": vars(budget),
        "rows": rows,
        "evidence": "sim-to-sim",
    }


def _made_up(folder: Path, is_full_size: bool) -> list[Path]:
    """Return base folders of the policies, with random weights."""
    from benchmarks import lerobot_made_up as made_up

    made_up.without_downloads(setattr, folder / "vlm", is_tiny=not is_full_size)
    sizes = made_up.FULL_SIZE if is_full_size else made_up.OPTIONS
    for kind in KINDS:
        if not (folder / kind / "model.safetensors").exists():
            made_up.make(
                kind,
                folder / kind,
                folder / "vlm",
                camera=CAMERA,
                pixels=PIXELS,
                joints=JOINTS,
                options=sizes.get(kind, {}),
            )
    return [folder / kind for kind in KINDS]


def _row(
    name: str,
    row: Row,
    data: Path,
    runs: Path,
    budget: Budget,
    device: str,
    config: BenchConfig,
) -> dict[str, Any] | None:
    """Train a row; None where the preset is that way by itself."""
    from gaploop.finetune.adapt import base_of, kind_of
    from gaploop.finetune.config import FinetuneConfig, StartPolicy
    from gaploop.finetune.tuning.presets import preset_for

    kind = kind_of(base_of(name))
    method = "full" if row.full else "lora"
    preset = preset_for(kind, method)
    if row.spec and all(getattr(preset.spec, name) == value for name, value in row.spec.items()):
        return None
    size = budget.batch_size or preset.spec.batch_size
    asked = FinetuneConfig(
        StartPolicy(name),
        method,
        real=(data,),
        stats="new",
        steps=budget.steps,
        batch_size=size,
        device=device,
        seed=config.seed,
        output_dir=runs / f"{kind} {row.words}".replace(", ", "_").replace(" ", "_"),
        **row.spec,
    )
    precision = row.spec.get("precision", preset.spec.precision)
    said = {"policy": kind, "way": row.words, "precision": precision, "batch_size": size}
    try:
        return {**said, **_trained(asked, budget.rollouts, device)}
    except UnusableInputError as error:
        return {**said, "left_out": str(error)}


def _trained(asked: FinetuneConfig, rollouts: int, device: str) -> dict[str, Any]:
    import psutil
    import torch

    from gaploop.finetune.adapt import adapt

    has_gpu = device == "cuda"
    gc.collect()
    if has_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ends_s, losses, held_mb = [], [], []

    def stepped(_step: int, _steps: int, loss: float) -> None:
        if has_gpu:
            torch.cuda.synchronize()
        ends_s.append(time.perf_counter())
        losses.append(loss)
        held_mb.append(psutil.Process().memory_info().rss / 1e6)

    done = adapt(asked, stepped)
    took_s = sorted(b - a for a, b in itertools.pairwise(ends_s))  # not the first step
    return {
        "step_ms": 1e3 * took_s[len(took_s) // 2],
        "memory_mb": torch.cuda.max_memory_allocated() / 1e6 if has_gpu else max(held_mb),
        "loss": [losses[0], losses[-1]],
        "successes": _successes(done.folder, rollouts, device) if rollouts else 0,
        "rollouts": rollouts,
    }


def _successes(policy: Path, n: int, device: str) -> int:
    from gaploop.collect.rig import embedded_rig
    from gaploop.finetune.demonstrations import TargetCell
    from gaploop.finetune.evaluate import MAX_S, roll_out
    from gaploop.finetune.evaluation import NOMINAL
    from gaploop.finetune.lerobot_policy import load_policy

    rig = embedded_rig(gaps=GAP)
    try:
        loaded = load_policy(policy, device=device, task=TargetCell(GAP, 0).instruction)
        return sum(r.success for r in roll_out(rig, loaded, range(n), NOMINAL, MAX_S))
    finally:
        rig.close()


def table(result: Mapping[str, Any]) -> str:
    """Return the rows as a Markdown table."""
    budget = result["budget"]
    lines = [
        f"{result['device']}; {result['weights']} weights; "
        f"{budget['steps']} steps on {budget['takes']} takes; successes are {result['evidence']}.",
        "",
        "| policy | trained | numbers | batch | ms a step | memory MB | loss | successes |",
        "|---" * 8 + "|",
    ]
    for row in result["rows"]:
        line = f"| {row['policy']} | {row['way']} | {row['precision']} | {row['batch_size']} | "
        if "left_out" in row:
            lines.append(f"{line}left out: {row['left_out']} | | | |")
            continue
        first, last = row["loss"]
        line += f"{row['step_ms']:.0f} | {row['memory_mb']:.0f} | {first:.3g} → {last:.3g} | "
        tried = f"{row['successes']} of {row['rollouts']}" if row["rollouts"] else "not tried"
        lines.append(f"{line}{tried} |")
    return "\n".join(lines)
