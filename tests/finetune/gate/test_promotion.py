"""A promotion record holds what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import sha256, write_json
from gaploop.core.suite import Rules, Suite, SuiteTask
from gaploop.finetune.gate.evidence import make_design
from gaploop.finetune.gate.folder import (
    KEPT,
    SIDES,
    SUITE,
    AttemptResult,
    Contest,
    GateAttempt,
    GateFolder,
    withdraw,
    write_promotion,
)
from gaploop.finetune.gate.run import Gate, run_gate, same_policies
from gaploop.finetune.lerobot_policy import policy_id


@pytest.fixture
def promoted(tmp_path: Path) -> Path:
    """Return the record of a candidate that came from a training run."""
    policies = {}
    for side in SIDES:
        policies[side] = tmp_path / f"run_{side}" / "adapter"
        policies[side].mkdir(parents=True)
        (policies[side] / "model.safetensors").write_text(side)
    lineage = {"datasets": ["d1"], "plans": ["p1"], "takes": ["t1"], "base": "sha256:0"}
    write_json(tmp_path / "run_candidate" / "run.json", {"id": "r1", "lineage": lineage})
    suite_file = tmp_path / "suite.yaml"
    suite_file.write_text("name: s")

    def attempt(stage: str, turn: GateAttempt) -> AttemptResult:
        lot = np.random.default_rng(turn.number).random()
        return AttemptResult(
            stage, turn.number, bool(lot < (0.9 if turn.side == "candidate" else 0.3))
        )

    suite = Suite("s", (SuiteTask("t", min_pass_rate=0.5),), Rules(max_pairs=200, gain=0.2))
    design = make_design(suite.rules)
    (tmp_path / "gate").mkdir()
    folder = GateFolder(tmp_path / "gate", Contest("a", "b", "s"), 1)
    write_json(folder.path / SUITE, {"name": "s"})
    assert run_gate(Gate(suite, policies, station=attempt), folder, design).verdict.exit_code == 0
    return write_promotion(folder.path, policies, suite_file, None)


def test_what_was_promoted_is_named_by_hash(promoted: Path) -> None:
    record = json.loads(promoted.read_text())
    assert set(record["files"]) == set(KEPT)
    held = {promoted.with_name(name): digest for name, digest in record["files"].items()}
    held |= {Path(name): digest for name, digest in record["sources"].items()}
    assert all(sha256(path) == digest for path, digest in held.items())
    run = record["policies"]["candidate"]["run"]
    assert sha256(Path(run["path"])) == run["sha256"]
    assert run["id"] == "r1"
    assert run["lineage"]["takes"] == ["t1"]


def test_the_run_of_another_policy_is_not_named(promoted: Path) -> None:
    """A run.json that merely lies in the folder above says nothing of the policy."""
    run = promoted.parent.parent / "run_candidate" / "run.json"
    write_json(run, json.loads(run.read_text()) | {"result": {"policy": "sha256:other"}})
    policies = {side: promoted.parent.parent / f"run_{side}" / "adapter" for side in SIDES}
    shipped = {"policy": policy_id(policies["candidate"]), "datasets": [{"sha256": "d1"}]}
    write_promotion(promoted.parent, policies, None, None)
    assert json.loads(promoted.read_text())["policies"]["candidate"]["run"] is None
    write_json(policies["candidate"] / "lineage.json", shipped)  # as push writes and pull leaves it
    write_promotion(promoted.parent, policies, None, None)
    named = json.loads(promoted.read_text())["policies"]["candidate"]["run"]
    assert named["lineage"]["datasets"] == [{"sha256": "d1"}]


def test_a_policy_that_changes_under_way_ends_the_gate(tmp_path: Path) -> None:
    """A training that still wrote its adapter: the record named weights that nobody had tried."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "model.safetensors").write_text("tried")
    same = same_policies({"candidate": folder}, {"candidate": policy_id(folder)})
    same()
    (folder / "README.md").write_text("a note decides nothing")
    same()
    (folder / "model.safetensors").write_text("written later")
    with pytest.raises(UnusableInputError, match=r"The candidate in .* was changed while the gate"):
        same()


def test_a_record_that_holds_no_more_is_not_left_as_if_it_did(promoted: Path) -> None:
    """Promoted by --stage=hardware, rolled back by the canary: promotion.json still lay there."""
    assert withdraw(promoted.parent) == promoted.with_name("promotion.withdrawn.json")
    assert not promoted.exists()
    assert withdraw(promoted.parent) is None
