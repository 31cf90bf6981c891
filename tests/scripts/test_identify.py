"""`gaploop identify` on takes of the embedded cell (sim-to-sim), recorded without pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gaploop.collect.journal import JournalWriter
from gaploop.collect.rig import embedded_rig
from gaploop.collect.take import run_take
from gaploop.core.twin import load_twin
from gaploop.scripts.cli import main
from gaploop.sim.cell import SimCell


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scripted demonstrations of a station whose goals come late."""
    folder = tmp_path_factory.mktemp("late") / "journal"
    folder.mkdir()
    parameters = {"actuator_response.latency": {"latency_s": 0.06}}
    with_camera = embedded_rig(parameters=parameters)
    rig = replace(with_camera, cameras=(), tracker=None)
    rig.reset(0)
    leader = rig.scripted_leader(0)
    for seed in range(2):
        with JournalWriter(folder, rig.header("Put the cube on the disc")) as writer:
            run_take(rig, leader, seed=seed, max_s=4.0, writer=writer)
    rig.close()
    return folder


def test_a_station_becomes_a_twin_that_cells_take(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "twin"
    arguments = [str(journal), f"--output_dir={out}", "--pictures=false", "--json=true"]
    assert main(["identify", *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [p["name"] for p in said["differs"]] == ["actuator_response.latency.latency_s"]
    twin = load_twin(out / "station_twin.yaml")
    assert twin.values()["actuator_response.latency"]["latency_s"] == pytest.approx(0.06)
    assert twin.fit["open_loop_error_after"] < 0.1 * twin.fit["open_loop_error_before"]
    assert {p.joint for p in twin.parameters} >= {"elbow_flex", "wrist_roll"}
    with SimCell(parameters=twin.values(), image_size=32) as cell:
        cell.reset(0)
    page = (out / "identify.html").read_text()
    assert "Sim-to-sim" in page
    assert "all joints: latency" in page
    run = json.loads((out / "run.json").read_text())
    assert run["command"] == "identify"
    assert len(run["lineage"]["takes"]) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Which takes?"),
        (["--arm=pr2"], "pr2"),
        (["nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    journal: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(journal)] if arguments and arguments[0].startswith("--") else []
    assert main(["identify", *named, *arguments, "--pictures=false"]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert says in error[0]
