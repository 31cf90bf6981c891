"""Tuning any LeRobot policy on takes with pictures: ACT, Diffusion, SmolVLA, pi0, pi0.5, others."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.vocabulary import Domain
from gaploop.datasets import columns
from gaploop.datasets.cache.lerobot_scale_step import ScaleStep
from gaploop.datasets.frames import load_frames
from gaploop.datasets.mixing.sources import MixedTake, OpenMixture, describe, open_mixture
from gaploop.datasets.mixing.spec import MixtureSpec, SourceSpec, StageSpec, load_mixture
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.hub_fetch import is_hub_name
from gaploop.finetune.lerobot_learner import LeRobotLearner
from gaploop.finetune.ranks import Ranks
from gaploop.finetune.tuning import lerobot_bundle as bundles
from gaploop.finetune.tuning.held_out import TakeNote
from gaploop.finetune.tuning.lerobot_fit import SIDECAR, UNNAMED, check_fits, check_units
from gaploop.finetune.tuning.lerobot_randomise import Randomiser, plates
from gaploop.finetune.tuning.lerobot_takes import (
    TakeBatches,
    note_of,
    open_takes,
    parted,
)
from gaploop.finetune.tuning.work import AdaptOptions, asked_aside

log = logging.getLogger(__name__)

REAL, SIM = "real", "sim"


class PicturedWork:
    """The base, wrapped, with batches of its data; see `work.Work`."""

    def __init__(self, base: Path, options: AdaptOptions, ranks: Ranks) -> None:
        self._base, self._options = base, options
        config = bundles.read_config(base, ranks.device)
        whole = mixture_of(options)
        _check_renamed(whole, options.rename)
        if not (base / SIDECAR).exists() and ranks.is_main:
            log.warning(UNNAMED, base, whole.datasets[0].root)
        for info in whole.datasets:
            check_fits(config, info, base, options.rename, options.cache.size)
        for take in whole.takes:
            units = take.episode.info.units
            root = str(whole.datasets[take.dataset].root)
            check_units([units], base, root)
        used = {**(config.input_features or {}), **(config.output_features or {})}
        _check_finite(whole, {n for n in _numbers_of(whole) if options.rename.get(n, n) in used})
        self._opened, aside = parted(whole, held_out_uids(options, whole))
        _check_left(self._opened)
        self._shares = self._opened.mixture(1).mean_shares(options.spec.steps)
        dataset = open_takes(self._opened, config, self._shares, options.cache)
        names = sidecar(self._opened)
        spec = options.spec
        bundle = bundles.open_bundle(
            config, dataset.meta, names, stats=options.stats, rename=options.rename
        )
        if options.cache.size is not None:
            kept = [s for s in bundle.preprocessor.steps if not isinstance(s, ScaleStep)]
            bundle.preprocessor.steps = [ScaleStep(*options.cache.size), *kept]
        torch.manual_seed(spec.seed)  # right before: an adapter's first weights are drawn
        module = bundle.policy if options.full else adapter.wrap(bundle.policy, base, options.lora)
        self.batches = TakeBatches(
            self._opened,
            dataset,
            batch_size=spec.batch_size,
            ranks=ranks,
            drop_last=int(getattr(config, "drop_n_last_frames", 0) or 0),
            workers=options.workers,
            alter=_randomiser(options, dataset, self._opened, ranks),
        )
        self.learner = LeRobotLearner(bundle, module, dataset, aside)
        self.held_out: Sequence[TakeNote] = [note_of(t) for t in aside]

    def held_out_errors(self) -> dict[str, float]:
        """Return the policy's loss on each held-out take, by uid."""
        return self.learner.held_out_errors()

    def inputs(self, steps: int) -> tuple[Mapping[str, Any], ...]:
        """Return how `run.json` names what was trained on."""
        drawn = describe(self._opened, self.batches.mixture, steps)
        found = []
        for number, info in enumerate(self._opened.datasets):
            takes = [t for t in self._opened.takes if t.dataset == number]
            if not takes or not drawn[takes[0].source]["samples"]:
                continue
            source = drawn[takes[0].source]
            frames = sum(len(t.frames) for t in takes)
            found.append(
                {
                    "root": str(info.root),
                    "sha256": takes_hash(takes),
                    "domain": takes[0].episode.info.domain.value,
                    "share": source["share"] * frames / source["frames"],
                    "takes": len(takes),
                    "frames": frames,
                    "uids": [t.episode.info.uid for t in takes],
                    "plans": sorted({t.episode.info.plan for t in takes if t.episode.info.plan}),
                }
            )
        return tuple(found)

    def save(self, folder: Path, merge: bool) -> None:
        """Write `adapter` and `merged`, or `merged` alone where all weights were trained."""
        bundle, module = self.learner.bundle, self.learner.module
        if self._options.full:
            bundle.policy.config.pretrained_path = None
            bundles.save(bundle, folder / "merged")
            return
        name = str(self._options.base)
        adapter.save(
            module,
            bundle.policy,
            self._base,
            folder / "adapter",
            lambda where: bundles.save_processors(bundle, where),
            name if is_hub_name(name) else "",
        )
        if merge:
            bundles.save(replace(bundle, policy=adapter.merged(module)), folder / "merged")


def mixture_of(options: AdaptOptions) -> OpenMixture:
    """Return the takes to tune on, opened; held-out takes are among them.

    Raises:
        UnusableInputError: nothing to learn from, or takes of the wrong kind.
    """
    if options.sim_takes:
        raise UnusableInputError(
            "--sim_takes records no pictures, and this policy looks at them. Record simulated "
            "takes with gaploop record --robot.type=so101_sim and name them with --sim='[DIR]'."
        )
    if options.mixture is not None:
        if options.real or options.sim or options.episodes:
            raise UnusableInputError(
                f"--mixture={options.mixture} stands for --real, --sim and --episodes. Name "
                "datasets in one place."
            )
        spec = replace(load_mixture(options.mixture), seed=options.spec.seed)
        return open_mixture(spec)
    if not options.real:
        raise UnusableInputError("Nothing to adapt to. Name real takes with --real='[DIR]'.")
    opened = open_mixture(_spec(options))
    for take in opened.takes:
        if take.source == 0 and take.episode.info.domain is Domain.SIM:
            root = opened.datasets[take.dataset].root
            raise UnusableInputError(
                f"{root} holds takes of nominal simulation, given with --real. Give it with --sim."
            )
    chosen = [t for t in opened.takes if t.source or _is_asked(t, options)]
    if all(t.source for t in chosen):
        real = [t.episode for t in opened.takes if not t.source]
        stations = ", ".join(sorted({e.info.station or "(none)" for e in real}))
        indices = ", ".join(str(i) for i in sorted({e.index for e in real}))
        raise UnusableInputError(
            "No real take is left by --episodes and --station. There are episodes "
            f"{indices} of station {stations}."
        )
    return replace(opened, takes=tuple(chosen))


def _is_asked(take: MixedTake, options: AdaptOptions) -> bool:
    is_there = not options.station or take.episode.info.station == options.station
    return is_there and (options.episodes is None or take.episode.index in options.episodes)


def _spec(options: AdaptOptions) -> MixtureSpec:
    sources = [SourceSpec(REAL, options.real, options.select)]
    shares = {REAL: 1.0}
    if options.sim:
        sources.append(SourceSpec(SIM, options.sim, options.select))
        shares = {REAL: options.share_real, SIM: 1.0 - options.share_real}
    weights = {"dimension": dict(options.weights)} if options.weights else {}
    return MixtureSpec(tuple(sources), (StageSpec(shares),), weights, options.spec.seed)


def held_out_uids(options: AdaptOptions, opened: OpenMixture) -> frozenset[str]:
    """Return the uids of the real takes that the options keep aside."""
    return asked_aside(options, [note_of(t) for t in real_of(options, opened)])


def real_of(options: AdaptOptions, opened: OpenMixture) -> list[MixedTake]:
    """Return the takes that count as real."""
    # Other datasets don't say what is simulated: what was named with --sim is.
    own = [t for t in opened.takes if not options.real or t.source == 0]
    return [t for t in own if t.episode.info.domain is not Domain.SIM]


def _check_renamed(opened: OpenMixture, rename: Mapping[str, str]) -> None:
    known = {f for info in opened.datasets for f in info.features}
    for name in rename:
        if name not in known:
            raise unknown_choice("feature", name, known, "--rename_map")


def _numbers_of(opened: OpenMixture) -> list[str]:
    """Return the features that are numbers, not pictures or text."""
    features = opened.datasets[0].features.items()
    return [n for n, f in features if str(f.get("dtype")).startswith(("float", "int"))]


def _check_finite(opened: OpenMixture, names: Set[str]) -> None:
    """Find NaN before a step is trained: joints, scene and actions are read, no video."""
    for number, info in enumerate(opened.datasets):
        takes = [t.episode for t in opened.takes if t.dataset == number]
        if not takes:
            continue
        table = load_frames(info.root, names, [e.index for e in takes])
        for episode in takes:
            rows = table.rows_of(episode.index)
            for name in sorted(names):
                values = np.asarray(table.columns[name][rows], dtype=np.float64)
                bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
                if bad.any():
                    raise UnusableInputError(
                        f"{info.root}: episode {episode.index} has NaN or infinite {name} at frame "
                        f"{int(np.argmax(bad))}. Remove the take with gaploop edit delete, or "
                        "record it again."
                    )


def _check_left(opened: OpenMixture) -> None:
    for number, source in enumerate(opened.spec.sources):
        if all(t.source != number for t in opened.takes):
            raise UnusableInputError(
                f"Source '{source.name}': all takes are held out. Hold out fewer."
            )


def sidecar(opened: OpenMixture) -> dict[str, Any]:
    """Return what LeRobot's config has no place for: rate, names and units of the data."""
    info = opened.datasets[0]
    units = {t.episode.info.units for t in opened.takes} - {""}
    return {
        "fps": info.fps,
        "state_names": list(info.names(columns.STATE)),
        "environment_names": list(info.names(columns.ENVIRONMENT)),
        "action_names": list(info.names(columns.ACTION)),
        "cameras": list(info.video_keys),
        "units": units.pop() if len(units) == 1 else "",
        "robot_type": info.robot_type,
    }


def takes_hash(takes: Sequence[MixedTake]) -> str:
    """Return the SHA-256 of which frames of which takes are learned from."""
    digest = hashlib.sha256()
    for take in takes:
        digest.update(take.episode.info.uid.encode())
        digest.update(take.frames.tobytes())
    return digest.hexdigest()


def _randomiser(
    options: AdaptOptions, dataset: Any, opened: OpenMixture, ranks: Ranks
) -> Randomiser | None:
    if not options.randomise.strength:
        return None
    return Randomiser(
        options.randomise,
        options.spec.steps,
        (options.spec.seed, ranks.rank),
        plates(dataset, opened.takes, options.spec.seed),
    )
