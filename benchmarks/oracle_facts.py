"""What simulator state tells of an attempt: holds, contacts, shaking, drift, rest, phases.

The words are defined in `oracle_verdict`, which says what they add up to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.messages import FloatArray, SafetyReason
from gaploop.core.vocabulary import FailureMode, Phase

SHUT_RAD: Final = 0.30
SHUT_S: Final = 0.15
FLICKER_S: Final = 0.15
HELD_S: Final = 0.28
LIFTED_M: Final = 0.015
DRAGGED_M: Final = 0.020
CONTACT_N: Final = 3.0
COLLIDED_NS: Final = 5.0
"""Momentum: a third of a second of what a servo can press with at 0.2 m."""
PUSHED_RAD: Final = np.radians(2.0)
TOUCH_S: Final = 0.30
"""Contacts that are this near in time are one."""
PRESSED_S: Final = 0.7
TURNS: Final = 6
TURN_S: Final = 0.35
SHAKE_RAD: Final = np.radians(1.5)
DRIFT_RAD: Final = np.radians(6.0)
DRIFT_S: Final = 0.7
FROZEN_S: Final = 2.0
STILL_RAD_S: Final = 0.05
STEP_S: Final = 0.2
LOWERED: Final = 0.6
RETREAT_S: Final = 0.3
AGAIN_S: Final = 1.0
"""After opening, the next attempt's approach begins so much later."""

type Span = tuple[float, float]


@dataclass(frozen=True)
class Record:
    """An attempt as the simulator knows it; one row per turn of the control loop.

    Attributes:
        task: of the cell.
        t_s: time since the attempt began [s], shape (n,).
        sent_rad: joint commands [rad], gripper last, shape (n, n_joints).
        set_rad: what the servos are set to, in true angles [rad], shape (n, n_joints).
        true_rad: where the joints are [rad], shape (n, n_joints).
        tool_m: tool centre [m], shape (n, 3).
        object_m: the object's centre [m], shape (n, 3).
        pinched: both jaws press on the object, shape (n,).
        contact_n: largest force of one thing on the arm [N], shape (n,).
        contact_with: name of that thing, length n.
        stops: `SafetyReason` bits while a trip is latched, else 0, shape (n,).
        goal_m: where the station wants the object [m], shape (2,).
        succeeded: the station's criterion was met at the end.
    """

    task: str
    t_s: FloatArray
    sent_rad: FloatArray
    set_rad: FloatArray
    true_rad: FloatArray
    tool_m: FloatArray
    object_m: FloatArray
    pinched: NDArray[np.bool_]
    contact_n: FloatArray
    contact_with: tuple[str, ...]
    stops: NDArray[np.int64]
    goal_m: FloatArray
    succeeded: bool

    @property
    def end_s(self) -> float:
        """When the attempt ended [s]."""
        return float(self.t_s[-1]) if len(self.t_s) else 0.0

    @property
    def shut(self) -> NDArray[np.bool_]:
        """Where the gripper is told to be shut, shape (n,)."""
        return np.asarray(self.sent_rad[:, -1] < SHUT_RAD)


@dataclass(frozen=True)
class Contact:
    """Something pressed on the arm.

    Attributes:
        thing: name of the body.
        start_s: first touch [s].
        end_s: last touch [s].
        peak_n: largest force [N].
        impulse_ns: force over time [N s].
        pushed_rad: how far a joint was pushed off its command [rad].
    """

    thing: str
    start_s: float
    end_s: float
    peak_n: float
    impulse_ns: float
    pushed_rad: float

    @property
    def counts(self) -> bool:
        """Whether it was hard, or pushed the arm off its command."""
        return self.impulse_ns >= COLLIDED_NS or self.pushed_rad >= PUSHED_RAD

    @property
    def mode(self) -> FailureMode:
        """Obstruction where it lasted and pushed the arm off its command, else collision."""
        pressed = self.end_s - self.start_s >= PRESSED_S and self.pushed_rad >= PUSHED_RAD
        return FailureMode.OBSTRUCTION if pressed else FailureMode.COLLISION


@dataclass(frozen=True)
class Hold:
    """The object was held.

    Attributes:
        start_s: both jaws press [s].
        carried_s: lifted or dragged clear [s].
        lowered_s: has come down for the last time, or `end_s` [s].
        end_s: the jaws let go [s].
        ended: "released", "lost" or "kept" until the end.
    """

    start_s: float
    carried_s: float
    lowered_s: float
    end_s: float
    ended: str


@dataclass(frozen=True)
class AttemptFacts:
    """What happened in an attempt, before anything is made of it.

    Attributes:
        phases: phase, start and end [s], in order, without gaps.
        holds: when the object was held.
        missed_s: closings on nothing [s].
        contacts: what pressed on the arm, also where it didn't matter.
        shook_s: first shaking, start and end [s], or None.
        drifted_s: when the arm was first adrift [s], or None.
        still_s: when the arm stopped for good [s], or None.
        stopped: what tripped the safety filter, or "".
        stopped_s: when [s], or None.
        end_distance_m: distance of the object from its goal at the end [m].
        duration_s: of the attempt [s].
        succeeded: the station's criterion was met at the end.
    """

    phases: tuple[tuple[Phase, float, float], ...]
    holds: tuple[Hold, ...]
    missed_s: tuple[float, ...]
    contacts: tuple[Contact, ...]
    shook_s: Span | None
    drifted_s: float | None
    still_s: float | None
    stopped: str
    stopped_s: float | None
    end_distance_m: float
    duration_s: float
    succeeded: bool


def facts(record: Record) -> AttemptFacts:
    """Return what can be told from a record."""
    held, shut = holds(record), spans(record.t_s, record.shut, least_s=SHUT_S)
    touched, stop = contacts(record), np.flatnonzero(record.stops)
    reasons = SafetyReason(int(record.stops[stop[0]])) if len(stop) else SafetyReason.TRIPPED
    return AttemptFacts(
        phases=phases(record, held, shut),
        holds=held,
        missed_s=tuple(start for start, end in shut if _hold_in(held, start, end) is None),
        contacts=touched,
        shook_s=shaking(record),
        drifted_s=drifting(record, touched),
        still_s=standing(record),
        stopped=(reasons & ~SafetyReason.TRIPPED).name or "" if len(stop) else "",
        stopped_s=float(record.t_s[stop[0]]) if len(stop) else None,
        end_distance_m=_end_distance_m(record),
        duration_s=record.end_s,
        succeeded=record.succeeded,
    )


def _end_distance_m(record: Record) -> float:
    if not len(record.t_s):
        return float("nan")
    return float(np.linalg.norm(record.object_m[-1, :2] - record.goal_m))


def spans(
    t_s: FloatArray, flags: NDArray[np.bool_], *, least_s: float = 0.0, bridge_s: float = 0.0
) -> list[Span]:
    """Return when `flags`, shape (n,), hold: start and end [s], breaks up to `bridge_s` bridged."""
    edges = np.flatnonzero(np.diff(np.r_[0, flags.astype(np.int8), 0]))
    found: list[Span] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        start_s, end_s = float(t_s[start]), float(t_s[stop - 1])
        if found and start_s - found[-1][1] <= bridge_s:
            found[-1] = (found[-1][0], end_s)
        else:
            found.append((start_s, end_s))
    return [s for s in found if s[1] - s[0] >= least_s - 1e-9]


def _rows(record: Record, span: Span) -> slice:
    first, last = np.searchsorted(record.t_s, [span[0] - 1e-9, span[1] + 1e-9])
    return slice(int(first), int(last))


def holds(record: Record) -> tuple[Hold, ...]:
    """Return when the object was held, oldest first."""
    found = []
    for start_s, end_s in spans(record.t_s, record.pinched, bridge_s=FLICKER_S):
        rows = _rows(record, (start_s, end_s))
        way = record.object_m[rows] - record.object_m[rows][0]
        clear = (way[:, 2] >= LIFTED_M) | (np.linalg.norm(way[:, :2], axis=1) >= DRAGGED_M)
        opened = not record.shut[_rows(record, (end_s, end_s + FLICKER_S))].all()
        kept = end_s >= record.end_s - FLICKER_S
        ended = "released" if opened else "kept" if kept else "lost"
        if end_s - start_s < HELD_S and not clear.any():
            continue
        t_s = record.t_s[rows]
        carried_s = float(t_s[int(np.argmax(clear))]) if clear.any() else end_s
        rise = record.tool_m[rows, 2] - record.tool_m[rows][0, 2]
        high = np.flatnonzero(rise > LOWERED * max(float(rise.max()), LIFTED_M))
        lowered_s = float(t_s[high[-1]]) if len(high) else end_s
        found.append(Hold(start_s, carried_s, max(lowered_s, carried_s), end_s, ended))
    return tuple(found)


def _hold_in(held: tuple[Hold, ...], start_s: float, end_s: float) -> Hold | None:
    """Return the last hold of a closing, or None."""
    inside = [h for h in held if h.start_s <= end_s + FLICKER_S and h.end_s >= start_s]
    return inside[-1] if inside else None


def _pushed_rad(record: Record) -> FloatArray:
    """Return how far each joint stands from what its servo is set to [rad], shape (n, arm)."""
    return np.abs(record.true_rad - record.set_rad)[:, :-1]


def contacts(record: Record) -> tuple[Contact, ...]:
    """Return what pressed on the arm; the object only where the gripper was to be open."""
    if not len(record.t_s):
        return ()
    gripped = np.array([name == "object" for name in record.contact_with]) & record.shut
    touching, pushed = (record.contact_n > CONTACT_N) & ~gripped, _pushed_rad(record)
    turn_s = record.end_s / max(len(record.t_s) - 1, 1)
    found = []
    for start_s, end_s in spans(record.t_s, touching, bridge_s=TOUCH_S):
        rows = _rows(record, (start_s, end_s))
        peak = int(np.argmax(np.where(touching[rows], record.contact_n[rows], 0.0))) + rows.start
        more = pushed[rows] - pushed[max(rows.start - 1, 0)]
        found.append(
            Contact(
                record.contact_with[peak], start_s, end_s, float(record.contact_n[peak]),
                float(np.where(touching[rows], record.contact_n[rows], 0.0).sum()) * turn_s,
                max(float(more.max()), 0.0),
            )
        )  # fmt: skip
    return tuple(found)


def shaking(record: Record) -> Span | None:
    """Return the first stretch in which a joint turned round and round, or None.

    It begins at the second turn: the first may be the motion's own.
    """
    from scipy.signal import find_peaks  # here: whoever only imports the words needs no scipy

    found: list[Span] = []
    for q in record.true_rad[:, :-1].T:
        turns = np.sort(
            np.concatenate([find_peaks(side, prominence=SHAKE_RAD)[0] for side in (q, -q)])
        )
        t_s = record.t_s[turns]
        for k in range(len(t_s) - TURNS + 1):
            if np.diff(t_s[k : k + TURNS]).max() <= TURN_S:
                found.append((float(t_s[k + 1]), float(t_s[k + TURNS - 1])))
    if not found:
        return None
    start_s, end_s = min(found)
    for span in sorted(found):
        end_s = max(end_s, span[1]) if span[0] <= end_s else end_s
    return start_s, end_s


def drifting(record: Record, touched: tuple[Contact, ...]) -> float | None:
    """Return when an untouched joint first stood far off what its servo is set to [s], or None."""
    if not len(record.t_s):
        return None
    off = (_pushed_rad(record) > DRIFT_RAD).any(axis=1)
    for start_s, _ in spans(record.t_s, off, least_s=DRIFT_S, bridge_s=FLICKER_S):
        if not any(c.start_s - TOUCH_S <= start_s <= c.end_s + TOUCH_S for c in touched):
            return start_s
    return None


def standing(record: Record) -> float | None:
    """Return since when the arm stood where it was told to, or couldn't move, to the end [s].

    What an encoder's drift moves under a resting command counts as standing.
    """
    if len(record.t_s) < 2:
        return None
    every = max(1, round(STEP_S / float(np.median(np.diff(record.t_s)))))
    t_s, most = record.t_s[::every], STILL_RAD_S * np.diff(record.t_s[::every])

    def moves(q: FloatArray) -> NDArray[np.bool_]:
        return np.asarray(np.abs(np.diff(q[::every], axis=0)).max(axis=1, initial=0.0) > most)

    told = moves(record.sent_rad) | moves(record.true_rad - record.set_rad)
    moved = np.flatnonzero(moves(record.true_rad) & told)
    since_s = float(t_s[moved[-1] + 1]) if len(moved) else float(t_s[0])
    return since_s if record.end_s - since_s >= FROZEN_S else None


def phases(
    record: Record, held: tuple[Hold, ...], shut: list[Span]
) -> tuple[tuple[Phase, float, float], ...]:
    """Return the phases of the attempt in order, from 0 to its end; none is empty."""
    found: list[tuple[Phase, float]] = []  # phase and its end
    for number, (start_s, end_s) in enumerate(shut):
        last = number == len(shut) - 1
        found.append((Phase.APPROACH, start_s))
        hold = _hold_in(held, start_s, end_s)
        if hold is None:
            found.append((Phase.GRASP, end_s))
        else:
            found += [(Phase.GRASP, hold.carried_s), (Phase.TRANSPORT, hold.lowered_s)]
            let_go_s = hold.end_s + (RETREAT_S if hold.ended == "released" else 0.0)
            found.append((Phase.PLACE, let_go_s))
            found.append((Phase.TRANSPORT, end_s))  # empty-handed, after a loss
        found.append((Phase.RETREAT, record.end_s if last else end_s + AGAIN_S))
    found = found or [(Phase.APPROACH, record.end_s)]
    timeline, at_s = list[tuple[Phase, float, float]](), 0.0
    for phase, end_s in found:
        until_s = min(end_s, record.end_s)
        if until_s > at_s:
            timeline.append((phase, at_s, until_s))
            at_s = until_s
    return tuple(timeline) or ((Phase.APPROACH, 0.0, record.end_s),)
