"""What a slow policy does to motion and success, by how it is driven while it thinks.

The nominal embedded cell, the same scenes for all; inference time is put in and doesn't depend on
the machine. `wait` executes a plan and stands until the next one is there, `jump` makes the next
plan ahead and goes over to it at once, `blend` is what rollouts do (`AsyncPolicyDriver`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gaploop.collect.policy_leader import AsyncPolicyDriver
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray, Tick
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig
    from gaploop.collect.rig import EmbeddedRig
    from gaploop.finetune.lerobot_policy import ActPolicy

TAKES_MS: Final = (0, 100, 200, 400, 800)
SMOOTHED: Final = 9
"""Readings in a window of the third derivative, of fourth order."""


class Waits(AsyncPolicyDriver):
    """Executes a plan, and stands until the next one is there."""

    def _joined(self, old: list[FloatArray], new: list[FloatArray]) -> list[FloatArray]:
        del old
        return new[: self._execute]

    @property
    def _spare(self) -> int:
        return 0

    def _require_in_time(self) -> None: ...


class Jumps(AsyncPolicyDriver):
    """Makes plans ahead and goes over to each at once."""

    def _joined(self, old: list[FloatArray], new: list[FloatArray]) -> list[FloatArray]:
        del old
        return new


MODES: Final[Mapping[str, type[AsyncPolicyDriver]]] = {
    "wait": Waits,
    "jump": Jumps,
    "blend": AsyncPolicyDriver,
}


class _Motion:
    """Keeps where the joints were."""

    def __init__(self) -> None:
        self.q_rad: list[FloatArray] = []

    def tick(self, tick: Tick) -> None:
        """Look at one turn."""
        self.q_rad.append(tick.state.position_rad)

    def jerk_rad_s3(self, period_s: float) -> float:
        """Return the root mean square jerk over all joints but the gripper [rad/s³]."""
        from scipy.signal import savgol_filter

        q_rad = np.array(self.q_rad)[:, :-1]
        jerk = savgol_filter(q_rad, SMOOTHED, 4, deriv=3, delta=period_s, axis=0)
        return float(np.sqrt(np.mean(np.square(jerk))))


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Roll out with each inference time and way to drive; what is in the folder isn't run again."""
    from gaploop.collect.rig import embedded_rig
    from gaploop.finetune.lerobot_policy import load_policy, policy_id

    path, n, kept = config.policy.required(), config.n or 30, folder / "rollouts.jsonl"
    policy, identity = load_policy(path), policy_id(path)
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(r["policy"], r["takes_ms"], r["mode"], r["seed"]) for r in rows}
    cells = [(takes_ms, mode) for takes_ms in TAKES_MS for mode in MODES]
    rig = embedded_rig()
    try:
        with options.progress("Rolling out", n * len(cells)) as advance, kept.open("a") as file:
            for seed in range(config.seed, config.seed + n):
                for takes_ms, mode in cells:
                    advance()
                    if (identity, takes_ms, mode, seed) in done:
                        continue
                    row = _rollout(rig, policy, takes_ms, mode, seed)
                    row = {"policy": identity, "takes_ms": takes_ms, "mode": mode, **row}
                    rows.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
    finally:
        rig.close()
    rows = [r for r in rows if r["policy"] == identity and 0 <= r["seed"] - config.seed < n]
    result = {
        "n": n,
        "policy": identity,
        "fps": policy.fps,
        "steps": policy.bundle.chunk,
        "execute": policy.execute,
        "cells": [_cell(rows, takes_ms, mode) for takes_ms, mode in cells],
        "evidence": "simulation (nominal cell)",
    }
    (folder / "slow_policies.png").write_bytes(picture(result))
    return result


def _rollout(
    rig: EmbeddedRig, policy: ActPolicy, takes_ms: int, mode: str, seed: int
) -> dict[str, Any]:
    from gaploop.collect.take import run_take
    from gaploop.core.vocabulary import Outcome
    from gaploop.finetune.evaluate import EVALUATION_SEEDS, MAX_S

    leader = MODES[mode](policy, rig.follower, rig.fps, rig.control_hz, takes_s=1e-3 * takes_ms)
    motion = _Motion()
    scene = EVALUATION_SEEDS + seed
    try:
        take = run_take(rig, leader, seed=scene, max_s=MAX_S, sinks=(motion,))
    except UnusableInputError as error:
        return {"seed": seed, "refused": str(error)}
    return {
        "seed": seed,
        "success": take.outcome is Outcome.SUCCESS,
        "duration_s": take.duration_s,
        "jerk_rad_s3": motion.jerk_rad_s3(1.0 / rig.control_hz),
        "waited_s": leader.pace.waited_s,
    }


def _cell(rows: Sequence[Mapping[str, Any]], takes_ms: int, mode: str) -> dict[str, Any]:
    """Summarise the rollouts of an inference time and a way to drive."""
    from gaploop.finetune.evaluation import wilson

    tried = [r for r in rows if (r["takes_ms"], r["mode"]) == (takes_ms, mode)]
    cell: dict[str, Any] = {"takes_ms": takes_ms, "mode": mode}
    if refused := [r["refused"] for r in tried if "refused" in r]:
        return {**cell, "refused": refused[0], "trials": len(refused)}
    jerks = np.array([r["jerk_rad_s3"] for r in tried])
    draws = np.random.default_rng(0).integers(len(jerks), size=(2000, len(jerks)))
    won = [r["duration_s"] for r in tried if r["success"]]
    return {
        **cell,
        "success": wilson(len(won), len(tried)),
        "jerk_rad_s3": float(np.median(jerks)),
        "jerk_interval": np.quantile(np.median(jerks[draws], axis=1), [0.025, 0.975]).tolist(),
        "won_after_s": float(np.median(won)) if won else None,
        "stood_s": float(np.median([r["waited_s"] for r in tried])),
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the cells as a Markdown table."""
    lines = [
        f"{result['policy']}: plans of {result['steps']} steps at {result['fps']:g} fps, "
        f"{result['execute']} to be executed. {result['n']} scenes of the nominal cell "
        "(simulation), the same for all: success with 95 % Wilson interval; median jerk of the "
        "joints [rad/s³] with bootstrap interval; median time to success; how long the arm stood.",
        "",
        "| inference | " + " | ".join(MODES) + " |",
        "|---" * (len(MODES) + 1) + "|",
    ]
    for takes_ms in TAKES_MS:
        cells = [c for c in result["cells"] if c["takes_ms"] == takes_ms]
        lines.append(f"| {takes_ms} ms | " + " | ".join(map(_words, cells)) + " |")
    return "\n".join(lines)


def _words(cell: Mapping[str, Any]) -> str:
    if "refused" in cell:
        return "refused"
    low, high = cell["jerk_interval"]
    words = f"{cell['success']}; {cell['jerk_rad_s3']:.0f} [{low:.0f}, {high:.0f}]; "
    words += "never" if cell["won_after_s"] is None else f"{cell['won_after_s']:.1f} s"
    return f"{words}; {cell['stood_s']:.1f} s"


def picture(result: Mapping[str, Any]) -> bytes:
    """Return success and jerk against inference time as a PNG."""

    from gaploop.failure_analysis.report.page import figure_png, new_figure

    colours = dict(zip(MODES, ("#9aa0a6", "#f29900", "#1a73e8"), strict=True))
    with new_figure(8.4, 3.0) as (figure, axes):
        axes.remove()
        left, right = figure.subplots(1, 2)
        for mode, colour in colours.items():
            driven = [c for c in result["cells"] if c["mode"] == mode and "refused" not in c]
            times = [c["takes_ms"] for c in driven]
            spans = np.array([c["success"].interval for c in driven]).T
            left.fill_between(times, *spans, color=colour, alpha=0.15)
            rates = [c["success"].rate for c in driven]
            left.plot(times, rates, "o-", ms=3, color=colour, label=mode)
            right.plot(times, [c["jerk_rad_s3"] for c in driven], "o-", ms=3, color=colour)
        left.set_ylim(0, 1.02)
        left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        left.set_ylabel(f"success in {result['n']} scenes")
        left.legend(frameon=False)
        right.set_ylim(bottom=0)
        right.set_ylabel("jerk of the joints [rad/s³]")
        for panel in (left, right):
            panel.set_xlabel("inference time [ms]")
        return figure_png(figure)
