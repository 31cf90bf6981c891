"""Adapt a base policy to the real robot: LoRA (or all weights) on real and simulated takes.

The base's normalisation is kept. LeRobot replaces it by the new dataset's when fine-tuning,
which moves every input and output the base has learned (action spread 0.9 became 4.5 in a
trial) and makes a small adapter relearn the scale instead of the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_json
from gaploop.core.vocabulary import Domain
from gaploop.datasets.mixing.mixture import Stage
from gaploop.datasets.mixing.spec import by_size, load_mixture
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.batches import DOMAIN, MixedBatches, Source, check_signature
from gaploop.finetune.data import load_mixture_sources, load_source
from gaploop.finetune.demonstrations import scripted_source
from gaploop.finetune.lerobot_learner import ActLearner
from gaploop.finetune.lerobot_policy import policy_id, resolve
from gaploop.finetune.pretrain import TrainedPolicy, set_aside
from gaploop.finetune.runs import RunRecord, describe
from gaploop.finetune.training import PRESETS, Progress, TrainResult, TrainSpec, train

ADAPTER: Final = "adapter"
MERGED: Final = "merged"


@dataclass(frozen=True)
class AdaptOptions:
    """What to adapt, on what, and how.

    Attributes:
        base: policy to start from, as for `load_policy`.
        real: folders of real takes (or of a simulated target cell).
        sim: folders of simulated takes, mixed in so that nominal success is kept.
        output_dir: run folder to write.
        sim_takes: without `sim`, scripted takes of the nominal cell to record and mix in.
        share_real: share of real samples in a batch, where there are simulated ones.
        lora: size of the adapter.
        full: train all weights instead of an adapter.
        spec: how to train.
        select: which takes, see `selection.SELECTIONS`.
        episodes: only these episodes of the real datasets.
        held_out: episodes of the real datasets to keep aside and measure the action error on.
        resume: go on from the checkpoint in `output_dir`.
        mixture: a mixture.yaml in the place of `real`, `sim`, `share_real` and `select`.
    """

    base: str | Path
    real: tuple[Path, ...]
    output_dir: Path
    sim: tuple[Path, ...] = ()
    sim_takes: int = 0
    share_real: float = 0.5
    lora: adapter.LoraOptions = field(default_factory=adapter.LoraOptions)
    full: bool = False
    spec: TrainSpec = PRESETS["lora"]
    select: str = "demonstrations"
    episodes: tuple[int, ...] | None = None
    held_out: tuple[int, ...] = ()
    resume: bool = False
    mixture: Path | None = None


def adapt(options: AdaptOptions, progress: Progress | None = None) -> TrainedPolicy:
    """Adapt a base and write OUT/adapter, OUT/merged, OUT/run.json and OUT/metrics.jsonl.

    Raises:
        UnusableInputError: the data doesn't fit the base, or as `data.load_source` and
            `training.train` say.
    """
    base = resolve(options.base)
    if adapter.is_adapter(base):
        base = _merged_beside(base)
    bundle = act.load(base)
    sources, stages, held_out = _sources(options)
    for source in sources:
        check_signature(source.signature, bundle.signature, source.root, f"policy {options.base}")
    folder = writable_folder(options.output_dir)
    spec = options.spec if held_out else replace(options.spec, eval_every=0)
    torch.manual_seed(spec.seed)
    module = bundle.policy if options.full else adapter.wrap(bundle, base, options.lora)
    batches = MixedBatches(
        sources,
        stages,
        chunk=bundle.chunk,
        batch_size=spec.batch_size,
        seed=spec.seed,
    )
    learner = ActLearner(bundle, module, held_out)
    result = train(learner, batches, spec, folder, resume=options.resume, progress=progress)
    _drive_as_real(bundle, sources)
    _save(module, bundle, base, folder, options.full)
    shares = batches.mixture.mean_shares(spec.steps).tolist()
    inputs = tuple(describe(s, w) for s, w in zip(sources, shares, strict=True))
    return _record(options, base, folder, result, inputs)


def _sources(options: AdaptOptions) -> tuple[list[Source], list[Stage], list[Any]]:
    if options.mixture is not None:
        return _mixed(options, options.mixture)
    if not 0 < options.share_real <= 1:
        raise UnusableInputError(
            f"--mix.real={options.share_real:g} must be above 0 and at most 1; 0.5 is usual."
        )
    if not options.real:
        raise UnusableInputError("Nothing to adapt to. Name real takes with --real='[DIR]'.")
    real = [load_source(r, options.select, options.episodes) for r in options.real]
    for source in real:
        if source.domain is Domain.SIM:
            raise UnusableInputError(
                f"{source.root} holds takes of nominal simulation, given with --real. Give it "
                "with --sim."
            )
    real, held_out = set_aside(real, options.held_out)
    sim = [load_source(r, options.select) for r in options.sim]
    if not sim and options.sim_takes:
        sim = [scripted_source(options.sim_takes, seed=options.spec.seed)]
    share = options.share_real if sim else 1.0
    shares = _by_size(real, share) + _by_size(sim, 1.0 - share)
    return [*real, *sim], [Stage(tuple(shares))], held_out


def _mixed(options: AdaptOptions, path: Path) -> tuple[list[Source], list[Stage], list[Any]]:
    if options.real or options.sim or options.sim_takes or options.episodes:
        raise UnusableInputError(
            f"--mixture={path} stands for --real, --sim, --sim_takes and --episodes. Name "
            "datasets in one place."
        )
    sources, stages = load_mixture_sources(load_mixture(path))
    real = [s for s in sources if s.domain is not Domain.SIM]
    kept, held_out = set_aside(real, options.held_out)
    trained = dict(zip(map(id, real), kept, strict=True))
    return [trained.get(id(s), s) for s in sources], stages, held_out


def _by_size(sources: Sequence[Source], share: float) -> list[float]:
    return by_size([s.frames for s in sources], share) if sources else []


def _drive_as_real(bundle: act.ActBundle, sources: Sequence[Source]) -> None:
    """Let the saved tracker step say 'real': that is where an adapted policy drives."""
    if DOMAIN not in bundle.signature.environment_names:
        return
    if all(s.domain is Domain.SIM for s in sources):
        return
    for step in bundle.preprocessor.steps:
        if hasattr(step, "domain"):
            step.domain = 1.0


def _save(
    module: torch.nn.Module, bundle: act.ActBundle, base: Path, folder: Path, full: bool
) -> None:
    if full:
        act.save(bundle, folder / MERGED)
        return
    adapter.save(module, bundle, base, folder / ADAPTER)
    act.save(adapter.merged(module, bundle), folder / MERGED)


def _merged_beside(folder: Path) -> Path:
    """Return the merged policy of an adapter's run: an adapter is not put on an adapter."""
    beside = folder.parent / MERGED
    if not (beside / "model.safetensors").exists():
        raise UnusableInputError(
            f"{folder} is an adapter without its merged policy beside it. Start from the merged "
            "folder of its run."
        )
    return beside


def _record(
    options: AdaptOptions,
    base: Path,
    folder: Path,
    result: TrainResult,
    inputs: tuple[Any, ...],
) -> TrainedPolicy:
    trained = folder / (MERGED if options.full else ADAPTER)
    identity = policy_id(trained)
    config = {**asdict(options), "base": str(options.base), "output_dir": str(folder)}
    config |= {"mixture": str(options.mixture or "")}
    config |= {"real": [str(r) for r in options.real], "sim": [str(r) for r in options.sim]}
    RunRecord(
        "finetune",
        config,
        inputs,
        options.spec.seed,
        base=policy_id(base),
        result={"policy": identity, "merged": policy_id(folder / MERGED), **asdict(result)},
    ).write(folder)
    write_json(folder / "result.json", {"schema": "gaploop.training.v1", **asdict(result)})
    return TrainedPolicy(trained, folder / MERGED, folder, identity, result, inputs)
