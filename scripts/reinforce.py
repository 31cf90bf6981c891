"""`gaploop reinforce`: what a policy does well in a station's twin, it learns to do more often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options

EXAMPLE: Final = """\
gaploop reinforce --policy.path=base --env.twin=twin/station_twin.yaml --env.randomise=twin \\
    --output_dir=outputs/reinforced
gaploop reinforce --policy.path=resimulated/merged --env.twin=twin/station_twin.yaml --rounds=20 \\
    --output_dir=outputs/longer
"""
POSITIONAL: Final = ()


@dataclass
class ReinforceConfig:
    """Reinforce a policy in simulation, in a station's twin: no demonstrations, no operator.

    In every round the policy attempts each of some scenes several times, with small smooth
    changes of its plans, and learns from what went better than the rest of its scene (GRPO). Scenes
    of the nominal cell are among them, so that nothing is forgotten. Writes OUT/adapter, OUT/merged
    and rounds.jsonl. Ctrl-C keeps a checkpoint; the same command with --resume continues.
    For the policy that sees joints and tracked poses.
    """

    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    env: options.EnvOptions = field(default_factory=options.EnvOptions)
    rounds: int = 10
    """Rounds of attempts; an attempt takes most of a second of processor time."""
    scenes: int = 10
    """Scenes in a round."""
    group: int = 8
    """Attempts on each scene."""
    nominal_share: float = 0.1
    """Share of the scenes that are in the nominal cell."""
    spread: float = 0.015
    """Standard deviation of the changes to a plan, in standard deviations of the action."""
    lr: float = 5e-5
    """Learning rate."""
    workers: int = 2
    """Processes that attempt."""
    seed: int = 0
    """Draws scenes, changes and the adapter's first weights."""
    resume: bool = False
    """Go on from the checkpoint in --output_dir; with more --rounds also where it had ended."""
    output_dir: Path | None = None
    """Run folder to write."""
    json: bool = False
    """Print one JSON object."""


def run(config: ReinforceConfig) -> int:
    """Reinforce and print where the policy is."""
    from gaploop.finetune.evaluate import CellSpec
    from gaploop.finetune.reinforce import ReinforceOptions, reinforce

    if config.env.show_ranges():
        return 0
    if config.output_dir is None or not config.policy.path:
        raise UnusableInputError("Give --policy.path=DIR and --output_dir=OUT.")
    if config.env.conditions:
        raise UnusableInputError(
            "--env.conditions set up one scene; here they vary. Leave them out, or use "
            "--env.randomise."
        )
    cell = CellSpec(**config.env.cell())
    what = ReinforceOptions(
        config.policy.path, config.output_dir, cell, config.rounds, config.scenes, config.group,
        config.nominal_share, spread=config.spread, lr=config.lr, seed=config.seed,
        workers=config.workers, resume=config.resume,
    )  # fmt: skip
    said: list[Mapping[str, float]] = []
    with options.progress("Rounds", total=config.rounds) as step:

        def told(line: Mapping[str, float]) -> None:
            said.append(line)
            step()

        done = reinforce(what, told=told)
    nothing = {"success": float("nan")}  # all rounds were done before
    first, last = (line["success"] for line in ([*said, nothing][0], [nothing, *said][-1]))
    options.emit(
        config.json,
        {"policy": done.folder, "id": done.id, "run": done.run, "rounds": said},
        f"{done.folder} ({done.id}): attempts with changed plans succeeded in "
        f"{first:.0%} at first, {last:.0%} at last (sim-to-sim). "
        f"Try it: gaploop evaluate --policy.path={done.folder} --n=100 with the same --env.*, and "
        "once without.",
    )
    return 0
