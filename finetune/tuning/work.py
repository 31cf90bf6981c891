"""Which takes are tuned on: the mixture that the options name, and what of it is kept aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.datasets.mixing.sources import MixedTake, OpenMixture, open_mixture
from gaploop.datasets.mixing.spec import MixtureSpec, SourceSpec, StageSpec, load_mixture
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.tuning import held_out
from gaploop.finetune.tuning.held_out import TakeNote

REAL: Final = "real"
SIM: Final = "sim"


def mixture_of(config: FinetuneConfig) -> OpenMixture:
    """Return the takes to tune on, opened; held-out takes are among them.

    Raises:
        UnusableInputError: nothing to learn from, or takes of the wrong kind.
    """
    if config.mixture is not None:
        if config.real or config.sim or config.episodes:
            raise UnusableInputError(
                f"--mixture={config.mixture} stands for --real, --sim and --episodes. Name "
                "datasets in one place."
            )
        spec = replace(load_mixture(config.mixture), seed=config.seed)
        return open_mixture(spec)
    if not config.real:
        raise UnusableInputError("Nothing to adapt to. Name real takes with --real='[DIR]'.")
    sources, shares = [SourceSpec(REAL, config.real, config.select)], {REAL: 1.0}
    if config.sim:
        sources.append(SourceSpec(SIM, config.sim, config.select))
        shares = {REAL: config.share_real, SIM: 1.0 - config.share_real}
    known = config.weights()
    weights = {"dimension": known} if known else {}
    opened = open_mixture(MixtureSpec(tuple(sources), (StageSpec(shares),), weights, config.seed))
    for take in opened.takes:
        if take.source == 0 and take.episode.info.is_nominal:
            root = opened.datasets[take.dataset].root
            raise UnusableInputError(
                f"{root} holds takes of nominal simulation, given with --real. Give it with --sim."
            )
    chosen = [
        t
        for t in opened.takes
        if t.source
        or (
            (config.station in ("", t.episode.info.station))
            and (not config.episodes or t.episode.index in config.episodes)
        )
    ]
    if all(t.source for t in chosen):
        real = [t.episode for t in opened.takes if not t.source]
        stations = ", ".join(sorted({e.info.station or "(none)" for e in real}))
        indices = ", ".join(str(i) for i in sorted({e.index for e in real}))
        raise UnusableInputError(
            "No real take is left by --episodes and --station. There are episodes "
            f"{indices} of station {stations}."
        )
    return replace(opened, takes=tuple(chosen))


def real_of(config: FinetuneConfig, opened: OpenMixture) -> list[MixedTake]:
    """Return the takes that count as real."""
    # Other datasets don't say what is simulated: what was named with --sim is.
    own = [t for t in opened.takes if not config.real or t.source == 0]
    return [t for t in own if t.episode.info.domain is not Domain.SIM]


def note_of(take: MixedTake) -> TakeNote:
    """Return what decisions need to know of a take."""
    info = take.episode.info
    return TakeNote(info.uid, info.session, dict(info.dimensions), take.episode.index)


def chosen_held_out(config: FinetuneConfig, real: Sequence[TakeNote]) -> frozenset[str]:
    """Return the uids of the real takes that the options keep aside."""
    if isinstance(config.held_out, float):
        return held_out.choose(real, config.held_out, config.seed)
    lacking = set(config.held_out) - {n for t in real for n in (t.index, t.uid)}
    if lacking:
        known = ", ".join(map(str, sorted({t.index for t in real})))
        raise UnusableInputError(
            f"--held_out names episode {min(lacking, key=str)}, which is not among the takes that "
            f"would be learned from ({known})."
        )
    return frozenset(t.uid for t in real if {t.index, t.uid} & set(config.held_out))
