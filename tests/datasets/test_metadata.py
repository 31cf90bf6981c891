"""Several datasets are checked one after the other; columns are described as LeRobot does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lerobot.datasets.feature_utils import get_hf_features_from_features
from lerobot.utils.constants import DEFAULT_FEATURES

from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.v3_files import AUTOMATIC_FEATURES, arrow_schema
from gaploop.scripts.cli import main


def test_several_datasets_are_checked_one_after_the_other(
    write_take: Callable[..., str], tmp_path: Path, capsys: Any
) -> None:
    """A damaged one is named, and the others are checked all the same; --fix wants one."""
    write_take(tmp_path / "journal", 20)
    for name in ("a", "b"):
        publish(tmp_path / "journal", tmp_path / "sets" / name, "me/set")
    assert main(["check", str(tmp_path / "sets")]) == 0
    assert "2 datasets, 0 with an error" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "sets" / "a" / "data")
    assert main(["check", *(str(tmp_path / "sets" / name) for name in ("a", "b")), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [one["ok"] for one in answer["by_dataset"]] == [False, True]
    assert "missing_data" in [f["code"] for f in answer["by_dataset"][0]["findings"]]
    assert main(["check", str(tmp_path / "sets"), "--fix"]) == 2


@pytest.mark.parametrize("name", ["nowhere/at/all", "./nothing", ".", "here/mistyped"])
def test_what_is_no_dataset_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    assert main(["check", name]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "not found" in line or "neither a dataset" in line


def test_columns_are_described_as_lerobot_describes_them() -> None:
    """What converts writes data files without LeRobot, and LeRobot reads them as its own."""
    features = {
        "observation.state": {"dtype": "float32", "shape": (6,)},
        "success": {"dtype": "bool", "shape": (1,)},
        "flags": {"dtype": "bool", "shape": (2,)},
        "words": {"dtype": "string", "shape": (1,)},
        "picture": {"dtype": "image", "shape": (4, 4, 3)},
        "video": {"dtype": "video", "shape": (4, 4, 3)},
        **AUTOMATIC_FEATURES,
    }
    assert AUTOMATIC_FEATURES == DEFAULT_FEATURES
    ours, theirs = arrow_schema(features), get_hf_features_from_features(features).arrow_schema
    assert ours.equals(theirs)
    note = b"huggingface"
    assert json.loads(ours.metadata[note]) == json.loads(theirs.metadata[note])
    with pytest.raises(ValueError, match="axes"):
        arrow_schema({"odd": {"dtype": "float32", "shape": (1,) * 6}})
