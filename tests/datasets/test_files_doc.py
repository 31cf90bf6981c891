"""The examples in docs/data/files.md are what the program accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gaploop.core.labels import LabelEvent
from gaploop.core.plan import load_plan
from gaploop.core.station import load_station
from gaploop.core.suite import load_suite
from gaploop.datasets.columns import EPISODE_COLUMNS

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs/data/files.md").read_text()
LOADERS = {
    "Plan": load_plan,
    "Station": load_station,
    "Suite": load_suite,
}


@pytest.mark.parametrize("section", LOADERS)
def test_yaml_examples_load(tmp_path: Path, section: str) -> None:
    [_, text] = DOC.split(f"## {section}\n", 1)
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    path = tmp_path / "example.yaml"
    path.write_text(found[1])
    LOADERS[section](path)


def test_the_label_example_is_a_label_event() -> None:
    found = re.search(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert found is not None
    LabelEvent(**json.loads(found[1]))


def test_every_episode_column_is_described() -> None:
    assert [name for name in EPISODE_COLUMNS if f"`{name}`" not in DOC] == []
