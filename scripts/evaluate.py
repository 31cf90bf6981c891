"""`gaploop evaluate`: how often a policy succeeds, under what, and what goes wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.collect.lerobot_types import with_types
from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options
from gaploop.scripts._arguments import all_types

RARE: Final = (
    *("policy.fps", "policy.threads", "policy.device", "policy.format", "env.gaps_module"),
    *("env.gap_seed", "env.robot", "env.randomise", "env.task", "env.conditions"),
    *("rollouts", "seed", "workers", "max_s", "speed_scale"),
)
EXAMPLE: Final = """\
gaploop evaluate --policy.path=base --n=100
gaploop evaluate --policy.path=base --factors=all --n=50 --output_dir=evaluated
gaploop evaluate --policy.path=adapted/adapter --env.gaps='{"object_property": 0.6}' --n=50 --json
gaploop evaluate --policy.path=base --factors='[lighting, {distractors: 3}]' --workers=ray
gaploop evaluate --rollouts=runs --output_dir=evaluated_on_the_arm
gaploop evaluate --policy.path=lerobot/diffusion_pusht --env.type=pusht --n=50
gaploop evaluate --policy.path=my_lab:grasp --env.gym=FetchPickAndPlace-v4 --factors=all --n=20
"""


@dataclass
class RolloutsOptions:
    """What any way of rolling out has."""

    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    n: int = 100
    """Rollouts under each setting, or of each task."""
    seed: int = 0
    """First scene."""
    workers: int | str = 2
    """Processes; or a Ray cluster: ray (the one that this machine is in), ray:local (starts one),
    ray://head:10001. It needs pip install 'gaploop[ray]' on every machine."""
    speed_scale: float = 1.0
    """Let the policy drive at this share of its speed; a rollout gets as much more time."""
    output_dir: Path | None = None
    """Write evaluation.json, rollouts.csv, run.json and pictures here; continue what is there."""
    json: bool = False
    """Print one JSON object."""


@dataclass
class EvaluateConfig(RolloutsOptions):
    """Roll a policy out and give its success with Wilson intervals, and what goes wrong.

    With --factors also what each setting of a factor costs against the base, in points, on equal
    scenes. Equal --seed gives equal scenes, so that the results of two policies pair up, too.
    --output_dir keeps every rollout as it comes: after Ctrl-C the same command continues.

    --rollouts counts what gaploop rollout recorded on an arm instead of rolling out. --env.type
    rolls out, through LeRobot, in one of its gymnasium environments (--env.type=pusht --help). With
    injected gaps or conditions the result is marked as sim-to-sim evidence.
    """

    env: options.EnvOptions = field(default_factory=options.EnvOptions)
    factors: list[Any] = field(default_factory=list)
    """What to vary, one at a time: background, lighting, distractors, object, camera_pose,
    table_height, human, placement (beyond where any demonstration began), grid_cell (a map of
    positions), instruction (of policies that read it); or all; or settings of your own, such as
    '[{distractors: 3, lighting: dim}]'."""
    rollouts: Path | None = None
    """A dataset or journal of gaploop rollout whose episodes are counted; with --policy.path only
    those of that policy."""
    max_s: float | None = None
    """Longest rollout [simulated s]; 8 for each arm of the cell unless given."""


POSITIONAL: Final = "policy.path"


def config_class_for(arguments: Sequence[str]) -> type:
    """Return the options: those of LeRobot's environments only where one of them is asked for."""
    named = {token.partition("=")[0] for token in arguments} & {"--env.gym", "--env.scene"}
    if not named and any(token.startswith("--dataset.") for token in arguments):
        raise UnusableInputError(
            "--dataset.root keeps what happens in --env.gym or --env.scene. In the embedded cell "
            "gaploop rollout records: --policy.path, --robot.gaps, --dataset.root."
        )
    if not named and "env" not in all_types(arguments):
        return EvaluateConfig
    from lerobot.envs.configs import EnvConfig, PushtEnv

    import gaploop.sim.lerobot_env  # noqa: F401  so101_cell, the embedded cell, is one of them
    from gaploop.sim.lerobot_worlds import GymEnvConfig, SceneEnvConfig

    usual: type = PushtEnv
    if named:
        usual = GymEnvConfig if "--env.gym" in named else SceneEnvConfig
    return with_types(GymEvaluateConfig, [("env", EnvConfig, field(default_factory=usual))])


@dataclass
class Demonstrated(options.DatasetFolder):
    """Where successes go as demonstrations."""

    root: Path | None = None
    """A new LeRobot dataset of the attempts that succeed, to fine-tune or train on."""
    single_task: str = ""
    """Its instruction; the environment's own unless given."""
    failures: bool = False
    """Keep attempts that fail, too, each labelled with its outcome: to identify and diagnose."""


@dataclass
class GymEvaluateConfig(RolloutsOptions):
    """Roll a policy out in any gymnasium environment, with gaps injected where asked for.

    --env.type names one of LeRobot's, --env.gym any other by its id, --env.scene a scene file
    (docs/start/my_simulation.md), whose demonstrator is --policy.path=demonstrator, and where
    recorded demonstrations drive other scenes as --policy.path=replay:FOLDER. Gives success with
    Wilson intervals, scene by scene, so that results of two policies pair up where the environment
    keeps to its seeds. --policy.path may name a script, module:name, too.
    --output_dir keeps every rollout as it comes: after Ctrl-C the same command continues.
    """

    env: Any = None
    """The environment, as in lerobot-eval."""
    gaps: dict[str, float] = field(default_factory=dict)
    """Gap dimension to severity from 0 to 1, as of --env.gaps of the embedded cell; relative to the
    scene's object, camera and period."""
    gap_seed: int = 0
    """Draws mechanism and direction of each gap."""
    twin: Path | None = None
    """A file of measured parameters, as of gaploop identify: the environment is made so."""
    randomise: str = ""
    """What each attempt's scene is drawn from: visual, dynamics, all, looks, or a file of ranges; a
    preset is relative to the scene, and what the environment can't have is left out."""
    conditions: dict[str, Any] = field(default_factory=dict)
    """What is set up, as of --env.conditions of the embedded cell: '{"backdrop": "photos"}'."""
    factors: list[Any] = field(default_factory=list)
    """What to vary, one at a time: lighting, distractors, object, camera_pose, table_height,
    human, instruction (of policies that read it; other words of a scene file); or all that the
    environment can have; or settings of your own, such as '[{fidelity: shadows}]'."""
    roles: Path | None = None
    """roles.yaml: what in the model is arm, gripper, object, table, cameras, where that is in
    doubt (docs/start/my_simulation.md)."""
    dataset: Demonstrated = field(default_factory=Demonstrated)
    n: int = 50
    """Rollouts of each task, under each setting."""
