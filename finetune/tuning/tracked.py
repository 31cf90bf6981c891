"""Tuning the small ACT that sees joints and tracked poses: all takes in memory, no pictures."""

from __future__ import annotations

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
from gaploop.datasets.mixing.spec import by_size, load_mixture
from gaploop.finetune import lerobot_act as act
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.batches import (
    DOMAIN,
    Batch,
    MixedBatches,
    TrainingEpisode,
    TrainingSource,
    check_signature,
    chunks_at,
    load_mixture_sources,
    load_source,
)
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.demonstrations import DemonstratedCell, scripted_source
from gaploop.finetune.lerobot_policy import ActPolicy, cell_of
from gaploop.finetune.ranks import Ranks
from gaploop.finetune.runs import describe
from gaploop.finetune.tuning import lerobot_bundle as bundles
from gaploop.finetune.tuning.held_out import TakeNote
from gaploop.finetune.tuning.presets import Preset
from gaploop.finetune.tuning.work import chosen_held_out
from gaploop.sim.arms import SO101

log = logging.getLogger(__name__)


class TrackedWork:
    """The base, wrapped, with batches of its data, ready to be tuned."""

    def __init__(self, base: Path, options: FinetuneConfig, recipe: Preset, ranks: Ranks) -> None:
        self._base, self._recipe = base, recipe
        named = options.policy.path
        if options.randomise.strength or options.rename_map:
            raise UnusableInputError(
                f"Policy {named} sees joints and tracked poses, no pictures: --randomise "
                "and --rename_map do nothing for it. Leave them out."
            )
        bundle = act.load(base, ranks.device)
        sources, stages = sources_of(options, cell_of(base))
        if not (base / act.SIDECAR).exists():
            # As lerobot-train saves a policy it has no names and no rate: the data's are its.
            own, first = bundle.signature, sources[0]
            for name in ("state_names", "environment_names", "action_names"):
                ours, theirs = getattr(own, name), getattr(first.signature, name)
                if len(ours) != len(theirs):
                    raise UnusableInputError(
                        f"{first.root}: {len(theirs)} {name.replace('_', ' ')} where policy "
                        f"{named} was trained on {len(ours)}. Use takes of the arm it was "
                        "trained with."
                    )
            log.warning(bundles.UNNAMED, named, first.root)
            bundle.signature = first.signature
        for source in sources:
            where = f"policy {named}"
            check_signature(source.signature, bundle.signature, source.root, where)
        # Other datasets don't say what is simulated: what was named with --sim is.
        real = sources[: len(options.real)] if options.real else sources
        notes = [note_of(e) for s in real if s.domain is not Domain.SIM for e in s.episodes]
        self._sources, aside = split_by_uid(sources, chosen_held_out(options, notes))
        spec = recipe.spec
        torch.manual_seed(spec.seed)
        module = bundle.policy if recipe.full else adapter.wrap(bundle.policy, base, recipe.lora)
        self.batches = MixedBatches(
            self._sources,
            stages,
            chunk=bundle.chunk,
            batch_size=spec.batch_size,
            seed=spec.seed,
            rank=ranks.rank,
            world_size=ranks.size,
        )
        if options.stats != "base":
            new: dict[str, dict[str, Any]] = {}
            for kind, moments in self.batches.moments(spec.steps).items():
                rest = weighted_stats(*self.batches.weighted(kind, spec.steps))
                new[act.FEATURE_KEYS[kind]] = {**rest, "mean": moments.mean, "std": moments.std}
            if options.stats == "merged":
                new = bundles.merged_stats(bundles.base_stats(bundle), new)
            bundles.set_stats(bundle, new)
        bundles.require_stats(bundle, tuple(act.FEATURE_KEYS.values()), base)
        self.learner = ActLearner(bundle, module, aside)
        self.held_out: Sequence[TakeNote] = [note_of(e) for e in aside]

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


def sources_of(
    options: FinetuneConfig, cell: tuple[str, str] | None = None
) -> tuple[list[TrainingSource], list[MixtureStage]]:
    """Return the takes to tune on and their shares; held-out takes are among them.

    Args:
        cell: task and arm of the embedded cell, for `sim_takes`; the default one if None.

    Raises:
        UnusableInputError: nothing to learn from, or takes of the wrong kind.
    """
    if options.mixture is not None:
        if options.real or options.sim or options.sim_takes or options.episodes:
            raise UnusableInputError(
                f"--mixture={options.mixture} stands for --real, --sim, --sim_takes and "
                "--episodes. Name datasets in one place."
            )
        return load_mixture_sources(load_mixture(options.mixture))
    if not options.real:
        raise UnusableInputError("Nothing to adapt to. Name real takes with --real='[DIR]'.")
    real = [load_source(r, options.select, options.episodes or None) for r in options.real]
    for source in real:
        if source.is_nominal:
            raise UnusableInputError(
                f"{source.root} holds takes of nominal simulation, given with --real. Give it "
                "with --sim."
            )
    weights = options.weights()
    real = [weighted(s, weights) for s in real]
    if options.station:
        known = sorted({e.station or "(none)" for s in real for e in s.episodes})
        there = [tuple(e for e in s.episodes if e.station == options.station) for s in real]
        real = [replace(s, episodes=own) for s, own in zip(real, there, strict=True) if own]
        if not real:
            raise UnusableInputError(
                f"No real take is of station '{options.station}'. There are: {', '.join(known)}."
            )
    sim = [load_source(r, options.select) for r in options.sim]
    if not sim and options.sim_takes:
        task, robot = cell or ("pick_place", SO101.name)
        sim = [
            scripted_source(
                options.sim_takes,
                DemonstratedCell(task, robot),
                seed=options.seed,
                workers=options.num_workers or 2,
            )
        ]
    share = options.share_real if sim else 1.0
    shares = by_size([s.frames for s in real], share)
    if sim:
        shares = [*shares, *by_size([s.frames for s in sim], 1.0 - share)]
    return [*real, *sim], [MixtureStage(tuple(shares))]


def split_by_uid(
    sources: Sequence[TrainingSource], uids: frozenset[str]
) -> tuple[list[TrainingSource], list[TrainingEpisode]]:
    """Split the takes with these uids off their sources.

    Raises:
        UnusableInputError: that leaves a source without takes.
    """
    kept, aside = [], []
    for source in sources:
        stay = tuple(e for e in source.episodes if e.uid not in uids)
        if not stay:
            raise UnusableInputError(
                f"{source.root}: all {len(source.episodes)} takes are held out. Hold out fewer."
            )
        aside += [e for e in source.episodes if e.uid in uids]
        kept.append(replace(source, episodes=stay))
    return kept, aside


def note_of(episode: TrainingEpisode) -> TakeNote:
    """Return what decisions need to know of a take."""
    return TakeNote(episode.uid, episode.session, episode.dimensions, episode.index)


def weighted(source: TrainingSource, weights: Mapping[str, float]) -> TrainingSource:
    """Return a source whose takes are drawn as often as the weights of their dimensions say."""
    if not weights:
        return source
    episodes = []
    for episode in source.episodes:
        # The mean of the weights of its dimensions; what none claims counts 1.
        total = sum(episode.dimensions.values())
        scale = max(1.0, total)
        claimed = sum(p * weights.get(d, 1.0) for d, p in episode.dimensions.items()) / scale
        episodes.append(replace(episode, weight=claimed + 1.0 - total / scale))
    return replace(source, episodes=tuple(episodes))


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
