"""`run.json` of others: read to the end, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.run_record import read_run, write_run


def test_what_was_written_is_read(tmp_path: Path) -> None:
    inputs = [{"root": "set", "uids": ["a"], "plans": ["p"]}]
    write_run(tmp_path, "finetune", {"lr": 1}, inputs, {"policy": "sha256:1"}, base="b")
    run = read_run(tmp_path / "run.json")
    assert run["inputs"] == inputs
    assert run["lineage"] | {"base": "b", "takes": ["a"], "plans": ["p"]} == run["lineage"]
    assert run["result"] == {"policy": "sha256:1", "policies": []}


def test_parts_that_are_missing_are_empty(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"inputs": null, "result": {"policy": null}}')
    run = read_run(tmp_path / "run.json")
    assert (run["inputs"], run["config"], run["lineage"]) == ([], {}, {"base": ""})
    assert run["result"] == {"policy": "", "policies": []}


@pytest.mark.parametrize(
    "value",
    [[], 7, None, {"inputs": [7]}, {"inputs": 7}, {"inputs": [{"uids": 7}]}, {"result": [1]},
     {"result": {"policies": 7}}, {"lineage": "x"}, {"config": 7}],
)  # fmt: skip
def test_what_is_no_record_is_refused(value: object, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(value))
    with pytest.raises(UnusableInputError, match=r"run\.json is no record of a run"):
        read_run(tmp_path / "run.json")
