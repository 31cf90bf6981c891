"""Laws of the oracle: what really happened, told from simulator state alone."""

from __future__ import annotations

import ast
import itertools
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.oracle import Oracle
from benchmarks.oracle_facts import AttemptFacts, Contact, Hold, Record
from benchmarks.oracle_verdict import CLOSED_S, Happened, judge, verdict
from benchmarks.provoke import WAYS, Provoked
from benchmarks.sight import by_tracker
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.messages import SafetyReason
from gaploop.core.vocabulary import FailureMode, Phase

QUICK = ("block", "grease", "estop")
ROOT = Path(__file__).resolve().parents[2]

LEADS_TO = {
    "hang": ("frozen", ""),
    "hang_holding": ("frozen", "transport"),
    "shake": ("oscillation", ""),
    "sag": ("drift", ""),
    "block": ("obstruction", "approach"),
    "aside": ("missed_grasp", "grasp"),
    "grease": ("slip", "transport"),
    "misplace": ("misplacement", "place"),
    "let_go": ("misplacement", "place"),
    "dither": ("timeout", "approach"),
    "estop": ("operator_stop", ""),
}


NOTHING = AttemptFacts(
    phases=((Phase.APPROACH, 0.0, 8.0),), holds=(), missed_s=(), contacts=(), shook_s=None,
    drifted_s=None, still_s=None, stopped="", stopped_s=None, end_distance_m=0.1, duration_s=8.0,
    succeeded=False,
)  # fmt: skip


def attempt(way: str, seed: int = 3) -> Happened:
    obstacle = bool(way) and WAYS[way].obstacle
    with closing(embedded_rig(conditions={"distractors": 1} if obstacle else {})) as rig:
        rig.reset(seed)
        leader = by_tracker(rig.cell, seed)
        oracle = Oracle(rig.cell)
        drives = Provoked(leader, rig.cell, way, seed, rig.safety.estop) if way else leader
        run_take(rig, drives, seed=seed, max_s=8.0, sinks=(oracle,))
        return oracle.happened()


def test_a_success_has_no_mode_and_its_phases_in_order() -> None:
    found = attempt("")
    assert (found.mode, found.phase) == (None, None)
    assert [phase for phase, _, _ in found.facts.phases] == list(Phase)
    assert [h.ended for h in found.facts.holds] == ["released"]
    assert found.facts.end_distance_m < 0.015
    edges = [(start, end) for _, start, end in found.facts.phases]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
    assert edges[-1][1] == pytest.approx(found.facts.duration_s)


@pytest.mark.members(1)
@pytest.mark.parametrize(
    "way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in LEADS_TO]
)
def test_what_is_provoked_is_what_happened(way: str) -> None:
    mode, phase = LEADS_TO[way]
    # What is let go of near the goal often lands on it, in scene 3 too: that is a success.
    found = attempt(way, 4 if way == "let_go" else 3)
    assert found.mode == mode
    assert phase in ("", found.phase)
    json.dumps(found.to_json())


def moments(n: int, seed: int) -> Record:
    """An attempt in which anything may have happened."""
    rng = np.random.default_rng(seed)
    walk = np.cumsum(rng.normal(0.0, 0.03, (n, 12)), axis=0).reshape(n, 2, 6)
    stopped = np.arange(n) >= rng.integers(1, 3 * n + 1)
    reasons = SafetyReason.TRIPPED | rng.choice([SafetyReason.STALL, SafetyReason.ESTOP])
    return Record(
        task="pick_place",
        t_s=np.arange(n) / 100.0,
        sent_rad=walk[:, 0],
        set_rad=walk[:, 0],
        true_rad=walk[:, 1],
        tool_m=0.1 * walk[:, 0, :3],
        object_m=0.1 * walk[:, 1, :3],
        pinched=np.repeat(rng.random(n) < 0.5, 40)[:n],
        contact_n=np.repeat(rng.choice([0.0, 4.0, 60.0], n), 30)[:n],
        contact_with=tuple(rng.choice(["table", "object", "hand"], n)),
        stops=np.where(stopped, int(reasons), 0),
        goal_m=np.zeros(2),
        succeeded=bool(rng.random() < 0.2),
    )


@given(st.integers(1, 600), st.integers(0, 10_000))
def test_every_attempt_has_one_verdict_and_phases_without_gaps(n: int, seed: int) -> None:
    record = moments(n, seed)
    found = verdict(record)
    assert (found.mode is None) == record.succeeded
    edges = [(start, end) for _, start, end in found.facts.phases]
    assert edges[0][0] == 0.0
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
    assert edges[-1][1] == pytest.approx(record.end_s)
    assert found.at_s is None or 0.0 <= found.at_s <= record.end_s + CLOSED_S
    json.dumps(found.to_json())


def test_what_came_before_the_last_grip_was_recovered_from() -> None:
    hold = Hold(2.0, 2.2, 3.0, 3.3, "released")
    bump = Contact("distractor0", 0.5, 0.7, 90.0, 9.0, 0.1)
    wall = Contact("distractor0", 0.5, 1.9, 90.0, 90.0, 0.3)
    gone = replace(NOTHING, missed_s=(1.0,), contacts=(bump,))
    assert judge(gone).mode == FailureMode.COLLISION
    assert judge(replace(gone, contacts=(wall,))).mode == FailureMode.OBSTRUCTION
    assert judge(replace(gone, contacts=())).mode == FailureMode.MISSED_GRASP
    assert judge(replace(gone, holds=(hold,))).mode == FailureMode.MISPLACEMENT
    assert judge(replace(gone, holds=(replace(hold, ended="lost"),))).mode == FailureMode.SLIP


def test_diagnosis_never_looks_at_the_oracle() -> None:
    for path in sorted((ROOT / "failure_analysis").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            said = [n for n in names if n.startswith(("benchmarks.oracle", "benchmarks.provoke"))]
            assert not said, f"{path} imports {said}"
