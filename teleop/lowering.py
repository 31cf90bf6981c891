"""Lowers an arm slowly to where it may lose its torque: goals, one a turn, and when it is over.

An arm that loses torque in the air falls. It goes to its park pose, no joint's goal faster than
`LOWER_RAD_S`. Where the load rises over what it was in the same motion, it has met a hand, the
table, a thing: it goes no further, but gives way. So it does at the park pose, and where none is
known. To *give way* is to let every joint's goal follow its load: the joint goes slowly where
the weight, or what it presses against, pushes it. That is downhill, and ends where nothing holds
the arm up but what it lies on: then torque may go, and nothing falls.

A pure state machine of NumPy arrays: the control loop steps it, and so does the supervisor of a
program that is gone.
"""

import math
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Final

import numpy as np

from gaploop.core.messages import NO_REPLY, FloatArray, FollowerState
from gaploop.teleop.workspace import WorkspaceGuard

LOWER_RAD_S: Final = 0.23
"""Fastest goal [rad/s]: the joints then stay below 0.3 rad/s, with the way servos follow."""
GAIN_RAD_S2: Final = 0.5
"""How fast that speed is reached, and left [rad/s²]."""
PARKED_RAD: Final = 0.1
"""An arm that is no further from its park pose rests already [rad]."""
RISE_PCT: Final = 15.0
"""A joint whose load differs by so much from what it lately was has met something [% of stall]:
1.5 N at the tip of an SO-101."""
DRIFT_PCT_S: Final = 20.0
"""The load of a stretched arm's weight changes by up to 15 % of stall a second as it folds; that
of a joint that is held fast by 100 % and more, where it has far to go [% of stall/s]."""
MOST_PCT: Final = 60.0
"""No known arm's weight loads a joint so much [% of stall]: it met something by slow degrees."""
STALL_A: Final = 1.5
"""Where only the current is reported, so much counts as stall [A]: the XL330's."""
ERROR_PCT_PER_RAD: Final = 300.0
"""Where neither is, the way to the goal tells it: about the least gain in use [% of stall/rad]."""
SIGN_RAD: Final = 0.004
"""A motor pushes towards its goal; nearer to it than this, its report has to say where to [rad]."""
IDLE_PCT: Final = 1.0
"""A joint with less load is held by its gears alone [% of stall]."""
GIVE_RAD_S_PER_PCT: Final = 0.02
"""How fast a goal follows its load: slow enough for stiff servos at 20 turns a second."""
CALMEST: Final = 1.0 / 32.0
"""Of that speed a joint keeps so much, however often its load turns round."""
STILL_RAD: Final = 0.005
STILL_S: Final = 0.3
"""A joint that moves by less [rad] for so long [s] is still."""
SETTLE_S: Final = 0.6
"""The arm holds until it is still, or at most for so long [s], before it is lowered."""
BLOCKED_S: Final = 1.0
"""A workspace box that lets the arm come no nearer for so long is in the way [s]."""
TRIES: Final = 3
AGAIN_S: Final = 1.0
"""What blocked it may be a hand that is taken away: it tries again so many times, after a pause
[s], before it counts as what the arm rests on."""
WAY_RAD: Final = 0.1
"""Where it comes this much nearer meanwhile, those tries begin anew [rad]."""
LATE_S: Final = 0.03
"""A turn that took so much longer than usual [s] is late: stiff servos have caught up meanwhile."""
LONGEST_S: Final = 60.0
"""An arm that gives way for so long is moved by somebody: it is over then [s]. Some slide over the
table for half a minute before they lie."""


class LoweringPhase(Enum):
    """What a lowering is doing, in words."""

    HOLD = "holds"
    PARK = "goes to its park pose"
    GIVE = "gives way"
    DONE = "rests"


class Lowering:
    """One arm, or a pair, on its way down.

    Args:
        start_rad: what the servos' goals are now [rad], shape (n_joints,). Not where they stand: a
            goal that is set to that lets a loaded joint sag.
        park_rad: the park pose [rad], NaN for joints that stay as they are; None where none is
            known, and the arm just gives way.
        limits_rad: joint limits [rad], shape (n_joints, 2).
        grips: joints that hold things: they stay, and their load means nothing.
        limp: joints without torque: they are left alone.
        guards: workspace boxes, heeded on the way to the park pose. Not when giving way: an arm
            without torque would leave the box there, too, and fast.
        speed_rad_s: fastest goal [rad/s].
    """

    def __init__(
        self,
        start_rad: FloatArray,
        park_rad: FloatArray | None,
        limits_rad: FloatArray,
        *,
        grips: Collection[int] = (),
        limp: Collection[int] = (),
        guards: Sequence[WorkspaceGuard] = (),
        speed_rad_s: float = LOWER_RAD_S,
    ) -> None:
        goal = np.array(start_rad, dtype=np.float64)
        limits = np.asarray(limits_rad, dtype=np.float64)
        # Where a joint stands outside its limits it may come back, and never goes further out.
        self._low, self._high = np.minimum(limits[:, 0], goal), np.maximum(limits[:, 1], goal)
        self._stays = np.zeros(len(goal), dtype=np.bool_)
        self._stays[[*grips, *limp]] = True
        park = np.full(len(goal), np.nan) if park_rad is None else np.array(park_rad, dtype=float)
        park[self._stays] = np.nan
        self._is_known = bool(np.isfinite(park).any())
        self._park = np.clip(np.where(np.isfinite(park), park, goal), self._low, self._high)
        self._named = np.isfinite(park)
        self._guards, self._fastest_rad_s = tuple(guards), speed_rad_s
        self._goal: FloatArray = goal
        self.phase = LoweringPhase.HOLD
        self.met = False
        """It has met something, or the box was in its way."""
        self._blocked = np.zeros(len(goal), dtype=np.bool_)
        """Joints that met something on this try: the others go on without them, once."""
        self._without = self._blocked
        """Those that they have gone on without."""
        self._speed_rad_s = self._since_s = self._stuck_s = self._still_s = 0.0
        self._turn_s = 0.0
        """How long a turn usually takes."""
        self._usual_pct: FloatArray = np.full(len(goal), np.nan)
        self._first_pct: FloatArray = np.full(len(goal), np.nan)
        self._still_at: FloatArray = np.full(len(goal), np.nan)
        self._goal_at = goal
        """Where the goals were when the arm came to stand."""
        self._tried_from_rad, self._tries = math.inf, 0
        self._over_pct: FloatArray = np.zeros(len(goal))
        self._calm: FloatArray = np.ones(len(goal))

    @property
    def done(self) -> bool:
        """Whether the arm rests: torque may go off."""
        return self.phase is LoweringPhase.DONE

    @property
    def goal_rad(self) -> FloatArray:
        """What the servos' goals are by now [rad], shape (n_joints,)."""
        return self._goal.copy()

    @property
    def left_s(self) -> float:
        """How long it takes to the park pose at least [s]; NaN where it goes elsewhere."""
        gives = self.phase is LoweringPhase.GIVE
        return math.nan if gives else self._away_rad(self._goal) / self._fastest_rad_s

    def rests(self, state: FollowerState) -> bool:
        """Say whether the arm stands at its park pose already."""
        return self._is_known and self._away_rad(state.position_rad) <= PARKED_RAD

    def step(self, state: FollowerState, dt_s: float) -> FloatArray:
        """Return the goals for now [rad], shape (n_joints,); `dt_s` since the step before [s]."""
        usual_s = self._turn_s or dt_s
        self._turn_s = usual_s + 0.1 * (min(dt_s, 2.0 * usual_s) - usual_s)
        if dt_s - usual_s > LATE_S:  # what the load did in it tells nothing: begin anew from rest
            self._speed_rad_s, self._usual_pct = 0.0, np.full(len(self._goal), np.nan)
        dt_s = min(max(dt_s, 0.0), 0.1)
        way_s = min(dt_s, 2.0 * usual_s)  # a late turn moves no further than that
        self._since_s += dt_s
        q = np.where(state.status & NO_REPLY, np.nan, state.position_rad)
        moved = np.abs(q - self._still_at)
        # A goal that follows its load says that the arm only sticks: let go, it would slide on.
        led = np.abs(self._goal - self._goal_at)
        if np.isnan(self._still_at).all() or (moved > STILL_RAD).any() or (led > STILL_RAD).any():
            self._still_at, self._goal_at, self._still_s = q, self._goal, 0.0
        else:
            self._still_s += dt_s
        pct = self._load_pct(state, q)
        if self.phase is LoweringPhase.HOLD:
            if self.rests(state):
                self.phase = LoweringPhase.DONE
            elif self._still_s >= STILL_S or self._since_s >= SETTLE_S:
                self._go(LoweringPhase.PARK if self._is_known else LoweringPhase.GIVE)
        elif self.phase is LoweringPhase.PARK:
            self._to_park(pct, way_s)
        elif self.phase is LoweringPhase.GIVE:
            self._give_way(pct, way_s)
        return self.goal_rad

    def _go(self, phase: LoweringPhase) -> None:
        self.phase, self._since_s, self._stuck_s, self._speed_rad_s = phase, 0.0, 0.0, 0.0
        self._still_s, self._calm = 0.0, np.ones(len(self._goal))
        self._usual_pct = np.full(len(self._goal), np.nan)
        self._first_pct = np.full(len(self._goal), np.nan)

    def _away_rad(self, q_rad: FloatArray) -> float:
        away = np.abs(self._park - q_rad)[self._named]
        return float(np.nanmax(away)) if np.isfinite(away).any() else 0.0

    def _load_pct(self, state: FollowerState, q: FloatArray) -> FloatArray:
        """Return what each motor pushes with, along the joint [% of stall]; NaN where unknown."""
        error = self._goal - q
        by_current = np.abs(state.current_a) * (100.0 / STALL_A)
        size = np.where(np.isfinite(state.load_pct), np.abs(state.load_pct), by_current)
        # What a register's sign means isn't the same for all makers. A motor pushes to its goal.
        reported = np.where(np.isfinite(state.load_pct), state.load_pct, state.current_a)
        way = np.sign(np.where(np.abs(error) > SIGN_RAD, error, np.nan_to_num(reported)))
        pct = np.where(np.isfinite(size), size * way, error * ERROR_PCT_PER_RAD)
        pct[self._stays] = np.nan
        return np.asarray(pct)

    def _to_park(self, pct: FloatArray, dt_s: float) -> None:
        usual = np.where(np.isnan(self._usual_pct), pct, self._usual_pct)
        self._first_pct = np.where(np.isnan(self._first_pct), np.abs(pct), self._first_pct)
        drift = DRIFT_PCT_S * dt_s
        most = np.maximum(MOST_PCT, self._first_pct + RISE_PCT)
        presses = (np.abs(pct - usual) > RISE_PCT) | (np.abs(pct) > most)
        if presses.any():
            self.met = True
            self._blocked = self._blocked | presses
            self._go(LoweringPhase.GIVE)
            return
        self._usual_pct = usual + np.clip(np.nan_to_num(pct - usual), -drift, drift)
        way = np.where(self._blocked, 0.0, self._park - self._goal)
        left = float(np.abs(way).max())
        if left < 1e-4:
            self._go(LoweringPhase.GIVE)
            return
        # All joints arrive together; fast at first rest and last.
        braked = math.sqrt(2.0 * GAIN_RAD_S2 * left)
        self._speed_rad_s = min(self._speed_rad_s + GAIN_RAD_S2 * dt_s, self._fastest_rad_s, braked)
        wanted = self._goal + way * min(self._speed_rad_s * dt_s / left, 1.0)
        for guard in self._guards:
            own = guard.joints
            wanted[own] = guard.limit(self._goal[own].tolist(), wanted[own].tolist())
        # A box that stops one joint lets others go on, and then perhaps that one too.
        came = float(np.abs(wanted - self._goal).max())
        self._stuck_s = 0.0 if came > 0.1 * self._speed_rad_s * dt_s else self._stuck_s + dt_s
        self._goal = wanted
        if self._stuck_s >= BLOCKED_S:
            self.met = True
            self._blocked = np.ones_like(self._blocked)
            self._go(LoweringPhase.GIVE)

    def _give_way(self, pct: FloatArray, dt_s: float) -> None:
        pushes = np.nan_to_num(pct)
        over = np.sign(pushes) * np.maximum(np.abs(pushes) - IDLE_PCT, 0.0)
        self._speed_rad_s = min(self._speed_rad_s + GAIN_RAD_S2 * dt_s, self._fastest_rad_s)
        most = self._speed_rad_s
        # So stiff that a step turns its load round, a joint would swing for ever: it takes half.
        turns = over * self._over_pct < 0.0
        self._calm = np.where(turns, np.maximum(self._calm / 2.0, CALMEST), self._calm)
        self._over_pct = over
        step = np.clip(-over * GIVE_RAD_S_PER_PCT, -most, most) * self._calm * dt_s
        before, self._goal = self._goal, np.clip(self._goal + step, self._low, self._high)
        if self._since_s > LONGEST_S:
            self.phase = LoweringPhase.DONE
        gives = bool((np.abs(self._goal - before) > 0.1 * GIVE_RAD_S_PER_PCT * dt_s).any())
        if gives or self._still_s < STILL_S or self._since_s < STILL_S:
            return
        away = np.where(self._named, np.abs(self._park - self._goal), 0.0)
        left = float(away.max())
        if left < self._tried_from_rad - WAY_RAD:
            self._tried_from_rad, self._tries = left, 0
        if not self.met or left <= PARKED_RAD:
            self.phase = LoweringPhase.DONE
        elif (away[~self._blocked] > WAY_RAD).any() and (self._blocked != self._without).any():
            self._without = self._blocked
            self._go(LoweringPhase.PARK)
        elif self._tries == TRIES:
            self.phase = LoweringPhase.DONE
        elif self._still_s >= AGAIN_S:
            self._tries += 1
            self._blocked = np.zeros_like(self._blocked)
            self._go(LoweringPhase.PARK)
