"""Force feedback: how hard a leader's motors push back when the follower can't follow.

The push is a spring from where the leader is to where the follower is, and a brake against the
leader's own motion; neither can drive the leader on by itself. It is small, the spring tightens
slowly, and there is nothing where the follower moves freely or isn't heard.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gaploop.core.messages import NO_REPLY, FloatArray, FollowerState, LeaderSample
from gaploop.teleop.leaders.options import ForceOptions

STALE_S: Final = 0.05
"""A follower heard longer ago than this says nothing: no push [s]."""
RISE_A_S: Final = 1.5
"""The spring tightens no faster than this [A/s]; it slackens at once."""
FAR_RAD: Final = 1.0
"""Further apart than this the arms aren't coupled: the leader is being caught up with [rad]."""


class ForceLaw:
    """Currents for the leader's motors, in the follower's joint order and direction.

    The last joint, the gripper, has a trigger of its own and isn't pushed.
    """

    def __init__(self, options: ForceOptions, joints: int) -> None:
        self._options = options
        self._last_a: FloatArray = np.zeros(joints)
        self._last_s = float("-inf")

    def reset(self) -> None:
        """Begin with no push."""
        self._last_a = np.zeros_like(self._last_a)
        self._last_s = float("-inf")

    def current_a(
        self, leader: LeaderSample, follower: FollowerState | None, now_s: float
    ) -> FloatArray:
        """Return goal currents [A], shape (n_joints,), positive towards larger joint angles.

        `leader` is in the follower's joints; `follower` is what that reported last, or None.
        """
        options = self._options
        ahead = contact = np.zeros_like(self._last_a)
        if follower is not None and 0.0 <= now_s - follower.t_s <= STALE_S:
            with np.errstate(invalid="ignore"):
                ahead = leader.q_rad - follower.position_rad
            heard = np.isfinite(ahead) & ((follower.status & NO_REPLY) == 0)
            heard &= np.abs(ahead) < FAR_RAD
            heard[-1] = False
            by_current = np.abs(follower.current_a) / options.contact_a - 1.0
            by_load = np.abs(follower.load_pct) / options.contact_pct - 1.0
            known = np.where(np.isfinite(by_current), by_current, by_load)
            # A follower that reports neither is judged by how far it is behind alone.
            contact = np.clip(np.where(np.isfinite(known), known, 1.0), 0.0, 1.0) * heard
            ahead = np.where(heard, ahead, 0.0)
        beyond = np.sign(ahead) * np.maximum(np.abs(ahead) - options.slack_rad, 0.0)
        spring = np.clip(-contact * options.gain_a_rad * beyond, -options.most_a, options.most_a)
        same = np.where(np.sign(spring) == np.sign(self._last_a), np.abs(self._last_a), 0.0)
        rise = RISE_A_S * min(max(now_s - self._last_s, 0.0), STALE_S)
        self._last_a = np.sign(spring) * np.minimum(np.abs(spring), same + rise)
        self._last_s = now_s
        speed = np.zeros_like(ahead) if leader.state is None else leader.state.velocity_rad_s
        # Not limited in its rise: a spring that tightens late and a brake that brakes late would
        # together swing a leader up that nobody holds.
        brake = contact * options.damping_a_s_rad * np.where(np.isfinite(speed), speed, 0.0)
        return np.asarray(np.clip(self._last_a - brake, -options.most_a, options.most_a))
