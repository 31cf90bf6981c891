"""A scripted teleoperator of a pair of arms: one hands over to the other in the middle.

Each arm is driven as a single one would be, by `expert.ScriptedLeader`, with the other's place as
its goal. An arm whose turn is over goes home, so that it stands in nobody's way.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from gaploop.core.arm import Mounted
from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FollowerState, LeaderSample
from gaploop.sim.cell import SimCell
from gaploop.sim.expert import ExpertStage, ScriptedLeader, Sees
from gaploop.sim.kinematics import TCP_SITE
from gaploop.sim.tasks import GOAL_TOLERANCE_M, REST_SLACK_M

HOME_RAD_S: Final = 2.6
AT_HOME_RAD: Final = 0.02
MOST_TURNS: Final = 4
OWN_SIDE_M: Final = 0.04
"""Further than this on the first arm's side of where things are handed over, it is its turn."""


class _Side:
    """One arm of a pair as a cell of its own, in that arm's frame: what `ScriptedLeader` reads."""

    def __init__(self, cell: SimCell, side: Mounted, *, hands_over: bool) -> None:
        self._cell, self._side, self._hands_over = cell, side, hands_over
        self.columns = cell.arm.columns(side)
        self.arm, self.fps, self.image_size = side.arm, cell.fps, cell.image_size
        self.task = "pick_place" if hands_over else cell.task

    def read(self) -> FollowerState:
        """What this arm's servos report."""
        return self._cell.read().part(self.columns)

    def truth(self) -> dict[str, Any]:
        """Privileged state of the scene, as this arm's person sees it."""
        truth: dict[str, Any] = self._cell.truth()
        base = np.array([*self._side.at_m, 0.0])
        tool = self._cell.data.site(self._side.prefix + TCP_SITE).xpos
        thing = np.asarray(truth["object_pos_m"])
        truth["held"] = truth["held"] and bool(np.allclose(tool, truth["tool_pos_m"]))
        truth["tool_pos_m"] = tool.copy()
        if self._hands_over:
            truth["goal_xy_m"] = list(self._cell.arm.relay_m)
            truth["target_pos_m"] = [*self._cell.arm.relay_m, truth["table_z_m"]]
            away_m = float(np.linalg.norm(thing[:2] - truth["goal_xy_m"]))
            rest_m = truth["table_z_m"] + truth["object_half_size_m"][2]
            lies = thing[2] < rest_m + REST_SLACK_M and not truth["held"]
            truth["success"] = away_m < GOAL_TOLERANCE_M and lies
        for key in ("object_pos_m", "target_pos_m", "goal_xy_m", "tool_pos_m", "hand_pos_m"):
            if truth[key] is not None:
                truth[key] = np.asarray(truth[key]) - base[: len(truth[key])]
        return truth


class RelayLeader:
    """Implements core's `Leader` for a pair: read() gives the next command of all joints."""

    def __init__(self, cell: SimCell, seed: int = 0, *, retries: int | None = None) -> None:
        """Drive `cell`; the arguments are those of `ScriptedLeader`."""
        self._cell = cell
        last = len(cell.arm.arms) - 1
        self._sides = [
            _Side(cell, side, hands_over=k < last) for k, side in enumerate(cell.arm.arms)
        ]
        self._hands = [
            ScriptedLeader(cast(SimCell, side), 2 * seed + k, retries=retries)
            for k, side in enumerate(self._sides)
        ]
        self._home = np.asarray(cell.arm.home_q_rad)
        self._last_t_s: float | None = None
        self._turn = 0
        self.reset()

    def reset(self) -> None:
        """Get ready for a new take, which the cell has already been reset to."""
        for hand in self._hands:
            hand.reset()
        self._begin()

    def take_over(self) -> None:
        """Go on in the middle of a take that somebody else has driven so far."""
        self._begin()
        self._hands[self._turn].take_over()

    @property
    def stage(self) -> ExpertStage:
        """Where the arm whose turn it is stands in its attempt."""
        return self._hands[self._turn].stage

    def done(self) -> bool:
        """Say whether the attempt is over."""
        return self._done

    def read(self, t_s: float) -> LeaderSample:
        """Return the command of all joints for loop time `t_s` [s]."""
        period_s = 1.0 / self._cell.fps
        if self._last_t_s is not None:
            period_s = float(np.clip(t_s - self._last_t_s, 0.0, 0.1))
        self._last_t_s = t_s
        hand, columns = self._hands[self._turn], self._sides[self._turn].columns
        if not hand.done():
            self._q[columns] = hand.read(t_s).q_rad
        elif self._cell.success():
            self._done = True
        elif not self._done:
            step_rad = HOME_RAD_S * period_s
            left = self._home[columns] - self._q[columns]
            self._q[columns] += np.clip(left, -step_rad, step_rad)
            if float(np.abs(left).max()) < AT_HOME_RAD:
                self._turns += 1
                self._done = self._turns > MOST_TURNS
                if not self._done:
                    self._turn = self._whose()
                    self._hands[self._turn].reset()
        return LeaderSample(t_s, self._q.copy())

    def _begin(self) -> None:
        self._q: NDArray[np.float64] = self._cell.read().position_rad.copy()
        self._last_t_s = None
        self._turns, self._done = 1, False
        self._turn = self._whose()

    def _whose(self) -> int:
        """Return whose turn it is, by where the object lies."""
        across_m = float(cast(Any, self._cell.truth())["object_pos_m"][1])
        return 0 if across_m > self._cell.arm.relay_m[1] + OWN_SIDE_M else 1


def scripted(
    cell: SimCell, seed: int = 0, *, sees: Sees = "scene", retries: int | None = None
) -> ScriptedLeader | RelayLeader:
    """Return the scripted teleoperator that fits a cell; the arguments are `ScriptedLeader`'s.

    Raises UnusableInputError where a pair is to be driven by the tracker.
    """
    if not cell.arm.mounted:
        return ScriptedLeader(cell, seed, sees=sees, retries=retries)
    if sees == "tracker":
        raise UnusableInputError(
            f"The script of {cell.arm.name} sees the scene; leave --teleop.sees out."
        )
    return RelayLeader(cell, seed, retries=retries)
