"""`gaploop finetune` as a user calls it, and what it says where the input can't be used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gaploop.core.vocabulary import Domain, Outcome
from gaploop.finetune.config import FinetuneConfig, StartPolicy
from gaploop.scripts._finetune import attempts_words, finetune
from gaploop.scripts.cli import main

type Capture = pytest.CaptureFixture[str]
QUICK = ["--steps=4", "--batch_size=4", "--lora.r=2"]


@pytest.fixture
def real(write_dataset: Callable[..., Path]) -> Path:
    takes = [{"session": f"day{k % 3}", "station": f"cell{k % 2}"} for k in range(6)]
    return write_dataset("real", [{**t, "domain": Domain.SIM_TARGET} for t in takes])


@pytest.fixture
def sim(write_dataset: Callable[..., Path]) -> Path:
    return write_dataset("sim", [{"domain": Domain.SIM}] * 3)


def asked(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["finetune", *arguments, "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_library_adapts_without_printing(
    base: Path, real: Path, sim: Path, tmp_path: Path, capsys: Capture
) -> None:
    result = finetune(
        FinetuneConfig(
            StartPolicy(str(base)),
            real=(real,),
            sim=(sim,),
            steps=2,
            batch_size=2,
            output_dir=tmp_path / "out",
        )
    )
    assert result.policy.folder == tmp_path / "out" / "adapter"
    assert (result.policy.result.steps, result.share_real) == (2, 0.5)
    assert capsys.readouterr().out == ""


def test_sessions_are_held_out_and_the_best_step_kept(
    base: Path, real: Path, sim: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    said = asked(
        capsys,
        f"--policy.path={base}",
        f"--real=[{real}]",
        f"--sim=[{sim}]",
        f"--output_dir={out}",
        "--held_out=0.34",
        "--stats=new",
        *QUICK,
    )
    assert said["takes"] == {str(real): 4, str(sim): 3}
    assert set(said["held_out_error"]) == {"1", "2", "3", "4"}
    ended = json.loads((out / "result.json").read_text())["held_out_at_end"]
    assert len(ended["errors"]) == 2
    assert len(ended["by_session"]) == 1
    run = json.loads((out / "run.json").read_text())
    assert len(run["lineage"]["takes"]) == 7
    assert run["config"]["stats"] == "new"


def test_nothing_is_gone_on_with_from_something_else(
    base: Path, real: Path, sim: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A second run had wiped the first one's checkpoint and left its adapter."""
    out = tmp_path / "out"
    command = [f"--policy.path={base}", f"--real=[{real}]", f"--sim=[{sim}]", *QUICK]
    command += [f"--output_dir={out}", "--mix.real=0.25"]
    said = asked(capsys, *command)
    assert said["share_real"] == 0.25
    before = (out / "checkpoint.pt").read_bytes()
    for arguments, says in (
        (["--method=full"], "Continue it with --resume"),
        (["--resume", "--method=full"], "full"),
        (["--resume", "--stats=new"], "stats (base, now new)"),
    ):
        assert main(["finetune", *command, *arguments]) == 2
        assert says in capsys.readouterr().err
    assert (out / "checkpoint.pt").read_bytes() == before
    assert asked(capsys, *command, "--resume", "--batch_size=2")["id"] == said["id"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"real": "[]"}, "Name real episodes"),
        ({"policy.path": "nowhere"}, "Policy nowhere not found"),
        ({"real": "[unlabelled]"}, "have no outcome .* gaploop label"),
        ({"real": "[rotated]"}, "Name and order the joints alike with gaploop edit harmonise"),
        ({"policy.path": "stray"}, "adapter for another base"),
        ({"mix.real": "2"}, "at most 1"),
        ({"method": "act_lroa"}, "Did you mean 'act_lora'"),
        ({"stats": "mine"}, "base, new"),
        ({"held_out": "[0,1,2,3,4,5]"}, "all 6 episodes are held out"),
        ({"where": "station=cell9"}, "station is cell0, cell1"),
        ({"select": "everything"}, "demonstrations, successful"),
        ({"held_out": "0"}, "above 0 and below 1; episodes are written as"),
        ({"sim": "[nowhere]"}, "not found"),
    ],
)
def test_what_can_not_be_used_is_one_line_with_the_fix(
    base: Path,
    real: Path,
    write_dataset: Callable[..., Path],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset("unlabelled", [{"outcome": Outcome.UNLABELLED}, {}])
    rotated = write_dataset("rotated", [{}])
    info = json.loads((rotated / "meta" / "info.json").read_text())
    names = info["features"]["action"]["names"]
    info["features"]["action"]["names"] = [*names[1:], names[0]]
    (rotated / "meta" / "info.json").write_text(json.dumps(info))
    stray = tmp_path / "stray"
    stray.mkdir()
    (stray / "adapter_config.json").write_text("{}")
    given = {"policy.path": str(base), "real": f"[{real}]", "output_dir": "out", **change}
    assert main(["finetune", *[f"--{k}={v}" for k, v in given.items()], *QUICK]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert re.search(says, lines[0]), lines[0]
    assert not (tmp_path / "out" / "adapter").exists()


def test_options_that_do_nothing_or_undo_each_other_are_refused(
    base: Path, real: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Episodes to hold out that don't exist, pictures changed for a
    policy that sees none: all had been ignored. On other devices it had trained on the CPU."""
    given = [f"--policy.path={base}", f"--real=[{real}]", f"--output_dir={tmp_path / 'out'}"]
    for arguments, says in (
        (["--held_out=[9]"], r"--held_out names episode 9, .*\(0, 1, 2, 3, 4, 5\)"),
        (["--randomise.strength=0.5"], "no pictures: --randomise"),
        (["--method=pi0_lora"], "is for pi0 policies, .* tracked_lora, tracked_full"),
        (["--lora.r=-1"], "--lora.r=-1 must be at least 1"),
        (["--env.task=stack_cube"], "--env does nothing with --method=lora"),
        (["--method=reinforce"], "--real does nothing with --method=reinforce"),
        (["--method=lerobot"], "--policy does nothing .* options after --"),
        (["--policy.type=act"], "--real does nothing with --policy.type=act"),
        (["--", "--steps=4"], "add --method=lerobot"),
        (["--lr=-1"], "--lr=-1 must be above 0"),
        (["--device=gpu"], "--device=gpu: PyTorch can't use it here"),
    ):
        assert main(["finetune", *given, *QUICK, *arguments]) == 2, arguments
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert re.search(says, line), line


def test_real_takes_alone_are_a_share_of_one(
    base: Path, real: Path, tmp_path: Path, capsys: Capture
) -> None:
    given = [f"--policy.path={base}", f"--real=[{real}]", f"--output_dir={tmp_path / 'out'}"]
    assert asked(capsys, *given, *QUICK)["share_real"] == 1.0


def test_a_policy_without_names_and_with_other_statistics_is_tuned(
    base: Path, real: Path, tmp_path: Path, capsys: Capture
) -> None:
    """lerobot-train saves no rate and no names of joints, and policies that normalise to the ends
    of what was seen; both ended in an error that named the wrong fix, or in a traceback."""
    (base / "gaploop.json").unlink()
    for path in (base / "config.json", base / "policy_preprocessor.json"):
        path.write_text(path.read_text().replace("MEAN_STD", "MIN_MAX"))
    given = [f"--policy.path={base}", f"--real=[{real}]", *QUICK]
    assert main(["finetune", *given, f"--output_dir={tmp_path / 'no'}"]) == 2
    assert "no statistics of observation.state to keep (min, max)" in capsys.readouterr().err
    said = asked(capsys, *given, f"--output_dir={tmp_path / 'out'}", "--stats=new")
    kept = json.loads(Path(said["policy"], "gaploop.json").read_text())
    assert kept["action_names"] == ["pan.pos", "lift.pos", "gripper.pos"]


def test_chance_is_not_told_as_progress() -> None:
    """Incident: two rounds that taught nothing were "0 % at first, 20 % at last"."""
    rounds = [{"success": 0.0, "decisions": 0}, {"success": 0.2, "decisions": 0}]
    assert "10% (sim-to-sim). Nothing was learned" in attempts_words(rounds)
    rounds[0]["decisions"] = 48
    assert attempts_words(rounds).endswith("0% at first, 20% at last (sim-to-sim).")


def test_presets_are_listed(capsys: Capture) -> None:
    assert main(["finetune", "--method=help"]) == 0
    assert "smolvla_lora" in capsys.readouterr().out
