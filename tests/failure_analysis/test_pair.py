"""A pair's takes: both hands' grasps are seen, and a hand-over is no misplacement."""

from __future__ import annotations

import numpy as np
from tests.failure_analysis import makers

from gaploop.core.arms import CELL_ARMS
from gaploop.core.messages import FloatArray
from gaploop.core.take import Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import FailureMode, Outcome, TakeKind
from gaploop.failure_analysis.modes import grasp_events
from gaploop.failure_analysis.signals.registry import measure
from gaploop.failure_analysis.views.phases import grasps, timeline
from gaploop.failure_analysis.views.view import TakeView, tool_places

PAIR = CELL_ARMS["bi_so101"]
JOINTS = PAIR.joint_names
LEFT_GRIP, RIGHT_GRIP = PAIR.grippers
OPEN_RAD, SHUT_RAD = 0.75, -0.1
SECONDS = 8.0


def jaws(close_s: float, open_s: float, held_rad: float, t_s: FloatArray) -> tuple[FloatArray, ...]:
    """Command and reading of a gripper that closes and opens once [rad]."""
    sent = np.where((t_s >= close_s) & (t_s < open_s), SHUT_RAD, OPEN_RAD)
    return sent, np.where(sent < 0, SHUT_RAD + held_rad, OPEN_RAD)


def relay(left_rad: float = 0.2, right_rad: float = 0.2) -> Take:
    """The left hand holds from 1 to 3 s and the right one from 5 to 7 s, as far apart as given."""
    t_s: FloatArray = np.arange(0.0, SECONDS, 0.01)
    sent = np.tile(PAIR.home_q_rad, (len(t_s), 1))
    sent[:, 0] += 0.8 * np.exp(-((t_s - 2.0) ** 2))
    sent[:, 6] -= 0.8 * np.exp(-((t_s - 6.0) ** 2))
    read = sent.copy()
    sent[:, LEFT_GRIP], read[:, LEFT_GRIP] = jaws(1.0, 3.0, left_rad, t_s)
    sent[:, RIGHT_GRIP], read[:, RIGHT_GRIP] = jaws(5.0, 7.0, right_rad, t_s)
    columns = {}
    for j, name in enumerate(JOINTS):
        columns[f"follower.{name}.sent_rad"] = sent[:, j]
        columns[f"follower.{name}.position_rad"] = read[:, j]
    info = TakeInfo(
        uid="relay", fps=50.0, kind=TakeKind.ROLLOUT, joint_names=JOINTS, units="deg",
        robot_type=PAIR.robot_type,
    )  # fmt: skip
    frames = makers.frames(sent[::2], read[::2], None)
    return Take(info, Outcome.FAILURE, frames, Telemetry(t_s, columns))


def modes(take: Take) -> list[tuple[FailureMode, str]]:
    view = TakeView(take, images=False)
    assert view.motion is not None
    found = grasp_events(view, view.motion, measure(view), None)
    return [(event.mode, event.evidence.message) for event in found.events]


def test_closings_of_both_hands_are_found_in_the_order_of_time() -> None:
    motion = TakeView(relay(), images=False).motion
    assert motion is not None
    found = grasps(motion)
    assert [(round(g.close_s), g.gripper, g.held) for g in found] == [
        (1, LEFT_GRIP, True), (5, RIGHT_GRIP, True),
    ]  # fmt: skip
    ends = [stretch.end_s for stretch in timeline(motion)]
    assert ends == sorted(ends)


def test_what_one_hand_puts_down_for_the_other_is_not_misplaced() -> None:
    """Every relay ended with a "misplacement" in the middle of the table, 0.2 m from the disc."""
    ((mode, said),) = modes(relay(right_rad=0.0))
    assert mode is FailureMode.MISSED_GRASP
    assert "the right gripper closed" in said
    assert [mode for mode, _ in modes(relay())] == [FailureMode.MISPLACEMENT]


def test_the_hand_that_misses_is_named() -> None:
    (first, _) = modes(relay(left_rad=0.0))
    assert first[0] is FailureMode.MISSED_GRASP
    assert "the left gripper closed" in first[1]


def test_an_arm_is_the_joints_of_its_gripper() -> None:
    motion = TakeView(relay(), images=False).motion
    assert motion is not None
    assert motion.arm_of(LEFT_GRIP).tolist() == [0, 1, 2, 3, 4]
    assert motion.arm_of(RIGHT_GRIP).tolist() == [6, 7, 8, 9, 10]


def test_the_tool_is_that_of_the_arm_at_work() -> None:
    q_rad = np.tile(PAIR.home_q_rad, (3, 1))
    q_rad[1, 0] += 0.5
    q_rad[2, 6] -= 0.5
    places = tool_places(q_rad, JOINTS)
    assert places is not None
    home, left, right = places
    assert home[1] > 0.3  # the left hand's, outside of its base
    assert left[1] > 0.2
    assert right[1] < -0.2
