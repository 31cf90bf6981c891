"""`gaploop plan` as its user meets it, and a plan recorded in the embedded cell (sim-to-sim)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failure_analysis_makers import make_plan

from gaploop.collect.campaign import campaign
from gaploop.collect.rig import Rig, embedded_rig
from gaploop.collect.take import record_takes
from gaploop.core.journal_format import read_journal
from gaploop.core.messages import LeaderSample
from gaploop.core.plan import load_plan, save_plan
from gaploop.core.protocols import Leader
from gaploop.core.run_record import write_run
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import GapDimension, TakeKind
from gaploop.failure_analysis.diagnosis import (
    Diagnosis,
    TakeDiagnosis,
    load_diagnosis,
    save_diagnosis,
)
from gaploop.finetune.evaluation import Rollout, summarise
from gaploop.scripts.cli import main


def a_diagnosis(folder: Path, shares: Mapping[str, float], count: int = 8) -> Path:
    every = {d.value: shares.get(d.value, 0.0) for d in GapDimension}
    rest = 1 - sum(every.values())
    takes = tuple(
        TakeDiagnosis(
            f"t{k}", None, "timeout", "approach", every, rest, False, (), named=tuple(shares)
        )
        for k in range(count)
    )
    outcomes = {"outcomes": {"failure": count, "success": 4}}
    folder.mkdir(parents=True, exist_ok=True)
    save_diagnosis(Diagnosis("diag", "", takes, outcomes), folder / "diagnosis.json")
    return folder


def an_evaluation(path: Path, done: int, n: int = 40, seed: int = 0, policy: str = "p") -> None:
    rollouts = [Rollout(k, "nominal", k < done) for k in range(n)]
    found = summarise(rollouts, policy=policy, gap_seed=seed)
    path.write_text(json.dumps(found.to_json(), default=str))


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_a_plan_is_written_for_people_and_for_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_diagnosis(tmp_path / "d", {"object_property": 0.6, "visual_domain": 0.3})
    station = tmp_path / "bench.yaml"
    station.write_text("name: bench\ncosts: {rate_per_hour: 40}\n")
    options = ["--budget.takes=20", f"--station={station}", f"--output_dir={tmp_path / 'p'}"]
    assert main(["plan", str(folder), *options]) == 0
    said = capsys.readouterr().out
    assert "object property" in said
    assert "don't collect" in said
    assert "EUR" in said
    names = {p.name for p in (tmp_path / "p").iterdir()}
    assert {"plan.yaml", "plan.md", "plan.png", "plan.html", "curves.json", "run.json"} <= names
    plan = load_plan(tmp_path / "p" / "plan.yaml")
    assert 0 < plan.takes <= 20
    assert plan.cost is not None
    text = (tmp_path / "p" / "plan.md").read_text()
    assert "Cheap test" in text
    assert plan.stop in text
    record = json.loads((tmp_path / "p" / "run.json").read_text())
    assert (record["result"]["id"], record["inputs"][0]["id"]) == (plan.id, "diag")


def test_hours_are_a_budget_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_diagnosis(tmp_path / "d", {"object_property": 0.9})
    for s in (10, 100):
        (tmp_path / f"{s}.yaml").write_text(f"name: bench\ncosts: {{take_s: {s}}}\n")
    quick, slow = (
        run([str(folder), "--budget.hours=0.2", f"--station={tmp_path / f'{s}.yaml'}"], capsys)
        for s in (10, 100)
    )
    assert quick["items"][0]["takes"] > slow["items"][0]["takes"] > 0
    assert quick["hours"]["value"] < 0.25


def test_results_of_a_campaign_change_the_next_plan_and_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_diagnosis(tmp_path / "d", {"object_property": 0.9})
    first = run([str(folder), "--budget.takes=20", f"--output_dir={tmp_path / 'c1'}"], capsys)
    an_evaluation(tmp_path / "c1" / "before.json", 4)
    an_evaluation(tmp_path / "c1" / "after.json", 4, policy="adapted")
    out = f"--output_dir={tmp_path / 'p2'}"
    second = run([str(folder), "--budget.takes=20", f"--results={tmp_path / 'c1'}", out], capsys)
    assert second["gain_points"]["value"] < first["gain_points"]["value"]
    kept = tmp_path / "p2" / "curves.json"
    again = ["--budget.takes=20", f"--results={kept}", f"--output_dir={tmp_path / 'p3'}"]
    third = run([str(folder), *again], capsys)
    assert third["gain_points"] == second["gain_points"]
    again = [f"--results=[{tmp_path / 'c1'}, {kept}]", f"--output_dir={tmp_path / 'p4'}"]
    twice = run([str(folder), "--budget.takes=20", *again], capsys)
    assert twice["gain_points"] == second["gain_points"]  # a campaign counts once
    record = json.loads((tmp_path / "p4" / "run.json").read_text())
    assert len(record["inputs"]) == 3


def test_a_station_file_brings_costs_and_what_to_vary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_diagnosis(tmp_path / "d", {"object_property": 0.9})
    station = tmp_path / "bench.yaml"
    station.write_text(
        "name: bench\ngrid: [1, 2]\nconditions: {object: [mug, box]}\n"
        "costs: {take_s: 20, reset_s: 10, rate_per_hour: 30, currency: USD}\n"
    )
    found = run([str(folder), f"--station={station}"], capsys)
    assert found["currency"] == "USD"
    assert found["items"][0]["vary"] == {"object": ["mug", "box"], "grid_cell": [[0, 0], [0, 1]]}


class Idle:
    def reset(self) -> None:
        """Nothing to reset."""

    def read(self, t_s: float) -> LeaderSample:
        return LeaderSample(t_s, np.zeros(6))

    def done(self) -> bool:
        return False


def idle(_rig: Rig, _seed: int) -> Leader:
    return Idle()


def test_the_embedded_cell_records_what_the_plan_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_diagnosis(tmp_path / "d", {"object_property": 0.5, "spatial_geometry": 0.4})
    run([str(folder), "--budget.takes=6", f"--output_dir={tmp_path / 'p'}"], capsys)
    plan = load_plan(tmp_path / "p" / "plan.yaml")
    end = record_takes(
        tmp_path / "j",
        TakeInfo("", "t", kind=TakeKind.ROLLOUT),
        campaign(plan),
        lambda conditions: embedded_rig(conditions=conditions),
        idle,
        max_s=0.06,
    )
    assert (end.counted, end.wanted, plan.takes) == (6, 6, 6)
    takes = list(read_journal(tmp_path / "j"))
    for item in plan.items:
        mine = [t for t in takes if t.info.plan == item.id]
        assert len(mine) == item.takes
        cells = {tuple(t.info.conditions["grid_cell"]) for t in mine}
        assert len(cells) == item.takes  # fewer takes than cells: each somewhere else


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget.takes=-1"], "--budget.takes"),
        (["--budget.money=50"], "rate_per_hour"),
        (["--results=[{tmp}/none]"], "none"),
        (["--results=[{tmp}/empty]"], "plan.yaml"),
        (["--results=[{tmp}/half]"], "no after.json"),
        (["--results=[{tmp}/mixed]"], "same cell"),
        (["--results={tmp}/d/diagnosis.json"], "gaploop.curves.v1"),
        (["--takes=[{tmp}/empty]"], "empty"),
        (["--station={tmp}/bad.yaml"], "Did you mean 'take_s'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_diagnosis(tmp_path / "d", {"object_property": 0.9})
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yaml").write_text("name: b\ncosts: {takes_s: 3}\n")
    plan = make_plan(load_diagnosis(folder / "diagnosis.json"), 20)
    for name in ("half", "mixed"):
        (tmp_path / name).mkdir()
        save_plan(plan, tmp_path / name / "plan.yaml")
        an_evaluation(tmp_path / name / "before.json", 4)
    an_evaluation(tmp_path / "mixed" / "after.json", 9, seed=7)
    assert main(["plan", str(folder), *(a.format(tmp=tmp_path) for a in arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_adapting_and_evaluating_are_counted_and_measured_where_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan of 20 minutes took an afternoon: training and rollouts after it stood nowhere."""
    folder = a_diagnosis(tmp_path / "d", {"spatial_geometry": 0.9})
    assumed = run([str(folder), "--budget.takes=10"], capsys)
    assert 0.05 < assumed["machine_hours"] < 0.5
    assert assumed["rollout_hours"] == pytest.approx(40 * 45 / 3600)
    assert "adapting and evaluating" in (folder / "plan.md").read_text()
    for name, took_s in (("fast", 3000.0), ("slow", 4200.0), ("resumed", None)):
        result = {"took_s": took_s} if took_s else {}
        (tmp_path / name).mkdir()
        write_run(tmp_path / name, "finetune", {}, (), result)
    runs = f"--results=[{tmp_path / 'fast'}, {tmp_path / 'slow'}, {tmp_path / 'resumed'}]"
    measured = run([str(folder), "--budget.takes=10", runs], capsys)
    more_h = measured["machine_hours"] - assumed["machine_hours"]
    assert more_h == pytest.approx((3600 - 240) / 3600, abs=0.02)
    assert load_plan(folder / "plan.yaml").machine_hours == measured["machine_hours"]
    assert main(["plan", str(folder), f"--results={tmp_path / 'resumed'}"]) == 2
    assert "weren't resumed" in capsys.readouterr().err
