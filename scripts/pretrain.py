"""`gaploop pretrain`: a base policy from simulated takes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.finetune.tuning.presets import TRACKED_SPECS, VISION_SPEC
from gaploop.scripts import options

EXAMPLE: Final = """\
gaploop pretrain --takes=400 --output_dir=base          # records scripted takes, then trains
gaploop pretrain --vision --takes=600 --output_dir=base_vision   # sees pictures, no tracker
gaploop pretrain --vision --policy.path=base_vision --env.task=pick_lift --takes=300 --steps=4000 \\
    --output_dir=base_lift                              # another task, from the weights of one
gaploop pretrain --sim='[sim_takes]' --steps=6000 --output_dir=base
"""


@dataclass
class StartPolicy:
    """What a training begins with."""

    path: str = ""
    """With --vision: begin with this policy's weights, such as base_vision for another task."""


@dataclass
class PretrainConfig:
    """Train a base policy on simulated takes, recording scripted ones first if none are given.

    Writes OUT/policy (a plain LeRobot policy folder), metrics.jsonl and run.json. Ctrl-C keeps a
    checkpoint; the same command with --resume continues from it.
    """

    dataset: options.DatasetEpisodes = field(default_factory=options.DatasetEpisodes)
    sim: list[Path] = field(default_factory=list)
    """Datasets to train on."""
    takes: int = 0
    """Without datasets: scripted takes of the embedded cell to record first."""
    vision: bool = False
    """Train a policy that sees the camera's pictures and the joints, on --takes recorded for it."""
    policy: StartPolicy = field(default_factory=StartPolicy)
    env: options.EnvOptions = field(default_factory=options.EnvOptions)
    select: str = "demonstrations"
    """Which takes: demonstrations, successful or all."""
    held_out: list[int] = field(default_factory=list)
    """Episodes of each dataset to keep aside and measure the action error on."""
    steps: int = 0
    """Training steps; the preset's (6000, with --vision 14000) unless given."""
    batch_size: int = 64
    """Samples per step."""
    lr: float = 0.0
    """Peak learning rate; the preset's unless given."""
    seed: int = 0
    """Draws scenes, initial weights and batches."""
    resume: bool = False
    """Go on from the checkpoint in --output_dir."""
    output_dir: Path | None = None
    """Run folder to write."""
    json: bool = False
    """Print one JSON object."""


def run(config: PretrainConfig) -> int:
    """Train and print where the policy is."""
    from gaploop.finetune.pretrain import PretrainOptions, pretrain

    if config.env.show_ranges():
        return 0
    folder = options.required(config.output_dir, options.WHERE_TO)
    if config.env.gaps or config.env.conditions:
        raise UnusableInputError(
            "A base is trained on the nominal, a randomised or a twin's cell: leave --env.gaps and "
            "--env.conditions out."
        )
    if config.policy.path and not config.vision:
        raise UnusableInputError(
            "Only --vision can begin with --policy.path. Leave it out, or adapt that policy with "
            "gaploop finetune."
        )
    roots = [*([config.dataset.root] if config.dataset.root else []), *config.sim]
    cell = config.env.cell()
    if roots and (cell["parameters"] or cell["randomise"]):
        raise UnusableInputError(
            "--env.twin and --env.randomise make the cell that --takes are recorded in; recorded "
            "datasets are as they are. Leave them out, or --sim."
        )
    preset = VISION_SPEC if config.vision else TRACKED_SPECS["pretrain"]
    spec = dataclasses.replace(
        preset,
        steps=config.steps or preset.steps,
        lr=config.lr or preset.lr,
        batch_size=config.batch_size,
        seed=config.seed,
    )
    what = PretrainOptions(
        roots=tuple(roots),
        output_dir=folder,
        takes=config.takes,
        task=config.env.task,
        spec=spec,
        select=config.select,
        episodes=tuple(config.dataset.episodes) if config.dataset.episodes else None,
        held_out=tuple(config.held_out),
        resume=config.resume,
        robot=config.env.robot,
        parameters=cell["parameters"],
        randomise=cell["randomise"],
        start=config.policy.path,
    )
    record = not roots and config.takes
    with (
        options.progress("Recording", total=config.takes if record else 0) as recorded,
        options.progress("Training", total=spec.steps) as trained,
    ):
        if config.vision:
            from gaploop.finetune.lerobot_vision import pretrain_vision as pretrain
        done = pretrain(what, lambda *_: trained(), recorded)
    where = options.cell_words(config.env.task, config.env.robot)
    answer = {
        "policy": done.folder,
        "id": done.id,
        "run": done.run,
        "takes": sum(i["takes"] for i in done.inputs),
        "steps": done.result.steps,
        "loss": done.result.loss,
        "held_out_action_error": done.result.held_out,
    }
    text = (
        f"{done.folder} ({done.id}): {done.result.steps} steps, loss {done.result.loss:.4f}. "
        f"Try it: gaploop evaluate --policy.path={done.folder}{where} --n=100"
    )
    options.emit(config.json, answer, text)
    return 0
