"""How long a policy takes to plan here, in the formats there are for it, and what each costs.

Plans in all formats, and of plain LeRobot's `select_action` on the same policy and observation,
are timed in turn, block by block, so that what else the machine does falls on all of them; ratios
are of processor time, which other programs don't change. Policies on the tracked scene can also be
rolled out in the embedded cell, every format on the same scenes: what a format costs in success.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies import get_policy_class, make_pre_post_processors

from gaploop.collect.rig import embedded_rig
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Observation
from gaploop.datasets.absolute.checkpoint import Checkpoint, read_checkpoint
from gaploop.datasets.columns import IMAGES, STATE
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune import lerobot_formats as formats
from gaploop.finetune.evaluate import roll_out
from gaploop.finetune.evaluation import NOMINAL, Rollout, paired_difference, wilson
from gaploop.finetune.lerobot_latency import time_plans
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy, policy_id, resolve
from gaploop.finetune.lerobot_trust import refuse_foreign_code
from gaploop.sim.arms import to_degrees
from gaploop.sim.cell import SimCell
from gaploop.sim.tracker import Tracker

BLOCKS: Final = 20
PLANS: Final = 30
"""Plans in a format in a block."""
VIEWS: Final = 20
"""In so many views actions are compared."""
REFERENCE: Final = "fp32"
PEER: Final = "lerobot"
"""Plain LeRobot: `from_pretrained`, `make_pre_post_processors`, `select_action`."""


def measure(
    chosen_policy: str,
    fps: float | None,
    only: Sequence[str],
    device: str,
    n: int,
    advance: Callable[[], object],
) -> dict[str, Any]:
    """Time every format that this machine can compute, and count its successes.

    Args:
        chosen_policy: folder or name of the policy; `fps` where that doesn't state it [Hz].
        only: which formats besides fp32; all where empty.
        n: rollouts with each format in the embedded cell.
        advance: called after each block and each rollout.
    """

    path = resolve(chosen_policy)
    policy = load_policy(path, device=device, fps=fps)
    views = _views(policy, read_checkpoint(path))
    seen = views[0]
    plans_fp32 = [formats.planned(policy, view, i) for i, view in enumerate(views)]
    made: dict[str, ActPolicy] = {}
    costs: dict[str, dict[str, float]] = {}
    lacking: dict[str, str] = {}
    chosen = [n for n in formats.FORMATS if not only or n in (REFERENCE, *only)]
    with tempfile.TemporaryDirectory() as written:
        for name in chosen:
            try:
                one = formats.made_in(policy, name, seen, Path(written))
                off = formats.action_error(one.policy, plans_fp32, views)
            except UnusableInputError as error:
                lacking[name] = str(error)
                continue
            made[name] = one.policy
            costs[name] = {"file_mb": one.file_mb, "memory_mb": one.memory_mb}
            costs[name] |= {"error_mean": float(off[0]), "error_max": float(off[1])}

    def planning(policy: ActPolicy) -> Callable[[], object]:
        def plan() -> object:
            policy.reset()  # one that looks back would hand out what is left of its last plan
            return policy.plan(seen)

        return plan

    peer = _lerobot(path, seen, device)
    plans = {**{name: planning(one) for name, one in made.items()}, PEER: peer}
    timed: dict[str, list[tuple[tuple[float, ...], ...]]] = {name: [] for name in plans}
    for block in range(BLOCKS):
        names = list(plans)[block % len(plans) :] + list(plans)[: block % len(plans)]
        for name in names:
            timing = time_plans(plans[name], PLANS)
            timed[name].append((timing.took_s, timing.cpu_s))
        advance()
    took_s = {name: np.array(rows) for name, rows in timed.items()}  # by clock, by processor
    successes = _successes(made, n, advance) if n and policy.needs_scene else {}
    return {
        "policy": policy_id(path),
        "fps": policy.fps,
        "execute": policy.execute,
        "plan_lasts_ms": 1e3 * policy.execute / policy.fps,
        "device": device,
        "units": policy.bundle.signature.units,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "plans": BLOCKS * PLANS,
        "variants": {
            name: _times(took, took_s[REFERENCE]) | costs.get(name, {}) | successes.get(name, {})
            for name, took in took_s.items()
        },
        "lacking": lacking,
        "evidence": "simulation (nominal cell)" if successes else "",
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the result as text."""
    lines = [
        f"{result['policy']}, {result['threads']} thread(s), {result['plans']} plans each; a plan "
        f"of {result['execute']} steps lasts {result['plan_lasts_ms']:.0f} ms",
        f"{'':10}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms':>8}{'MB file':>9}{'memory':>8}"
        f"{'error':>8}{'worst':>8}   {'CPU, times fp32':<22}same scenes",
    ]
    for name, one in result["variants"].items():
        low, high = one["ratio_interval"]
        line = f"{name:<10}{one['p50_ms']:>8.2f}{one['p99_ms']:>8.2f}{one['cpu_p50_ms']:>8.2f}"
        if "file_mb" in one:
            line += f"{one['file_mb']:>9.1f}{one['memory_mb']:>8.0f}"
            line += f"{one['error_mean']:>8.3f}{one['error_max']:>8.3f}   "
        else:
            line += f"{'':36}"
        line += f"{f'{one["ratio"]:.2f} [{low:.2f}, {high:.2f}]':<22}"
        if "successes" in one:
            line += f"{one['successes']} of {one['trials']}"
            if name != REFERENCE:
                change = 100 * one["difference"]["value"]
                least, most = (100 * end for end in one["difference"]["interval"])
                line += f" ({change:+.0f} points [{least:+.0f}, {most:+.0f}])"
        lines.append(line.rstrip())
    lines += [f"{name}: left out: {why}" for name, why in result["lacking"].items()]
    units = result["units"] or "the policy's units"
    lines.append(f"Error, worst: difference of actions to fp32 in {VIEWS} views [{units}].")
    if result["evidence"]:
        lines.append(f"Evidence of success: {result['evidence']}.")
    return "\n".join(lines)


# -- what is timed ------------------------------------------------------------------------------


def _views(policy: ActPolicy, known: Checkpoint) -> list[Observation]:
    """Return what the policy may see: scenes of the cell, or coarse random pictures."""
    sizes = {k.removeprefix(IMAGES): shape[1:] for k, shape in known.cameras.items()}
    if not policy.needs_scene:
        if policy.bundle.signature.environment_names:
            raise UnusableInputError(
                "The policy sees a scene that gaploop doesn't track, so that it can't be asked "
                "here. Name a policy on joints and pictures, or on the tracked scene."
            )
        rng = np.random.default_rng(0)
        views = []
        usual = known.stats.get(STATE, {})
        state: FloatArray = np.zeros(len(policy.bundle.signature.state_names))
        for _ in range(VIEWS):
            if {"mean", "std"} <= usual.keys():
                state = rng.normal(usual["mean"], usual["std"])
            pictures = {}
            for name, (height, width) in sizes.items():
                cells = rng.integers(0, 256, (8, 8, 3), np.uint8)
                tall = cells.repeat(-(-height // 8), axis=0)[:height]
                wide = tall.repeat(-(-width // 8), axis=1)[:, :width]
                pictures[name] = np.ascontiguousarray(wide)
            views.append(Observation(state, None, pictures))
        return views

    grey = {n: np.full((*size, 3), 127, np.uint8) for n, size in sizes.items()}
    views = []
    with SimCell() as cell:
        tracker = Tracker.nominal(cell.image_size)
        for scene in range(VIEWS):
            cell.reset(scene)
            state = to_degrees(cell.read().position_rad)
            views.append(Observation(state, tracker.observe(cell.frame().image), grey))
    return views


def _lerobot(path: Path, seen: Observation, device: str) -> Callable[[], object]:
    """Return plain LeRobot's way to an action that has to be planned."""

    refuse_foreign_code(path)
    if adapter.is_adapter(path):  # its twin without PEFT does the same work
        path = path / adapter.BASE
    config = PreTrainedConfig.from_pretrained(path)
    config.device = device
    with contextlib.redirect_stdout(sys.stderr):
        policy = get_policy_class(config.type).from_pretrained(path, config=config)
    policy.eval()
    before, after = make_pre_post_processors(
        config,
        pretrained_path=str(path),
        preprocessor_overrides={"device_processor": {"device": device}},
    )
    batch = {"observation.state": torch.from_numpy(seen.state.astype(np.float32))}
    if seen.environment_state is not None:
        scene = seen.environment_state.astype(np.float32)
        batch["observation.environment_state"] = torch.from_numpy(scene)
    for name, image in seen.images.items():
        pixels = torch.from_numpy(image).permute(2, 0, 1).float() / 255.0
        batch[f"observation.images.{name}"] = pixels

    def act() -> object:
        policy.reset()  # no action is left over: it has to plan
        with torch.inference_mode():
            return after(policy.select_action(before(dict(batch))))

    act()
    return act


def _times(took_s: FloatArray, reference_s: FloatArray) -> dict[str, Any]:
    """Return quantiles, and processor time as a ratio to the reference's, with its interval.

    Times are by clock and by processor [s], shape (BLOCKS, 2, PLANS).
    """
    clock_s, cpu_s = took_s[:, 0], took_s[:, 1]
    ratios = np.median(cpu_s, axis=1) / np.median(reference_s[:, 1], axis=1)
    draws = np.random.default_rng(0).integers(len(ratios), size=(2000, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    return {
        "p50_ms": 1e3 * float(np.median(clock_s)),
        "p99_ms": 1e3 * float(np.quantile(clock_s, 0.99)),
        "cpu_p50_ms": 1e3 * float(np.median(cpu_s)),
        "ratio": float(np.median(ratios)),
        "ratio_interval": [float(low), float(high)],
    }


# -- what it costs ------------------------------------------------------------------------------


def _successes(
    made: Mapping[str, ActPolicy], n: int, advance: Callable[[], object]
) -> dict[str, dict[str, Any]]:
    """Return how often every variant succeeds on the same scenes of the nominal cell."""

    rollouts: dict[str, tuple[Rollout, ...]] = {}
    with contextlib.closing(embedded_rig()) as rig:
        for name, policy in made.items():
            done: list[Rollout] = []
            for scene in range(n):
                done += roll_out(rig, policy, [scene], NOMINAL, 8.0)
                advance()
            rollouts[name] = tuple(done)
    answer = {}
    for name, tried in rollouts.items():
        rate = wilson(sum(r.success for r in tried), len(tried))
        change = paired_difference(rollouts[REFERENCE], tried)
        answer[name] = {
            "successes": rate.successes,
            "trials": rate.trials,
            "interval": list(rate.interval),
            "difference": {"value": change.value, "interval": list(change.interval)},
        }
    return answer
