"""`gaploop evaluate` in LeRobot's gymnasium environments: their options."""

# Annotations are not postponed: the config's dataclass is made inside a function (see cli.py).

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.scripts import options

if TYPE_CHECKING:
    from gaploop.finetune.evaluation import Evaluation


def config_class() -> type:
    """Return the options of `gaploop evaluate --env.type=…`."""
    from lerobot.envs.configs import EnvConfig, PushtEnv

    @dataclass
    class EvaluateConfig:
        """Roll a policy out in a gymnasium environment of LeRobot, through LeRobot's own code.

        Gives its success with Wilson intervals. Scene by scene, so that results of two policies
        pair up where the environment keeps to its seeds. --output_dir keeps every rollout as it
        comes: after Ctrl-C the same command goes on.
        """

        policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
        env: EnvConfig = field(default_factory=PushtEnv)
        """The environment, as in lerobot-eval."""
        n: int = 50
        """Rollouts of each task."""
        seed: int = 0
        """Of the first scene."""
        workers: int = 2
        """Environments side by side, each in a process of its own from 2 on."""
        output_dir: Path | None = None
        """Write evaluation.json, rollouts.csv, run.json and pictures here, and go on where it
        was."""
        json: bool = False
        """Print one JSON object."""

    return EvaluateConfig


def in_gym(config: Any, folder: Path | None) -> "Evaluation":
    """Roll out in the environment that the options describe."""
    from gaploop.finetune.lerobot_gym import evaluate_gym
    from gaploop.scripts._evaluate import running

    with running(config.n, folder) as seen:
        return evaluate_gym(
            config.policy.required(),
            config.env,
            config.n,
            seed=config.seed,
            batch=config.workers,
            folder=folder,
            on_rollouts=seen,
        )
