"""Trials from takes and tables, `gaploop diagnose --factors`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.failure_analysis.factors import (
    NOMINAL,
    OTHER,
    Trials,
    attempted,
    cohort_lines,
    cohort_of_takes,
    gathered,
    trials_of,
)
from gaploop.scripts.cli import main


@dataclass(frozen=True)
class Attempt:
    info: TakeInfo
    outcome: Outcome


def attempt(
    k: int,
    won: bool,
    conditions: Mapping[str, Any] | None = None,
    kind: TakeKind = TakeKind.ROLLOUT,
    domain: Domain = Domain.REAL,
    policy: str = "v1",
) -> Attempt:
    info = TakeInfo(
        f"take-{k:03d}", "pick", kind=kind, domain=domain, conditions=dict(conditions or {}),
        policy=policy, session=f"s{k % 3}", t0_ns=1_000_000 * (k + 1),
    )  # fmt: skip
    return Attempt(info, Outcome.SUCCESS if won else Outcome.FAILURE)


def test_a_condition_that_was_not_set_is_nominal() -> None:
    made = trials_of([
        attempt(0, True),
        attempt(1, True, {"distractors": 0, "lighting": "nominal", "camera_pose": [0.0] * 6}),
        attempt(2, False, {"distractors": 4, "lighting": "dim", "camera_pose": [0.02] + [0.0] * 5}),
    ])  # fmt: skip
    for name, level in (("distractors", "4"), ("lighting", "dim")):
        assert [r.levels[name] for r in made] == [NOMINAL, NOMINAL, level]
    assert made[0].levels["camera_pose"] == made[1].levels["camera_pose"] == NOMINAL
    assert made[2].levels["camera_pose"] != NOMINAL
    assert made[0].levels["policy"] == "v1"
    assert made[0].cluster == "s0"


def test_many_numbers_become_ranges() -> None:
    made = trials_of([attempt(k, True, {"table_height": 0.001 * k}) for k in range(21)])
    levels = {r.levels["table_height"] for r in made}
    assert made[0].levels["table_height"] == NOMINAL
    assert len(levels) == 5
    cells = trials_of([attempt(k, True, {"grid_cell": [k // 3, k % 3]}) for k in range(9)])
    assert {r.levels["grid_cell"] for r in cells} >= {"0, 1", "2, 2"}


def test_rare_levels_are_gathered() -> None:
    many = [Trials({"object": "cube"}, 10, 20)]
    rare = [Trials({"object": name}, 1, 2) for name in ("cup", "ball")]
    levels = [r.levels["object"] for r in gathered([*many, *rare])]
    assert levels == ["cube", OTHER, OTHER]


def test_rollouts_count_and_demonstrations_do_not() -> None:
    """Demonstrations succeed because people choose them: counted, they'd hide failing rollouts."""
    rollouts = [attempt(k, k % 2 == 0) for k in range(6)]
    shown = [attempt(10 + k, True, kind=TakeKind.DEMONSTRATION) for k in range(9)]
    counted, words = attempted([*rollouts, *shown])
    assert len(counted) == 6
    assert "9 episodes" in words
    assert len(attempted(shown)[0]) == 9


def test_how_far_simulation_is_ahead_is_what_the_domain_costs() -> None:
    lights = ("nominal", "dim", "bright")
    sim = [attempt(k, k % 10 != 0, {"lighting": lights[k % 3]}, domain=Domain.SIM)
           for k in range(60)]  # fmt: skip
    real = [attempt(100 + k, k % 2 == 0, {"lighting": lights[k % 3]}) for k in range(60)]
    table = cohort_of_takes([*sim, *real]).table
    assert table is not None
    (gap,) = (e for e in table.effects if e.factor == "domain")
    assert 0.2 < abs(gap.difference.value) < 0.6
    assert gap.verdict != "not shown"


def test_scenes_are_no_factor_of_their_own() -> None:
    """Each scene was tried once a policy: as a condition it would explain every outcome."""
    made = [
        attempt(30 * v + k, (k + v) % 3 > 0, {"scene": k}, policy=f"v{v}")
        for v in (1, 2)
        for k in range(30)
    ]
    found = cohort_of_takes(made)
    assert found.table is not None
    assert {e.factor for e in found.table.effects} == {"policy"}


def test_no_judged_take_is_said(tmp_path: Path) -> None:
    found = cohort_of_takes([])
    assert found.table is None
    assert list(cohort_lines(found)) == ["no episode has an outcome: nothing to compare"]
    assert found.to_json()["trials"] == 0
    path = tmp_path / "across.json"
    path.write_text(json.dumps(cohort_of_takes([attempt(0, True)]).to_json(), allow_nan=False))


def factors(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["diagnose", "--factors", *arguments, "--json"])
    said = capsys.readouterr()
    assert code in (0, 3), said.err
    value: dict[str, Any] = json.loads(said.out)
    return code, value


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--dataset.root"),
        (["{tmp}/nowhere"], "nowhere"),
        (["{tmp}"], "holds neither episodes nor a dataset"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "diagnose",
                "--factors",
                *(a.format(tmp=tmp_path) if "{tmp}" in a else a for a in arguments),
            ]
        )
        == 2
    )
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.strip().splitlines()) == 1
