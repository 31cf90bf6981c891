"""Laws of grippers: however a dataset writes them, open is 1 and closed is 0."""

from collections.abc import Callable

import numpy as np
import pytest

from gaploop.core.grippers import Gripper, gripper_columns, gripper_of, sides_of
from gaploop.core.messages import FloatArray

FPS = 25.0
OPENS_AT = (40, 120)  # rows: it is closed between
HELD = 0.5  # of the travel

type Numbers = Callable[[FloatArray], FloatArray]


def episode(held: bool, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return how far open a gripper is told to be, and is, shape (160,): it takes 0.2 s to go."""
    told = np.ones(160)
    told[slice(*OPENS_AT)] = 0.0
    is_open, at = np.empty(160), 1.0
    for row, target in enumerate(told):
        at += np.clip(target - at, -0.2, 0.2)
        at = max(at, HELD) if held else at
        is_open[row] = at
    return told, is_open + np.random.default_rng(seed).normal(0.0, 0.002, 160)


def arm(seed: int) -> FloatArray:
    """Return smooth commands of three joints [degree], shape (160, 3)."""
    rng = np.random.default_rng(seed)
    at_s = np.linspace(0.0, 1.0, 160)[:, None]
    return rng.uniform(-40, 40, 3) + 30.0 * np.sin(2.0 * np.pi * (at_s + rng.random(3)))


CONVENTIONS: dict[str, tuple[Numbers, Numbers]] = {
    "metres": (lambda x: 0.04 * x, lambda x: 0.04 * x),
    "per cent": (lambda x: 100.0 * x, lambda x: 100.0 * x),
    "radians": (lambda x: 1.9 * x - 0.17, lambda x: 1.9 * x - 0.17),
    "of 255": (lambda x: 255.0 * x, lambda x: 255.0 * x),
    "0 is open": (lambda x: 1.0 - x, lambda x: 1.0 - x),
    "0 and 1, answered in metres": (lambda x: np.round(x), lambda x: 0.08 * x),
    "1 closes, answered in metres": (lambda x: 1.0 - 2.0 * x, lambda x: 0.08 * x),
}


def found(convention: str, holds: int, of: int = 12, *, named: bool) -> Gripper | None:
    """Return the gripper of episodes of which the first ones hold something."""
    sent_as, read_as = CONVENTIONS[convention]
    told, is_open = zip(*(episode(k < holds, k) for k in range(of)), strict=True)
    sent, read = [sent_as(t) for t in told], [read_as(r) for r in is_open]
    if not named:
        both = [np.column_stack([arm(k), s]) for k, s in enumerate(sent)]
        assert gripper_columns([f"motor_{j}" for j in range(4)], both, FPS) == (3,)
    return gripper_of(3, sent, read, FPS, named=named)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("named", [True, False])
def test_any_convention_is_told_by_what_some_episodes_hold(convention: str, named: bool) -> None:
    sent_as, read_as = CONVENTIONS[convention]
    grip = found(convention, holds=8, named=named)
    assert grip is not None
    open_share = np.array([0.0, 0.5, 1.0])
    assert grip.opened(read_as(open_share), read=True) == pytest.approx(open_share, abs=0.02)
    assert np.isnan(grip.opened(np.array([np.nan]), read=True)).all()  # a reading that is missing
    ends = np.array([0.0, 1.0])
    assert grip.opened(sent_as(ends), read=False) == pytest.approx(ends, abs=0.02)


@pytest.mark.parametrize("convention", [c for c in CONVENTIONS if "answered" in c])
def test_readings_in_other_units_that_never_differ_tell_nothing(convention: str) -> None:
    """All hold the same thing, or none holds any: which of both, no number says."""
    for holds in (0, 12):
        grip = found(convention, holds, named=False)
        assert grip is not None
        assert np.isnan(grip.read_closed)
        assert not grip.opened(np.array([0.0, 0.04, 0.08]), read=True).any()


@pytest.mark.parametrize("short", [0.0, 0.05, 0.08])
def test_a_hand_that_isnt_quite_at_a_level_holds_nothing_there(short: float) -> None:
    """A leader opened to 92 % as often as to 100: jaws that closed and opened were taken for jaws
    that open and close, and 2 of 20 clean episodes were to be deleted."""
    sent, read = [], []
    for k in range(12):
        told, is_open = episode(held=False, seed=k)
        told, is_open = told.copy(), is_open.copy()
        late = slice(140, 160) if k % 2 else slice(0, 20)
        told[late], is_open[late] = told[late] - short, is_open[late] - short
        sent.append(told)
        read.append(is_open)
    grip = gripper_of(0, sent, read, FPS, named=True)
    assert grip is not None
    assert grip.sent_closed < grip.sent_open


@pytest.mark.parametrize("slips", [2, 5, 10])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_what_slips_out_later_is_no_part_of_closing(convention: str, slips: int) -> None:
    """Where 8 of 18 lost their block, jaws "took" 2 s to close: 6 of the 8 were missed grasps."""
    sent_as, read_as = CONVENTIONS[convention]
    told, is_open = zip(*(episode(held=True, seed=k) for k in range(12)), strict=True)
    for n in range(slips):
        is_open[n][OPENS_AT[0] + 30 + n : OPENS_AT[1]] -= HELD
    grip = gripper_of(0, [sent_as(t) for t in told], [read_as(r) for r in is_open], FPS, named=True)
    assert grip is not None
    assert grip.settles_s <= 0.4


def test_one_that_only_trembles_is_none() -> None:
    rng = np.random.default_rng(0)
    still = [50.0 + rng.normal(0.0, 0.3, 160) for _ in range(8)]
    assert gripper_of(0, still, still, FPS, named=True) is None


def test_two_fingers_of_one_gripper_are_one_and_a_hand_is_none() -> None:
    told = [episode(held=True, seed=k)[0] for k in range(4)]
    two = [np.column_stack([arm(k), 0.04 * t, 0.04 * t]) for k, t in enumerate(told)]
    for fingers in (["finger_joint1", "finger_joint2"], ["left_finger", "right_finger"]):
        names = ["joint1", "joint2", "joint3", *fingers]
        assert gripper_columns(names, two, FPS) == (3,)
        assert sides_of(names) == [""] * 5
    rng = np.random.default_rng(1)
    hand = [rng.normal(size=(160, 6)) for _ in range(4)]
    names = [f"{side}_hand_{finger}" for side in ("left", "right") for finger in "abc"]
    assert gripper_columns(names, hand, FPS) == ()


@pytest.mark.parametrize("names", [["left_gripper", "right_gripper"], ["motor_3", "motor_7"]])
def test_a_pair_of_arms_has_two(names: list[str]) -> None:
    told = [episode(held=True, seed=k)[0] for k in range(6)]
    pair = [np.column_stack([arm(k), t, arm(k + 9), np.roll(t, 20)]) for k, t in enumerate(told)]
    joints = [f"motor_{k}" for k in range(8)]
    joints[3], joints[7] = names
    assert gripper_columns(joints, pair, FPS) == (3, 7)


def test_no_joint_of_a_smooth_arm_is_taken_for_one() -> None:
    """A wrist that rests at two poses, and goes between them as an arm does, is a wrist."""
    ramp = np.clip((np.arange(160) - 60) / 25.0, 0.0, 1.0) * 90.0
    driven = [np.column_stack([arm(k), ramp]) for k in range(8)]
    assert gripper_columns([f"motor_{k}" for k in range(4)], driven, FPS) == ()
    assert gripper_columns(["x", "y"], [d[:, 2:] for d in driven], FPS) == ()
