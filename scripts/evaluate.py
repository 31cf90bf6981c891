"""`gaploop evaluate`: how often a policy succeeds, under what, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.scripts import options

EXAMPLE: Final = """\
gaploop evaluate --policy.path=base --n=100
gaploop evaluate --policy.path=base --factors=all --n=50 --output_dir=evaluated
gaploop evaluate --policy.path=adapted/adapter --env.gaps='{"object_property": 0.6}' --n=50 --json
gaploop evaluate --policy.path=base --factors='[lighting, distractors]' --ray.address=auto
gaploop evaluate --rollouts=runs --output_dir=evaluated_on_the_arm
gaploop evaluate --policy.path=lerobot/diffusion_pusht --env.type=pusht --n=50
"""


@dataclass
class EvaluateConfig:
    """Roll a policy out and give its success with Wilson intervals, and what goes wrong.

    With --factors also what each setting of a factor costs against the base, in points, on equal
    scenes. Equal --seed gives equal scenes, so that the results of two policies pair up, too.
    --output_dir keeps every rollout as it comes: after Ctrl-C the same command goes on.

    --rollouts counts what gaploop rollout recorded on an arm instead of rolling out. --env.type
    rolls out, through LeRobot, in one of its gymnasium environments. With injected gaps or
    conditions the result is sim-to-sim evidence and says so.
    """

    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    env: options.EnvOptions = field(default_factory=options.EnvOptions)
    factors: list[str] = field(default_factory=list)
    """What to vary, one at a time: background, lighting, distractors, object, camera_pose,
    table_height, human, placement (beyond where any demonstration began), grid_cell (a map of
    positions); or all."""
    conditions: list[dict[str, Any]] = field(default_factory=list)
    """Settings of your own, such as '[{"distractors": 3, "lighting": "dim"}]'."""
    rollouts: Path | None = None
    """A dataset or journal of gaploop rollout whose takes are counted; with --policy.path only
    those of that policy."""
    n: int = 100
    """Rollouts under each setting."""
    seed: int = 0
    """First scene."""
    workers: int = 2
    """Processes."""
    ray: options.RayOptions = field(default_factory=options.RayOptions)
    max_s: float = 8.0
    """Longest rollout [simulated s]."""
    output_dir: Path | None = None
    """Write evaluation.json, rollouts.csv, run.json and pictures here, and go on where it was."""
    json: bool = False
    """Print one JSON object."""


POSITIONAL: Final = "policy.path"


def config_class_for(arguments: Sequence[str]) -> type:
    """Return the options: those of LeRobot's environments only where one of them is asked for."""
    from gaploop.scripts._arguments import chosen_types, file_types

    if "env" in {**file_types(arguments), **chosen_types(arguments)}:
        from gaploop.scripts._evaluate_gym import config_class

        return config_class()
    return EvaluateConfig


def run(config: Any) -> int:
    """Evaluate, print, and write what was asked for."""
    from gaploop.core.files import writable_folder
    from gaploop.scripts import _evaluate

    folder = writable_folder(config.output_dir) if config.output_dir else None
    if getattr(config, "rollouts", None) is not None:
        result, notes = _evaluate.counted(config)
        return _evaluate.tell(config, result, folder, notes)
    options.warn_withdrawn(config.policy.required())
    if isinstance(config.env, options.EnvOptions):
        result, notes = _evaluate.in_the_cell(config, folder), ""
    else:
        from gaploop.scripts._evaluate_gym import in_gym

        result, notes = in_gym(config, folder), ""
    return _evaluate.tell(config, result, folder, notes)
