"""Recipes side by side on held-out real takes: these alone, simulated ones alone, both; shares.

`ablation` compares recipes. `chosen_share` chooses the share of real takes in co-training: every
candidate is trained shortly on one half of the real takes and judged on the other, then the other
way round, so that each real take judges once (two-fold cross-validation, whole sessions where there
are enough). Among the candidates that aren't worse than the best by more than one standard error of
the paired difference, the one with the most simulation wins (the one-standard-error rule of Breiman
et al. 1984, Classification and Regression Trees): what can't be told apart on real takes is decided
by what keeps more of what the base knows.

Each arm has its own folder; an arm that was finished isn't trained again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, writable_folder, write_json
from gaploop.core.statistics import bootstrap_mean
from gaploop.core.vocabulary import Domain
from gaploop.finetune.adapt import (
    ADAPTER,
    MERGED,
    adapt,
    base_of,
    is_tracked,
    open_work,
    require_same,
    tuned,
)
from gaploop.finetune.ranks import Ranks
from gaploop.finetune.tuning import held_out, lerobot_image_policy, tracked
from gaploop.finetune.tuning.held_out import TakeNote
from gaploop.finetune.tuning.lerobot_image_policy import note_of
from gaploop.finetune.tuning.work import AdaptOptions, chosen_held_out

AUTO: Final = "auto"
CANDIDATES: Final = (0.25, 0.5, 0.75, 1.0)
FOLDS: Final = 2
PART: Final = 0.5
"""Part of the run's steps that a candidate is trained for."""
RATIO_SCHEMA: Final = "gaploop.ratio.v1"
SCHEMA: Final = "gaploop.recipes.v1"
SHARE: Final = 0.2
"""Real takes that are held out where nobody says which."""


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


def parse_share(value: str) -> float | None:
    """Return the share that `--mix.real` says, or None for `auto`.

    Raises:
        UnusableInputError: it is neither `auto` nor a number above 0 and at most 1.
    """
    if value == AUTO:
        return None
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UnusableInputError(
            f"--mix.real={value} must be above 0 and at most 1, or auto; 0.5 is usual."
        )
    return share


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


REAL_ONLY, SIM_ONLY, MIXED = "real only", "sim only", "mixed"

type Say = Callable[[str], None]


@dataclass(frozen=True)
class RecipeResult:
    """One recipe and what came of it.

    Attributes:
        name: `base`, `real only`, `sim only` or `mixed`.
        share_real: share of real samples in a batch; None for the base.
        error: mean error on the held-out real takes.
        interval: bootstrap interval of it at 95 %, drawn over takes.
        policy: folder of the policy, "" for the base.
    """

    name: str
    share_real: float | None
    steps: int
    error: float
    interval: tuple[float, float]
    policy: str = ""


def real_takes(options: AdaptOptions) -> list[TakeNote]:
    """Return what is known of the real takes that would be trained on."""
    if is_tracked(base_of(options.base)):
        only = replace(options, sim=(), sim_takes=0, share_real=1.0)
        sources, _ = tracked.sources_of(only if not options.mixture else options)
        real = [s for s in sources if s.domain is not Domain.SIM]
        return [tracked.note_of(e) for s in real for e in s.episodes]
    opened = lerobot_image_policy.mixture_of(options)
    return [note_of(t) for t in lerobot_image_policy.real_of(options, opened)]


def chosen_share(options: AdaptOptions, say: Say) -> ShareChoice:
    """Choose the share of real takes on held-out ones; see `ratio`.

    Raises:
        UnusableInputError: no simulated takes to mix in, or too few real ones to split.
    """
    if options.mixture or not (options.sim or options.sim_takes):
        raise UnusableInputError(
            "--mix.real=auto needs simulated takes to mix in: --sim='[DIR]' or --sim_takes=100."
        )
    every = real_takes(options)
    aside = chosen_held_out(options, every)
    takes = [t for t in every if t.uid not in aside]
    parts = held_out.folds(takes, FOLDS, options.spec.seed)
    folder = writable_folder(options.output_dir / "ratio")
    ranks, base = Ranks(options.device), base_of(options.base)
    if ranks.is_main:
        require_same(folder, options, base, keep=True, without=("share_real",))
    steps = max(1, round(options.spec.steps * PART))
    spec = replace(options.spec, steps=steps, patience=0, eval_every=steps)

    def measure(share: float, fold: int) -> Mapping[str, float]:
        say(f"share {share:g}, half {fold + 1}")
        kept = parts[fold] | aside
        one = _arm(options, share, kept, folder / f"{share:g}_{fold}", spec=spec)
        _, _, seen = tuned(one, base, ranks)
        return {uid: seen.errors[uid] for uid in parts[fold]}

    return choose_share(measure, folder)


def ablation(options: AdaptOptions, say: Say) -> list[RecipeResult]:
    """Train every recipe and judge all by the same held-out real takes.

    Writes OUT/real_only, OUT/sim_only, OUT/mixed, OUT/recipes.json and OUT/recipes.png.

    Raises:
        UnusableInputError: no simulated takes, or too few real ones to hold any out.
    """
    if options.mixture or not (options.sim or options.sim_takes):
        raise UnusableInputError(
            "--ablation compares real takes with simulated ones: name some with --sim='[DIR]' or "
            "--sim_takes=100."
        )
    if options.held_out:
        raise UnusableInputError("--ablation holds takes out by --held_out_share, not --held_out.")
    aside = held_out.choose(real_takes(options), options.held_out_share or SHARE, options.spec.seed)
    if Ranks(options.device).is_main:
        folder = writable_folder(options.output_dir)
        require_same(folder, options, base_of(options.base), keep=True)
    # The base on the held-out takes, as it is.
    say("base")
    path = options.output_dir / "base.json"
    if not path.exists():
        one = replace(options, held_out_share=0.0, held_out_uids=aside)
        work = open_work(base_of(options.base), one, Ranks(options.device))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"schema": SCHEMA, "errors": work.learner.held_out_errors()})
    arms = [_judged("base", None, 0, read_json(path)["errors"], "")]
    shares = {REAL_ONLY: 1.0, SIM_ONLY: 0.0, MIXED: options.share_real}
    for name, share in shares.items():
        say(name)
        folder = options.output_dir / name.replace(" ", "_")
        done = folder / "result.json"
        if not done.exists():
            real_only: dict[str, Any] = {"sim": (), "sim_takes": 0} if share == 1.0 else {}
            adapt(_arm(options, share, aside, folder, **real_only))
        result = read_json(done)
        errors = result["held_out_at_end"]["errors"]
        policy = folder / (ADAPTER if (folder / ADAPTER).exists() else MERGED)
        arms.append(_judged(name, share, result["steps"], errors, str(policy)))
    value = {"schema": SCHEMA, "held_out": sorted(aside), "arms": [asdict(a) for a in arms]}
    write_json(options.output_dir / "recipes.json", value)
    draw(arms, options.output_dir / "recipes.png")
    return arms


def _arm(
    options: AdaptOptions, share: float, aside: frozenset[str], folder: Path, **more: Any
) -> AdaptOptions:
    """Return what one arm is asked for; what `folder` has of it is gone on with."""
    kept: dict[str, Any] = {"held_out": (), "held_out_share": 0.0, "held_out_uids": aside}
    return replace(options, share_real=share, output_dir=folder, resume=True, **kept, **more)


def _judged(
    name: str, share: float | None, steps: int, errors: Mapping[str, float], policy: str
) -> RecipeResult:
    values = np.array([errors[k] for k in sorted(errors)])
    error = bootstrap_mean(values, seed=0)
    return RecipeResult(name, share, steps, error.value, (error.low, error.high), policy)


def table(arms: Sequence[RecipeResult]) -> str:
    """Return the recipes as text, one in each line."""
    lines = ["recipe      real share  steps  error on held-out real takes [95 %]"]
    for arm in arms:
        share = "–" if arm.share_real is None else f"{arm.share_real:g}"
        low, high = arm.interval
        lines.append(
            f"{arm.name:<10} {share:>11} {arm.steps:>6}  {arm.error:.4g} [{low:.4g}, {high:.4g}]"
        )
    return "\n".join(lines)


def draw(arms: Sequence[RecipeResult], path: Path) -> None:
    """Draw the errors with their intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(arms))
    errors: Any = [[a.error - a.interval[0] for a in arms], [a.interval[1] - a.error for a in arms]]
    colours = ["#9aa0a6" if a.share_real is None else "#1a73e8" for a in arms]
    axes.barh(places, [a.error for a in arms], xerr=errors, color=colours, height=0.6, capsize=3)
    names = [a.name if a.name != MIXED else f"mixed ({a.share_real:g} real)" for a in arms]
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel("error on held-out real takes (lower is better), 95 % interval over takes")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
