"""`gaploop review` of a project: what lies in it, each thing once, with what comes next."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from benchmarks.chromium import browser, open_tab
from benchmarks.review import serving
from benchmarks.review_dataset import write_journal
from gaploop.core.errors import UnusableInputError
from gaploop.core.plan import Plan, PlanItem, save_plan
from gaploop.core.run_record import write_run
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis, save_diagnosis
from gaploop.failure_analysis.review.project import SECTIONS, Project, ProjectEntry, read_project
from gaploop.scripts._arguments import find_options
from gaploop.scripts.cli import config_class_of, main

SHARES = {d.value: float(d is GapDimension.VISUAL_DOMAIN) for d in GapDimension}
NAME = "<b>Put</b> the cube\x1b[2J on the disc"


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    write_journal(root / "roll outs_journal", 3)
    write_journal(root / "cube_journal", 2, seed=1)
    for header in (root / "cube_journal").glob("*/take.json"):
        value = json.loads(header.read_text())
        value["info"] |= {"plan": "p/light", "kind": "demonstration", "policy": "", "task": NAME}
        header.write_text(json.dumps(value))
        end = header.with_name("end.json")
        end.write_text(end.read_text().replace('"failure"', '"success"'))
    (root / "station.yaml").write_text("name: bench_2\nconditions: {lighting: [nominal, odd]}\n")
    plan, item = root / "why" / "plan", GapDimension.VISUAL_DOMAIN
    plan.mkdir(parents=True)
    items = (PlanItem("p/light", item, 5, "collect", "dim", conditions={"lighting": "odd"}),)
    save_plan(Plan("p", "d", items, 9.0), plan / "plan.yaml")
    failed = TakeDiagnosis("u", None, "slip", "", SHARES, 0.0, False, ())
    save_diagnosis(Diagnosis("d", "rollouts", (failed,)), root / "why" / "diagnosis.json")
    (root / "adapted" / "adapter").mkdir(parents=True)
    write_run(root / "adapted", "finetune", {"base": "base"}, [], {})
    lines = ["policy,success", *["baseline,0", "candidate,1"] * 60, ""]
    (root / "outcomes.csv").write_text("\n".join(lines))
    assert main([
        "gate", f"--outcomes={root / 'outcomes.csv'}", f"--output_dir={root / 'gate'}", "--json"
    ]) == 0  # fmt: skip
    return root


@pytest.fixture
def project(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "my project"))


def entries(found: Project) -> list[ProjectEntry]:
    return [entry for section in found.entries.values() for entry in section]


def test_everything_is_found_once_with_its_next_command(project: Path) -> None:
    found = read_project(project)
    assert found.damaged == []
    assert {name: [e.where for e in found.entries[name]] for name in SECTIONS} == {
        "Stations": ["station.yaml"],
        "Sessions": ["cube_journal", "roll outs_journal"],
        "Campaigns": ["cube_journal"],
        "Episodes to review": ["roll outs_journal"],
        "Diagnoses": ["why/diagnosis.json"],
        "Plans": ["why/plan/plan.yaml"],
        "Runs": ["adapted"],
        "Gates": ["gate"],
    }
    assert found.entries["Campaigns"][0].bars == (("visual domain", 0, 5),)
    assert found.entries["Diagnoses"][0].facts == "1 failure: 1 visual domain"
    assert found.entries["Gates"][0].facts.startswith("promote: ")


def test_its_commands_are_commands_and_their_options_exist(project: Path) -> None:
    """What is shown to be copied has to run; names with a blank in them are quoted."""
    commands = [shlex.split(entry.next) for entry in entries(read_project(project)) if entry.next]
    assert len(commands) == 8
    for program, command, *arguments in commands:
        assert program == "gaploop"
        module = importlib.import_module(f"gaploop.scripts.{command}")
        known = {option.name for option in find_options(config_class_of(module, command, []), {})}
        names = [a.removeprefix("--").partition("=")[0] for a in arguments if a.startswith("--")]
        assert {*names} <= {*known, "config_path"}
    assert ["gaploop", "review", "roll outs_journal"] in commands


def test_nothing_is_written(project: Path) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        files = (p for p in project.rglob("*") if p.is_file())
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in files}

    before = state()
    assert main(["review", str(project), "--json"]) == 0
    assert state() == before


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00", "null", '{"schema": "other"}'])
def test_damaged_and_foreign_files_cost_a_line_at_most(project: Path, content: str) -> None:
    whole = entries(read_project(project))
    for name in ("why/diagnosis.json", "gate/gate.json", "adapted/run.json", "gate/setup.json"):
        path = project / name
        kept = path.read_text()
        path.write_text(content)
        found = read_project(project)
        path.write_text(kept)
        assert len(found.damaged) <= 1
        assert all(name.partition("/")[0] in line and "\n" not in line for line in found.damaged)
        assert len(entries(found)) >= len(whole) - 1


def test_what_is_no_project_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="not found"):
        read_project(tmp_path / "missing")
    assert entries(read_project(tmp_path)) == []


PROGRAM = browser()


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")
def test_the_page_shows_it_and_copies_a_command(project: Path) -> None:
    assert PROGRAM is not None
    (project / "why" / "diagnosis.json").write_text("{")
    articles = "[...document.querySelectorAll('article')]"
    with serving(project) as address, open_tab(PROGRAM) as tab:
        assert httpx.get(urljoin(address, "/")).status_code == 403
        tab.go(address)
        tab.wait(f"{articles}.length === 8")
        assert "token" not in tab.js("location.href")
        sections = tab.js("[...document.querySelectorAll('section')].map(s => s.innerText)")
        assert len(sections) == 1 + len(SECTIONS)
        assert "why/diagnosis.json is not JSON" in sections[0]
        assert "<b>Put</b> the cube?[2J on the disc" in "".join(sections)
        assert tab.js("document.querySelector('.bar i').style.width") == "0%"
        tab.js("navigator.clipboard.writeText = text => { window.copied = text; }")
        tab.js(
            f"{articles}.find(a => a.innerText.includes('gaploop review'))"
            ".querySelector('button').click()"
        )
        assert tab.wait("window.copied") == "gaploop review 'roll outs_journal'"
        shutil.rmtree(project / "adapted")
        tab.js("document.querySelector('header button').click()")
        tab.wait(f"{articles}.length === 7")
        assert tab.log == []
