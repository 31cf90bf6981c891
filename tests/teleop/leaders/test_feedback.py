from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.messages import NO_REPLY, FollowerState, LeaderSample
from gaploop.teleop.leaders.feedback import STALE_S, ForceLaw
from gaploop.teleop.leaders.options import ForceOptions

PERIOD_S = 0.005
BLOCKED_A = 0.8


def state(
    t_s: float, position: np.ndarray, current_a: float = BLOCKED_A, **changes: object
) -> FollowerState:
    n = len(position)
    nothing = np.full(n, math.nan)
    made = FollowerState(
        t_s, position, np.zeros(n), np.full(n, current_a), nothing, nothing, nothing,
        np.zeros(n, dtype=np.int64),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def settled(law: ForceLaw, leader: np.ndarray, follower: FollowerState | None) -> np.ndarray:
    """Return the push after half a second of the same."""
    for turn in range(100):
        now_s = 1.0 + turn * PERIOD_S
        heard = follower and replace(follower, t_s=now_s - (1.0 - follower.t_s))
        push = law.current_a(LeaderSample(now_s, leader), heard, now_s)
    return push


angles = st.floats(-4, 4) | st.sampled_from([math.nan, math.inf])


@given(
    st.lists(
        st.tuples(
            st.lists(angles, min_size=3, max_size=3),
            st.lists(angles, min_size=3, max_size=3),
            st.floats(-3, 3) | st.just(math.nan),
            st.floats(-0.1, 0.2),
            st.floats(-10, 10),
        ),
        max_size=20,
    )
)
def test_whatever_comes_the_push_is_small_and_gives_no_energy_of_its_own(
    turns: list[tuple[list[float], list[float], float, float, float]],
) -> None:
    options = ForceOptions()
    law = ForceLaw(options, 3)
    for turn, (leads, follows, current_a, age_s, speed) in enumerate(turns):
        now_s = 1.0 + turn * PERIOD_S
        leader, follower = np.array(leads), np.array(follows)
        own = state(now_s, leader, velocity_rad_s=np.full(3, speed))
        sample = LeaderSample(now_s, leader, state=own)
        heard = state(now_s - age_s, follower, current_a)
        push = law.current_a(sample, heard, now_s)
        assert np.isfinite(push).all()
        assert np.abs(push).max() <= options.most_a
        with np.errstate(invalid="ignore"):  # signs: a product of two tiny numbers is 0
            away = np.sign(push) * np.sign(leader - follower) > 0
            brakes = np.sign(push) * np.sign(speed) < 0
        assert not (away & ~brakes).any(), "towards the follower, or a brake"
        assert push[-1] == 0.0, "the gripper's trigger is left alone"
        if not 0.0 <= now_s - heard.t_s <= STALE_S:
            assert not push.any()


def test_a_blocked_follower_is_felt() -> None:
    law = ForceLaw(ForceOptions(), 2)
    push = settled(law, np.array([0.3, 0.0]), state(1.0, np.zeros(2)))
    assert push[0] == pytest.approx(-0.2)
    push = settled(ForceLaw(ForceOptions(), 2), np.array([-0.15, 0.0]), state(1.0, np.zeros(2)))
    assert push[0] == pytest.approx(0.08)


def test_the_spring_tightens_slowly_and_slackens_at_once() -> None:
    law, leader = ForceLaw(ForceOptions(), 2), np.array([0.5, 0.0])
    first = law.current_a(LeaderSample(1.0, leader), state(1.0, np.zeros(2)), 1.0)
    second = law.current_a(LeaderSample(1.005, leader), state(1.005, np.zeros(2)), 1.005)
    assert abs(second[0] - first[0]) <= 0.0076
    held = settled(law, leader, state(1.0, np.zeros(2)))
    assert held[0] < -0.19
    assert not law.current_a(LeaderSample(3.0, np.zeros(2)), state(3.0, np.zeros(2)), 3.0).any()


def test_free_motion_is_not_felt() -> None:
    """Far behind in a fast motion, but with little current: nothing drags at the hand."""
    push = settled(ForceLaw(ForceOptions(), 2), np.array([0.4, 0.0]), state(1.0, np.zeros(2), 0.2))
    assert not push.any()


def test_load_stands_in_for_current_and_neither_for_contact() -> None:
    """The shoulder servos of a Koch report load, not current."""
    leader = np.array([0.3, 0.0])
    lacking = state(1.0, np.zeros(2), math.nan)
    for load_pct, felt in ((60.0, True), (10.0, False), (math.nan, True)):
        follower = replace(lacking, load_pct=np.full(2, load_pct))
        assert bool(settled(ForceLaw(ForceOptions(), 2), leader, follower)[0]) == felt


@pytest.mark.parametrize("what", ["old", "silent", "none", "far"])
def test_nothing_is_felt_of_a_follower_that_is_not_there(what: str) -> None:
    follower: FollowerState | None = state(1.0, np.zeros(2))
    if what == "old":
        follower = state(1.0 - 0.06, np.zeros(2))
    elif what == "silent":
        follower = state(1.0, np.zeros(2), status=np.full(2, NO_REPLY))
    elif what == "none":
        follower = None
    far = 1.5 if what == "far" else 0.3
    assert not settled(ForceLaw(ForceOptions(), 2), np.array([far, 0.0]), follower).any()


@pytest.mark.parametrize("friction_nm", [0.0, 0.01])
def test_a_leader_that_is_let_go_of_comes_to_rest(friction_nm: float) -> None:
    """It may be pushed back to the follower, but never swings up or runs away.

    An XL330-M077 makes 0.146 Nm/A (0.215 Nm at its 1.47 A of stall); the inertia is that of a
    leader's forearm, the follower stands blocked, and the push comes a turn late.
    """
    law, q, speed, push = ForceLaw(ForceOptions(), 2), 0.6, 0.0, 0.0
    furthest = []
    for turn in range(4000):
        now_s = 1.0 + turn * PERIOD_S
        own = state(now_s, np.array([q, 0.0]), velocity_rad_s=np.array([speed, 0.0]))
        sample = LeaderSample(now_s, np.array([q, 0.0]), state=own)
        torque = 0.146 * push - math.copysign(friction_nm, speed) * (abs(speed) > 1e-4)
        push = float(law.current_a(sample, state(now_s, np.zeros(2)), now_s)[0])
        speed += torque / 3e-4 * PERIOD_S
        q += speed * PERIOD_S
        furthest.append(abs(q))
    assert max(furthest) <= 0.62
    assert max(furthest[2000:]) < 0.1
    assert abs(speed) < 0.1
