"""`gaploop plan` as its user meets it, and a plan recorded in the embedded cell (sim-to-sim)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.collect.campaign import campaign
from gaploop.collect.rig import Rig, embedded_rig
from gaploop.collect.take import record_takes
from gaploop.core.journal_format import read_journal
from gaploop.core.messages import LeaderSample
from gaploop.core.plan import load_plan
from gaploop.core.protocols import Leader
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import GapDimension, TakeKind
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis, save_diagnosis
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
    assert {"plan.yaml", "plan.html", "run.json"} == names
    plan = load_plan(tmp_path / "p" / "plan.yaml")
    assert 0 < plan.takes <= 20
    assert plan.cost is not None
    text = (tmp_path / "p" / "plan.html").read_text()
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
    assert main(["plan", str(folder), *(a.format(tmp=tmp_path) for a in arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_adapting_and_evaluating_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan of 20 minutes took an afternoon: training and rollouts after it stood nowhere."""
    folder = a_diagnosis(tmp_path / "d", {"spatial_geometry": 0.9})
    assumed = run([str(folder), "--budget.takes=10"], capsys)
    assert 0.05 < assumed["machine_hours"] < 0.5
    assert assumed["rollout_hours"] == pytest.approx(40 * 45 / 3600)
    assert "adapting and evaluating" in (folder / "plan.html").read_text()
    assert load_plan(folder / "plan.yaml").machine_hours == assumed["machine_hours"]
