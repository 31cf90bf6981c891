"""A policy that doesn't fit the arm is found before it moves, with what doesn't."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from gaploop.core.messages import FloatArray, Image
from gaploop.core.vocabulary import Domain
from gaploop.datasets.absolute.checkpoint import Checkpoint
from gaploop.failure_analysis.cameras.policy_cameras import CameraReference
from gaploop.finetune.doctor import (
    ArmInputs,
    check_features,
    check_statistics,
    check_views,
)
from gaploop.finetune.lerobot_latency import PlanTiming, check_latency
from gaploop.teleop.checks import Level

JOINTS = ("pan", "lift", "grip")
NAMES = tuple(f"{name}.pos" for name in JOINTS)
STATE = "observation.state"
SPREAD = {"mean": np.array([0.0, -40.0, 20.0]), "std": np.array([20.0, 15.0, 10.0])}
KNOWN = Checkpoint(
    Path("policy"), {STATE: (3,), "observation.images.top": (3, 480, 640)}, {"action": (3,)}, {},
    {STATE: SPREAD, "action": SPREAD}, True, False, fps=50.0, names=NAMES, state_names=NAMES,
    units="deg",
)  # fmt: skip
SEEN = ArmInputs(JOINTS, "deg", 50.0, Domain.REAL, np.array([5.0, -60.0, 10.0]),
            np.array([[-110.0, 110.0], [-100.0, 90.0], [0.0, 100.0]]),
            {"top": (480, 640)})  # fmt: skip


def test_a_policy_that_fits_says_so_once() -> None:
    assert [item.level for item in check_features(KNOWN, SEEN, False)] == [Level.OK]
    assert [item.level for item in check_statistics(KNOWN, SEEN)] == [Level.OK]


def textured(seed: int) -> Image:
    grey = np.random.default_rng(seed).uniform(40, 210, (48, 48, 3)).astype(np.float32)
    return cv2.resize(grey, (192, 192), interpolation=cv2.INTER_CUBIC).astype(np.uint8)


def test_swapped_and_moved_cameras_are_told_before_the_first_motion() -> None:
    shown = {"top": textured(0), "wrist": textured(1)}
    usual = CameraReference("training", shown)
    (right,) = check_views(usual, shown)
    assert right.level is Level.OK
    wrong = check_views(usual, {"top": shown["wrist"], "wrist": shown["top"]})
    assert {item.level for item in wrong} == {Level.FAIL}
    assert {item.found for item in wrong} == {
        "camera top shows what wrist showed in training: swapped or renamed",
        "camera wrist shows what top showed in training: swapped or renamed",
    }
    moved = cv2.warpAffine(shown["top"], np.array([[1.0, 0, 9], [0, 1, 0]]), (192, 192))
    (item,) = check_views(usual, {"top": np.asarray(moved, np.uint8)})
    assert item.level is Level.WARN
    assert "9.0 px to the right" in item.found
    (item,) = check_views(usual, {"top": textured(7)})
    assert (item.level, item.check) == (Level.WARN, "views")


@pytest.mark.parametrize(
    ("known", "seen", "said"),
    [
        ({"names": (NAMES[1], NAMES[0], NAMES[2])}, {}, "another order than the arm's: lift.pos,"),
        ({"state_names": (NAMES[1], NAMES[0], NAMES[2])}, {}, "another order than the arm's"),
        ({"state_names": NAMES[:2]}, {}, "others: pan.pos, lift.pos"),
        ({"inputs": {STATE: (2,)}}, {}, "has 2 entries, the arm's 3"),
        ({"units": "m100_100"}, {}, "works in m100_100, the arm in deg"),
        ({}, {"fps": 30.0}, "learned at 50 Hz, the arm is at 30 Hz"),
        ({}, {"cameras": {"front": (480, 640)}}, "sees camera top; the arm has front"),
        ({}, {"cameras": {"top": (480, 480)}}, "gives 480x480 pictures, the policy learned from"),
        ({"normalises": False, "modes": {"STATE": "MEAN_STD"}}, {}, "Nothing normalises"),
        ({"needs_scene": True}, {}, "tracked scene, which is known for the simulated cell only"),
    ],
)
def test_what_differs_is_named(known: dict[str, Any], seen: dict[str, Any], said: str) -> None:
    known, needs_scene = dict(known), bool(known.get("needs_scene"))
    known.pop("needs_scene", None)
    policy = replace(KNOWN, **known)
    items = check_features(policy, replace(SEEN, **seen), needs_scene)
    assert any(item.level is Level.FAIL and said in item.found for item in items), items
    assert all(item.fix for item in items)
    # What is printed for the simulated cell is an option that it has.
    there = replace(SEEN, **{"domain": Domain.SIM, **seen})
    fixes = " ".join(item.fix for item in check_features(policy, there, needs_scene))
    assert not {"--robot.cameras", "--robot.use_degrees"} & set(re.findall(r"--[\w.]+", fixes))


@pytest.mark.parametrize(
    ("state", "result"),
    [
        (np.array([0.0, -40.0, 20.0]), Level.OK),
        (np.array([0.0, 30.0, 20.0]), Level.WARN),
        (np.radians([0.0, -40.0, 20.0]) + np.array([0.0, 250.0, 0.0]), Level.FAIL),
    ],
)
def test_a_state_outside_all_takes_is_told(state: FloatArray, result: Level) -> None:
    worst = check_statistics(KNOWN, replace(SEEN, state=state))
    assert [item.level for item in worst] == [result]


def test_a_joint_that_never_moved_and_actions_beyond_the_arm_are_told() -> None:
    still = SPREAD | {"std": np.array([20.0, 0.0, 10.0])}
    far = {"mean": np.array([0.0, -40.0, 20.0]), "std": np.array([200.0, 15.0, 10.0])}
    known = replace(KNOWN, stats={STATE: still, "action": far})
    items = check_statistics(known, replace(SEEN, state=still["mean"]))
    found = " ".join(item.found for item in items)
    assert "lift never moved" in found
    assert "pan by 41%" in found


@pytest.mark.parametrize(
    ("took_s", "result"), [(0.005, Level.OK), (0.05, Level.WARN), (0.5, Level.FAIL)]
)
def test_a_plan_must_be_there_before_the_last_one_ends(took_s: float, result: Level) -> None:
    assert check_latency(PlanTiming((took_s,) * 20), 50.0, 20).level is result
