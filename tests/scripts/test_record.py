"""`gaploop record` as its user meets it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gaploop.core.journal_format import read_journal
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.core.vocabulary import RANDOMISED, Domain, Outcome, set_up
from gaploop.datasets.lerobot_read import load_takes
from gaploop.scripts.cli import main
from gaploop.sim.randomise import draw, known_and_drawn

DELAY = "actuator_response.latency"

PLAN = """
schema: gaploop.plan.v1
id: plan-1
items:
- {id: plan-1/size, dimension: object_property, takes: 1, remedy: collect, why: w,
   conditions: {object: large_cube}}
- {id: plan-1/light, dimension: visual_domain, takes: 0, remedy: change_scene, why: w}
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--robot.type=so101_folower", "--robot.port=/dev/ttyACM0"], "so101_follower"),
        (["--robot.type=so101_follower", "--robot.port=/dev/none"], "--teleop.type=scripted"),
        (["--teleop.type=keybord"], "keyboard"),
        (["--display=windows"], "Did you mean 'window'"),
        (["--station=cell.yaml"], "--station names the cell of an arm"),
        (["--dataset.reset_time_s=-1"], "0 or more"),
        (["--robot.task=juggle"], "pick_place"),
        (['--robot.gaps={"contact": 0.5}'], "Did you mean 'contact_dynamics'"),
        (['--robot.gaps={"contact_dynamics": 2}'], "0 to 1"),
        (['--robot.conditions={"lighting": "moon"}'], "nominal"),
        (["--dataset.fps=-30"], "above 0"),
        (["--dataset.num_episodes=0"], "above 0"),
        (["--plan=missing.yaml"], "not found"),
        (["--journal=DIR/data/j"], "inside each other"),
        (["--journal=/proc/no/j"], "--journal"),
        (["--dataset.root=/proc/no/d"], "--dataset.root"),
        (["--robot.randomise=AL"], "all, dynamics"),
        (["--robot.randomise=twin"], "--robot.twin=FILE"),
        (["--robot.randomise=all:3"], "0 to 2"),
    ],
)
def test_unusable_input_is_one_line_and_writes_nothing(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--dataset.root={tmp_path / 'data'}"] if "root" not in options[0] else []
    arguments += [option.replace("DIR", str(tmp_path)) for option in options]
    assert main(["record", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_recorded_published_and_then_filled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, root = tmp_path / "plan.yaml", tmp_path / "data"
    plan.write_text(PLAN)
    command = ["record", f"--dataset.root={root}", f"--plan={plan}", "--json"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["counted"], said["published"], said["evidence"]) == (1, 1, "sim-to-sim")
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["takes"] == 0
    good = [t for t in read_journal(Path(said["journal"])) if t.outcome is Outcome.SUCCESS]
    (take,) = good
    assert take.info.plan == "plan-1/size"
    assert take.info.domain is Domain.SIM_TARGET
    assert dict(take.info.dimensions) == {"object_property": 1.0}
    assert main(["record", f"--dataset.root={root}", "--dataset.fps=25"]) == 2
    assert "25 fps" in capsys.readouterr().err


def test_takes_in_a_twin_stand_for_the_station_and_say_what_their_cells_were_drawn_as(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    delay = TwinParameter(f"{DELAY}.latency_s", "s", 0.0, 0.04, (0.03, 0.05), True, "test")
    save_twin(Twin("bench", "so101", (delay,)), tmp_path / "twin.yaml")
    root, twin = tmp_path / "data", f"--robot.twin={tmp_path / 'twin.yaml'}"
    command = ["record", f"--dataset.root={root}", "--dataset.num_episodes=1", twin, "--json"]
    assert main([*command, "--robot.randomise=twin", "--robot.seed=3"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["evidence"] == "sim-to-sim"
    _, ranges = known_and_drawn(tmp_path / "twin.yaml", "twin")
    assert ranges is not None
    for source in (Path(said["journal"]), root):
        for at, take in enumerate(load_takes(source)):
            assert take.info.domain is Domain.SIM_TARGET
            assert take.info.conditions[RANDOMISED] == draw(ranges, [0, 3 + at])
            assert not set_up(take.info.conditions)


def test_ctrl_c_ends_in_good_order_and_resume_goes_on(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    signal_after_a_take: Callable[[Path, signal.Signals], None],
) -> None:
    root, journal = tmp_path / "data", tmp_path / "journal"
    command = ["record", f"--dataset.root={root}", f"--journal={journal}"]
    signal_after_a_take(journal, signal.SIGINT)
    assert main([*command, "--dataset.num_episodes=50"]) == 128 + signal.SIGINT
    outcomes = [t.outcome for t in read_journal(journal)]
    assert outcomes.count(Outcome.INTERRUPTED) <= 1
    sealed = outcomes.count(Outcome.SUCCESS)
    assert sealed >= 1
    capsys.readouterr()
    resumed = [*command, f"--dataset.num_episodes={sealed + 1}", "--resume", "--json"]
    assert main(resumed) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["counted"], said["published"]) == (sealed + 1, 1)
