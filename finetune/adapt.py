"""Adapt a base policy to the real robot: LoRA (or all weights) on real and simulated takes.

Two kinds of work share one training loop, one run folder and one set of options: the small ACT
on joints and tracked poses, all of it in memory (`tuning.tracked`), and any LeRobot policy on
takes with pictures (`tuning.lerobot_image_policy`). A run folder says what it was asked for, so
that nothing is gone on with from other data or settings.
"""

import hashlib
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from safetensors import SafetensorError

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256, writable_folder, write_json
from gaploop.core.run_record import write_run
from gaploop.datasets.layout import read_episodes, read_info
from gaploop.datasets.mixing.sources import load_mixture
from gaploop.failure_analysis.cameras.policy_cameras import keep_cameras
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.lerobot_policy import device_named, policy_id, resolve
from gaploop.finetune.pretrain import EVALUATIONS, TrainedPolicy
from gaploop.finetune.training import CHECKPOINT, FOR_MEMORY, Progress, train
from gaploop.finetune.tuning.lerobot_image_policy import ImagePolicyWork
from gaploop.finetune.tuning.presets import TRACKED, Preset
from gaploop.finetune.tuning.takes import by_group
from gaploop.finetune.tuning.tracked import TrackedWork

ADAPTER: Final = "adapter"
MERGED: Final = "merged"
ASKED: Final = "asked.json"
ASKED_SCHEMA: Final = "gaploop.asked.v1"
DECIDING: Final = ("sim_takes", "select", "where", "held_out", "stats", "rename_map")
"""Options that decide what is learned, beside datasets and what the recipe says."""
HARMLESS_SPEC: Final = (*FOR_MEMORY, "checkpoint_every", "log_every")

CHOSEN: Final = ("full", "lora", "spec")
"""What of its recipe a run's record says."""


def adapt(options: FinetuneConfig, progress: Progress | None = None) -> TrainedPolicy:
    """Adapt a base and write OUT/adapter, OUT/merged, OUT/run.json and OUT/metrics.jsonl.

    Raises:
        UnusableInputError: the data doesn't fit the base, or as `data.load_source` and
            `training.train` say.
    """
    began_s = time.monotonic()
    device, base = device_named(options.device, "--device"), base_of(options.policy.path)
    folder = options.folder
    kind = kind_of(base)
    recipe = options.recipe(kind)
    make = TrackedWork if kind == TRACKED else ImagePolicyWork
    work: TrackedWork | ImagePolicyWork = make(base, options, recipe, device)
    writable_folder(folder)
    spec = recipe.spec
    if work.held_out:
        spec = replace(spec, eval_every=max(1, spec.steps // EVALUATIONS), keep_best=True)
    require_same(folder, options, recipe, base)
    result = train(
        work.learner,
        work.batches,
        spec,
        folder,
        resume=options.resume,
        progress=progress,
        device=device,
    )
    errors = work.learner.held_out_errors() if work.held_out else {}
    seen = {"errors": errors, **by_group(errors, work.held_out)}
    trained = folder / (MERGED if recipe.full else ADAPTER)
    inputs = work.inputs(recipe.spec.steps)
    try:
        work.save(folder)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UnusableInputError(
            f"{folder}: what was trained can't be written ({reason}). It is in its checkpoint: "
            "make room, and give the same command with --resume."
        ) from None
    config = {
        **options.record(),
        "base": options.policy.path,
        "held_out_uids": sorted(errors),
        "weights": options.weights(),
        **{name: value for name, value in asdict(recipe).items() if name in CHOSEN},
    }
    ended = {**asdict(result), "held_out_at_end": seen}
    timed = {} if options.resume else {"took_s": round(time.monotonic() - began_s, 1)}
    identity, merged_id = policy_id(trained), policy_id(folder / MERGED)
    write_run(
        folder, "finetune", config, inputs,
        {"policy": identity, "merged": merged_id, **ended, **timed},
        seed=options.seed, base=policy_id(base), base_folder=base,
    )  # fmt: skip
    write_json(folder / "result.json", {"schema": "gaploop.training.v1", **ended})
    if kind != TRACKED and options.mixture is None:
        keep_cameras(trained, (*options.real, *options.sim))
    return TrainedPolicy(trained, folder / MERGED, folder, identity, result, inputs)


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
            f"{path} is an adapter for another base, without its merged policy beside it. Start "
            "from the merged folder of its run; to a Hub, gaploop push RUN/merged brings it."
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
    return TRACKED if kind == "act" and features and not has_pictures else kind


def require_same(folder: Path, options: FinetuneConfig, recipe: Preset, base: Path) -> None:
    """Check that a folder that is gone on with was asked for the same; write down what is asked.

    A run folder without the note (older, or empty) holds nothing that differs.

    Raises:
        UnusableInputError: it holds a run with other data or settings; says which.
    """
    # Everything that decides what is learned, as JSON types.
    spec = {k: v for k, v in asdict(recipe.spec).items() if k not in HARMLESS_SPEC}
    mixed = load_mixture(options.mixture) if options.mixture else None
    roots = [r for s in mixed.sources for r in s.roots] if mixed else []
    value = {
        **{name: getattr(options, name) for name in DECIDING},
        "share_real": options.mix.real,
        "weights": options.weights(),
        "randomise": asdict(options.randomise),
        "full": recipe.full,
        "lora": {} if recipe.full else asdict(recipe.lora),
        "size": options.cache.size,
        "base": policy_id(base),
        "episodes of --real": [_takes(r) for r in options.real],
        "episodes of --sim": [_takes(r) for r in options.sim],
        "mixture": sha256(options.mixture) if options.mixture else "",
        "episodes of the mixture": [_takes(r) for r in roots],
        **spec,
    }
    path, now = folder / ASKED, json.loads(json.dumps(value))  # as it will be read
    if not options.resume or not path.exists():
        write_json(path, {"schema": ASKED_SCHEMA, **now})
        return
    then = read_json(path)
    other = [n for n in now if then.get(n) != now[n]]
    listed = []
    for name in other:
        values = then.get(name), now[name]
        is_short = all(isinstance(v, str | int | float) and len(str(v)) < 20 for v in values)
        listed.append(f"{name} ({values[0]}, now {values[1]})" if is_short else name)
    if listed:
        raise UnusableInputError(
            f"{folder} holds a run with other settings: {', '.join(listed)}. Give "
            f"those in {path}, or name another --output_dir."
        )


def require_free(folder: Path) -> None:
    """Check that no training is in a folder that is to begin anew.

    Raises:
        UnusableInputError: there is one, done or not.
    """
    if (folder / CHECKPOINT).exists():
        raise UnusableInputError(
            f"{folder} holds a training. Continue it with --resume, or name another --output_dir."
        )


def _takes(root: Path) -> str:
    """Return a hash of which takes a dataset holds, and of what is said of them."""
    digest = hashlib.sha256()
    for episode in read_episodes(read_info(root)):
        info = episode.info
        said = (info.uid, episode.length, episode.outcome.value, info.station, info.session)
        digest.update(repr((*said, sorted(info.dimensions.items()))).encode())
    return digest.hexdigest()
