"""The workspace box: an arm's finger tips, wrist and elbow stay in it, and how it goes round.

`WorkspaceGuard` shortens steps that would leave the box. Until the arm has caught up with its
leader each joint goes straight to the leader's; that ends in front of a face of the box where every
step on would leave it. Blocked there for `BLOCKED_S`, `Alignment` looks for a way in straight
pieces of joint space that stays in the box, by raised poses first, and goes it as slowly as it
aligns; where there is none, it holds and says what is in the way and what to do. A leader that is
outside the box is met at the nearest pose inside.

The search is spread over the turns of the control loop, `LOOKS_S` poses a second, so that none of
them costs much, and the same search always has the same result. While the arm can't move, a turn
costs nothing.
"""

import itertools
import math
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.arms import model_of
from gaploop.core.errors import UnusableInputError
from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.core.messages import FloatArray
from gaploop.core.protocols import Follower
from gaploop.core.station import Station, Workspace

LOOKS_S: Final = 2000.0
"""Poses looked at in a second; at 200 Hz that is a quarter of a millisecond a turn."""
MOST_LOOKS: Final = 16000
"""A search that has looked at so many poses gives up."""
BLOCKED_S: Final = 1.0
"""The box is in the way when it shortened every step for so long and the arm came no nearer [s]."""
NEARER_RAD: Final = 0.02
SLIDES_RAD: Final = 0.005
"""By this much the joints together come nearer, or at least slide along a face [rad]."""
SLIDES_S: Final = 0.03
STIRS_RAD: Final = 0.03
"""An arm that slid no more for so long [s] rests until its leader has moved by this much [rad]."""
ELSEWHERE_RAD: Final = 0.1
"""A leader that has moved by this much [rad] is worth another search."""
LEADS_RAD: Final = 0.5
"""A leader that moves by this much leads the arm another way round; a way found before is left."""
SEARCHES: Final = 3
"""A way along which the arm was blocked, too, is sought anew so often."""
CAUGHT_UP_RAD: Final = 0.05
"""The arm has caught up with its leader when no joint is further from it than this [rad]: 3°."""

MARGIN_M: Final = 0.003
"""Ways keep this far off the faces, but at their ends [m]."""
STEP_M: Final = 0.006
FINE_M: Final = 0.002
"""Between two poses that are looked at, points move no further than this, or than they are from
the faces; than `FINE_M` within the margin [m]."""
CLEAR_M: Final = 0.01
"""A pose in the middle of a way has all points this far from the faces [m]."""
RAISED_M: Final = 0.08
"""A raised one has them this far above the box's floor: over what lies on a table [m]."""
NODES: Final = (12, 20, 40, 60)
"""So many poses in the middle are tried to find a way, then so many more; the first are raised."""
TRIES: Final = 20
"""So many poses are looked at for each of these."""
HOP_RAD: Final = 0.3
"""A pose in between costs as much as this much more motion [rad]."""
NEAREST_ROUNDS: Final = 20
NUDGE_RAD: Final = 1e-4
DAMPING_M2: Final = 1e-4
"""Newton's method for the nearest pose inside: rounds, finite difference, damping (Nakamura)."""

SEEKS: Final = "The workspace box is in the way. Looking for a way round."
GOES_ROUND: Final = "Going round by a raised pose: the workspace box is in the straight way."
_FACES: Final = (("behind", "in front of"), ("right of", "left of"), ("below", "above"))
_BACK: Final = (("forward", "back"), ("to the left", "to the right"), ("up", "down"))
"""By axis, at the lower and at the upper face: where outside is, and the way back in."""

type Search[T] = Generator[None, None, T]
"""Yields after each pose that it looks at; returns what it found."""


@dataclass(frozen=True, eq=False)
class Room:
    """Where one arm may be: in its workspace box, and within its joints' limits.

    Attributes:
        points_m: joint positions [rad] to guarded points [m], shape (k, 3), in the box's frame.
        reach_m: how far at most any point moves when a joint turns [m/rad], shape (n_joints,).
        low_m: lower corner of the box [m], shape (3,); `high_m` its upper corner.
        limits_rad: joint limits [rad], shape (n_joints, 2).
    """

    points_m: Callable[[FloatArray], FloatArray]
    reach_m: FloatArray
    low_m: FloatArray
    high_m: FloatArray
    limits_rad: FloatArray
    joint_names: tuple[str, ...]
    point_names: tuple[str, ...]

    def outside_m(self, points: FloatArray, margin_m: float = 0.0) -> FloatArray:
        """Return how far points are outside on each axis [m]: below 0 at the lower face."""
        low, high = self.low_m + margin_m, self.high_m - margin_m
        return np.asarray(np.minimum(points - low, 0.0) + np.maximum(points - high, 0.0))

    def clear_m(self, points: FloatArray) -> float:
        """Return how far the point nearest to a face is from it [m]; below 0 outside."""
        return float(min((points - self.low_m).min(), (self.high_m - points).min()))


def is_free(room: Room, start: FloatArray, end: FloatArray) -> Search[bool]:
    """Say whether an arm may go straight from `start` to `end` [rad].

    At either end its points may stand in the margin, or outside the box; they only ever come back
    from there towards `end`, as `WorkspaceGuard` wants it.
    """
    low, high = room.low_m + MARGIN_M, room.high_m - MARGIN_M
    points, ends = room.points_m(start), room.points_m(end)
    end_low, end_high = np.minimum(low, ends), np.maximum(high, ends)
    most_low, most_high = np.minimum(end_low, points), np.maximum(end_high, points)
    way = end - start
    length_m = float(np.abs(way) @ room.reach_m)
    part = 0.0
    while True:
        yield
        if (points < most_low).any() or (points > most_high).any():
            return False
        if part >= 1.0:
            return True
        most_low, most_high = np.minimum(end_low, points), np.maximum(end_high, points)
        clear_m = room.clear_m(points) - MARGIN_M
        step_m = max(clear_m, STEP_M) if clear_m > 0.0 else FINE_M
        part = min(1.0, part + step_m / length_m) if length_m > step_m else 1.0
        points = room.points_m(start + part * way) if part < 1.0 else ends


def find_way(room: Room, start: FloatArray, goal: FloatArray) -> Search[list[FloatArray] | None]:
    """Find a way from `start` to `goal` [rad], the latter in the box; None where none was found.

    Returns the ends of its straight pieces, `goal` last. By a lazy roadmap (Bohlin and Kavraki,
    "Path planning using lazy PRM", 2000): of all chains of straight pieces over some poses well
    inside the box the shortest is looked at, and pieces that leave the box are struck out, until
    one holds. Its poses are drawn from a fixed seed; raised ones, with the joints that hardly move
    the arm between those of both ends, come first.
    """
    draw = np.random.default_rng(0)
    lower, upper = room.limits_rad.T
    moves_arm = room.reach_m > room.reach_m.max() / 3.0
    poses = [start, goal]
    if room.outside_m(room.points_m(start)).any():
        back = yield from nearest_inside(room, start)
        poses += [] if back is None else [back]
    known: dict[tuple[int, int], bool] = {}
    for raised, count in enumerate((0, *NODES)):
        wanted = len(poses) + count
        for _ in range(TRIES * count):
            q = draw.uniform(lower, upper)
            floor_m = CLEAR_M
            if raised == 1:
                between = start + draw.uniform(size=len(q)) * (goal - start)
                q = np.where(moves_arm & (draw.uniform(size=len(q)) < 0.5), q, between)
                floor_m = RAISED_M
            points = room.points_m(q)
            yield
            if room.clear_m(points) > CLEAR_M and points[:, 2].min() > room.low_m[2] + floor_m:
                poses.append(q)
                if len(poses) == wanted:
                    break
        nodes = np.array(poses)
        cost = np.abs(nodes[:, None] - nodes[None]).max(axis=2) + HOP_RAD
        np.fill_diagonal(cost, np.inf)
        for (i, j), free in known.items():
            if not free:
                cost[i, j] = cost[j, i] = np.inf
        while chain := _shortest(cost):
            # It takes as long as so many looks.
            yield from itertools.repeat(None, 1 + len(nodes) // 16)
            # The ends are where the arm has least room. From there a piece is soon found out.
            pieces = list(itertools.pairwise(chain))
            for i, j in sorted(pieces, key=lambda piece: 0 not in piece and 1 not in piece):
                if (i, j) not in known:
                    one, other = (j, i) if j == 1 and i != 0 else (i, j)
                    free = yield from is_free(room, nodes[one], nodes[other])
                    known[i, j] = known[j, i] = free
                if not known[i, j]:
                    cost[i, j] = cost[j, i] = np.inf
                    break
            else:
                return [nodes[i] for i in chain[1:]]
    return None


def _shortest(cost: FloatArray) -> list[int]:
    """Return the shortest chain of nodes from 0 to 1 (Bellman and Ford), [] where there is none."""
    here, nodes = cost[0].copy(), np.arange(len(cost))
    before: NDArray[np.intp] = np.zeros(len(cost), dtype=np.intp)
    while True:
        over = here[:, None] + cost
        best = over.argmin(axis=0)
        shorter = over[best, nodes] < here - 1e-9
        if not shorter.any():
            break
        here = np.where(shorter, over[best, nodes], here)
        before = np.where(shorter, best, before)
    if not math.isfinite(here[1]):
        return []
    chain = [1]
    while chain[0] != 0:
        chain.insert(0, int(before[chain[0]]))
    return chain


def nearest_inside(room: Room, q_rad: FloatArray) -> Search[FloatArray | None]:
    """Return a pose inside the box about as near to `q_rad` [rad] as can be, None where it fails.

    By damped Newton steps that move what is outside to just inside the nearest face.
    """
    q = np.clip(q_rad, *room.limits_rad.T)
    for _ in range(NEAREST_ROUNDS):
        points = room.points_m(q)
        yield
        out_m = room.outside_m(points, MARGIN_M)
        if not room.outside_m(points).any():
            return q
        rows = np.flatnonzero(out_m)
        slopes = np.empty((len(rows), len(q)))
        for joint in range(len(q)):
            nudged = q.copy()
            nudged[joint] += NUDGE_RAD
            slopes[:, joint] = (room.points_m(nudged) - points).ravel()[rows] / NUDGE_RAD
            yield
        damped = slopes @ slopes.T + DAMPING_M2 * np.eye(len(rows))
        step = -slopes.T @ np.linalg.solve(damped, out_m.ravel()[rows])
        step *= min(1.0, 0.5 / max(float(np.abs(step).max()), 1e-9))
        q = np.clip(q + step, *room.limits_rad.T)
    return None


class Alignment:
    """Brings one arm to its leader. In each turn, every `period_s` [s], `aim` and then `came`.

    Every pose is of the arm's joints [rad], as `Room.points_m` wants them.
    """

    def __init__(self, room: Room, period_s: float) -> None:
        self._room, self._looks = room, max(1, round(LOOKS_S * period_s))
        self.says = ""
        """What it does, or what is in the way and what to do; "" on the straight way."""
        self.begin()

    def begin(self) -> None:
        """Forget everything: the arm begins to align."""
        self.says = self._then = ""
        self._search: Search[list[FloatArray] | None] | None = None
        self._way: list[FloatArray] = []
        self._sought_for: Sequence[float] | None = None
        self._searches = self._looks_left = 0
        self._tried: Sequence[float] | None = None
        self._rests = False
        self._left_rad, self._since_s = math.inf, math.nan
        self._slid_rad, self._slid_s = math.inf, math.nan

    def aim(self, at: Sequence[float], wanted: Sequence[float], most_rad: float) -> Sequence[float]:
        """Return where to go from `at` in this turn; the leader is at `wanted`.

        On a way found this is at most `most_rad` off, so that all joints arrive together.
        """
        self._rests = False
        if self._search is not None:
            self._rests = True
            try:
                for _ in range(self._looks):
                    next(self._search)
                self._looks_left -= self._looks
                if self._looks_left < 0:
                    self._then = self._then or self._no_way(np.array(at), np.array(wanted))
                    self._found(None)
            except StopIteration as end:
                self._found(end.value)
            return at
        if self._way and apart(wanted, self._sought_for or wanted, LEADS_RAD):
            self.begin()
        while self._way:
            far = max(abs(q - a) for q, a in zip(self._way[0], at, strict=True))
            if far > most_rad:
                part = most_rad / far
                return [a + part * (float(q) - a) for q, a in zip(self._way[0], at, strict=True)]
            self._way.pop(0)
            if not self._way:
                self._found([])
        self._rests = self._tried is not None and not apart(wanted, self._tried, STIRS_RAD)
        return at if self._rests else wanted

    def came(
        self, at: Sequence[float], wanted: Sequence[float], shortened: bool, now_s: float
    ) -> bool:
        """Take in that the arm came to `at` at `now_s` [s]; return whether the box is why.

        It may have `shortened` the step.
        """
        if self._search is not None:
            return True
        goal = self._way[0] if self._way else wanted
        left_rad = float(sum(abs(q - a) for q, a in zip(goal, at, strict=True)))
        if not self._rests:
            if self._tried is not None or left_rad < self._slid_rad - SLIDES_RAD or not shortened:
                self._tried, self._slid_rad, self._slid_s = None, left_rad, now_s
            elif not self._way and now_s - self._slid_s >= SLIDES_S:
                self._tried = wanted
            if not (shortened or self._way):
                self.says = ""
        if not (shortened or self._rests) or left_rad < self._left_rad - NEARER_RAD:
            self._left_rad, self._since_s = left_rad, now_s
        elif now_s - self._since_s >= BLOCKED_S:
            self._since_s = now_s
            self._blocked(at, wanted)
        return bool(self._way) or self._rests

    def _blocked(self, at: Sequence[float], wanted: Sequence[float]) -> None:
        if self._sought_for is None or apart(wanted, self._sought_for, ELSEWHERE_RAD):
            self._searches, self._sought_for = 0, wanted
        if self._searches < SEARCHES:
            self._searches += 1
            self.says, self._then = SEEKS, ""
            self._looks_left = MOST_LOOKS
            self._search = self._look_for(np.array(at), np.array(wanted))
        else:
            self.says = self._then = self._then or self._no_way(np.array(at), np.array(wanted))
        self._way = []

    def _look_for(self, at: FloatArray, wanted: FloatArray) -> Search[list[FloatArray] | None]:
        """Find a way to the leader, or to where the box lets the arm come nearest to it."""
        room, goal = self._room, wanted
        points = room.points_m(wanted)
        yield
        if room.outside_m(points).any():
            nearest = yield from nearest_inside(room, wanted)
            self._then = self._leader_outside(points, wanted, nearest)
            if nearest is None:
                return None
            if np.abs(nearest - at).max() <= CAUGHT_UP_RAD:
                return []
            goal = nearest
        way = yield from find_way(room, at, goal)
        if way is None and not self._then:
            self._then = self._no_way(at, wanted)
        return way

    def _found(self, way: list[FloatArray] | None) -> None:
        self._search, self._way = None, way or []
        if self._then and not self._way:
            self._searches = SEARCHES  # to look again would find the same
        self.says = GOES_ROUND if self._way else self._then
        self._tried, self._left_rad = None, math.inf

    # -- in words ---------------------------------------------------------------------------

    def _leader_outside(
        self, points: FloatArray, wanted: FloatArray, nearest: FloatArray | None
    ) -> str:
        room, out_m = self._room, self._room.outside_m(points)
        point, axis = np.unravel_index(np.abs(out_m).argmax(), out_m.shape)
        upper, name = int(out_m[point, axis] > 0.0), "xyz"[axis]
        face_m = (room.low_m, room.high_m)[upper][axis]
        turn = ""
        if nearest is not None:
            joint = int(np.abs(nearest - wanted).argmax())
            degrees = math.degrees(abs(nearest[joint] - wanted[joint]))
            turn = f", about {degrees:.0f}° of {room.joint_names[joint]}"
        return (
            f"Blocked: the leader's {room.point_names[point]} is "
            f"{100.0 * abs(out_m[point, axis]):.1f} cm {_FACES[axis][upper]} the workspace box, "
            f"which ends at {name} = {face_m:g} m. Move the leader {_BACK[axis][upper]}{turn}; or "
            f"widen the box: workspace: {name} in the station file (--station)."
        )

    def _no_way(self, at: FloatArray, wanted: FloatArray) -> str:
        room, points = self._room, self._room.points_m(at)
        joint = int(np.abs(wanted - at).argmax())
        degrees = math.degrees(abs(wanted[joint] - at[joint]))
        gaps = np.stack([points - room.low_m, room.high_m - points], axis=2)
        point, axis, upper = np.unravel_index(gaps.argmin(), gaps.shape)
        name, face_m = "xyz"[axis], (room.low_m, room.high_m)[upper][axis]
        where = "is at" if gaps[point, axis, upper] > -1e-3 else "is outside"
        return (
            f"Blocked: no way inside the workspace box to the leader's pose was found. "
            f"{room.joint_names[joint]} is {degrees:.0f}° from the leader's, and the arm's "
            f"{room.point_names[point]} {where} the face at {name} = {face_m:g} m. Bring the "
            f"leader's {room.joint_names[joint]} near the arm's; or end the session, move the "
            f"arm {_BACK[axis][upper]} by hand, and start again."
        )


def apart(one: Sequence[float], two: Sequence[float], by_rad: float) -> bool:
    """Say whether any joint of two poses differs by more than `by_rad` [rad]."""
    return any(abs(a - b) > by_rad for a, b in zip(one, two, strict=True))


ALMOST: Final = 0.97
"""A step that would leave the box is let through to so much of the way to its face."""
LEAST: Final = 1.0 / 32.0
"""Less of a step isn't worth a look: half a milliradian."""
HALVINGS: Final = 4
"""Where that is too far, the points having gone round a curve, half of it is tried so often."""
ARM_PREFIXES: Final = (("",), ("left_", "right_"))
"""How joints of one arm and of a pair are told apart; the pair's as in LeRobot."""


class WorkspaceGuard:
    """Keeps one arm's points in a box.

    Where the arm stands outside already, the box reaches out to where each point stands and
    shrinks as it comes back: no point ever gets further out on any axis.

    Args:
        arm: says where the guarded points are, and how far they move at most: away from the box's
            faces they need not be found on every turn.
        joints: which of the follower's joints this arm's are, in the arm model's order.
        names: what the follower calls them.
        model: which model the arm is, as `ArmModel.load` takes it.
    """

    def __init__(
        self,
        box: Workspace,
        arm: ArmModel,
        joints: Sequence[int],
        names: Sequence[str] = (),
        model: str = "",
    ) -> None:
        self.box, self.joints, self.model = box, [int(joint) for joint in joints], model
        self.shortened = False
        """The box shortened the last step."""
        self._arm, self._names = arm, tuple(names or arm.joint_names)
        self._reach_m = list(arm.reach_m)
        self._box_low, self._box_high = box.bounds_m()
        self._low: FloatArray = self._box_low
        self._high: FloatArray = self._box_high
        self._is_outside = False
        self._clear_rad: Sequence[float] = [math.nan] * len(self.joints)
        self._stuck: tuple[Sequence[float], Sequence[float]] | None = None
        """From where to where the box let nothing through in the turn before."""
        self._clear_m = 0.0
        """At `_clear_rad`, the points were this far from every face of the box [m]."""

    def room(self, limits_rad: FloatArray) -> Room:
        """Return where the arm may be, by its joints' limits [rad]."""
        arm, corners = self._arm, (self._box_low, self._box_high)
        names = self._names, arm.point_names
        return Room(arm.points_m, np.array(arm.reach_m), *corners, limits_rad, *names)

    def start(self, q_rad: Sequence[float]) -> None:
        """Take note of where the arm stands; `q_rad` [rad] as `points_m` wants it."""
        self._clear_m, self._stuck = 0.0, None
        self._reach_out(self._points_m(q_rad))

    def limit(self, start_rad: Sequence[float], wanted_rad: Sequence[float]) -> Sequence[float]:
        """Return where the arm may be sent: `wanted_rad`, or as far towards it as the box lets.

        First the largest part of the whole step, then what single joints can still do, so that
        an arm pressed against a face slides along it. Every joint ends between its start and
        what was wanted.
        """
        self.shortened = False
        if list(wanted_rad) == list(start_rad):
            return wanted_rad
        if self._clear_m > 0.0:
            ways = zip(wanted_rad, self._clear_rad, self._reach_m, strict=True)
            # How far from where they then were the points may be at most.
            if sum(abs(q - was) * reach_m for q, was, reach_m in ways) < self._clear_m:
                return wanted_rad
        points = self._points_m(wanted_rad)
        self._clear_m, self._clear_rad = 0.0, wanted_rad
        if self._holds(points):
            reached = wanted_rad
            if not self._is_outside:
                self._clear_m = float(min((points - self._low).min(), (self._high - points).min()))
        else:
            self.shortened = True
            if self._stuck == (start_rad, wanted_rad):  # as in the turn before
                return start_rad
            # Points go nearly straight in one step: this is where the first one meets its face.
            near, start_points = list(start_rad), self._points_m(start_rad)
            way_m, ends = points - start_points, np.clip(points, self._low, self._high)
            left = np.divide(
                ends - start_points, way_m, out=np.ones_like(way_m), where=ends != points
            )
            part, points = ALMOST * float(left.min()), start_points
            for _ in range(HALVINGS):
                if part < LEAST:
                    break
                tried = [
                    min(
                        max(start + part * (wanted - start), min(start, wanted)), max(start, wanted)
                    )
                    for start, wanted in zip(start_rad, wanted_rad, strict=True)
                ]
                if self._holds(tried_points := self._points_m(tried)):
                    near, points = tried, tried_points
                    break
                part /= 2.0
            for joint, wanted in enumerate(wanted_rad):
                before = near[joint]
                if before == wanted:
                    continue
                near[joint] = wanted
                turned = self._points_m(near)
                if self._holds(turned):
                    points = turned
                else:
                    near[joint] = before
            reached = near
            self._stuck = (start_rad, wanted_rad) if near == list(start_rad) else None
        if self._is_outside:
            self._reach_out(points)
        return reached

    def _points_m(self, q_rad: Sequence[float]) -> FloatArray:
        return self._arm.points_m(np.array(q_rad))

    def _holds(self, points: FloatArray) -> bool:
        return bool((points >= self._low).all() and (points <= self._high).all())

    def _reach_out(self, points: FloatArray) -> None:
        self._low = np.minimum(self._box_low, points)
        self._high = np.maximum(self._box_high, points)
        self._is_outside = bool((self._low < self._box_low).any()) or bool(
            (self._high > self._box_high).any()
        )


def guard_of(
    model: str, box: Workspace, joints: Sequence[int], names: Sequence[str] = ()
) -> WorkspaceGuard:
    """Return the guard of an arm of a model, as `ArmModel.load` takes it; raises as that does."""
    return WorkspaceGuard(box, ArmModel.load(model), joints, names, model)


def guards_for(station: Station, follower: Follower) -> tuple[WorkspaceGuard, ...]:
    """Return a guard for every arm of `follower`: two for a pair, none for an unknown arm.

    The model is the station's, else the robot type's; the box is the station's, else the
    model's own. Both arms of a pair have the same box, each in its own base frame.

    Raises:
        UnusableInputError: a model that doesn't fit the robot, or a box without a model.
    """
    name = station.robot_model or model_of(follower.robot_type)
    if not name:
        if station.workspace is not None:
            raise UnusableInputError(
                f"{station.where}: workspace needs an arm model, and none is known for "
                f"{follower.robot_type}. Name one: robot_model: {', '.join(ARM_MODELS)}, or "
                "the path of an MJCF file."
            )
        return ()
    model = ArmModel.load(name)
    box = station.workspace
    if box is None:
        if name not in ARM_MODELS:
            raise UnusableInputError(
                f"{station.where}: the arm model {name} has no workspace of its own. Add one in m: "
                "workspace: {x: [lower, upper], y: [lower, upper], z: [lower, upper]}."
            )
        box = Workspace(*ARM_MODELS[name].workspace_m)
    own = list(follower.joint_names)
    for prefixes in ARM_PREFIXES:
        arms = [[prefix + joint for joint in model.joint_names] for prefix in prefixes]
        if all(joint in own for joints in arms for joint in joints):
            known = name if name in ARM_MODELS else os.path.abspath(name)
            return tuple(
                guard_of(known, box, [own.index(joint) for joint in joints], joints)
                for joints in arms
            )
    raise UnusableInputError(
        f"{station.where}: robot_model {model.name} has the joints "
        f"{', '.join(model.joint_names)}, but the {follower.robot_type} has {', '.join(own)}. "
        f"Name the model that fits: {', '.join(ARM_MODELS)}, or the path of an MJCF file."
    )
