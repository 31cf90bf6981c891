"""From plain takes to a plan, with the commands of the pages as they are printed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.diagnosis_tiers import PAGE, make_plain, typed, walk_page
from gaploop.datasets.lerobot_read import load_takes
from gaploop.scripts.cli import main

DOCS = Path(__file__).parents[2] / "docs"
SMALLER = {
    "rollout": ["--dataset.num_episodes=5"],
    "diagnose --twin": ["--n=1", "--workers=1"],
}
"""Added to what is typed; the pages' own sizes take minutes."""


def ran(command: str) -> int:
    """Run a command as it is typed, in a smaller size."""
    words = shlex.split(command)[1:]
    with_twin = any(word.startswith("--twin") for word in words)
    of = " ".join([words[0], *(["--twin"] if words[0] == "diagnose" and with_twin else [])])
    return main([*words, *SMALLER.get(of, ())])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A robot's takes in plain columns, short ones, of a station whose camera is misplaced.

    And what stands in for an hour at it: the twin that docs/start/find_out_why.md writes by hand.
    """
    at = tmp_path_factory.mktemp("why")
    record = "rollout --robot.type=so101_sim --policy.path=base --dataset.episode_time_s=2 "
    moved = """--robot.gaps='{"spatial_geometry.camera_pose": 0.8}' --dataset.root=recorded """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(at)
        assert main(shlex.split(f"{record} {moved} --dataset.num_episodes=6")) == 0
        make_plain(at / "recorded", at / "rollouts")
        (at / "station").mkdir()
        (by_hand,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        (at / "station" / "station_twin.yaml").write_text(by_hand)
        yield at


@pytest.fixture(scope="module")
def walked(folder: Path) -> list[str]:  # noqa: ARG001  it is the working folder
    """The commands of docs/start/find_out_why.md, in order, but for those of an arm or a browser.

    `diagnose` ended with exit code 2 in step 4: tests called Python, on takes with a tracked scene.
    """
    done = []
    for line in typed(PAGE):
        if " --" in line and line.split()[1] in ("label", "diagnose", "rollout", "plan"):
            assert ran(line) == 0, line
            done.append(line)
    return done


def test_the_page_leads_from_plain_takes_to_a_plan(folder: Path, walked: Sequence[str]) -> None:
    commands = [line.split()[1] for line in walked]
    assert commands == ["label", "label", "diagnose", "rollout", "diagnose", "plan"]
    found = json.loads((folder / "diagnosis" / "diagnosis.json").read_text())["summary"]
    assert found["tier"] == "twin"
    assert (folder / "plan" / "plan.yaml").exists()


def test_stated_units_hold_from_then_on(
    folder: Path, walked: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    del walked
    units = {take.info.units for take in load_takes(folder / "rollouts")}
    assert units == {"deg"}
    again = ["diagnose", "rollouts", "--pictures=false", "--output_dir=again"]
    assert main([*again, "--units=deg"]) == 0  # as takes note it
    assert main([*again, "--units=radians"]) == 2
    fix = capsys.readouterr().err.partition("episodes: ")[2].strip().rstrip(".")
    assert "retag" in fix
    assert ran(fix.replace("DIR", "rollouts")) == 0
    assert main([*again, "--units=radians"]) == 0
    assert ran(fix.replace("DIR", "rollouts").replace("radians", "degrees")) == 0


def test_the_pages_that_it_leads_to(
    folder: Path, walked: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what nobody labelled."""
    del walked
    make_plain(folder / "simulated", folder / "good_takes")
    make_plain(folder / "simulated", folder / "demonstrations")
    shutil.copy(folder / "station" / "station_twin.yaml", folder)
    unlabelled = "gaploop diagnose rollouts --units=degrees --reference=good_takes"
    assert ran(unlabelled) == 2
    label = re.search(r"gaploop label [^.]*success", capsys.readouterr().err)
    assert label is not None
    assert ran(label[0]) == 0
    for page in ("diagnose/diagnosis.md", "diagnose/planning.md"):
        for line in typed(DOCS / page):
            # Others of diagnosis.md are like those of the page above.
            if re.match(r"gaploop (diagnose .*--(save_ref|trained_on)|plan \./diagnosis) ?", line):
                is_asked = ran(line) == 2 and "--units=degrees" in capsys.readouterr().err
                assert ran(line + " --units=degrees" * is_asked) == 0, line
    assert ran("gaploop diagnose rollouts --policy.path=base --pictures=false") == 0


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "gap", ["spatial_geometry.camera_pose", "actuator_response.latency", "object_property.size"]
)
def test_the_whole_page_ends_in_a_promotion(
    gap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the sizes it prints, at a station whose episodes are all that its commands are shown."""
    monkeypatch.chdir(tmp_path)
    here = json.dumps({gap: 0.8})
    for _, said in walk_page(f"--robot.gaps='{here}'"):
        printed = re.findall(r"^gaploop .*", said, re.MULTILINE)
    summary = json.loads(Path("diagnosis", "diagnosis.json").read_text())["summary"]
    assert gap.partition(".")[0] in summary["station"]["named"]
    for line in printed:
        assert main(shlex.split(line)[1:]) == 0, line
    (candidate,) = [
        at for name in ("recalibrated", "resimulated_policy") if (at := Path("plan", name)).exists()
    ]
    (task,) = re.findall(r"`(\{task: [^`]*)`", PAGE.read_text())
    task = re.sub(r"gaps: \{[^}]*\}", f"gaps: {here}", task)
    Path("suite.yaml").write_text(f"name: station\ntasks: [{task}]\n")
    assert ran(f"gaploop gate --baseline=base --candidate={candidate} --suite=suite.yaml") == 0
