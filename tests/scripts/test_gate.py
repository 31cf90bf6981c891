"""`gaploop gate` from the shell: outcomes in, verdict and exit code out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.suite import load_suite
from gaploop.core.vocabulary import Phase
from gaploop.finetune.gate.judge import Answer
from gaploop.scripts import _gate as scripts_gate
from gaploop.scripts.cli import main
from gaploop.scripts.gate import GateConfig

RATES = {"promote": (0.4, 0.9), "reject": (0.8, 0.3)}
CODES = {"promote": 0, "reject": 1, "inconclusive": 3}


def outcomes(path: Path, old: float, new: float, pairs: int = 150, head: str = "") -> Path:
    rng = np.random.default_rng(0)
    lines = [head or "policy,success"]
    for _ in range(pairs):
        lines += [f"baseline,{int(rng.random() < old)}", f"candidate,{int(rng.random() < new)}"]
    path.write_text("\n".join([*lines, ""]))
    return path


def gate(*arguments: str) -> int:
    return main(["gate", *arguments])


@pytest.mark.parametrize("verdict", RATES)
def test_recorded_outcomes_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verdict: str
) -> None:
    path, out = outcomes(tmp_path / "o.csv", *RATES[verdict]), tmp_path / "gate"
    code = gate(f"--outcomes={path}", f"--output_dir={out}", "--json")
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == verdict
    assert code == CODES[verdict]
    assert "false promotion at most 5%" in said.err
    assert (out / "report.html").exists()
    assert (out / "evidence.png").exists()
    assert (out / "promotion.json").exists() == (verdict == "promote")


def test_the_library_decides_without_printing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, told = outcomes(tmp_path / "o.csv", *RATES["promote"]), list[str]()
    config = GateConfig(outcomes=path, output_dir=tmp_path / "gate")
    result = scripts_gate.decide(config, told.append)
    assert result.verdict is Answer.PROMOTE
    assert result.folder == tmp_path / "gate"
    assert "false promotion at most 5%" in told[0]
    assert capsys.readouterr().out == ""


def test_a_suite_without_its_declared_phase_is_the_same_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, path, file = np.random.default_rng(0), tmp_path / "o.csv", tmp_path / "suite.yaml"
    lines = ["policy,success,phase"]
    for _ in range(300):
        for side in ("baseline", "candidate"):
            lines.append(f"{side},1," if rng.random() < 0.7 else f"{side},0,grasp")
    path.write_text("\n".join([*lines, ""]))
    suite = "name: s\ntasks: [{task: reach, min_pass_rate: 0}]\nrules: {gain: 0.2%s}\n"
    arguments = (f"--outcomes={path}", f"--suite={file}", f"--output_dir={tmp_path / 'g'}")
    file.write_text(suite % ", fixes_phase: approach")
    assert gate(*arguments) == 3
    assert "declared fix not shown" in capsys.readouterr().out
    file.write_text(suite % "")
    assert gate(*arguments) == 1
    assert "gains less than 20%." in capsys.readouterr().out
    file.write_text(suite % ", fixes_phase: gasp")
    assert gate(*arguments) == 2
    assert "Did you mean 'grasp'" in capsys.readouterr().err
    file.write_text(suite % ", fixes_phase: grasp")
    path.write_text("policy,success\nbaseline,1\ncandidate,1\n")
    assert gate(*arguments) == 2
    assert "nobody says in which phase" in capsys.readouterr().err


def test_too_few_outcomes_are_inconclusive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = outcomes(tmp_path / "o.csv", 0.7, 0.8, pairs=5)
    assert gate(f"--outcomes={path}", f"--output_dir={tmp_path / 'g'}", "--json") == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "inconclusive"


def test_the_example_is_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("--suite=help") == 0
    (tmp_path / "suite.yaml").write_text(capsys.readouterr().out)
    assert load_suite(tmp_path / "suite.yaml").name == "so101_cell"


BAD = [
    ("policy,won\nbaseline,1\n", "no column 'success'"),
    ("policy,success\nbase,1\n", "Did you mean 'baseline'"),
    ("policy,success\nbaseline,2\n", "must be 1 or 0"),
    ("policy,success\nbaseline,1\n", "no pair of attempts"),
    ("policy,success,pair\nbaseline,1,1\nbaseline,1,1\n", "names baseline twice"),
    (None, "not found"),
]


@pytest.mark.parametrize(("content", "says"), BAD)
def test_outcomes_that_cannot_be_used_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, says: str
) -> None:
    path = tmp_path / "o.csv"
    if content is not None:
        path.write_text(content)
    assert gate(f"--outcomes={path}", f"--output_dir={tmp_path / 'g'}") == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Which baseline?"),
        (("--baseline=base",), "Which candidate?"),
        (("--baseline=base", "--candidate=base", "--stage=hardwear"), "Did you mean 'hardware'"),
        (("--baseline=none", "--candidate=base"), "Policy none not found"),
        (("--baseline=base", "--candidate=base", "--policy.format=fp8"), "One of: bf16"),
        (
            ("--baseline=base", "--candidate=base", "--policy.format=int8", "--command=true"),
            "write it into --command",
        ),
    ],
)
def test_what_is_missing_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert gate(*arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_pairs_are_told_by_their_number_whatever_the_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two robots write one log: attempts of a pair needn't stand beside each other."""
    rng, rows = np.random.default_rng(0), []
    for pair in range(120):
        rows.append(f"baseline,{int(rng.random() < 0.4)},{pair}")
        rows.append(f"candidate,{int(rng.random() < 0.9)},{pair}")
    found = []
    for name, lines in (("sorted", rows), ("sides apart", rows[::2] + rows[1::2])):
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["policy,success,pair", *lines, ""]))
        gate(f"--outcomes={path}", f"--output_dir={tmp_path / name}", "--json", "--seed=1")
        found.append(json.loads(capsys.readouterr().out)["stages"])
    assert found[0] == found[1]


@pytest.mark.slow
def test_the_embedded_cell_runs_by_itself_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy against itself on the same scenes: no gain, so it is rejected without a person."""
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "name: s\nsim_tasks: [pick_place]\nrules: {gain: 0.3, max_pairs: 40, sim_pairs: 60,"
        " fixes_phase: grasp}\n"
        "tasks: [{task: pick_place, success_check: script, timeout_s: 8,"
        " gaps: {spatial_geometry.camera_pose: 0.7}, min_pass_rate: 0}]\n"
    )
    arguments = (
        "--baseline=base", "--candidate=base", f"--suite={suite}",
        f"--output_dir={tmp_path / 'g'}", "--json",
    )  # fmt: skip
    assert gate(*arguments, "--stage=sim", "--seed=1") == 3
    first = capsys.readouterr()
    assert json.loads(first.out)["stages"][0]["answer"] == "passed"
    assert re.findall(r"at most (\d+) pairs", first.err) == ["60"]  # the hardware's 40 come later
    assert gate(*arguments) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "reject"
    assert said["evidence"].startswith("sim-to-sim")
    lines = [json.loads(line) for line in (tmp_path / "g" / "outcomes.jsonl").open()]
    told = {line["phase"] for line in lines if line["stage"] == "hardware" and not line["success"]}
    assert told & set(Phase)
    assert all(not line["phase"] for line in lines if line["success"])
