"""Which takes are tuned on: the mixture that the options name, and what of it is held out.

And which disagree with the policy. It is asked along every episode what it would do. Where a
station differs from what it learned from, all episodes disagree with it, in about the same way; one
that disagrees much more than the others was driven, or recorded, otherwise. Whether training
without it is better, only training without it shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.vocabulary import Domain
from gaploop.datasets.mixing.sources import (
    MixedTake,
    MixtureSpec,
    OpenMixture,
    SourceSpec,
    StageSpec,
    load_mixture,
    open_mixture,
)
from gaploop.finetune.batches import TrainingEpisode, chunks_at
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.lerobot_policy import ActPolicy

REAL: Final = "real"
SIM: Final = "sim"
UNTAGGED: Final = "untagged"


def mixture_of(config: FinetuneConfig) -> OpenMixture:
    """Return the takes to tune on, opened; held-out takes are among them.

    Raises:
        UnusableInputError: nothing to learn from, or takes of the wrong kind.
    """
    if config.mixture is not None:
        if config.real or config.sim or config.sim_takes or config.where:
            raise UnusableInputError(
                f"--mixture={config.mixture} stands for --real, --sim, --sim_takes and --where. "
                "Name datasets in one place."
            )
        spec = replace(load_mixture(config.mixture), seed=config.seed)
        return open_mixture(spec)
    if not config.real:
        raise UnusableInputError("Nothing to adapt to. Name real episodes with --real='[DIR]'.")
    sources = [SourceSpec(REAL, config.real, config.select, config.where)]
    shares = {REAL: 1.0}
    if config.sim:
        sources.append(SourceSpec(SIM, config.sim, config.select))
        shares = {REAL: config.mix.real, SIM: 1.0 - config.mix.real}
    known = config.weights()
    weights = {"dimension": known} if known else {}
    opened = open_mixture(MixtureSpec(tuple(sources), (StageSpec(shares),), weights, config.seed))
    for take in opened.takes:
        if take.source == 0 and take.episode.info.is_nominal:
            root = opened.datasets[take.dataset].root
            raise UnusableInputError(
                f"{root} holds episodes of nominal simulation, given with --real. Give it with "
                "--sim."
            )
    return opened


@dataclass(frozen=True)
class TakeNote:
    """What deciding needs to know of a take."""

    uid: str
    session: str = ""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    index: int = -1


def real_of(config: FinetuneConfig, opened: OpenMixture) -> list[MixedTake]:
    """Return the takes that count as real."""
    # Other datasets don't say what is simulated: what was named with --sim is.
    own = [t for t in opened.takes if not config.real or t.source == 0]
    return [t for t in own if t.episode.info.domain is not Domain.SIM]


def note_of(take: MixedTake) -> TakeNote:
    """Return what decisions need to know of a take."""
    info = take.episode.info
    return TakeNote(info.uid, info.session, dict(info.dimensions), take.episode.index)


def split_held_out(
    config: FinetuneConfig, opened: OpenMixture
) -> tuple[OpenMixture, list[MixedTake]]:
    """Return the takes to learn from, and those that the options keep aside.

    Raises:
        UnusableInputError: a source has no take left to learn from.
    """
    uids = chosen_held_out(config, [note_of(t) for t in real_of(config, opened)])
    kept = tuple(t for t in opened.takes if t.episode.info.uid not in uids)
    for number, source in enumerate(opened.spec.sources):
        if all(t.source != number for t in kept):
            count = sum(t.source == number for t in opened.takes)
            raise UnusableInputError(
                f"Source '{source.name}': all {count} episodes are held out. Hold out fewer."
            )
    aside = [t for t in opened.takes if t.episode.info.uid in uids]
    return replace(opened, takes=kept), aside


def chosen_held_out(config: FinetuneConfig, real: Sequence[TakeNote]) -> frozenset[str]:
    """Return the uids of the real takes that the options keep aside."""
    if isinstance(config.held_out, float):
        return choose(real, config.held_out, config.seed)
    lacking = set(config.held_out) - {n for t in real for n in (t.index, t.uid)}
    if lacking:
        known = ", ".join(map(str, sorted({t.index for t in real})))
        raise UnusableInputError(
            f"--held_out names episode {min(lacking, key=str)}, which is not among the episodes "
            f"that would be learned from ({known})."
        )
    return frozenset(t.uid for t in real if {t.index, t.uid} & set(config.held_out))


def choose(takes: Sequence[TakeNote], share: float, seed: int = 0) -> frozenset[str]:
    """Return the uids of the takes to keep aside.

    Whole sessions where there are several, since takes of one sitting are alike and would make
    the error look better than it is on another day; single takes otherwise. No dimension is
    left without a take to train on, and dimensions that nobody is held out of yet go first.

    Args:
        share: how much of them, above 0 and below 1.
        seed: decides between groups that serve equally well.

    Raises:
        UnusableInputError: a share out of range, or too few takes to split.
    """
    if not 0 < share < 1:
        raise UnusableInputError(
            f"--held_out={share:g} must be above 0 and below 1; episodes are written as '[3]'."
        )
    groups = list(grouped(takes).values())
    if len(groups) < 2:
        raise UnusableInputError(
            f"{len(takes)} real episode can't be split into episodes to learn from and episodes "
            "to hold out. Record more, or leave --held_out out."
        )
    order = np.random.default_rng((seed, len(takes))).permutation(len(groups)).tolist()
    wanted = max(1.0, share * len(takes))
    aside: list[TakeNote] = []
    while order:
        held, room = {d for t in aside for d in t.dimensions}, wanted - len(aside)

        def serves(i: int, held: set[str] = held, room: float = room) -> tuple[float, int]:
            # Where no session is small enough, the smallest.
            new = len({d for t in groups[i] for d in t.dimensions} - held)
            return min(0.0, room - len(groups[i])), new

        best = max(order, key=serves)
        order.remove(best)
        trial = [*aside, *groups[best]]
        gone = {t.uid for t in trial}
        kept = [t for t in takes if t.uid not in gone]
        left = {d for t in kept for d in t.dimensions}
        is_enough = bool(kept) and all(d in left for t in trial for d in t.dimensions)
        if is_enough and (not aside or len(trial) <= wanted):
            aside = trial
    if not aside:
        raise UnusableInputError(
            "No session can be held out without leaving a gap dimension untrained. Name "
            "episodes with --held_out, or record another session."
        )
    return frozenset(t.uid for t in aside)


def grouped(takes: Iterable[TakeNote]) -> dict[str, list[TakeNote]]:
    """Return takes by session; by themselves where there is one session only."""
    by_session: dict[str, list[TakeNote]] = {}
    for take in takes:
        by_session.setdefault(take.session or take.uid, []).append(take)
    if len(by_session) > 1:
        return by_session
    return {t.uid: [t] for group in by_session.values() for t in group}


def by_group(errors: Mapping[str, float], takes: Iterable[TakeNote]) -> dict[str, dict[str, float]]:
    """Return the mean error of each session and each dimension: `by_session`, `by_dimension`."""
    parts: dict[str, dict[str, list[float]]] = {"session": {}, "dimension": {}}
    for take in takes:
        if take.uid not in errors:
            continue
        error = errors[take.uid]
        parts["session"].setdefault(take.session or UNTAGGED, []).append(error)
        for dimension in take.dimensions or (UNTAGGED,):
            parts["dimension"].setdefault(str(dimension), []).append(error)
    return {
        f"by_{kind}": {name: float(np.mean(values)) for name, values in sorted(found.items())}
        for kind, found in parts.items()
    }


# -- which disagree with the policy ------------------------------------------------------------

LEAST: Final = 8
"""Episodes that there must be to say what is usual."""
SPREADS: Final = 3.0
"""So many spreads above the median an episode stands out, in logarithms; and by"""
TIMES: Final = 2.0
"""so many times the median."""
QUARTILE: Final = 0.75
"""Of an episode's moments: what lasts counts, a single surprise doesn't."""
FLOOR: Final = 0.1
"""Differences of commands that mean nothing, in LeRobot's units (degrees, percent)."""


def disagreement(policy: ActPolicy, episodes: Sequence[TrainingEpisode]) -> FloatArray:
    """Return by how much each episode disagrees with a policy, relative to the median one; (n,)."""
    off = []
    for episode in episodes:
        batch = chunks_at(episode, np.arange(0, len(episode.action), 5), policy.bundle.chunk)
        ahead = slice(0, policy.execute)
        apart = batch.action[:, ahead] - policy.predict(batch)[:, ahead]
        off.append(np.asarray(apart[~batch.is_pad[:, ahead].any(axis=1)], dtype=np.float64))
    every = np.concatenate(off)
    usual = np.median(every, axis=0)  # what the station does otherwise isn't the episode's fault
    size = np.maximum(np.median(np.abs(every - usual), axis=0), FLOOR)
    each = np.array(
        [np.quantile(np.sqrt((((o - usual) / size) ** 2).mean(axis=(1, 2))), QUARTILE) for o in off]
    )
    return np.asarray(each / np.median(each))


def standing_out(times: FloatArray) -> list[int]:
    """Return which of some episodes disagree much more than the others, the worst first.

    The spread is that below the median, which bad episodes hardly widen.
    """
    if len(times) < LEAST:
        return []
    levels = np.log(times)
    spread = np.median(levels) - np.quantile(levels, 0.16)
    most = max(SPREADS * spread, np.log(TIMES))
    return [int(k) for k in np.argsort(-levels) if levels[k] > most]
