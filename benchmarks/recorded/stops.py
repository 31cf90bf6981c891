"""Will the arm stop, or lose its part, in the next seconds? From a log of currents and speeds.

Judged are moments at which nothing is wrong yet: no event is on in the rows looked at, and what is
looked at ends before the event's first row. The event columns are targets and never inputs; rows
with an empty cell are left out rather than filled. A session is in training or in the test,
never in both, and the alarm's threshold is chosen inside the training sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.recorded.figures import (
    Indices,
    RecordedFigure,
    auroc,
    balanced_accuracy,
    matched_auroc,
    over,
)
from gaploop.core.messages import FloatArray

HISTORY: Final = 6
"""Rows looked at: six seconds of this log."""
HORIZON_S: Final = 3.0
"""An event that begins within this long is to be foreseen."""
PAUSE_S: Final = 30.0
"""A longer gap between rows begins a session, as does a cycle counter that goes back."""
STEP_S: Final = 3.0
"""Rows looked at lie no further apart than this."""
TREES: Final = 100
LEAF: Final = 3
INNER_FOLDS: Final = 3
PER_POSITIVE: Final = 8
"""Quiet moments trained on for each moment before an event; drawn at random, tested on are all."""


@dataclass(frozen=True)
class Moments:
    """Moments of a log at which nothing is wrong yet.

    Attributes:
        features: what the rows up to each moment show, shape (n, n_features).
        clock_s: time since the work cycle began [s], shape (n, 1).
        before: event name to whether it begins within the horizon, shape (n,).
        session: number of the session, shape (n,).
        cycle: number of the work cycle, never the same in two sessions, shape (n,).
        onset: event name to the row where it next begins in the session, or -1, shape (n,).
    """

    features: FloatArray
    clock_s: FloatArray
    before: dict[str, NDArray[np.bool_]]
    session: Indices
    cycle: Indices
    onset: dict[str, Indices]


@dataclass(frozen=True)
class Foresight:
    """How well an event was foreseen in sessions that weren't trained on.

    Attributes:
        moments: judged.
        positive: of them, how many lay before an event.
        events: how many different event onsets these lay before.
        auroc: chance that a moment before an event scores above another.
        matched: the same among moments of the same second of a work cycle: what is foreseen
            beyond the place in the cycle.
        balanced: mean of both classes' shares told right at the frozen thresholds.
        events_found: share of the events with an alarm at any moment before them.
        false_share: share of the other moments with an alarm.
        sessions: AUROC within each session left out.
    """

    moments: int
    positive: int
    events: int
    auroc: RecordedFigure
    matched: RecordedFigure
    balanced: RecordedFigure
    events_found: float
    false_share: float
    sessions: tuple[float, ...]


def sessions_of(t_s: FloatArray, cycle: FloatArray) -> Indices:
    """Return each row's session: a new one after a pause, or where the cycle counter goes back."""
    new = (np.diff(t_s) > PAUSE_S) | (np.diff(cycle) < 0)
    return np.concatenate([[0], np.cumsum(new)]).astype(np.int64)


def moments_of(
    t_s: FloatArray,
    values: FloatArray,
    cycle: FloatArray,
    active: dict[str, NDArray[np.bool_]],
    horizon_s: float = HORIZON_S,
) -> Moments:
    """Find the moments to judge in a log and describe them.

    Args:
        t_s: time of each row [s], rising, shape (n,).
        values: currents [A] and speeds [rad/s], NaN where missing, shape (n, n_channels).
        cycle: work cycle counter, shape (n,).
        active: event name to whether it holds in each row, shape (n,).
        horizon_s: how far ahead an onset counts [s].
    """
    session = sessions_of(t_s, cycle)
    complete = np.asarray(np.isfinite(values).all(axis=1))
    quiet = complete & ~np.any(list(active.values()), axis=0)
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(len(t_s)), HISTORY)
    together = (session[windows] == session[windows[:, -1:]]).all(axis=1)
    near = (np.diff(t_s[windows], axis=1) <= STEP_S).all(axis=1)
    windows = windows[quiet[windows].all(axis=1) & together & near]
    last = windows[:, -1]
    # Where the rows ahead are unknown or in another session, nobody can say what came.
    known = _ahead_known(t_s, session, complete, last, horizon_s)
    windows, last = windows[known], last[known]
    work = np.cumsum(np.concatenate([[0], (np.diff(cycle) != 0) | (np.diff(session) != 0)]))
    first = np.searchsorted(work, work[last])
    onset = {name: _next_onset(session, on, last) for name, on in active.items()}
    return Moments(
        _described(values[windows]),
        (t_s[last] - t_s[first])[:, None],
        {name: (row >= 0) & (t_s[row] - t_s[last] <= horizon_s) for name, row in onset.items()},
        session[last],
        work[last],
        onset,
    )


def _ahead_known(
    t_s: FloatArray,
    session: Indices,
    complete: NDArray[np.bool_],
    last: Indices,
    horizon_s: float,
) -> NDArray[np.bool_]:
    stop = np.searchsorted(t_s, t_s[last] + horizon_s, side="right")
    unknown = np.concatenate([[0], np.cumsum(~complete)])
    inside = stop < len(t_s)
    at = np.minimum(stop, len(t_s) - 1)
    return np.asarray(inside & (session[at] == session[last]) & (unknown[stop] == unknown[last]))


def _next_onset(session: Indices, on: NDArray[np.bool_], last: Indices) -> Indices:
    """Return the row where an event next begins after each row of `last`; -1 where it doesn't."""
    onsets = np.flatnonzero(on & ~np.concatenate([[False], on[:-1]]))
    padded = np.append(onsets, -1)
    row = padded[np.searchsorted(onsets, last, side="right")]
    return np.where((row >= 0) & (session[row] == session[last]), row, -1)


def _described(rows: FloatArray) -> FloatArray:
    """Describe rows, shape (n, HISTORY, n_channels): the last three, and the whole stretch."""
    blocks = (rows[:, -1], rows[:, -2], rows[:, -3], rows.mean(axis=1), rows.std(axis=1))
    return np.concatenate([*blocks, rows.max(axis=1), rows.min(axis=1)], axis=1)


def foreseen(moments: Moments, event: str, inputs: FloatArray, seed: int = 0) -> Foresight:
    """Leave each session out in turn; train on the others, freeze a threshold, judge it.

    Args:
        moments: to train on and to judge.
        event: to be foreseen.
        inputs: what the forest sees of each moment: `moments.features`, or a baseline's,
            shape (n, n_inputs).
        seed: of the forest, the draw of quiet moments and the bootstrap.
    """
    target, session = moments.before[event], moments.session
    ranks, alarm = np.full(len(target), np.nan), np.zeros(len(target), dtype=bool)
    for left_out in np.unique(session):
        train, test = np.flatnonzero(session != left_out), np.flatnonzero(session == left_out)
        scores = _judged(inputs, target, train, test, seed)
        threshold = _frozen(inputs, target, train, moments.cycle, seed)
        # Scores of forests fitted to different sessions aren't comparable as they are.
        ranks[test] = scores - threshold
        alarm[test] = scores >= threshold
    onset = moments.onset[event]
    found = [bool(alarm[target & (onset == o)].any()) for o in np.unique(onset[target])]

    def area(rows: Indices) -> float:
        return auroc(ranks[rows], target[rows])

    second = np.round(moments.clock_s[:, 0]).astype(np.int64)

    def matched(rows: Indices) -> float:
        return matched_auroc(ranks[rows], target[rows], second[rows])

    def balanced(rows: Indices) -> float:
        return balanced_accuracy(alarm[rows], target[rows])

    each = tuple(area(np.flatnonzero(session == s)) for s in np.unique(session))
    return Foresight(
        len(target),
        int(target.sum()),
        len(found),
        over(moments.cycle, area, seed),
        over(moments.cycle, matched, seed),
        over(moments.cycle, balanced, seed),
        float(np.mean(found)),
        float(alarm[~target].mean()),
        each,
    )


def _judged(
    inputs: FloatArray, target: NDArray[np.bool_], train: Indices, test: Indices, seed: int
) -> FloatArray:
    forest: Any = _forest(seed)
    rows = _thinned(target, train, seed)
    forest.fit(inputs[rows], target[rows])
    return np.asarray(forest.predict_proba(inputs[test])[:, 1])


def _forest(seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(
        TREES, min_samples_leaf=LEAF, class_weight="balanced", random_state=seed
    )


def _thinned(target: NDArray[np.bool_], rows: Indices, seed: int) -> Indices:
    """Return every moment before an event, and some of the many others."""
    before, others = rows[target[rows]], rows[~target[rows]]
    count = min(len(others), PER_POSITIVE * len(before))
    return np.concatenate(
        [before, np.random.default_rng(seed).choice(others, count, replace=False)]
    )


def _frozen(
    inputs: FloatArray, target: NDArray[np.bool_], train: Indices, cycle: Indices, seed: int
) -> float:
    """Return the threshold that tells best inside the training sessions, cycles kept whole."""
    from sklearn.model_selection import GroupKFold

    scores = np.empty(len(train))
    for fit, judge in GroupKFold(INNER_FOLDS).split(train, groups=cycle[train]):
        scores[judge] = _judged(inputs, target, train[fit], train[judge], seed)
    return best_threshold(scores, target[train], balanced_accuracy)


def best_threshold(
    scores: FloatArray,
    positive: NDArray[np.bool_],
    figure: Callable[[NDArray[np.bool_], NDArray[np.bool_]], float],
) -> float:
    """Return the threshold, of a hundred, whose alarms have the best `figure`."""
    candidates = np.unique(np.quantile(scores, np.linspace(0.0, 1.0, 101)))
    values = [figure(scores >= c, positive) for c in candidates]
    return float(candidates[int(np.nanargmax(values))])
