"""LeRobot's own training, all of it, on cached pictures and mixtures, with a resumption to the bit.

`lerobot_train.train` has no place to hand a dataset or a sampler in, and calls what it needs by the
names of its module. `train` runs that very function with other things behind a few of these names;
LeRobot's modules stay as they are, and a LeRobot that no longer calls one of the names is an error,
not a training on other data. Written against LeRobot 0.6.1.

LeRobot restores the random numbers of a checkpoint and then draws from them once more, when its
loader begins anew: with dropout or a policy's own noise (ACT's, as it comes) a resumed run ended
with other weights. So torch is seeded with (seed, step) before each step, as in `training`.

Why there are two loops: `gaploop finetune --method=lerobot` is lerobot-train with every option of
it (FSDP, reward models, environments, sample weights, W&B). `training.train` has what that loop has
no place for: the best weights by held-out takes, an early end, a checkpoint on Ctrl-C or without
memory.
"""

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any

import lerobot.policies  # noqa: F401  registers the policies by name
import numpy as np
import torch
from accelerate import PartialState
from lerobot.configs import FeatureType, parser
from lerobot.configs.train import TrainPipelineConfig
from lerobot.datasets import factory
from lerobot.processor import NormalizerProcessorStep
from lerobot.scripts import lerobot_train
from lerobot.transforms import ImageTransforms
from lerobot.utils.constants import IMAGENET_STATS, PRETRAINED_MODEL_DIR
from lerobot.utils.feature_utils import dataset_to_policy_features
from lerobot.utils.import_utils import register_third_party_plugins

import gaploop.finetune.lerobot_keypoint  # noqa: F401  --policy.type=keypoint
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import write_json
from gaploop.core.run_record import RUN, read_run, write_run
from gaploop.datasets.cache.folder import CacheOptions, Progress
from gaploop.datasets.cache.lerobot_cached import CachedLeRobotDataset, silent
from gaploop.datasets.cache.lerobot_scale_step import ScaleStep
from gaploop.datasets.columns import FORCE, STATE
from gaploop.datasets.hub.target import is_hub_name
from gaploop.datasets.hub.upload import fetch
from gaploop.datasets.layout import read_episodes, read_info
from gaploop.datasets.mixing.lerobot_mixture import MixtureDataset, MixtureSampler
from gaploop.datasets.mixing.sources import REPORT, MixedTake, OpenMixture, report
from gaploop.failure_analysis.cameras.policy_cameras import keep_cameras
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.lerobot_force_step import ForceStep, widened
from gaploop.finetune.lerobot_policy import policy_id
from gaploop.finetune.lerobot_trust import SIDECAR, refuse_foreign_code
from gaploop.finetune.runs import CHECKPOINTS, takes_inputs
from gaploop.finetune.training import step_seed
from gaploop.finetune.tuning.lerobot_image_policy import load_takes, signature_of_takes


def train(
    config: Any,
    cache: CacheOptions,
    mixture: OpenMixture | None = None,
    progress: Progress = silent,
) -> None:
    """Train as lerobot-train does, and write OUT/run.json; with a mixture also OUT/mixture.json.

    Every saved policy gets the sidecar: at which rate it is to be driven, and which joints in which
    units it was trained on.

    Args:
        cache: how pictures are cached. Where they are scaled, the policy's preprocessor gets a
            step that scales camera pictures the same way; it is saved with the policy.
        mixture: takes the place of the config's dataset.
        progress: shows that the cache is being built.

    Raises:
        UnusableInputError: the policy to start from names code to run, or its options don't go
            with a mixture.
        GaploopError: this LeRobot's training works otherwise than the one known here.
    """
    for option in ("policy", "reward_model"):
        start = getattr(config, option, None)
        path = getattr(start, "pretrained_path", None)
        if not path:
            continue
        folder = Path(path)
        if is_hub_name(path):
            folder = fetch(str(path), getattr(start, "pretrained_revision", None))
            # What was looked at is what LeRobot loads, which reads the command line once more by
            # itself: another could be pushed in between.
            sys.argv.append(f"--{option}.pretrained_revision={folder.name}")
        refuse_foreign_code(folder)
        if adapter.is_adapter(folder):
            adapter.base_folder(folder)
    training = _Training(config, cache, mixture, progress)
    mine: dict[str, Any] = {
        "make_train_eval_datasets": training.datasets,
        "make_policy": training.policy,
        "make_pre_post_processors": training.processors,
        "save_checkpoint": training.save_checkpoint,
        "update_policy": training.update,
    }
    if mixture is not None:
        mine["EpisodeAwareSampler"] = training.sampler
    calling(lerobot_train.train, **mine)(config)
    if PartialState().is_main_process:
        found = sorted(config.output_dir.glob(f"{CHECKPOINTS}/*/pretrained_model"))
        training.record(policies=list(dict.fromkeys(policy_id(p) for p in found)))
        for policy in found[-1:]:
            keep_cameras(policy, training.roots)


def read_options() -> Any:
    """Return LeRobot's config, which LeRobot reads from the process's arguments."""

    def read(cfg: TrainPipelineConfig) -> TrainPipelineConfig:
        cfg.validate()
        return cfg

    register_third_party_plugins()
    return parser.wrap()(read)()


def calling(function: Callable[..., Any], **others: Any) -> Callable[..., Any]:
    """Return a function of another module that finds `others` behind names of its module.

    Raises:
        GaploopError: it uses no such name.
    """
    plain: Any = inspect.unwrap(function)
    gone = others.keys() - set(plain.__code__.co_names)
    if gone:
        raise GaploopError(
            f"LeRobot {version('lerobot')} trains without calling {', '.join(sorted(gone))}, and "
            "gaploop finetune --method=lerobot counts on it. Install lerobot 0.6.1, or train with "
            "lerobot-train."
        )
    names = {**plain.__globals__, **others}
    return FunctionType(
        plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__
    )


class _Training:
    """What LeRobot's training finds behind the names."""

    def __init__(
        self, config: Any, cache: CacheOptions, opened: OpenMixture | None, progress: Progress
    ) -> None:
        self._config, self._cache, self._opened = config, cache, opened
        self._cached: dict[str, Any] = {"cache": cache, "progress": progress}
        self._inputs: list[Any] = []
        self.roots: list[Path] = []
        """The datasets."""
        self._sidecar: dict[str, Any] = {}
        self._base = ""
        self._base_folder: Path | None = None
        self._forces: list[str] = []
        """The features of forces that the policy sees."""

    def datasets(self, config: Any) -> tuple[Any, Any]:
        """Stand for `make_train_eval_datasets`.

        Writes run.json, before anything is learned: a policy without it could be pushed though it
        learned from somebody who withdrew.
        """
        if self._opened is None:
            cached = partial(CachedLeRobotDataset, **self._cached)
            opened = calling(factory.make_dataset, LeRobotDataset=cached)
            make = calling(
                factory.make_train_eval_datasets, LeRobotDataset=cached, make_dataset=opened
            )
            train, held = make(config)
            info = read_info(Path(train.root))
            taken = [(info, read_episodes(info, getattr(train, "episodes", None)))]
        else:
            whole = self._opened  # also what is held out: whoever withdrew counts there, too
            train, held = self._mixed(whole)
            taken = [
                (info, [t.episode for t in whole.takes if t.dataset == number])
                for number, info in enumerate(whole.datasets)
            ]
        self.roots = [info.root for info, _ in taken]
        self._sidecar = asdict(
            signature_of_takes(taken[0][0], (take for _, takes in taken for take in takes))
        )
        if PartialState().is_main_process:
            config.output_dir.mkdir(parents=True, exist_ok=True)
            self._inputs = list(takes_inputs(taken))
            if config.resume and (config.output_dir / RUN).exists():
                before = read_run(config.output_dir / RUN)  # what it learned from stays learned
                self._inputs += [e for e in before["inputs"] if e not in self._inputs]
                self._base = before["lineage"]["base"]
            elif base := config.trainable_config.pretrained_path:
                self._base_folder = fetch(str(base)) if is_hub_name(base) else Path(base)
                self._base = policy_id(self._base_folder)
            self.record()
        return train, held

    def record(self, **result: Any) -> None:
        """Write run.json."""
        config = self._config
        known = {"output_dir": str(config.output_dir), "steps": config.steps}
        write_run(
            config.output_dir, "train", known, self._inputs, result,
            seed=config.seed, base=self._base, base_folder=self._base_folder,
        )  # fmt: skip

    def _mixed(self, opened: OpenMixture) -> tuple[MixtureDataset, Any]:
        config = self._config
        if config.dataset.streaming or config.dataset.episodes is not None:
            raise UnusableInputError(
                "--dataset.streaming and --dataset.episodes don't go with a mixture: name "
                "datasets and episodes in the mixture."
            )
        held: tuple[MixedTake, ...] = ()
        if config.dataset.eval_split:
            opened, held = held_out(opened, config.dataset.eval_split)
        self._opened = opened
        shares = self._stream(opened, 0).mean_shares(config.steps)
        train = self._opened_dataset(opened, shares, transformed=True)
        if not held:
            return train, None
        whole = self._opened_dataset(replace(opened, takes=held), shares, transformed=False)
        keys = [(t.dataset, int(f)) for t in held for f in t.frames]
        if config.max_eval_samples > 0:
            chosen = np.linspace(0, len(keys) - 1, min(config.max_eval_samples, len(keys)))
            keys = [keys[int(i)] for i in chosen]
        return train, torch.utils.data.Subset(whole, keys)  # type: ignore[arg-type]

    def _opened_dataset(
        self, opened: OpenMixture, shares: Any, *, transformed: bool
    ) -> MixtureDataset:
        config, chosen = self._config, self._config.dataset
        transforms = chosen.image_transforms
        dataset = load_takes(
            opened,
            config.trainable_config,
            shares,
            image_transforms=ImageTransforms(transforms)
            if transformed and transforms.enable
            else None,
            video_backend=chosen.video_backend,
            depth_output_unit=chosen.depth_output_unit,
            tolerance_s=config.tolerance_s,
            **self._cached,
        )
        meta = dataset.meta
        if chosen.use_imagenet_stats:
            for key in set(meta.camera_keys) - set(meta.depth_keys):
                known = {k: torch.tensor(v, dtype=torch.float32) for k, v in IMAGENET_STATS.items()}
                meta.stats.setdefault(key, {}).update(known)
        return dataset

    def _stream(self, opened: OpenMixture, drop_last: int) -> Any:
        return opened.mixture(self._config.batch_size, PartialState().num_processes, drop_last)

    def sampler(self, *_: Any, drop_n_last_frames: int = 0, **__: Any) -> MixtureSampler:
        """Stand for `EpisodeAwareSampler`; writes mixture.json."""
        assert self._opened is not None, "only a mixture has a sampler of its own"
        stream = self._stream(self._opened, drop_n_last_frames)
        if PartialState().is_main_process:
            folder, steps = self._config.output_dir, self._config.steps
            write_json(folder / REPORT, report(self._opened, stream, steps))
        return MixtureSampler(stream)

    def policy(self, cfg: Any, ds_meta: Any, **rest: Any) -> Any:
        """Stand for `make_policy`: a new policy sees forces, where the dataset has them."""
        features = dataset_to_policy_features(ds_meta.features)
        if not cfg.input_features:
            seen = {k: f for k, f in features.items() if f.type is not FeatureType.ACTION}
            cfg.input_features = widened(seen)
        state, own = cfg.input_features.get(STATE), features.get(STATE)
        if state is not None and own is not None and state.shape != own.shape:
            self._forces = [key for key in cfg.input_features if key.startswith(FORCE)]
        return lerobot_train.make_policy(cfg=cfg, ds_meta=ds_meta, **rest)

    def processors(self, *args: Any, **kwargs: Any) -> Any:
        """Stand for `make_pre_post_processors`."""
        before, after = lerobot_train.make_pre_post_processors(*args, **kwargs)
        if self._forces and not any(isinstance(step, ForceStep) for step in before.steps):
            kinds = [isinstance(step, NormalizerProcessorStep) for step in before.steps]
            before.steps = [*before.steps]
            before.steps.insert(kinds.index(True) + 1, ForceStep(self._forces))
        if self._cache.shape is not None:
            kept = [step for step in before.steps if not isinstance(step, ScaleStep)]
            before.steps = [ScaleStep(*self._cache.shape), *kept]
        return before, after

    def save_checkpoint(self, checkpoint_dir: Path, **rest: Any) -> None:
        """Stand for `save_checkpoint`; writes the sidecar beside the policy."""
        lerobot_train.save_checkpoint(checkpoint_dir=checkpoint_dir, **rest)
        path = checkpoint_dir / PRETRAINED_MODEL_DIR / SIDECAR
        write_json(path, {"schema": "gaploop.policy.v1", **self._sidecar})

    def update(self, tracker: Any, *args: Any, **kwargs: Any) -> Any:
        """Stand for `update_policy`: one step, with random numbers of its own."""
        if self._config.seed is not None:
            rank = PartialState().process_index
            torch.manual_seed(step_seed(self._config.seed, tracker.steps, rank))
        return lerobot_train.update_policy(tracker, *args, **kwargs)


def held_out(opened: OpenMixture, fraction: float) -> tuple[OpenMixture, tuple[MixedTake, ...]]:
    """Set the last takes of every source and task aside, as LeRobot's `eval_split` does.

    Raises:
        UnusableInputError: a source has no take left to train on.
    """
    groups: dict[tuple[int, str], list[MixedTake]] = {}
    for take in opened.takes:
        groups.setdefault((take.source, take.episode.info.task), []).append(take)
    aside = [t for g in groups.values() for t in g[len(g) - math.ceil(len(g) * fraction) :]]
    chosen = {id(t) for t in aside}
    kept = tuple(t for t in opened.takes if id(t) not in chosen)
    for number, source in enumerate(opened.spec.sources):
        if all(t.source != number for t in kept):
            raise UnusableInputError(
                f"--dataset.eval_split={fraction:g} leaves no episode of source '{source.name}' to "
                "train on. Hold out fewer."
            )
    return replace(opened, takes=kept), tuple(aside)
