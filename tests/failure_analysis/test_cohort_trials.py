"""Trials from takes and tables, groups of unexplained failures, `gaploop diagnose --factors`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.failure_analysis.cohort.cohort import cohort_lines, cohort_of_takes, naming_command
from gaploop.failure_analysis.cohort.trials import (
    NOMINAL,
    OTHER,
    Columns,
    Trials,
    attempted,
    gathered,
    read_trials,
    trials_of,
)
from gaploop.failure_analysis.cohort.unexplained import Unexplained, group_unexplained
from gaploop.failure_analysis.reference import UsualValue
from gaploop.failure_analysis.signals.registry import TakeSignals
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
    assert "9 takes" in words
    assert len(attempted(shown)[0]) == 9


def test_simulation_is_matched_with_the_real_robot() -> None:
    lights = ("nominal", "dim", "bright")
    sim = [attempt(k, k % 10 != 0, {"lighting": lights[k % 3]}, domain=Domain.SIM)
           for k in range(60)]  # fmt: skip
    real = [attempt(100 + k, k % 2 == 0, {"lighting": lights[k % 3]}) for k in range(60)]
    found = cohort_of_takes([*sim, *real])
    gap = found.gaps["real"]
    assert gap.strata == 3
    assert gap.difference.low < 0.4 < gap.difference.high
    assert gap.difference.low > 0.2
    assert any("the real robot" in line for line in cohort_lines(found))


def test_scenes_pair_takes_and_are_no_factor_of_their_own() -> None:
    """Each scene was tried once a policy: as a condition it would explain every outcome."""
    made = [
        attempt(30 * v + k, (k + v) % 3 > 0, {"scene": k}, policy=f"v{v}")
        for v in (1, 2)
        for k in range(30)
    ]
    found = cohort_of_takes(made)
    assert found.table is not None
    assert {e.factor for e in found.table.effects} == {"policy"}
    assert found.change is not None
    beside = found.versions[1].since_before
    assert beside is not None
    assert beside.pairs == 30


def test_no_judged_take_is_said(tmp_path: Path) -> None:
    found = cohort_of_takes([])
    assert found.table is None
    assert list(cohort_lines(found)) == ["no take has an outcome: nothing to compare"]
    assert found.to_json()["trials"] == 0
    path = tmp_path / "across.json"
    path.write_text(json.dumps(cohort_of_takes([attempt(0, True)]).to_json(), allow_nan=False))


def measured(**values: float) -> TakeSignals:
    return TakeSignals(values, {})


USUAL = {"lag_s": UsualValue(0.01, 0.01, 20), "jitter_rad": UsualValue(0.001, 0.001, 20)}


def unexplained(count: int = 12, seed: int = 0, apart: float = 0.2) -> list[Unexplained]:
    """Two kinds of failures, `apart` seconds of lag from each other."""
    rng = np.random.default_rng(seed)
    return [
        Unexplained(
            f"take-{k:02d}",
            "timeout" if k % 2 else "slip",
            measured(
                lag_s=0.02 + (k % 2) * apart + float(rng.normal(0, 0.002)),
                jitter_rad=0.001 + float(rng.normal(0, 0.001)),
            ),
        )
        for k in range(count)
    ]


def test_two_kinds_of_failures_are_two_groups_said_in_words() -> None:
    takes = unexplained()
    groups = group_unexplained(takes, USUAL)
    assert [set(g.modes) for g in groups] in ([{"slip"}, {"timeout"}], [{"timeout"}, {"slip"}])
    late = next(g for g in groups if "timeout" in g.modes)
    assert "late" in late.traits[0]
    assert "ms" in late.traits[0]
    assert "in the other unexplained failures" in late.traits[0]
    assert sorted(u for g in groups for u in g.uids) == [t.uid for t in takes]
    assert group_unexplained(takes[::-1], USUAL) == groups
    assert late.uids[0] in naming_command(late, "DIR")


@pytest.mark.parametrize("seed", range(5))
def test_noise_stays_one_group(seed: int) -> None:
    assert len(group_unexplained(unexplained(12, seed, apart=0.0), USUAL)) == 1


def test_few_or_blind_takes_do_not_break_grouping() -> None:
    assert group_unexplained([], USUAL) == ()
    assert len(group_unexplained(unexplained(2), USUAL)) == 1
    blind = [Unexplained(f"{k}", "timeout", measured(lag_s=math.nan)) for k in range(8)]
    (group,) = group_unexplained(blind, USUAL)
    assert group.traits == ()


CSV = """robot,light,won,n
left,nominal,18,20
left,dim,9,20
right,nominal,17,20
right,dim,8,20
"""


def test_a_table_of_counts_reads_with_its_own_column_names(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    path.write_text(CSV)
    made = read_trials(path, Columns("won", "n", cluster="robot"))
    assert sum(r.trials for r in made) == 80
    assert set(made[0].levels) == {"robot", "light"}
    assert made[0].cluster == "left"
    path.write_text("light,ended\ndim,failure\nnominal,success\n")
    assert [r.successes for r in read_trials(path, Columns("ended", ""))] == [0, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no rows"),
        ("light,successes,trials\ndim,3,2\n", "3 successes in 2 trials"),
        ("light,successes,trials\ndim,some,2\n", "row 2"),
        ("light,won,trials\ndim,1,2\n", "Unknown column 'successes'"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trials.csv"
    path.write_text(text)
    with pytest.raises(UnusableInputError, match=says):
        read_trials(path)


def factors(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["diagnose", "--factors", *arguments, "--json"])
    said = capsys.readouterr()
    assert code in (0, 3), said.err
    value: dict[str, Any] = json.loads(said.out)
    return code, value


def test_the_command_says_what_costs_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trials.csv"
    path.write_text(CSV.replace("won,n", "successes,trials"))
    named = [str(path)]
    code, found = factors(capsys, *named)
    assert code == 0
    worst = found["effects"][0]
    assert (worst["factor"], worst["level"], worst["verdict"]) == ("light", "dim", "costs")
    assert worst["difference"]["value"] == pytest.approx(-0.45, abs=0.02)
    folder = tmp_path / "trials_factors"
    page = (folder / "factors.html").read_text()
    assert "light: dim" in page
    assert "http" not in page
    assert (folder / "factors.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "factors.json").read_text())["effects"][0] == worst
    assert json.loads((folder / "run.json").read_text())["inputs"][0]["hash"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--dataset.root"),
        (["{tmp}/trials.csv", "--sim={tmp}"], "not a table"),
        (["{tmp}/nowhere.csv"], "nowhere.csv"),
        (["{tmp}"], "holds neither takes nor a dataset"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trials.csv").write_text("light,successes,trials\ndim,1,2\nnominal,2,2\n")
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
