"""`gaploop finetune`: adapt a base to real takes, mixed with simulated ones."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import load_plan
from gaploop.datasets.hub.target import check_repo_id
from gaploop.finetune.tuning.presets import Randomise, Targets, preset_for
from gaploop.scripts import options
from gaploop.scripts._library import command
from gaploop.scripts._pushing import MODEL, push_folder

if TYPE_CHECKING:
    from gaploop.finetune.pretrain import TrainedPolicy
    from gaploop.finetune.tuning.real_share import ShareChoice
    from gaploop.finetune.tuning.retention import Retention
    from gaploop.finetune.tuning.work import AdaptOptions

log = logging.getLogger(__name__)

RARE = (
    "policy.push_to_hub", "policy.repo_id", "policy.private", "policy.license", "policy.tags",
    "sim_takes", "mixture", "lora.*", "episodes", "station", "held_out",
    "patience", "rename_map", "cache.*", "randomise.*", "retention.*", "precision",
    "accumulation", "gradient_checkpointing", "trackers", "num_workers", "merge", "seed",
)  # fmt: skip
EXAMPLE: Final = """\
gaploop finetune --policy.path=base --real='[real_takes]' --sim='[sim_takes]' --mix.real=auto \\
    --held_out_share=0.2 --lora.r=16 --output_dir=adapted
gaploop finetune --preset=smolvla_lora --policy.path=lerobot/smolvla_base --stats=new \\
    --real='[real_takes]' --device=auto --output_dir=adapted
gaploop finetune --preset=help
accelerate launch --num_processes=4 -m gaploop.scripts.cli finetune --device=auto …
"""
ENDED: Final = ("steps", "stopped_early", "best_step", "ranks", "weights_sha256", "loss")
"""What `--json` says of a training's end, in the words of its result."""


@dataclass
class MixOptions:
    """How sources are mixed."""

    real: str = "0.5"
    """Share of real samples in a batch, where there are simulated ones; auto to choose it on
    held-out real takes."""


@dataclass
class LoraFlags:
    """Size of the adapter."""

    r: int = 0
    """Rank; the preset's (16) unless given."""
    alpha: int = 0
    """Scale; 0 means twice the rank."""
    dropout: float = 0.0
    """Dropout on the adapter's input."""
    target_modules: list[str] = field(default_factory=list)
    """What gets an adapter: names of modules, or one regular expression; the preset's unless
    given."""


@dataclass
class RetentionFlags:
    """What the base could do in simulation, and whether the tuned policy still can."""

    n: int = 0
    """Paired rollouts in the nominal cell afterwards; 0 for none."""
    margin: float = 3.0
    """Success may fall by this many points; more ends with exit code 1. The adapter is kept."""
    workers: int = 1
    """Processes."""


@dataclass
class TunedPolicyOptions(options.PolicyOptions):
    """Which policy to start from, and what becomes of the adapted one."""

    push_to_hub: bool = False
    """Push the adapter afterwards; see gaploop push --help. Where the Hub is down, the
    command for later is printed."""
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
    """Adapt any LeRobot policy to real takes, mixed with simulated takes so that it forgets little.

    Writes OUT/adapter (with the base inside: it loads from anywhere), OUT/merged (a plain LeRobot
    policy), metrics.jsonl and run.json with the lineage. Ctrl-C keeps a checkpoint; the same
    command with --resume continues from it. --preset=help lists the presets. docs/finetuning.md
    explains the choices.
    """

    policy: TunedPolicyOptions = field(default_factory=TunedPolicyOptions)
    preset: str = ""
    """Named starting point, such as act_lora; by the kind of policy unless given; help lists."""
    real: list[Path] = field(default_factory=list)
    """Datasets of real takes, or of a simulated target cell."""
    sim: list[Path] = field(default_factory=list)
    """Datasets of simulated takes."""
    sim_takes: int = 0
    """Without --sim: scripted takes of the embedded nominal cell to record and mix in."""
    mix: MixOptions = field(default_factory=MixOptions)
    mixture: Path | None = None
    """In the place of --real, --sim and --mix: a mixture.yaml with shares or stages and weights."""
    plan: Path | None = None
    """A plan.yaml: takes of a gap dimension are drawn as often as it expects them to help."""
    lora: LoraFlags = field(default_factory=LoraFlags)
    full: bool = False
    """Train all weights instead of an adapter."""
    select: str = "demonstrations"
    """Which takes: demonstrations, successful or all."""
    episodes: list[int] = field(default_factory=list)
    """Only these episodes of the real datasets, such as '[0, 3]'."""
    station: str = ""
    """Only real takes of this station."""
    held_out: list[int] = field(default_factory=list)
    """Episodes of the real datasets to keep aside and measure the error on."""
    held_out_share: float = 0.0
    """Share of the real takes to keep aside and measure the error on, chosen by session and
    dimension; or name them with --held_out."""
    patience: int = 0
    """Stop after this many held-out evaluations (ten in a run) without a better one; 0: never."""
    stats: str = "base"
    """Normalise by the statistics of the base, of the new data (new), or of both (merged)."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """The dataset's name of a feature to the policy's, where they differ."""
    cache: options.CacheFlags = field(default_factory=options.CacheFlags)
    randomise: Randomise = field(default_factory=Randomise)
    retention: RetentionFlags = field(default_factory=RetentionFlags)
    steps: int = 0
    """Training steps; the preset's unless given."""
    batch_size: int = 0
    """Samples per step and process; the preset's unless given."""
    lr: float = 0.0
    """Peak learning rate; the preset's unless given."""
    precision: str = ""
    """no or bf16; the preset's unless given."""
    accumulation: int = 1
    """Parts in which a batch is worked through, one after another: less memory, the same step."""
    gradient_checkpointing: bool = False
    """Work activations out again on the way back, where LeRobot can (pi0, pi0.5): less memory."""
    trackers: list[str] = field(default_factory=list)
    """Where figures go beside metrics.jsonl: wandb, trackio, tensorboard."""
    device: str = "cpu"
    """Torch device; auto for a GPU where there is one, and with accelerate launch."""
    num_workers: int = 0
    """Processes that fetch pictures ahead."""
    merge: bool = True
    """Write OUT/merged beside the adapter."""
    seed: int = 0
    """Draws adapter weights and batches."""
    resume: bool = False
    """Go on from the checkpoint in --output_dir."""
    output_dir: Path | None = None
    """Run folder to write."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class FinetuneResult:
    """What came of `finetune`.

    Attributes:
        policy: the adapter or policy, and how its training ended.
        share_real: share of real samples in a batch; None where a mixture says.
        choice: how that share was chosen, with --mix.real=auto.
        retention: success in nominal simulation before and after, where it was asked for.
        push: the repository that it was pushed to, likewise.
    """

    policy: TrainedPolicy
    share_real: float | None
    choice: ShareChoice | None = None
    retention: Retention | None = None
    push: dict[str, Any] | None = None


def run(config: FinetuneConfig) -> int:
    """Adapt and print where the adapter is."""
    from gaploop.finetune.ranks import Ranks
    from gaploop.finetune.tuning import presets

    if config.preset == "help":
        known = [dataclasses.asdict(p) for p in presets.PRESETS.values()]
        options.emit(config.json, {"presets": known}, presets.table())
        return 0
    result = finetune(config)
    if not Ranks(config.device).is_main:
        return 0
    from gaploop.finetune.lerobot_policy import cell_of
    from gaploop.finetune.tuning import retention

    made, ended, kept = result.policy, result.policy.result, result.retention
    answer = {
        "policy": made.folder,
        "merged": made.merged,
        "id": made.id,
        "run": made.run,
        "takes": {i["root"]: i["takes"] for i in made.inputs},
        **{name: getattr(ended, name) for name in ENDED},
        "held_out_error": ended.held_out,
        "share_real": result.share_real,
        "ratio": result.choice,
        "retention": retention.as_json(kept) if kept else None,
        "push": result.push,
    }
    cell = cell_of(made.folder)
    where = options.cell_words(*cell) if cell else ""
    mixed = config.sim or config.sim_takes or config.mixture
    warning = "" if mixed else " No simulated takes were mixed in: check what it forgot."
    best = f" Best on held-out takes: step {ended.best_step}, kept." if ended.held_out else ""
    early = " It had stopped getting better." if ended.stopped_early else ""
    lines = [result.choice.message()] if result.choice else []
    lines.append(
        f"{made.folder} ({made.id}): {ended.steps} steps, loss {ended.loss:.4f}.{best}{early}"
        f"{warning} Try it: gaploop evaluate --policy.path={made.folder}{where} --n=100"
    )
    lines += [kept.message()] if kept else []
    options.emit(config.json, answer, "\n".join(lines))
    return int(kept is not None and not kept.is_kept)


@command
def finetune(config: FinetuneConfig) -> FinetuneResult:
    """Adapt a policy once and write its run folder.

    Where several processes train, all call this; the first one measures and pushes.

    Args:
        config: the command's options.

    Raises:
        UnusableInputError: options or data don't go together; why, and how to fix it.
    """
    from gaploop.finetune.adapt import adapt, require_free
    from gaploop.finetune.ranks import Ranks
    from gaploop.finetune.tuning import real_share, retention

    folder, flags = _require_sense(config), config.retention
    what = _options(config, folder)
    if flags.n:
        retention.require_measurable(what.base)
    if not config.resume:
        require_free(what.output_dir)
    choice = None
    if real_share.parse_share(config.mix.real) is None:
        choice = real_share.chosen_share(what, _say)
        what = dataclasses.replace(what, share_real=choice.share)
    with options.progress("Training", total=what.spec.steps) as advance:
        done = adapt(what, lambda *_: advance())
    share = what.share_real if what.sim or what.sim_takes else 1.0
    result = FinetuneResult(done, None if what.mixture else share, choice)
    if not Ranks(config.device).is_main:
        return result
    if flags.n:
        with options.progress("Nominal simulation", total=2 * flags.n) as advance:
            kept = retention.measure(
                what.base, done.folder, flags.n, flags.margin, done.run,
                workers=flags.workers, progress=advance,
            )  # fmt: skip
        result = dataclasses.replace(result, retention=kept)
    if config.policy.push_to_hub:
        pushed = push_folder(done.folder, MODEL, config.policy, None).as_json()
        result = dataclasses.replace(result, push=pushed)
    return result


def _require_sense(config: FinetuneConfig) -> Path:
    """Refuse options that would be ignored, or undo each other; return the run folder."""
    folder = options.required(config.output_dir, options.WHERE_TO)
    config.policy.required()
    flags = config.retention
    if config.patience and not (config.held_out or config.held_out_share):
        raise UnusableInputError(
            "--patience counts held-out evaluations. Hold takes out: --held_out_share=0.2."
        )
    if flags.n < 0 or flags.margin < 0 or flags.workers < 1:
        raise UnusableInputError(
            f"--retention.n={flags.n} and --retention.margin={flags.margin:g} must not be below 0, "
            f"and --retention.workers={flags.workers} not below 1."
        )
    return folder


def _options(config: FinetuneConfig, folder: Path) -> AdaptOptions:
    from gaploop.finetune.adapt import base_of, kind_of
    from gaploop.finetune.lerobot_adapter import LoraOptions
    from gaploop.finetune.tuning.real_share import parse_share
    from gaploop.finetune.tuning.work import AdaptOptions, weights_of

    base = config.policy.required()
    preset = preset_for(kind_of(base_of(base)), config.full, config.preset)
    names = ("steps", "batch_size", "lr", "precision", "accumulation", "gradient_checkpointing")
    given = {name: value for name in names if (value := getattr(config, name))}
    spec = dataclasses.replace(preset.spec, **given, seed=config.seed, patience=config.patience)
    modules = config.lora.target_modules
    targets: Targets = tuple(modules) if modules else preset.targets
    if len(modules) == 1 and not modules[0].isidentifier():
        targets = modules[0]
    weights = {}
    if config.plan is not None:
        if config.mixture:
            raise UnusableInputError(
                f"--plan={config.plan} weighs --real by dimension; {config.mixture} has weights of "
                "its own. Give one of the two."
            )
        weights = weights_of(load_plan(config.plan, None))
    share = parse_share(config.mix.real)
    return AdaptOptions(
        base=base,
        real=tuple(config.real),
        output_dir=folder,
        sim=tuple(config.sim),
        sim_takes=config.sim_takes,
        share_real=0.5 if share is None else share,
        lora=LoraOptions(
            config.lora.r or preset.r, config.lora.alpha, config.lora.dropout, targets
        ),
        full=config.full or preset.full,
        spec=spec,
        select=config.select,
        episodes=tuple(config.episodes) or None,
        held_out=tuple(config.held_out),
        held_out_share=config.held_out_share,
        resume=config.resume,
        mixture=config.mixture,
        stats=config.stats,
        weights=weights,
        station=config.station,
        rename=config.rename_map,
        cache=config.cache.options(),
        workers=config.num_workers,
        randomise=config.randomise,
        device=config.device,
        merge=config.merge,
        trackers=tuple(config.trackers),
    )


def _say(arm: str) -> None:
    log.info("Training %s.", arm)
