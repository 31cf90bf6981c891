"""`gaploop finetune`: adapt a base to real takes, mixed with simulated ones."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.hub.target import check_repo_id
from gaploop.scripts import options
from gaploop.scripts._pushing import MODEL, push_folder

EXAMPLE: Final = """\
gaploop finetune --policy.path=base --real='[real_takes]' --sim='[sim_takes]' --mix.real=0.5 \\
    --lora.r=16 --output_dir=adapted
"""


@dataclass
class MixOptions:
    """How sources are mixed."""

    real: float = 0.5
    """Share of real samples in a batch, where there are simulated ones."""


@dataclass
class LoraFlags:
    """Size of the adapter."""

    r: int = 16
    """Rank."""
    alpha: int = 0
    """Scale; 0 means twice the rank."""
    dropout: float = 0.0
    """Dropout on the adapter's input."""


@dataclass
class TunedPolicyOptions(options.PolicyOptions):
    """Which policy to start from, and what becomes of the adapted one."""

    push_to_hub: bool = False
    """Push the adapter afterwards; see gaploop push --help. A Hub that is down is tried later."""
    repo_id: str = ""
    """With push_to_hub: owner and name on the Hub, such as me/pick_place_adapter."""
    private: bool | None = None
    """With push_to_hub: make a new repository private."""
    license: str = ""
    """With push_to_hub: licence for the card; apache-2.0 unless given, as LeRobot."""
    tags: list[str] | None = None
    """With push_to_hub: more tags for the card."""

    def __post_init__(self) -> None:
        if self.push_to_hub:
            check_repo_id(self.repo_id, "--policy.repo_id")


@dataclass
class FinetuneConfig:
    """Adapt a policy to real takes with LoRA, mixed with simulated takes so that it forgets little.

    Writes OUT/adapter (with the base inside: it loads from anywhere), OUT/merged (a plain LeRobot
    policy), metrics.jsonl and run.json with the lineage. Ctrl-C keeps a checkpoint; the same
    command with --resume goes on from it.
    """

    policy: TunedPolicyOptions = field(default_factory=TunedPolicyOptions)
    real: list[Path] = field(default_factory=list)
    """Datasets of real takes, or of a simulated target cell."""
    sim: list[Path] = field(default_factory=list)
    """Datasets of simulated takes."""
    sim_takes: int = 0
    """Without --sim: scripted takes of the embedded nominal cell to record and mix in."""
    mix: MixOptions = field(default_factory=MixOptions)
    mixture: Path | None = None
    """In the place of --real, --sim and --mix: a mixture.yaml with shares or stages and weights."""
    lora: LoraFlags = field(default_factory=LoraFlags)
    full: bool = False
    """Train all weights instead of an adapter."""
    select: str = "demonstrations"
    """Which takes: demonstrations, successful or all."""
    episodes: list[int] = field(default_factory=list)
    """Only these episodes of the real datasets, such as '[0, 3]'."""
    held_out: list[int] = field(default_factory=list)
    """Episodes of the real datasets to keep aside and measure the action error on."""
    steps: int = 0
    """Training steps; the preset's (400) unless given."""
    batch_size: int = 64
    """Samples per step."""
    lr: float = 0.0
    """Peak learning rate; the preset's unless given."""
    seed: int = 0
    """Draws adapter weights and batches."""
    resume: bool = False
    """Go on from the checkpoint in --output_dir."""
    output_dir: Path | None = None
    """Run folder to write."""
    json: bool = False
    """Print one JSON object."""


def run(config: FinetuneConfig) -> int:
    """Adapt and print where the adapter is."""
    from gaploop.finetune.adapt import AdaptOptions, adapt
    from gaploop.finetune.lerobot_adapter import LoraOptions
    from gaploop.finetune.training import PRESETS

    if config.output_dir is None:
        raise UnusableInputError("Where to? Name a run folder with --output_dir=OUT.")
    preset = PRESETS["full" if config.full else "lora"]
    spec = dataclasses.replace(
        preset,
        steps=config.steps or preset.steps,
        lr=config.lr or preset.lr,
        batch_size=config.batch_size,
        seed=config.seed,
    )
    what = AdaptOptions(
        base=config.policy.required(),
        real=tuple(config.real),
        output_dir=config.output_dir,
        sim=tuple(config.sim),
        sim_takes=config.sim_takes,
        share_real=config.mix.real,
        lora=LoraOptions(config.lora.r, config.lora.alpha, config.lora.dropout),
        full=config.full,
        spec=spec,
        select=config.select,
        episodes=tuple(config.episodes) or None,
        held_out=tuple(config.held_out),
        resume=config.resume,
        mixture=config.mixture,
    )
    with options.progress("Training", total=spec.steps) as advance:
        done = adapt(what, lambda *_: advance())
    mixed = config.sim or config.sim_takes or config.mixture
    warning = "" if mixed else " No simulated takes were mixed in: check what it forgot."
    pushed = None
    if config.policy.push_to_hub:
        pushed = push_folder(done.folder, MODEL, config.policy, None).as_json()
    options.emit(
        config.json,
        {
            "policy": done.folder,
            "merged": done.merged,
            "id": done.id,
            "run": done.run,
            "takes": {i["root"]: i["takes"] for i in done.inputs},
            "steps": done.result.steps,
            "loss": done.result.loss,
            "held_out_action_error": done.result.held_out,
            "push": pushed,
        },
        f"{done.folder} ({done.id}): {done.result.steps} steps, loss {done.result.loss:.4f}."
        f"{warning} Try it: gaploop evaluate --policy.path={done.folder} --n=100",
    )
    return 0
