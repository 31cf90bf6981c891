"""`gaploop finetune`: adapt a base to real takes, mixed with simulated ones."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.paths import plain_name
from gaploop.scripts import _finetune_job as jobs
from gaploop.scripts import options
from gaploop.scripts._finetune_options import (
    LoraFlags,
    MixOptions,
    RandomiseFlags,
    RetentionFlags,
    TunedPolicyOptions,
)
from gaploop.scripts._pushing import MODEL, push_folder

if TYPE_CHECKING:
    from gaploop.finetune.pretrain import TrainedPolicy
    from gaploop.finetune.tuning.work import AdaptOptions

log = logging.getLogger(__name__)

RARE = (
    "policy.push_to_hub", "policy.repo_id", "policy.private", "policy.license", "policy.tags",
    "sim_takes", "mixture", "lora.*", "episodes", "station", "per_station", "held_out",
    "patience", "rename_map", "cache.*", "randomise.*", "retention.*", "precision",
    "num_workers", "merge", "seed", "job.*",
)  # fmt: skip
EXAMPLE: Final = """\
gaploop finetune --policy.path=base --real='[real_takes]' --sim='[sim_takes]' --mix.real=auto \\
    --held_out_share=0.2 --lora.r=16 --output_dir=adapted
gaploop finetune --preset=smolvla_lora --policy.path=lerobot/smolvla_base --stats=new \\
    --real='[real_takes]' --device=auto --output_dir=adapted
gaploop finetune --policy.path=base --real='[real]' --sim='[sim]' --ablation --output_dir=recipes
gaploop finetune --preset=help
accelerate launch --num_processes=4 -m gaploop.scripts.cli finetune --device=auto …
"""


@dataclass
class FinetuneConfig:
    """Adapt any LeRobot policy to real takes, mixed with simulated takes so that it forgets little.

    Writes OUT/adapter (with the base inside: it loads from anywhere), OUT/merged (a plain LeRobot
    policy), metrics.jsonl and run.json with the lineage. Ctrl-C keeps a checkpoint; the same
    command with --resume goes on from it. --preset=help lists the presets. docs/finetuning.md
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
    per_station: bool = False
    """One adapter for each station among the real takes, in OUT/<station>."""
    held_out: list[int] = field(default_factory=list)
    """Episodes of the real datasets to keep aside and measure the error on."""
    held_out_share: float = 0.0
    """Instead: which part of the real takes to keep aside, chosen by session and dimension."""
    patience: int = 0
    """Stop after this many held-out evaluations (ten in a run) without a better one; 0: never."""
    stats: str = "base"
    """Normalise by the statistics of the base, of the new data (new), or of both (merged)."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """The dataset's name of a feature to the policy's, where they differ."""
    cache: options.CacheFlags = field(default_factory=options.CacheFlags)
    randomise: RandomiseFlags = field(default_factory=RandomiseFlags)
    retention: RetentionFlags = field(default_factory=RetentionFlags)
    ablation: bool = False
    """Train real takes alone, simulated ones alone and both, and print the recipes side by side."""
    steps: int = 0
    """Training steps; the preset's unless given."""
    batch_size: int = 0
    """Samples per step and process; the preset's unless given."""
    lr: float = 0.0
    """Peak learning rate; the preset's unless given."""
    precision: str = ""
    """no or bf16; the preset's unless given."""
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
    job: jobs.JobFlags = field(default_factory=jobs.JobFlags)
    output_dir: Path | None = None
    """Run folder to write."""
    json: bool = False
    """Print one JSON object."""


def run(config: FinetuneConfig) -> int:
    """Adapt and print where the adapter is."""
    from gaploop.finetune.tuning.presets import table

    if config.preset == "help":
        options.emit(config.json, {"presets": _presets()}, table())
        return 0
    if config.output_dir is None:
        raise UnusableInputError("Where to? Name a run folder with --output_dir=OUT.")
    config.policy.required()
    if config.job.is_remote:
        return jobs.hand_in(config, FinetuneConfig())
    _require_sense(config)
    what = _options(config, config.output_dir)
    if config.retention.n:
        from gaploop.finetune.tuning.retention import require_measurable

        require_measurable(what.base)
    if config.ablation:
        return _ablation(config, what)
    if config.per_station:
        return _per_station(config, what)
    answer, text, code = _one(config, what)
    if answer:
        options.emit(config.json, answer, text)
    return code


def _require_sense(config: FinetuneConfig) -> None:
    """Refuse options that would be ignored, or undo each other."""
    flags, push = config.retention, config.policy.push_to_hub
    if config.patience and not (config.held_out or config.held_out_share or config.ablation):
        raise UnusableInputError(
            "--patience counts looks at held-out takes. Hold some out: --held_out_share=0.2."
        )
    if flags.n < 0 or flags.margin < 0 or flags.workers < 1:
        raise UnusableInputError(
            f"--retention.n={flags.n} and --retention.margin={flags.margin:g} must not be below 0, "
            f"and --retention.workers={flags.workers} not below 1."
        )
    if config.ablation and (flags.n or push or config.per_station):
        raise UnusableInputError(
            "--ablation compares recipes on held-out takes: leave --retention.n, --per_station and "
            "--policy.push_to_hub out, and give them to the recipe that you choose."
        )
    if config.per_station and config.mixture:
        raise UnusableInputError(
            f"--per_station divides --real, and {config.mixture} names takes of its own. Give one "
            "of the two."
        )
    if config.per_station and push:
        raise UnusableInputError(
            "--per_station makes several adapters, and --policy.repo_id names one repository. Push "
            "each afterwards: gaploop push OUT/STATION --repo_id=me/name"
        )


def _presets() -> list[dict[str, Any]]:
    from gaploop.finetune.tuning.presets import PRESETS

    return [dataclasses.asdict(p) for p in PRESETS.values()]


def _options(config: FinetuneConfig, folder: Path) -> AdaptOptions:
    from gaploop.finetune.adapt import base_of, kind_of
    from gaploop.finetune.lerobot_adapter import LoraOptions
    from gaploop.finetune.tuning.presets import Targets, preset_for
    from gaploop.finetune.tuning.ratio import parse_share
    from gaploop.finetune.tuning.work import AdaptOptions, Randomise

    base = config.policy.required()
    preset = preset_for(kind_of(base_of(base)), config.full, config.preset)
    given: dict[str, Any] = {
        "steps": config.steps,
        "batch_size": config.batch_size,
        "lr": config.lr,
        "precision": config.precision,
    }
    spec = dataclasses.replace(
        preset.spec,
        **{k: v for k, v in given.items() if v},
        seed=config.seed,
        patience=config.patience,
    )
    names = config.lora.target_modules
    targets: Targets = tuple(names) if names else preset.targets
    if len(names) == 1 and not names[0].isidentifier():
        targets = names[0]
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
        weights=_weights(config),
        station=config.station,
        rename=config.rename_map,
        cache=config.cache.options(),
        workers=config.num_workers,
        randomise=Randomise(config.randomise.strength, config.randomise.ramp),
        device=config.device,
        merge=config.merge,
    )


def _weights(config: FinetuneConfig) -> dict[str, float]:
    if config.plan is None:
        return {}
    from gaploop.core.plan import load_plan
    from gaploop.finetune.tuning.plan_weights import weights_of

    if config.mixture:
        raise UnusableInputError(
            f"--plan={config.plan} weighs --real by dimension; {config.mixture} has weights of "
            "its own. Give one of the two."
        )
    return weights_of(load_plan(config.plan))


def _one(config: FinetuneConfig, what: AdaptOptions) -> tuple[dict[str, Any], str, int]:
    """Adapt once; return the answer, its text and the exit code; nothing in other processes."""
    from gaploop.finetune.adapt import adapt
    from gaploop.finetune.ranks import Ranks
    from gaploop.finetune.tuning import retention
    from gaploop.finetune.tuning.ratio import parse_share
    from gaploop.finetune.tuning.resume_guard import require_free

    if not config.resume:
        require_free(what.output_dir)
    chosen = None
    if parse_share(config.mix.real) is None:
        from gaploop.finetune.tuning.recipes import chosen_share

        chosen = chosen_share(what, _say)
        what = dataclasses.replace(what, share_real=chosen.share)
    with options.progress("Training", total=what.spec.steps) as advance:
        done = adapt(what, lambda *_: advance())
    if not Ranks(config.device).is_main:
        return {}, "", 0
    kept, code = None, 0
    if config.retention.n:
        flags = config.retention
        with options.progress("Nominal simulation", total=2 * flags.n) as advance:
            kept = retention.measure(
                what.base, done.folder, flags.n, flags.margin, done.run,
                workers=flags.workers, progress=advance,
            )  # fmt: skip
        code = 0 if kept.is_kept else 1
    pushed = None
    if config.policy.push_to_hub:
        pushed = push_folder(done.folder, MODEL, config.policy, None).as_json()
    answer = {
        **_answer(done),
        "share_real": _share_of(what),
        "ratio": chosen,
        "retention": retention.as_json(kept) if kept else None,
        "push": pushed,
    }
    said = [chosen.says()] if chosen else []
    said.append(_text(config, done))
    said += [kept.says()] if kept else []
    return answer, "\n".join(said), code


def _share_of(what: AdaptOptions) -> float | None:
    if what.mixture:
        return None
    return what.share_real if what.sim or what.sim_takes else 1.0


def _answer(done: TrainedPolicy) -> dict[str, Any]:
    return {
        "policy": done.folder,
        "merged": done.merged,
        "id": done.id,
        "run": done.run,
        "takes": {i["root"]: i["takes"] for i in done.inputs},
        "steps": done.result.steps,
        "stopped_early": done.result.stopped_early,
        "best_step": done.result.best_step,
        "ranks": done.result.ranks,
        "weights_sha256": done.result.weights_sha256,
        "loss": done.result.loss,
        "held_out_error": done.result.held_out,
    }


def _text(config: FinetuneConfig, done: TrainedPolicy) -> str:
    result = done.result
    mixed = config.sim or config.sim_takes or config.mixture
    warning = "" if mixed else " No simulated takes were mixed in: check what it forgot."
    best = ""
    if result.held_out:
        best = f" Best on held-out takes: step {result.best_step}, kept."
    early = " It had stopped getting better." if result.stopped_early else ""
    return (
        f"{done.folder} ({done.id}): {result.steps} steps, loss {result.loss:.4f}.{best}{early}"
        f"{warning} Try it: gaploop evaluate --policy.path={done.folder} --n=100"
    )


def _ablation(config: FinetuneConfig, what: AdaptOptions) -> int:
    from gaploop.finetune.tuning import recipes

    if config.mix.real == "auto":
        raise UnusableInputError("--ablation needs a number for --mix.real, such as 0.5.")
    arms = recipes.ablation(what, _say)
    folder = what.output_dir
    options.emit(
        config.json,
        {"arms": arms, "table": folder / "recipes.json", "figure": folder / "recipes.png"},
        f"{recipes.table(arms)}\n{folder / 'recipes.png'}",
    )
    return 0


def _per_station(config: FinetuneConfig, what: AdaptOptions) -> int:
    found = _stations(what)
    answers, texts, codes = {}, [], []
    for station in found:
        folder = what.output_dir / plain_name(station, "station")
        answer, text, code = _one(
            config, dataclasses.replace(what, station=station, output_dir=folder)
        )
        answers[station] = answer
        texts.append(text)
        codes.append(code)
    if all(answers.values()):
        options.emit(config.json, {"stations": answers}, "\n".join(texts))
    return max(codes)


def _stations(what: AdaptOptions) -> list[str]:
    """Return the stations among the real takes that would be learned from."""
    from gaploop.datasets.layout import read_episodes, read_info
    from gaploop.datasets.mixing.selection import wanted_episodes

    if not what.real:
        raise UnusableInputError("Nothing to adapt to. Name real takes with --real='[DIR]'.")
    episodes = [
        e
        for root in what.real
        for e in wanted_episodes(root, read_episodes(read_info(root)), what.select)
        if what.episodes is None or e.index in what.episodes
    ]
    found = sorted({e.info.station for e in episodes if what.station in ("", e.info.station)})
    if "" in found or not found:
        raise UnusableInputError(
            "--per_station: some real takes name no station. Add it with gaploop edit retag, or "
            "leave --per_station out."
        )
    if any(Path(name).name != name or name in (".", "..") for name in found):
        raise UnusableInputError(
            f"--per_station makes a folder for each station, and {', '.join(found)} can't all name "
            "one. Rename with gaploop edit retag."
        )
    return found


def _say(arm: str) -> None:
    log.info("Training %s.", arm)
