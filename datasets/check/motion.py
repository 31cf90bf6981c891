"""Rules of `check` about how joints move: dead or clipped ones, a stalled bus, action lag.

All are warnings: the dataset loads, but what it teaches should be looked at. Joints of action
and state are paired by name, else by position where there are as many of both, else by
correlation (a leader of another make).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.datasets import layout
from gaploop.datasets.check.findings import WARNING, Findings
from gaploop.datasets.check.frames import Scan, stretches
from gaploop.datasets.columns import ACTION, STATE
from gaploop.datasets.layout import DatasetInfo

FRAMES: Final = 20
"""Shorter episodes say nothing about how joints move."""
MOVES: Final = 0.1
"""A joint moves where it covers this share of its range in the dataset."""
CLIPPED: Final = 0.02
"""Share of frames exactly at a limit from which on a joint counts as clipped."""
BEYOND: Final = 0.02
"""The other signal must go beyond the limit by this share of the range."""
UNIT_LIMITS: Final = (-180.0, -100.0, -np.pi, 0.0, np.pi, 100.0, 180.0)
"""Where a signal ends by its units: LeRobot's -100 to 100 and 0 to 100, and a whole turn."""
GRIPS: Final = ("grip", "jaw", "finger", "hand")
"""A joint named so stops at what it holds, which is no limit."""
LAG_S: Final = 0.25
"""Servo arms follow within 0.05 to 0.2 s; beyond that, columns are shifted or the arm is slow."""
EARLY_FRAMES: Final = 2
"""The state can't run ahead of the action by more than rounding and filtering explain."""
WINDOW_S: Final = 1.0
STALL_S: Final = 0.5
_CORRELATED: Final = 0.8
_STRONG: Final = 0.5

type Signals = Mapping[int, Mapping[str, NDArray[np.float32]]]


@dataclass(frozen=True)
class _Pair:
    """One joint as action and as state: places, and what each covers in the dataset."""

    name: str
    action: int
    state: int
    action_range: tuple[float, float]
    state_range: tuple[float, float]


def check_motion(info: DatasetInfo, scan: Scan, findings: Findings) -> None:
    """Check the motion of the episodes whose signals were kept."""
    signals = {
        episode: found
        for episode, found in scan.signals.items()
        if {ACTION, STATE} <= set(found)
        and len(found[ACTION]) == len(found[STATE]) >= FRAMES
        and np.isfinite(found[ACTION]).all()
        and np.isfinite(found[STATE]).all()
    }
    if not signals:
        return
    actions = np.concatenate([s[ACTION] for s in signals.values()])
    states = np.concatenate([s[STATE] for s in signals.values()])
    a_names, s_names = info.names(ACTION), info.names(STATE)
    by_name = {name: i for i, name in enumerate(s_names)}
    matched = [(i, by_name[n]) for i, n in enumerate(a_names) if n in by_name]
    if not matched and actions.shape[1] == states.shape[1]:
        matched = [(i, i) for i in range(actions.shape[1])]
    elif not matched:
        moving = [s for s in range(states.shape[1]) if np.ptp(states[:, s])]
        for a in (a for a in range(actions.shape[1]) if np.ptp(actions[:, a])):
            scores = {s: abs(np.corrcoef(actions[:, a], states[:, s])[0, 1]) for s in moving}
            best = max(scores, key=lambda s: scores[s], default=-1)
            if best >= 0 and scores[best] > _CORRELATED and best not in {s for _, s in matched}:
                matched.append((a, best))

    def covered(values: NDArray[np.float32]) -> tuple[float, float]:
        return float(values.min()), float(values.max())

    pairs = [
        _Pair(s_names[s], a, s, covered(actions[:, a]), covered(states[:, s]))
        for a, s in matched
        if a < actions.shape[1] and s < states.shape[1]
    ]
    _check_dead(pairs, signals, findings)
    _check_clipped(pairs, signals, findings)
    _check_stalled(info, pairs, signals, findings)
    _check_lag(info, pairs, signals, findings)


def _span(limits: tuple[float, float]) -> float:
    return limits[1] - limits[0]


def _check_dead(pairs: list[_Pair], signals: Signals, findings: Findings) -> None:
    for pair in pairs:
        dead, idle = [], []
        for episode, found in signals.items():
            action, state = found[ACTION][:, pair.action], found[STATE][:, pair.state]
            asked = np.ptp(action) > MOVES * _span(pair.action_range) > 0
            went = np.ptp(state) > MOVES * _span(pair.state_range) > 0
            if np.ptp(state) == 0 and asked:
                dead.append(episode)
            elif np.ptp(action) == 0 and went:
                idle.append(episode)
        for episodes, text in (
            (dead, "the state never changes while its action moves: encoder, cable or servo."),
            (idle, "the action never changes while the state moves: the leader's joint is dead."),
        ):
            fix, where = findings.delete(episodes), f"data: {pair.name}"
            findings.about(episodes, "dead_joint", where, text, fix, WARNING)


def _check_clipped(pairs: list[_Pair], signals: Signals, findings: Findings) -> None:
    """Find signals cut off at a limit: that of their units, or one where a joint's state stops.

    An action that rests at its highest value while the arm sags beyond it is cut off by nothing.
    """
    actions = np.concatenate([s[ACTION] for s in signals.values()])
    states = np.concatenate([s[STATE] for s in signals.values()])
    for pair in pairs:
        stops = not any(word in pair.name.lower() for word in GRIPS)
        action, state = actions[:, pair.action], states[:, pair.state]
        for what, x, limits, other, name in (
            ("state", state, pair.state_range, action, "action"),
            ("action", action, pair.action_range, state, "state"),
        ):
            for limit, sign in zip(limits, (-1, 1), strict=True):
                if not (stops and what == "state") and not np.isclose(limit, UNIT_LIMITS).any():
                    continue
                at = x == np.float32(limit)
                beyond = sign * (other[at] - limit) > BEYOND * _span(limits)
                if at.mean() < CLIPPED or beyond.mean() < _STRONG or not _span(limits):
                    continue
                furthest = float(other[at].min() if sign < 0 else other[at].max())
                text = f"The {what} stays at exactly {limit:g} in {at.mean():.0%} of frames while "
                text += f"the {name} reaches {furthest:g}: clipped at a limit or by calibration."
                fix = (
                    "Calibrate the arm again (lerobot-calibrate) or widen its limits, then record "
                )
                fix += "those episodes again."
                findings.warn("clipped_joint", f"data: {pair.name}", text, fix)


def _check_stalled(
    info: DatasetInfo, pairs: list[_Pair], signals: Signals, findings: Findings
) -> None:
    """Find stretches in which no joint of the state changes by a bit while the action moves."""
    needed = max(5, round(STALL_S * info.fps))
    ranges = np.array([_span(p.action_range) for p in pairs])
    moving = np.array([_span(p.state_range) > 0 for p in pairs], dtype=bool)
    if moving.sum() < 2:
        return
    stalled = []
    for episode, found in signals.items():
        same = (np.diff(found[STATE], axis=0) == 0).all(axis=1)
        for first, last in stretches(same):
            part = found[ACTION][first : last + 1][:, [p.action for p in pairs]]
            asked = (np.ptp(part, axis=0) > MOVES * ranges) & moving
            if last - first >= needed and asked.sum() >= 2:
                stalled.append(episode)
                break
    text = f"no joint changes for {STALL_S:g} s or more while the action moves: the bus or the "
    text, fix = f"{text}driver stood still.", findings.delete(stalled)
    findings.about(stalled, "frozen_state", f"data: {STATE}", text, fix, WARNING)


def _lag_frames(action: NDArray[np.float32], state: NDArray[np.float32], window: int) -> int | None:
    """Return by how many frames, at most `window`, `state` follows `action`, of shape (n,) both.

    That is where their first differences correlate best; None where even that is low.
    """
    a, s = np.diff(action.astype(np.float64)), np.diff(state.astype(np.float64))
    a, s = a - a.mean(), s - s.mean()
    n, best, found = len(a), _STRONG, None
    for lag in range(-min(window, n // 3), min(window, n // 3) + 1):
        x, y = a[max(0, -lag) : n - max(0, lag)], s[max(0, lag) : n - max(0, -lag)]
        norm = float(np.sqrt((x @ x) * (y @ y)))
        score = float(x @ y) / norm if norm > 0 else 0.0
        if score > best + 1e-9:
            best, found = score, lag
    return found


def _check_lag(info: DatasetInfo, pairs: list[_Pair], signals: Signals, findings: Findings) -> None:
    window = max(3, round(WINDOW_S * info.fps))
    lags: dict[int, float] = {}
    for episode, signal in signals.items():
        found = []
        for pair in pairs:
            action, state = signal[ACTION][:, pair.action], signal[STATE][:, pair.state]
            if np.ptp(action) > MOVES * _span(pair.action_range) > 0:
                lag = _lag_frames(action, state, window)
                found += [lag] if lag is not None else []
        if len(found) >= min(2, len(pairs)):
            lags[episode] = float(np.median(found))
    if not lags:
        return
    limit = max(LAG_S * info.fps, 2.0)
    late = [e for e, lag in lags.items() if lag >= limit]
    early = [e for e, lag in lags.items() if lag <= -EARLY_FRAMES]
    typical_s = float(np.median(list(lags.values()))) / info.fps
    worst_s, first_s = max(lags.values()) / info.fps, -min(lags.values()) / info.fps
    text = f"the state follows the action by up to {worst_s:.2f} s (median of all: "
    text += f"{typical_s:.2f} s): a slow arm, or shifted columns."
    fix = "If the arm is that slow, keep them: policies learn it. If not, look at fps in "
    fix += f"{layout.INFO}, and record them again."
    findings.about(late, "action_lag", f"data: {ACTION}", text, fix, WARNING)
    text = f"the state runs ahead of the action by up to {first_s:.2f} s: the columns are shifted."
    fix = findings.delete(early)
    findings.about(early, "action_lag", f"data: {ACTION}", text, fix, WARNING)
