"""Laws of the oracle: what really happened, told from simulator state alone."""

from __future__ import annotations

import ast
import itertools
import json
from contextlib import closing
from pathlib import Path

import pytest

from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.vocabulary import Phase
from gaploop.sim.expert import ScriptedLeader
from gaploop.sim.oracle import Oracle
from gaploop.sim.oracle_verdict import Happened
from gaploop.sim.provoke import WAYS, Provoked

QUICK = ("block", "grease", "misplace", "estop", "aside")
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


def attempt(way: str, seed: int = 3) -> Happened:
    obstacle = bool(way) and WAYS[way].obstacle
    with closing(embedded_rig(conditions={"distractors": 1} if obstacle else {})) as rig:
        rig.reset(seed)
        leader = ScriptedLeader(rig.cell, seed, sees="tracker")
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


@pytest.mark.parametrize(
    "way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in LEADS_TO]
)
def test_what_is_provoked_is_what_happened(way: str) -> None:
    mode, phase = LEADS_TO[way]
    found = attempt(way)
    assert found.mode == mode
    assert phase in ("", found.phase)
    json.dumps(found.to_json())


def test_diagnosis_never_looks_at_the_oracle() -> None:
    for path in sorted((ROOT / "failure_analysis").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            said = [n for n in names if n.startswith(("gaploop.sim.oracle", "gaploop.sim.provoke"))]
            assert not said, f"{path} imports {said}"
