"""Adapt a base policy to the real robot: LoRA (or all weights) on real and simulated takes.

Two kinds of work share one training loop, one run folder and one set of options: the small ACT
on joints and tracked poses, all of it in memory (`tuning.tracked`), and any LeRobot policy on
takes with pictures (`tuning.lerobot_pictured`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, writable_folder, write_json
from gaploop.core.run_record import write_run
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.lerobot_policy import policy_id, resolve
from gaploop.finetune.pretrain import TrainedPolicy
from gaploop.finetune.ranks import Ranks
from gaploop.finetune.train_spec import TrainSpec
from gaploop.finetune.training import Progress, TrainResult, train
from gaploop.finetune.tuning import held_out, resume_guard
from gaploop.finetune.tuning.lerobot_image_policy import PicturedWork
from gaploop.finetune.tuning.tracked import TrackedWork
from gaploop.finetune.tuning.work import AdaptOptions, Work

__all__ = ["ADAPTER", "MERGED", "AdaptOptions", "adapt", "tuned"]

ADAPTER: Final = "adapter"
MERGED: Final = "merged"
EVALUATIONS: Final = 10
"""How often the held-out error is looked at in a run that doesn't say."""


@dataclass(frozen=True)
class HeldOut:
    """What the held-out takes say at the end.

    Attributes:
        errors: uid to error.
        by_session: mean error of each session.
        by_dimension: mean error of each gap dimension.
    """

    errors: Mapping[str, float] = field(default_factory=dict)
    by_session: Mapping[str, float] = field(default_factory=dict)
    by_dimension: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean over takes; NaN without any."""
        return float(np.mean(list(self.errors.values()))) if self.errors else float("nan")


def adapt(options: AdaptOptions, progress: Progress | None = None) -> TrainedPolicy:
    """Adapt a base and write OUT/adapter, OUT/merged, OUT/run.json and OUT/metrics.jsonl.

    Where several processes train, all call this and the first one writes.

    Raises:
        UnusableInputError: the data doesn't fit the base, or as `data.load_source` and
            `training.train` say.
    """
    ranks, base = Ranks(options.device), base_of(options.base)
    work, result, seen = tuned(options, base, ranks, progress)
    folder = options.output_dir
    inputs = work.inputs(options.spec.steps)
    if ranks.is_main:
        try:
            work.save(folder, options.merge)
        except (OSError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:160]
            raise UnusableInputError(
                f"{folder}: what was trained can't be written ({reason}). It is in its checkpoint: "
                "make room, and give the same command with --resume."
            ) from None
        _record(options, base, result, seen, inputs)
    ranks.wait()
    trained = folder / (MERGED if options.full else ADAPTER)
    return TrainedPolicy(trained, _plain(trained), folder, policy_id(trained), result, inputs)


def tuned(
    options: AdaptOptions, base: Path, ranks: Ranks, progress: Progress | None = None
) -> tuple[Work, TrainResult, HeldOut]:
    """Train, and return the trained work without writing a policy."""
    work = open_work(base, options, ranks)
    folder = writable_folder(options.output_dir)
    spec = _evaluated(options.spec, bool(work.held_out))
    if ranks.is_main:
        resume_guard.require_same(folder, options, base, keep=options.resume)
    result = train(
        work.learner,
        work.batches,
        spec,
        folder,
        resume=options.resume,
        progress=progress,
        ranks=ranks,
    )
    errors = work.held_out_errors() if work.held_out else {}
    groups = held_out.by_group(errors, work.held_out)
    return work, result, HeldOut(errors, groups["session"], groups["dimension"])


def open_work(base: Path, options: AdaptOptions, ranks: Ranks) -> Work:
    """Return the base and the data, checked against each other."""
    if is_tracked(base):
        return TrackedWork(base, options, ranks)
    return PicturedWork(base, options, ranks)


def base_of(path: str | Path) -> Path:
    """Return the folder of the policy to start from; an adapter is not put on an adapter.

    Raises:
        UnusableInputError: there is no policy, or an adapter without its merged policy.
    """
    folder = resolve(path)
    if not adapter.is_adapter(folder):
        return folder
    beside = folder.parent / MERGED
    if not (beside / "model.safetensors").exists():
        raise UnusableInputError(
            f"{folder} is an adapter for another base, without its merged policy beside it. Start "
            "from the merged folder of its run."
        )
    return beside


def kind_of(folder: Path) -> str:
    """Return LeRobot's name of a policy, or `tracked` for the small ACT without pictures.

    Raises:
        UnusableInputError: its config.json is missing or damaged.
    """
    config = read_json(folder / "config.json")
    features = config.get("input_features") or {}
    has_pictures = any(f.get("type") == "VISUAL" for f in features.values())
    kind = str(config.get("type", ""))
    return "tracked" if kind == "act" and features and not has_pictures else kind


def is_tracked(folder: Path) -> bool:
    """Say whether a policy is the small ACT that sees joints and tracked poses only."""
    return kind_of(folder) == "tracked"


def _evaluated(spec: TrainSpec, has_held_out: bool) -> TrainSpec:
    """Return the spec with held-out evaluations where there is something to evaluate on."""
    if not has_held_out:
        return replace(spec, eval_every=0, patience=0)
    every = spec.eval_every or max(1, spec.steps // EVALUATIONS)
    return replace(spec, eval_every=every, keep_best=True)


def _plain(trained: Path) -> Path:
    merged = trained.parent / MERGED
    return merged if merged.exists() else trained


def _record(
    options: AdaptOptions,
    base: Path,
    result: TrainResult,
    seen: HeldOut,
    inputs: tuple[Mapping[str, Any], ...],
) -> None:
    folder = options.output_dir
    trained = folder / (MERGED if options.full else ADAPTER)
    config = {**asdict(options), "base": str(options.base), "output_dir": str(folder)}
    config |= {"mixture": str(options.mixture or ""), "held_out_uids": sorted(seen.errors)}
    config |= {"real": [str(r) for r in options.real], "sim": [str(r) for r in options.sim]}
    ended = {**asdict(result), "held_out_at_end": asdict(seen)}
    merged = policy_id(folder / MERGED) if (folder / MERGED).exists() else ""
    write_run(
        folder,
        "finetune",
        config,
        inputs,
        {"policy": policy_id(trained), "merged": merged, **ended},
        seed=options.spec.seed,
        base=policy_id(base),
        base_folder=base,
    )
    write_json(folder / "result.json", {"schema": "gaploop.training.v1", **ended})
