"""The share of real takes in co-training, chosen on held-out real takes.

Every candidate is trained shortly on one half of the real takes and judged on the other, then the
other way round, so that each real take judges once (two-fold cross-validation, whole sessions where
there are enough). Among the candidates that aren't worse than the best by more than one standard
error of the paired difference, the one with the most simulation wins (the one-standard-error rule
of Breiman et al. 1984, Classification and Regression Trees): what can't be told apart on real takes
is decided by what keeps more of what the base knows.

Each arm has its own folder; an arm that was finished isn't trained again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, writable_folder, write_json
from gaploop.finetune.adapt import (
    base_of,
    kind_of,
    require_same,
    tuned,
)
from gaploop.finetune.config import FinetuneConfig, MixOptions
from gaploop.finetune.ranks import Ranks
from gaploop.finetune.tuning import held_out
from gaploop.finetune.tuning.work import chosen_held_out, mixture_of, note_of, real_of

CANDIDATES: Final = (0.25, 0.5, 0.75, 1.0)
FOLDS: Final = 2
PART: Final = 0.5
"""Part of the run's steps that a candidate is trained for."""
RATIO_SCHEMA: Final = "gaploop.ratio.v1"


@dataclass(frozen=True)
class ShareTrial:
    """One candidate.

    Attributes:
        share: of real samples in a batch.
        error: mean over the real takes, each judged by the half that it wasn't in.
        worse_by: mean difference to the best candidate, take by take.
        se: standard error of that difference.
    """

    share: float
    error: float
    worse_by: float
    se: float


@dataclass(frozen=True)
class ShareChoice:
    """The chosen share, and what it was chosen from."""

    share: float
    tried: tuple[ShareTrial, ...]
    takes: int

    def message(self) -> str:
        """Return it in words."""
        listed = ", ".join(f"{t.share:g}: {t.error:.4g}" for t in self.tried)
        return f"--mix.real=auto chose {self.share:g} on {self.takes} held-out takes ({listed})."


def choose_share(
    measure: Callable[[float, int], Mapping[str, float]],
    folder: Path,
    candidates: Sequence[float] = CANDIDATES,
) -> ShareChoice:
    """Try the candidates and choose; what `folder` holds of an earlier call isn't tried again.

    Args:
        measure: called with a share and a fold, trains and returns uid to error of that fold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    errors: dict[float, dict[str, float]] = {}
    for share in candidates:
        errors[share] = {}
        for fold in range(FOLDS):
            path = folder / f"{share:g}_{fold}.json"
            if not path.exists():
                write_json(path, {"schema": RATIO_SCHEMA, "errors": dict(measure(share, fold))})
            errors[share].update(read_json(path)["errors"])
    choice = by_one_standard_error(errors)
    write_json(folder / "choice.json", {"schema": RATIO_SCHEMA, **asdict(choice)})
    return choice


def by_one_standard_error(errors: Mapping[float, Mapping[str, float]]) -> ShareChoice:
    """Return the choice by the one-standard-error rule.

    Args:
        errors: share to the error on every real take, the same takes for all shares.
    """
    takes = sorted(next(iter(errors.values())))
    rows = {s: np.array([found[t] for t in takes]) for s, found in errors.items()}
    best = min(rows, key=lambda s: (float(rows[s].mean()), s))
    tried = []
    for share, row in sorted(rows.items()):
        difference = row - rows[best]
        spread = float(difference.std(ddof=1)) if len(takes) > 1 else 0.0
        se = spread / math.sqrt(len(takes))
        tried.append(ShareTrial(share, float(row.mean()), float(difference.mean()), se))
    share = min(t.share for t in tried if t.worse_by <= t.se)
    return ShareChoice(share, tuple(tried), len(takes))


type Say = Callable[[str], None]


def chosen_share(options: FinetuneConfig, say: Say) -> ShareChoice:
    """Choose the share of real takes on held-out ones; see `ratio`.

    Raises:
        UnusableInputError: no simulated takes to mix in, or too few real ones to split.
    """
    if options.mixture or not (options.sim or options.sim_takes):
        raise UnusableInputError(
            "--mix.real=auto needs simulated takes to mix in: --sim='[DIR]' or --sim_takes=100."
        )
    every = [note_of(t) for t in real_of(options, mixture_of(options))]
    aside = chosen_held_out(options, every)
    takes = [t for t in every if t.uid not in aside]
    parts = held_out.folds(takes, FOLDS, options.seed)
    folder = writable_folder(options.folder / "ratio")
    ranks, base = Ranks(options.device), base_of(options.policy.path)
    if ranks.is_main:
        recipe = options.recipe(kind_of(base))
        require_same(folder, options, recipe, base, keep=True, without=("share_real",))

    def measure(share: float, fold: int) -> Mapping[str, float]:
        say(f"share {share:g}, half {fold + 1}")
        kept = parts[fold] | aside
        one = replace(
            options,
            mix=MixOptions(share),
            held_out=tuple(sorted(kept)),
            patience=0,
            output_dir=folder / f"{share:g}_{fold}",
            resume=True,  # what there is of this arm is gone on with
        )
        _, _, seen = tuned(one, base, ranks, part=PART)
        return {uid: seen.errors[uid] for uid in parts[fold]}

    return choose_share(measure, folder)
