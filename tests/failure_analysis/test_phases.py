"""Laws of segmentation: phases follow each other without gaps, through every attempt."""

from __future__ import annotations

import itertools

import numpy as np
from failure_analysis_makers import take
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.vocabulary import Phase
from gaploop.failure_analysis.views.phases import grasps, phase_at, timeline
from gaploop.failure_analysis.views.view import ArmMotion, TakeView

RATE_HZ = 100.0


def motion(shut: list[tuple[float, float]], held: bool, seconds: float = 10.0) -> ArmMotion:
    """An arm whose gripper is told to close in each span [s]."""
    t_s = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    sent = np.zeros((len(t_s), 2))
    closed = np.zeros(len(t_s), dtype=bool)
    for start_s, end_s in shut:
        closed |= (t_s >= start_s) & (t_s < end_s)
    sent[:, 1] = np.where(closed, 0.0, 0.8)
    read = sent.copy()
    read[:, 1] = np.maximum(sent[:, 1], 0.3 if held else 0.0)
    unknown = np.full_like(read, np.nan)
    return ArmMotion(t_s, sent, read, unknown, ("arm", "gripper"), RATE_HZ, grippers=(1,))


@given(st.lists(st.floats(0.3, 2.0), max_size=5), st.booleans())
def test_phases_follow_each_other_without_gaps(widths: list[float], held: bool) -> None:
    edges = np.cumsum([0.5, *widths])
    shut = [(float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    arm = motion(shut, held)
    found = timeline(arm)
    assert found[0].start_s == arm.t_s[0]
    assert found[-1].end_s == arm.t_s[-1]
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(found))
    assert all(s.end_s > s.start_s for s in found)
    for stretch in found:
        assert phase_at(arm, 0.5 * (stretch.start_s + stretch.end_s)) == stretch.phase


def test_two_attempts_have_two_grasps() -> None:
    arm = motion([(1.0, 2.0), (5.0, 7.5)], held=True)
    assert [s.phase for s in timeline(arm)].count(Phase.GRASP) == 2
    assert len(grasps(arm)) == 2
    assert phase_at(arm, 4.0) == Phase.APPROACH
    assert phase_at(arm, 9.5) == Phase.RETREAT


def test_without_a_gripper_everything_is_approach() -> None:
    arm = motion([], held=False)
    assert [s.phase for s in timeline(arm)] == [Phase.APPROACH]


def test_a_tool_path_tells_when_it_was_lifted() -> None:
    view = TakeView(take())
    assert view.motion is not None
    assert view.tool is not None
    found = timeline(view.motion, view.tool)
    assert [s.phase for s in found][:2] == [Phase.APPROACH, Phase.GRASP]
