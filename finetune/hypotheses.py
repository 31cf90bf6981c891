"""What no probe measured at a station, rolled out in its twin as hypotheses.

Of each such mechanism the policy is rolled out at severities and in directions drawn anew. What
comes of them is compared with the station's failures by figures of the same columns, without a
likelihood (approximate Bayesian computation by trees, Pudlo et al. 2016): trees grown on rollouts
that failed say of every failure at the station whose failures look like it, and failures are pooled
as diagnoses of takes are. Only what was not measured is shared out anew; whether the failures are
of that at all, the reproduction told.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from gaploop.core.files import append_lines, read_text
from gaploop.core.messages import FloatArray
from gaploop.core.take import Take
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.failure_analysis.diagnosis import Diagnosis, summarise_causes
from gaploop.failure_analysis.episode_figures import figures_of
from gaploop.failure_analysis.signals.registry import measure
from gaploop.failure_analysis.station import (
    NAMED_FROM,
    RUNNERS_UP,
    SHARED_ERRORS,
    UNMEASURED,
    limited_to_tier,
    verdict,
    words,
)
from gaploop.failure_analysis.views.view import TakeView
from gaploop.finetune.evaluate import CellJob, CellSpec, attempts, ready
from gaploop.finetune.lerobot_policy import policy_id, resolve
from gaploop.finetune.reproduction import LEAST_SHARE, SCENES, SURE, in_twin
from gaploop.finetune.workers import run_jobs
from gaploop.sim.catalogue import arm_named, find_task
from gaploop.sim.gaps import MECHANISMS, draw_gaps, mechanism_named
from gaploop.sim.gaps.mechanism import UnavailableError

DRAWS: Final = 12
"""Severities and directions of each mechanism: half as many were surer of the wrong dimension,"""
EACH: Final = 2
"""with so many scenes each,"""
ROLLOUTS: Final = DRAWS * EACH
"""so many rollouts in all."""
SEVERITIES: Final = (0.33, 0.91)
"""Of the first and the last draw. Assumed: what is milder seldom brings failures."""
WORTH: Final = 0.2
"""How likely the failures must be of something that was not measured, for rolling out more."""
LEAST_FAILURES: Final = 2
"""A mechanism that fails less often brings no failures here: it explains none."""
TREES: Final = 500
LEAST: Final = 0.01
"""Least share of a hypothesis in an episode: no episode alone rules one out."""
LOST: Final = "actuator_response.lost_goals"
"""A probe tells it only where it lost goals several times."""
TWIN: Final = "hypothesis_twin.yaml"


@dataclass(frozen=True)
class Attempt:
    """A rollout with a mechanism put into the twin.

    Attributes:
        draw: of its severity and direction.
        figures: of a failure, by name; {} of a success.
    """

    mechanism: str
    draw: int
    figures: Mapping[str, float]

    @property
    def dimension(self) -> str:
        """Of the mechanism."""
        return self.mechanism.partition(".")[0]


@dataclass(frozen=True)
class Likeness:
    """Whose failures the station's look like.

    Attributes:
        dimensions: hypothesised dimension to its posterior with equal priors; sums to 1.
        mechanisms: likewise.
        silent: mechanisms that bring too few failures to explain any.
        draws: of the likeliest mechanism, the draws whose failures look like the station's, most
            alike first, to their weight; sums to 1.
    """

    rollouts: int
    dimensions: Mapping[str, float]
    mechanisms: Mapping[str, float]
    silent: tuple[str, ...]
    draws: Mapping[int, float]

    @property
    def best(self) -> str:
        """The likeliest mechanism of the likeliest dimension; "" where none explains anything."""
        most = max(self.dimensions, key=lambda d: self.dimensions[d], default="")
        mine = [m for m in self.mechanisms if m.partition(".")[0] == most]
        return max(mine, key=lambda m: self.mechanisms[m], default="")


def _seed(draw: int) -> int:
    """Return the seed of a draw's direction."""
    return SCENES + EACH * draw


def severity_of(draw: int) -> float:
    """Return the severity of a draw, from 0 to 1."""
    low, high = SEVERITIES
    return round(low + (high - low) * draw / (DRAWS - 1), 3)


def hypotheses(twin: Twin) -> tuple[str, ...]:
    """Return the mechanisms that nothing was measured of, in the catalogue's order."""
    measured = {p.mechanism for p in twin.parameters if p.excited}
    return tuple(
        m.key for m in MECHANISMS if (not m.by_name or m.key == LOST) and m.key not in measured
    )


def worth_trying(found: Diagnosis, twin: Twin) -> tuple[str, ...]:
    """Return the hypotheses to roll out: none where what was measured explains the failures."""
    if "reproduction" not in found.summary or twin.world:
        return ()
    shares = found.summary["station"]["posterior"]
    return hypotheses(twin) if sum(shares[c] for c in _hidden(found)) >= WORTH else ()


def _hidden(found: Diagnosis) -> list[str]:
    """Return the causes that were not measured, `UNMEASURED` among them."""
    leads = found.summary["reproduction"]["leads"]
    return [c for c in found.summary["station"]["posterior"] if c not in leads or c == UNMEASURED]


def figures_at(take: Take, sees: str) -> dict[str, float]:
    """Return what a take's columns show, by name: no picture, truth or length among it.

    Args:
        sees: an evidence tier; what is above it isn't looked at.
    """
    take = limited_to_tier(take, sees)
    found, measured = figures_of(take, images=False), measure(TakeView(take, images=False))
    values = {f"signal:{name}": value for name, value in measured.values.items()}
    values |= found.values
    values |= {f"at:{name}": at_s for name, at_s in found.at_s.items()}
    values[f"kind:{found.mode.mode}:{found.mode.phase}"] = 1.0
    action, state = take.frames.action, take.frames.state
    if len(action) > 2:
        jumps = np.abs(np.diff(action, axis=0)).max(axis=1)
        off = state - action
        values |= {
            "jump": float(jumps.max()),
            "command_jerk": float(np.abs(np.diff(action, 2, axis=0)).mean()),
            "reading_jerk": float(np.abs(np.diff(state, 2, axis=0)).mean()),
            **{f"off_spread:{k}": float(v) for k, v in enumerate(off.std(axis=0))},
            **{f"off_most:{k}": float(v) for k, v in enumerate(np.abs(off).max(axis=0))},
            **{f"least:{k}": float(v) for k, v in enumerate(state.min(axis=0))},
        }
    # An operator ends an attempt when he likes, and the start is the operator's, too.
    left_out = ("duration", "start")
    return {
        name: float(value)
        for name, value in values.items()
        if np.isfinite(value) and name.partition(":")[0] not in left_out
    }


def rolled_out(
    policy: str | Path,
    twin: Twin,
    mechanisms: Sequence[str],
    task: str,
    *,
    sees: str,
    max_s: float,
    workers: int,
    folder: Path,
    progress: Callable[[int], None] = lambda _rollouts: None,
) -> list[Attempt]:
    """Roll the policy out in the twin with each mechanism at drawn severities and directions.

    Args:
        max_s: longest rollout [simulated s], as of `attempt_s`.
        folder: keeps what was rolled out; that isn't rolled out again.
        progress: called with the number of rollouts just finished.

    Returns:
        Rollouts; none of a mechanism that the cell hasn't got.
    """
    place = resolve(policy)
    identity = policy_id(place)
    parameters, left_open, cell = in_twin(
        folder, twin, twin.mechanisms, [identity, task, f"{sees} {max_s:g}", f"{DRAWS} draws"]
    )
    path, held = cell / "attempts.jsonl", dict[tuple[str, int], list[Attempt]]()
    if path.exists():
        for line in read_text(path).rpartition("\n")[0].splitlines():  # a kill may tear the last
            name, draw, rows = json.loads(line)
            held[name, draw] = [Attempt(name, draw, row) for row in rows]
    arm = arm_named(twin.arm)
    jobs = [
        CellJob(
            str(place),
            identity,
            CellSpec(
                gaps={name: severity_of(draw)},
                gap_seed=_seed(draw),
                task=find_task(task),
                robot=arm.name,
                parameters=parameters,
                randomise=left_open,
                max_s=max_s,
                sees=sees,
            ),
            {},
            tuple(SCENES + EACH * EACH * draw + k for k in range(EACH)),
        )
        for draw in reversed(range(DRAWS))
        for name in mechanisms
        if (name, draw) not in held
    ]
    progress(EACH * (DRAWS * len(mechanisms) - len(jobs)))
    for name, draw, rows in run_jobs(_attempted, jobs, workers):
        append_lines(path, [json.dumps([name, draw, rows])])
        held[name, draw] = [Attempt(name, draw, row) for row in rows]
        progress(EACH)
    return [attempt for key in sorted(held) if key[0] in mechanisms for attempt in held[key]]


def _attempted(job: CellJob) -> tuple[str, int, list[dict[str, float]]]:
    """Return a job's mechanism and draw, and its rollouts' figures; none where it can't be."""
    (name,), draw = job.spec.gaps, (job.spec.gap_seed - SCENES) // EACH
    try:
        rig, policy = ready(job)
    except UnavailableError:
        return name, draw, []
    takes = [take for _, take in attempts(rig, policy, job.seeds, job.spec.max_s)]
    return name, draw, [
        figures_at(t, job.spec.sees) if t.outcome is Outcome.FAILURE else {} for t in takes
    ]  # fmt: skip


def likeness(tried: Sequence[Attempt], station: Sequence[Mapping[str, float]]) -> Likeness:
    """Return whose failures a station's failures look like, dimensions having equal priors.

    Args:
        station: figures of each of its failures; at least one.
    """
    from sklearn.ensemble import ExtraTreesClassifier

    count = Counter(a.mechanism for a in tried if a.figures)
    every = sorted({a.mechanism for a in tried})
    told = [m for m in every if count[m] >= LEAST_FAILURES]
    silent = tuple(m for m in every if m not in told)
    rows = [a for a in tried if a.figures and a.mechanism in told]
    if len({a.dimension for a in rows}) < 2:
        return Likeness(len(tried), {}, {}, silent, {})
    of = [m.partition(".")[0] for m in told]
    beside = Counter(of)
    weights = np.array([1.0 / (beside[a.dimension] * count[a.mechanism]) for a in rows])
    names = sorted({name for a in rows for name in a.figures})
    known = _table([a.figures for a in rows], names)
    trees = ExtraTreesClassifier(TREES, min_samples_leaf=2, max_features=0.3, random_state=0)
    trees.fit(known, [a.mechanism for a in rows], sample_weight=weights / weights.mean())
    seen = _table(station, names)
    of_take = trees.predict_proba(seen)
    dimensions = sorted(beside)
    grouped = np.stack(
        [of_take[:, [c.partition(".")[0] == d for c in trees.classes_]].sum(1) for d in dimensions],
        axis=1,
    )
    by_dimension = dict(zip(dimensions, _together(grouped).tolist(), strict=True))
    by_mechanism = dict(zip(trees.classes_.tolist(), _together(of_take).tolist(), strict=True))
    like = Likeness(len(tried), by_dimension, by_mechanism, silent, {})
    # Draws are as alike as leaves that their failures share with the station's.
    shared = (trees.apply(seen)[:, None, :] == trees.apply(known)[None, :, :]).mean(axis=(0, 2))
    draws = Counter[int]()
    for attempt, part in zip(rows, shared.tolist(), strict=True):
        draws[attempt.draw] += part * (attempt.mechanism == like.best)
    total = sum(draws.values()) or 1.0
    return replace(like, draws={d: part / total for d, part in draws.most_common() if part > 0})


def _table(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> FloatArray:
    """Return figures in columns, shape (len(rows), len(names)); far off where there is none."""
    return np.array([[row.get(name, -1e3) for name in names] for row in rows])


def _together(of_take: FloatArray) -> FloatArray:
    """Return what takes say together, shape (k,), as those of one station; sums to 1."""
    n = len(of_take)
    logs = np.log(np.maximum(of_take, LEAST)).sum(axis=0) / (1.0 + (n - 1) * SHARED_ERRORS)
    grown = np.exp(logs - logs.max())
    return np.asarray(grown / grown.sum())


def widened(
    found: Diagnosis, takes: Sequence[Take], twin: Twin, tried: Sequence[Attempt], folder: Path
) -> Diagnosis:
    """Return a diagnosis whose share of what was not measured goes by what hypotheses bring.

    That nothing is seen in the takes doesn't tell which of them it is: that share is spread over
    all, "something else" among them, before they are weighed.

    Args:
        folder: where `hypothesis_twin.yaml` goes, if a dimension that was not measured is named.
    """
    reproduction = found.summary["reproduction"]
    lost = [
        figures_at(take, reproduction["sees"])
        for take in takes
        if take.outcome is Outcome.FAILURE and take.info.kind is not TakeKind.DEMONSTRATION
    ]
    like = likeness(tried, lost)
    station, hidden = found.summary["station"], _hidden(found)
    before: dict[str, float] = station["posterior"]
    even, alike = before[UNMEASURED] / len(hidden), like.dimensions
    weights = {
        c: (even + before[c] * (c != UNMEASURED)) * (len(alike) * alike[c] if c in alike else 1.0)
        for c in hidden
    }
    whole = sum(before[c] for c in hidden)
    grown = whole / sum(weights.values())
    after = {**before, **{c: grown * w for c, w in weights.items()}}
    also = {c: p for c, p in reproduction["shown"].items() if c != UNMEASURED and p >= SURE}
    if UNMEASURED in station["named"] and max(after[c] for c in hidden) < NAMED_FROM:
        also[UNMEASURED] = whole
    told = verdict(after, station["takes"], also)
    changed, part = [], reproduction["shares"][UNMEASURED] / (whole or 1.0)
    moved = {c: part * (after[c] - before[c]) for c in hidden}
    for take in found.takes:
        if take.failed:
            parts = {d: max(0.0, s + moved.get(d, 0.0)) for d, s in take.dimensions.items()}
            total = sum(parts.values()) + max(0.0, take.none + moved[UNMEASURED])
            shares = {d: share / total for d, share in parts.items()}
            named = tuple(c for c in told.named if shares.get(c, 0.0) >= LEAST_SHARE)
            take = replace(
                take, dimensions=shares, none=max(0.0, 1.0 - math.fsum(shares.values())),
                named=named, abstained=not named,
            )  # fmt: skip
        changed.append(take)
    says = _lines(like, [c for c in told.named if c in alike])
    kept = {}
    if like.best.partition(".")[0] in told.named:
        save_twin(with_hypothesis(twin, like), folder / TWIN)
        kept = {"twin": TWIN}
        says.append(
            f"{folder / TWIN} holds its likeliest values, for gaploop plan --twin=… --try. Nobody "
            "measured them."
        )
    summary = {
        **found.summary,
        **summarise_causes(changed),
        "station": told.to_json(),
        "hypotheses": {
            "rollouts": like.rollouts,
            "dimensions": dict(alike),
            "mechanisms": dict(like.mechanisms),
            "silent": list(like.silent),
            "says": says,
            **kept,
        },
    }
    return replace(found, takes=tuple(changed), summary=summary)


def _lines(like: Likeness, named: Sequence[str]) -> list[str]:
    """Return what people read of it."""
    tried = len(like.mechanisms) + len(like.silent)
    found = [f"Not measured, so tried in the twin: {tried} gaps, {like.rollouts} rollouts."]
    if not like.dimensions:
        return [*found, "They bring too few failures to compare: they explain nothing."]
    most = max(like.dimensions.values())
    ranked = sorted(like.dimensions.items(), key=lambda pair: -pair[1])
    near = [(d, p) for d, p in ranked if p >= RUNNERS_UP * most]
    shown = []
    for d, p in near:
        best = max(
            (m for m in like.mechanisms if m.startswith(f"{d}.")), key=lambda m: like.mechanisms[m]
        )
        shown.append(f"{words(d)} {p:.0%} (most like {words(best.partition('.')[2])})")
    found.append(f"The failures look like those of {', '.join(shown)}.")
    if len(near) > 1 and not named:
        found.append("The rollouts can't tell these apart.")
    if like.silent:
        silent = ", ".join(words(m) for m in like.silent)
        found.append(f"Bring no failures in the twin: {silent}.")
    return found


def with_hypothesis(twin: Twin, like: Likeness) -> Twin:
    """Return a twin with the values of the likeliest mechanism, as if they had been measured.

    The estimate is the draw whose failures look most like the station's; the interval holds those
    to the same side of the nominal values that have nine tenths of the weight.
    """

    def values(draw: int) -> Mapping[str, float]:
        return draw_gaps({like.best: severity_of(draw)}, _seed(draw))[0].parameters

    first, *others = like.draws
    parameters = mechanism_named(like.best).parameters
    best, near, weight = values(first), [values(first)], like.draws[first]
    for draw in others:
        drawn = values(draw)
        if weight < 0.9 and all(
            (drawn[p.name] - p.nominal) * (best[p.name] - p.nominal) >= 0 for p in parameters
            if p.name in best
        ):  # fmt: skip
            near.append(drawn)
        weight += like.draws[draw]
    source = f"hypothesis: {like.rollouts} rollouts; not measured"
    added = [
        TwinParameter(
            f"{like.best}.{p.name}", p.unit, p.nominal, best[p.name],
            (min(v[p.name] for v in near), max(v[p.name] for v in near)), True, source,
        )
        for p in parameters if p.name in best
    ]  # fmt: skip
    return replace(twin, parameters=(*twin.parameters, *added))
