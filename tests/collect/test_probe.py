"""The station check: parts, resuming, trips, and that nothing learns from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaploop.collect.probe import (
    LONGEST_S,
    PROBE,
    ProbeEnd,
    ProbePart,
    parts_of,
    planned_s,
    probe_cell,
)
from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.core.arm import SIX_JOINTS
from gaploop.core.journal_format import read_journal
from gaploop.core.kinematics import ARM_MODELS, ArmModel
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import SELECTIONS, Outcome, TakeKind
from gaploop.datasets.lerobot_publish import publish_takes
from gaploop.datasets.mixing.sources import wanted_episodes
from gaploop.sim.catalogue import SO101
from gaploop.teleop.leaders.controls import MotionOptions

PARTS = {part.name: part for part in parts_of(SIX_JOINTS, (3, 3))}


def quick(name: str, motion: MotionOptions, **changes: object) -> ProbePart:
    return replace(PARTS[name], motion=motion, **changes)  # type: ignore[arg-type]


STILL = quick("still", MotionOptions("rest", seconds=2.0))
STEP = quick("step wrist_roll", MotionOptions("step", ["wrist_roll"], 0.1, dwell_s=0.1))


def probe(journal: Path, *parts: ProbePart, **given: object) -> ProbeEnd:
    return probe_cell(parts, journal, build, **given)  # type: ignore[arg-type]


def build(conditions: Mapping[str, object]) -> EmbeddedRig:
    return embedded_rig(conditions=conditions)


@pytest.mark.members(1)
@pytest.mark.parametrize("name", ARM_MODELS)
def test_a_probe_takes_three_minutes_at_most(name: str) -> None:
    arm = ArmModel.load(name)
    cell = SO101 if name == SO101.name else None
    seconds = planned_s(parts_of(arm.joint_names, (3, 3), cell), arm)
    assert sum(seconds.values()) <= 180.0
    assert max(seconds.values()) <= LONGEST_S


def test_each_part_is_a_take_that_names_it(tmp_path: Path) -> None:
    cell = quick("cell 0 2", MotionOptions("rest", seconds=2.0))
    end = probe(tmp_path, STILL, STEP, cell)
    assert [now.done for now in end.parts] == [True, True, True]
    takes = list(read_journal(tmp_path))
    assert [take.info.conditions[PROBE] for take in takes] == [p.name for p in (STILL, STEP, cell)]
    assert {take.info.kind for take in takes} == {TakeKind.PROBE}
    assert {take.outcome for take in takes} == {Outcome.UNLABELLED}
    assert takes[2].info.conditions["grid_cell"] == [0, 2]
    assert len(list(takes[0].cameras["overhead"]())) == len(takes[0].frames)
    moved = np.ptp(takes[1].frames.state, axis=0)
    assert moved.argmax() == SIX_JOINTS.index("wrist_roll")


def test_what_was_stopped_is_kept_and_resumed(tmp_path: Path) -> None:
    ended: list[object] = []
    first = probe(tmp_path, STILL, STEP, stop=lambda: bool(ended), on_part=ended.append)
    assert first.interrupted
    assert [now.done for now in first.parts] == [True, False]
    assert first.untold == (STEP.tells,)
    second = probe(tmp_path, STILL, STEP, resume=True)
    assert [(now.done, now.why) for now in second.parts] == [(True, "recorded before"), (True, "")]
    sealed = [t for t in read_journal(tmp_path) if t.outcome is not Outcome.INTERRUPTED]
    assert len(sealed) == 2


def test_a_motion_that_does_not_fit_ends_its_part_only(tmp_path: Path) -> None:
    nowhere = quick("step wrist_flex", MotionOptions("step", ["wrist_flex"], 0.02))
    end = probe(tmp_path, nowhere, STILL)
    assert [now.done for now in end.parts] == [False, True]
    assert "fits the arm" in end.parts[0].why
    assert not end.parts[0].by_choice


def test_a_trip_ends_the_part_with_its_cause(tmp_path: Path) -> None:
    def tripping(conditions: Mapping[str, object]) -> EmbeddedRig:
        rig = build(conditions)

        def reset(seed: int) -> None:
            rig.reset(seed)
            if not tripped:
                tripped.append(1)
                rig.safety.estop()

        return replace(rig, reset=reset)

    tripped: list[int] = []
    end = probe_cell((STEP, STILL), tmp_path, tripping)
    assert [now.done for now in end.parts] == [False, True]
    assert end.parts[0].why == "safety trip: ESTOP"


def test_nothing_publishes_or_learns_from_a_probe(tmp_path: Path) -> None:
    probe(tmp_path / "journal", STILL)
    report = publish_takes(tmp_path / "journal", tmp_path / "dataset", "me/probe")
    assert report.published == ()
    assert report.skipped == {"probe": 1}

    class Row:
        info = TakeInfo("u", kind=TakeKind.PROBE)
        outcome = Outcome.SUCCESS

    for select in SELECTIONS:
        assert wanted_episodes(tmp_path, [Row()], select) == []  # type: ignore[list-item]
