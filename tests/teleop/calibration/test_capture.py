"""Guided taking of pictures: only what is still and new, until nothing is missing."""

from __future__ import annotations

import numpy as np
from calibration_makers import CHARUCO, SMALL_CHARUCO, arm, arm_poses, camera, render, scene

from gaploop.collect.calibration import BoardCapture, PictureState, PoseCapture, Stillness
from gaploop.core.messages import Image

LENS = camera()
PERIOD_S = 0.1


def at(x_m: float, tilt: bool = False) -> Image:
    T = np.eye(4)
    if tilt:
        c, s = np.cos(0.5), np.sin(0.5)
        T[:3, :3] = [[c, 0, s], [0, 1, 0], [-s, 0, c]]
    T[:3, 3] = np.array([x_m, 0.0, 0.5]) - T[:3, :3] @ CHARUCO.centre_m
    return render(CHARUCO, LENS, T)


def test_only_still_and_new_boards_are_taken() -> None:
    capture = BoardCapture(CHARUCO, 8)
    still, shifted, moving = at(0.0), at(0.08), at(0.03)
    states = [capture.look(still, k * PERIOD_S).state for k in range(6)]
    assert states[0] is PictureState.MOVING
    assert states.count(PictureState.TAKEN) == 1
    assert states[-1] is PictureState.KNOWN
    now_s = 1.0
    for k in range(8):  # held by a hand that never rests
        image = moving if k % 2 else shifted
        assert capture.look(image, now_s + k * PERIOD_S).state is PictureState.MOVING
    states = [capture.look(shifted, 3.0 + k * PERIOD_S).state for k in range(6)]
    assert PictureState.TAKEN in states
    assert len(capture.views) == 2


def test_a_picture_without_a_board_says_so_and_asks_on() -> None:
    capture = BoardCapture(CHARUCO, 8)
    wall = np.full((480, 640, 3), 100, dtype=np.uint8)
    advice = capture.look(wall, 0.0)
    assert advice.state is PictureState.NO_BOARD
    assert advice.missing
    assert not advice.done


def test_it_goes_on_with_pictures_taken_before() -> None:
    first = BoardCapture(CHARUCO, 8)
    for k in range(6):
        first.look(at(0.0), k * PERIOD_S)
    again = BoardCapture(CHARUCO, 8, first.views)
    states = [again.look(at(0.0), k * PERIOD_S).state for k in range(6)]
    assert PictureState.TAKEN not in states
    assert again.advice().taken == 1


def test_what_is_missing_is_asked_for_until_it_is_there() -> None:
    capture = BoardCapture(CHARUCO, 8)
    for n, tilt in enumerate((False, True)):
        for k in range(6):
            advice = capture.look(at(0.0, tilt), n * 5 + k * PERIOD_S)
    assert any("tilted" in ask for ask in advice.missing)
    assert "board at the top left" in advice.missing


def test_poses_are_taken_when_arm_and_board_are_still_and_the_pose_is_new() -> None:
    where = scene("eye_in_hand", SMALL_CHARUCO)
    capture = PoseCapture(SMALL_CHARUCO, 4)
    taken = 0
    for n, q in enumerate(arm_poses(where, 4)):
        image, T = where.picture(q), arm().T_base_tcp(q)
        for k in range(7):
            advice = capture.look(image, q, T, n * 5 + k * PERIOD_S)
            taken += advice.state is PictureState.TAKEN
        assert advice.state is PictureState.KNOWN
    assert taken == advice.taken == 4
    assert advice.done
    forced = [capture.look(image, q, T, 40 + k * PERIOD_S, force=True) for k in range(6)]
    assert forced[0].state is PictureState.MOVING or forced[0].state is PictureState.TAKEN
    assert any(a.state is PictureState.TAKEN for a in forced)


def test_an_arm_that_only_rolls_is_asked_to_pitch() -> None:
    where = scene("eye_in_hand", SMALL_CHARUCO)
    (q,) = arm_poses(where, 1)
    poses = [arm().T_base_tcp(q + np.array([0, 0, 0, 0, d, 0])) for d in (-0.4, -0.1, 0.2, 0.5)]
    assert "another axis" in PoseCapture(SMALL_CHARUCO, 4, poses).missing()[0]
    spread = [arm().T_base_tcp(q) for q in arm_poses(where, 6, spread_rad=0.7)]
    assert PoseCapture(SMALL_CHARUCO, 4, spread).missing() == ()


def test_stillness_takes_time_and_any_motion_starts_it_again() -> None:
    still = Stillness(0.5)
    zero, far = np.zeros(4), np.array([0, 0, 0, 2.0])
    assert not still.watch(zero, 0.0)
    assert not still.watch(zero + 0.3, 0.3)
    assert still.watch(zero, 0.5)
    assert not still.watch(far, 0.6)
    assert not still.watch(far, 0.9)
    assert still.watch(far, 1.1)
    unknown = np.full(4, np.nan)
    assert not still.watch(unknown, 1.2)
