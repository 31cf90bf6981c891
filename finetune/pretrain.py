"""A base policy from scratch, on simulated takes that exist or that are recorded first."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_json
from gaploop.core.run_record import write_run
from gaploop.datasets.labels import where
from gaploop.datasets.layout import read_episodes, read_info
from gaploop.datasets.mixing.mixture import MixtureStage
from gaploop.datasets.mixing.sources import by_size
from gaploop.finetune import demonstrations
from gaploop.finetune import lerobot_act as act
from gaploop.finetune.batches import MixedBatches, load_source
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.lerobot_policy import policy_id
from gaploop.finetune.runs import describe
from gaploop.finetune.training import Progress, TrainResult, train
from gaploop.finetune.tuning.presets import TRACKED_SPECS
from gaploop.finetune.tuning.takes import TakeNote, chosen_held_out
from gaploop.finetune.tuning.tracked import ActLearner
from gaploop.sim.catalogue import arm_named

POLICY: Final = "policy"
EVALUATIONS: Final = 10
"""How often a run looks at held-out episodes."""


@dataclass(frozen=True)
class TrainedPolicy:
    """A finished run.

    Attributes:
        merged: a plain LeRobot policy folder; the same as `folder` for a base.
    """

    folder: Path
    merged: Path
    run: Path
    id: str
    result: TrainResult
    inputs: tuple[Mapping[str, Any], ...]


def pretrain(
    config: FinetuneConfig,
    progress: Progress | None = None,
    recorded: Callable[[int], None] | None = None,
    size: act.ActSize | None = None,
) -> TrainedPolicy:
    """Train a base policy and write OUT/policy, OUT/run.json and OUT/metrics.jsonl.

    The domain entry of the environment state is drawn at random for each sample, so that the
    base ignores it and its scale is defined; adapting on real takes gives it its meaning.

    Args:
        recorded: called with the number of scripted demonstrations just attempted.

    Raises:
        UnusableInputError: see `data.load_source`, `training.train`, `lerobot_act.build`.
    """
    spec, folder = config.spec(TRACKED_SPECS["pretrain"]), config.folder
    size = size or act.ActSize()
    cell = demonstrations.TargetCell(**config.env.cell())
    if config.sim:
        if cell.parameters or cell.randomise:
            raise UnusableInputError(
                "--env.twin and --env.randomise make the cell that --sim_takes are recorded in; "
                "recorded datasets are as they are. Leave them out, or --sim."
            )
        sources = []
        for root in config.sim:
            known = read_episodes(read_info(root)) if config.where else ()
            chosen = where(config.where, known) if config.where else None
            sources.append(load_source(root, config.select, chosen))
    elif config.sim_takes:
        arm_named(cell.robot)
        sources = [
            demonstrations.scripted_source(
                config.sim_takes,
                cell,
                seed=spec.seed,
                workers=config.num_workers or 2,
                progress=recorded,
            )
        ]
    else:
        raise UnusableInputError(
            "Nothing to train on. Name datasets with --sim='[DIR]', or record scripted "
            "demonstrations first with --sim_takes=400."
        )
    every = [e for s in sources for e in s.episodes]
    notes = [TakeNote(e.uid, e.session, e.dimensions, e.index) for e in every]
    uids = chosen_held_out(config, notes)
    for number, source in enumerate(sources):
        kept = tuple(e for e in source.episodes if e.uid not in uids)
        if not kept:
            raise UnusableInputError(
                f"{source.root}: all {len(source.episodes)} episodes are held out. Hold out fewer."
            )
        sources[number] = replace(source, episodes=kept)
    held_out = [e for e in every if e.uid in uids]
    writable_folder(folder)
    shares = by_size([s.frames for s in sources])
    batches = MixedBatches(
        sources,
        [MixtureStage(tuple(shares))],
        chunk=size.chunk,
        batch_size=spec.batch_size,
        seed=spec.seed,
        randomise_domain=True,
    )
    bundle = act.build(
        batches.signature, batches.moments(), size, seed=spec.seed, task=config.env.task
    )
    learner = ActLearner(bundle, bundle.policy, held_out)
    result = train(
        learner,
        batches,
        replace(spec, eval_every=max(1, spec.steps // EVALUATIONS)) if held_out else spec,
        folder,
        resume=config.resume,
        progress=progress,
    )
    act.save(bundle, folder / POLICY)
    inputs = tuple(describe(s, w) for s, w in zip(sources, shares, strict=True))
    return pretrained(config, result, inputs)


def pretrained(
    config: FinetuneConfig, result: TrainResult, inputs: tuple[dict[str, Any], ...]
) -> TrainedPolicy:
    """Write the records of a base that was trained; return it."""
    folder, ended = config.folder, asdict(result)
    identity, told = policy_id(folder / POLICY), config.record()
    write_run(folder, "pretrain", told, inputs, {"policy": identity, **ended}, seed=config.seed)
    write_json(folder / "result.json", {"schema": "gaploop.training.v1", **ended})
    return TrainedPolicy(folder / POLICY, folder / POLICY, folder, identity, result, inputs)
