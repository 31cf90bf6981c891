"""Tuning the small ACT that sees joints and tracked poses: all takes in memory, no pictures."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.datasets.mixing.lerobot_mixture import weighted_stats
from gaploop.datasets.mixing.mixture import MixtureStage
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.batches import (
    DOMAIN,
    Batch,
    MixedBatches,
    TrainingEpisode,
    check_signature,
    chunks_at,
    sources_in_memory,
)
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.demonstrations import TargetCell, scripted_source
from gaploop.finetune.lerobot_policy import ActPolicy, cell_of
from gaploop.finetune.runs import describe
from gaploop.finetune.tuning import lerobot_bundle as bundles
from gaploop.finetune.tuning.presets import Preset
from gaploop.finetune.tuning.takes import TakeNote, mixture_of, note_of, split_held_out
from gaploop.sim.catalogue import SO101

log = logging.getLogger(__name__)


class TrackedWork:
    """The base, wrapped, with batches of its data, ready to be tuned."""

    def __init__(self, base: Path, options: FinetuneConfig, recipe: Preset, device: str) -> None:
        self._base, self._recipe = base, recipe
        named = options.policy.path
        if options.randomise.strength or options.rename_map:
            raise UnusableInputError(
                f"Policy {named} sees joints and tracked poses, no pictures: --randomise "
                "and --rename_map do nothing for it. Leave them out."
            )
        bundle = act.load(base, device)
        opened, aside = split_held_out(options, mixture_of(options))
        sources, stages = sources_in_memory(opened)
        if options.sim_takes and not options.sim:
            task, robot = cell_of(base) or ("pick_place", SO101.name)
            cell, workers = TargetCell(task=task, robot=robot), options.num_workers or 2
            sim = scripted_source(options.sim_takes, cell, seed=options.seed, workers=workers)
            share = options.mix.real
            shares = tuple(share * s for s in stages[0].shares)
            sources, stages = [*sources, sim], [MixtureStage((*shares, 1.0 - share))]
        if not (base / act.SIDECAR).exists():
            # As lerobot-train saves a policy it has no names and no rate: the data's are its.
            own, first = bundle.signature, sources[0]
            for name in ("state_names", "environment_names", "action_names"):
                ours, theirs = getattr(own, name), getattr(first.signature, name)
                if len(ours) != len(theirs):
                    raise UnusableInputError(
                        f"{first.root}: {len(theirs)} {name.replace('_', ' ')} where policy "
                        f"{named} was trained on {len(ours)}. Use episodes of the arm it was "
                        "trained with."
                    )
            log.warning(bundles.UNNAMED, named, first.root)
            bundle.signature = first.signature
        for source in sources:
            where = f"policy {named}"
            check_signature(source.signature, bundle.signature, source.root, where)
        self._sources = sources
        spec = recipe.spec
        torch.manual_seed(spec.seed)
        module = bundle.policy if recipe.full else adapter.wrap(bundle.policy, base, recipe.lora)
        self.batches = MixedBatches(
            self._sources,
            stages,
            chunk=bundle.chunk,
            batch_size=spec.batch_size,
            seed=spec.seed,
        )
        if options.stats != "base":
            new: dict[str, dict[str, Any]] = {}
            for kind, moments in self.batches.moments(spec.steps).items():
                rest = weighted_stats(*self.batches.weighted(kind, spec.steps))
                new[act.FEATURE_KEYS[kind]] = {**rest, "mean": moments.mean, "std": moments.std}
            bundles.set_stats(bundle, new)
        bundles.require_stats(bundle, tuple(act.FEATURE_KEYS.values()), base)
        self.held_out: Sequence[TakeNote] = [note_of(t) for t in aside]
        apart = sources_in_memory(replace(opened, takes=tuple(aside)))[0] if aside else ()
        self.learner = ActLearner(bundle, module, [e for s in apart for e in s.episodes])

    def inputs(self, steps: int) -> tuple[Mapping[str, Any], ...]:
        """Return how `run.json` names what was trained on."""
        shares = self.batches.mixture.mean_shares(steps).tolist()
        pairs = zip(self._sources, shares, strict=True)
        return tuple(describe(s, w) for s, w in pairs if w > 0)

    def save(self, folder: Path) -> None:
        """Write `adapter` and `merged`, or `merged` alone where all weights were trained."""
        bundle, module = self.learner.bundle, self.learner.module
        shares = self.batches.mixture.mean_shares(self._recipe.spec.steps)
        trained = [s for s, w in zip(self._sources, shares, strict=True) if w > 0]
        is_real = any(s.domain is not Domain.SIM for s in trained)
        say_domain(bundle, is_real)
        if self._recipe.full:
            act.save(bundle, folder / "merged")
        else:
            adapter.save(module, bundle, self._base, folder / "adapter", merge=True)


def say_domain(bundle: act.ActBundle, is_real: bool) -> None:
    """Let a policy know that it drives in a cell that isn't the nominal one, if it does."""
    if is_real and DOMAIN in bundle.signature.environment_names:
        for step in bundle.preprocessor.steps:
            if hasattr(step, "domain"):
                step.domain = 1.0  # the tracker says 'real': there an adapted policy drives


@dataclass
class ActLearner:
    """A policy, whole or wrapped with an adapter, and held-out takes to judge it by.

    Attributes:
        module: what is trained: the policy itself, or PEFT's wrapper of it.
    """

    bundle: act.ActBundle
    module: torch.nn.Module
    held_out: Sequence[TrainingEpisode] = ()

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the masked L1 loss on normalised actions."""
        tensors = act.to_tensors(batch, str(self.bundle.policy.config.device))
        value, _ = cast(Any, self.module)(self.bundle.preprocessor(tensors))
        return cast(torch.Tensor, value)

    def held_out_error(self) -> float:
        """Return the mean absolute error of executed actions on the held-out takes."""
        return float(np.mean(list(self.held_out_errors().values())))

    def held_out_errors(self) -> dict[str, float]:
        """Return the mean absolute error of executed actions on each held-out take, by uid."""
        policy = ActPolicy(self.bundle)
        return {e.uid: float(episode_errors(policy, e).mean()) for e in self.held_out}


def episode_errors(
    policy: ActPolicy, episode: TrainingEpisode
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return absolute errors of the actions a policy would execute along one take.

    The policy predicts where it would when driving, every `policy.execute` frames, from the
    recorded observation; the errors are open-loop, in LeRobot units.

    Returns:
        Shape (n_frames, n_action).
    """
    rows = np.arange(0, len(episode.action), policy.execute)
    batch = chunks_at(episode, rows, policy.bundle.chunk)
    predicted = policy.predict(batch)[:, : policy.execute]
    errors = np.abs(predicted - batch.action[:, : policy.execute])
    kept = ~batch.is_pad[:, : policy.execute]
    return np.asarray(errors[kept], dtype=np.float64)
