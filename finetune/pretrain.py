"""A base policy from scratch, on simulated takes that exist or that are recorded first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_json
from gaploop.core.randomisation import Randomisation
from gaploop.core.run_record import write_run
from gaploop.datasets.mixing.mixture import MixtureStage
from gaploop.datasets.mixing.spec import by_size
from gaploop.finetune import demonstrations
from gaploop.finetune import lerobot_act as act
from gaploop.finetune.batches import MixedBatches, load_source
from gaploop.finetune.lerobot_policy import policy_id
from gaploop.finetune.runs import describe
from gaploop.finetune.training import Progress, TrainResult, train
from gaploop.finetune.tuning.presets import TRACKED_SPECS, TrainSpec
from gaploop.finetune.tuning.tracked import ActLearner, split_by_uid
from gaploop.sim.arms import SO101, arm_named
from gaploop.sim.gaps.mechanism import Values

POLICY: Final = "policy"
DEMONSTRATIONS: Final = "demonstrations.npz"


@dataclass(frozen=True)
class PretrainOptions:
    """What to train a base policy on, and how.

    Attributes:
        takes: with no datasets, scripted demonstrations to record first (attempts).
        spec: how to train; its seed also initialises the network.
        select: which takes, see `selection.SELECTIONS`.
        episodes: only these episodes of each dataset.
        held_out: episodes of each dataset to keep aside and measure the action error on.
        robot: the cell's arm that `takes` are recorded with.
        parameters: what is known of the cell that `takes` show, as a twin's.
        randomise: what each of `takes` is drawn from.
        start: a policy that sees whose weights and statistics are begun with, such as one of
            another task; new ones are drawn without it.
    """

    roots: tuple[Path, ...]
    output_dir: Path
    takes: int = 0
    task: str = "pick_place"
    spec: TrainSpec = TRACKED_SPECS["pretrain"]
    size: act.ActSize = field(default_factory=act.ActSize)
    select: str = "demonstrations"
    episodes: tuple[int, ...] | None = None
    held_out: tuple[int, ...] = ()
    resume: bool = False
    robot: str = SO101.name
    parameters: Mapping[str, Values] = field(default_factory=dict)
    randomise: Randomisation | None = None
    start: str | Path = ""


@dataclass(frozen=True)
class TrainedPolicy:
    """A finished run.

    Attributes:
        folder: the policy, to be given to `load_policy`.
        merged: a plain LeRobot policy folder; the same as `folder` for a base.
    """

    folder: Path
    merged: Path
    run: Path
    id: str
    result: TrainResult
    inputs: tuple[Mapping[str, Any], ...]


def pretrain(
    options: PretrainOptions,
    progress: Progress | None = None,
    recorded: Callable[[int], None] | None = None,
) -> TrainedPolicy:
    """Train a base policy and write OUT/policy, OUT/run.json and OUT/metrics.jsonl.

    The domain entry of the environment state is drawn at random for each sample, so that the
    base ignores it and its scale is defined; adapting on real takes gives it its meaning.

    Args:
        recorded: called with the number of scripted demonstrations just attempted.

    Raises:
        UnusableInputError: see `data.load_source`, `training.train`, `lerobot_act.build`.
    """
    spec = options.spec
    if options.roots:
        sources = [load_source(r, options.select, options.episodes) for r in options.roots]
    elif options.takes:
        arm_named(options.robot)
        cell = demonstrations.DemonstratedCell(
            options.task, options.robot, options.parameters, options.randomise
        )
        path = writable_folder(options.output_dir) / DEMONSTRATIONS
        kept = demonstrations.load_source(path, cell, options.takes, spec.seed)
        if kept is None:
            kept = demonstrations.scripted_source(
                options.takes, cell, seed=spec.seed, progress=recorded
            )
            demonstrations.save_source(kept, path)
        sources = [kept]
    else:
        raise UnusableInputError(
            "Nothing to train on. Name datasets with --sim='[DIR]', or record scripted "
            "demonstrations first with --takes=400."
        )
    aside = frozenset(e.uid for s in sources for e in s.episodes if e.index in options.held_out)
    sources, held_out = split_by_uid(sources, aside)
    folder = writable_folder(options.output_dir)
    shares = by_size([s.frames for s in sources])
    batches = MixedBatches(
        sources,
        [MixtureStage(tuple(shares))],
        chunk=options.size.chunk,
        batch_size=spec.batch_size,
        seed=spec.seed,
        randomise_domain=True,
    )
    bundle = act.build(
        batches.signature, batches.moments(), options.size, seed=spec.seed, task=options.task
    )
    learner = ActLearner(bundle, bundle.policy, held_out)
    result = train(
        learner,
        batches,
        spec if held_out else replace(spec, eval_every=0),
        folder,
        resume=options.resume,
        progress=progress,
    )
    act.save(bundle, folder / POLICY)
    inputs = tuple(describe(s, w) for s, w in zip(sources, shares, strict=True))
    return pretrained(options, result, inputs)


def pretrained(
    options: PretrainOptions, result: TrainResult, inputs: tuple[dict[str, Any], ...], **more: Any
) -> TrainedPolicy:
    """Write the records of a base that was trained, `more` among its settings; return it."""
    folder, ended = options.output_dir, asdict(result)
    identity, seed = policy_id(folder / POLICY), options.spec.seed
    config = {**asdict(options), "roots": [str(r) for r in options.roots], **more}
    write_run(folder, "pretrain", config, inputs, {"policy": identity, **ended}, seed=seed)
    write_json(folder / "result.json", {"schema": "gaploop.training.v1", **ended})
    return TrainedPolicy(folder / POLICY, folder / POLICY, folder, identity, result, inputs)
