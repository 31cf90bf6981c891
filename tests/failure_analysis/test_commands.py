"""`gaploop diagnose` and `gaploop plan` on takes of the embedded cell (sim-to-sim)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.corpus.scores import read_truth
from benchmarks.corpus.scoring import cross_table
from gaploop.collect.journal import JournalWriter
from gaploop.collect.rig import embedded_rig, scripted_leader
from gaploop.collect.take import run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import TRUTH
from gaploop.core.plan import load_plan
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import GapDimension, TakeKind
from gaploop.failure_analysis.diagnosis import load_diagnosis
from gaploop.scripts.cli import main


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two takes of the scripted leader on the nominal cell."""
    folder = tmp_path_factory.mktemp("nominal") / "journal"
    folder.mkdir()
    rig = embedded_rig()
    for seed in range(2):
        rig.reset(seed)
        with JournalWriter(folder, rig.header(TakeInfo("", "Put the cube on the disc"))) as writer:
            run_take(rig, scripted_leader(rig, seed), seed=seed, max_s=8.0, writer=writer)
    rig.close()
    return folder


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rollouts of the scripted leader on a cell with strong latency, judged failures."""
    folder = tmp_path_factory.mktemp("latency") / "journal"
    folder.mkdir()
    rig = embedded_rig(gaps={"actuator_response.latency": 1.0}, gap_seed=4)
    for seed in range(3):
        rig.reset(seed)
        header = rig.header(TakeInfo("", "Put the cube on the disc", kind=TakeKind.ROLLOUT))
        with JournalWriter(folder, header) as writer:  # stopped half-way: always a failure
            run_take(rig, scripted_leader(rig, seed), seed=seed, max_s=2.0, writer=writer)
    rig.close()
    return folder


def diagnose(journal: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["diagnose", str(journal), "--json", f"--output_dir={out}"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_diagnosis_does_not_look_at_the_truth(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deleting truth.jsonl changes nothing."""
    with_truth = diagnose(journal, tmp_path / "a", capsys)
    truth = (journal / TRUTH).read_bytes()
    (journal / TRUTH).unlink()
    try:
        without = diagnose(journal, tmp_path / "b", capsys)
    finally:
        (journal / TRUTH).write_bytes(truth)
    assert with_truth["takes"] == without["takes"]
    assert with_truth["summary"] == without["summary"]


def test_the_training_set_needs_no_policy_and_is_a_folder(
    journal: Path, demonstrations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has changed about cameras was told only where a policy was named, too."""
    command = ["diagnose", str(journal), "--pictures=false", f"--output_dir={tmp_path / 'd'}"]
    assert main([*command, f"--trained_on={demonstrations}"]) == 0
    assert main([*command, f"--trained_on={tmp_path / 'cameras.npz'}"]) == 2
    assert "cameras.npz" in capsys.readouterr().err


def test_from_takes_to_plan(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diagnose(journal, tmp_path / "d", capsys)
    assert found["summary"]["sim_to_sim"]
    diagnosis = load_diagnosis(tmp_path / "d" / "diagnosis.json")
    table = cross_table(diagnosis, read_truth(journal / TRUTH))
    assert table.truth == ("actuator_response",)
    assert table.right == 3
    page = (tmp_path / "d" / "report.html").read_text()
    assert "Sim-to-sim" in page
    assert "http" not in page.replace("http-equiv", "")  # one file, nothing from elsewhere
    run = json.loads((tmp_path / "d" / "run.json").read_text())
    assert run["result"]["id"] == diagnosis.id
    assert set(run["inputs"][0]["uids"]) >= {t.uid for t in diagnosis.takes}

    options = [f"--diagnosis={tmp_path / 'd' / 'diagnosis.json'}", "--budget.takes=40"]
    assert main(["plan", *options, f"--output_dir={tmp_path / 'p'}"]) == 0
    plan = load_plan(tmp_path / "p" / "plan.yaml")
    assert plan.diagnosis == diagnosis.id
    assert 0 < plan.takes <= 40
    assert plan.items[0].dimension is GapDimension.ACTUATOR_RESPONSE
    assert "gaploop diagnose DATASET" in plan.items[0].test
    assert "First service the drive" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["diagnose", "{tmp}/nowhere"], "nowhere"),
        (["diagnose", "{tmp}"], "holds neither episodes nor a dataset"),
        (["diagnose"], "--dataset.root"),
        (["plan"], "--diagnosis"),
        (["plan", "--diagnosis={tmp}/nowhere.json"], "nowhere.json"),
        (["plan", "--diagnosis={tmp}/bad.json"], "bad.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text('{"schema": "gaploop.diagnosis.v1", "takes": 3}')
    assert main([a.format(tmp=tmp_path) for a in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_reference_that_failed_is_no_refusal(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy that fails in simulation, too: "Name more." instead of the twin's verdict on it."""
    out = f"--output_dir={tmp_path / 'd'}"
    assert main(["diagnose", str(journal), f"--reference={journal}", "--pictures=false", out]) == 0
    assert "3 of 3 episodes failed there, too" in capsys.readouterr().out


def test_an_unwritable_output_folder_is_one_line(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["diagnose", str(journal), f"--output_dir={tmp_path / 'file'}"]) == 2
    assert "--output_dir" in capsys.readouterr().err


def test_diagnose_and_plan_are_functions_too(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who imports them gets what the commands write, and nothing is printed."""
    from gaploop.failure_analysis.planning.gains import Budget
    from gaploop.failure_analysis.report.report import diagnosis_lines
    from gaploop.scripts._diagnose import diagnose as diagnose_folder
    from gaploop.scripts._plan import plan
    from gaploop.scripts.diagnose import DiagnoseConfig
    from gaploop.scripts.options import DatasetEpisodes
    from gaploop.scripts.plan import PlanConfig

    folder = tmp_path / "d"
    config = DiagnoseConfig(
        dataset=DatasetEpisodes(root=journal), pictures=False, output_dir=folder
    )
    found = diagnose_folder(config)
    written = load_diagnosis(folder / "diagnosis.json")
    assert (written.id, len(written.takes)) == (found.id, len(found.takes))
    assert found.cohort is not None
    assert found.cohort.table is not None
    assert found.cohort.table.trials == 3
    unclear = replace(found.takes[0], abstained=True, named=(), none=0.5)
    for share, says in ((0.04, "no clear cause:"), (0.6, "leans to sensor_noise 60%:")):
        dimensions = {d.value: 0.0 for d in GapDimension} | {"sensor_noise": share}
        takes = (replace(unclear, dimensions=dimensions),)
        assert says in "\n".join(diagnosis_lines(replace(found, takes=takes)))
    alone = {"what": "Brightness of top goes up and down", "fix": "Fix exposure"}
    silent = {**found.summary["station"], "named": []}
    shown = replace(found, summary={**found.summary, "station": silent, "shown_alone": [alone]})
    assert f"show by themselves: {alone['what']}" in "\n".join(diagnosis_lines(shown))
    made = plan(PlanConfig(diagnosis=folder, budget=Budget(takes=20)))
    assert made == load_plan(folder / "plan.yaml")
    assert capsys.readouterr().out == ""
    with pytest.raises(UnusableInputError, match="--save_reference"):
        diagnose_folder(DiagnoseConfig(save_reference=tmp_path / "usual.json"))
