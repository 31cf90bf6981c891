"""Many datasets' metadata in blocks: the answers of one at a time, in bounded memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot.datasets.feature_utils import get_hf_features_from_features
from lerobot.utils.constants import DEFAULT_FEATURES

from benchmarks.metadata import simulate
from gaploop.core.errors import UnusableInputError
from gaploop.datasets import layout
from gaploop.datasets.columns import EPISODE_COLUMNS
from gaploop.datasets.labels.query import where
from gaploop.datasets.survey.check import Overview, overviews, shared_uids
from gaploop.datasets.survey.sources import find_datasets
from gaploop.datasets.survey.stream import blocks, find, understand
from gaploop.datasets.v3_files import AUTOMATIC_FEATURES, arrow_schema
from gaploop.scripts.cli import main

QUERIES = (
    "outcome=failure dimensions=contact_dynamics",
    "distractors!=1,2 session=session_0",
    "dimensions!=none episode=0,3,29",
    "task='Put the cube on the disc' episode=1,2,9",
    "robot_type=so101_sim dimensions!=contact_dynamics",
)


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three datasets of 30, 30 and 10 episodes, in folders of folders."""
    monkeypatch.setattr("benchmarks.metadata.PER_DATASET", 30)
    simulate(tmp_path / "sets", 70, seed=1)
    (tmp_path / "sets" / "set_0002").rename(tmp_path / "sets" / "more")
    return tmp_path / "sets"


def change(root: Path, edit: Callable[[pa.Table], pa.Table]) -> None:
    path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    pq.write_table(edit(pq.read_table(path, partitioning=None)), path)


def replaced(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    index = table.column_names.index(name)
    return table.set_column(index, table.field(name), pa.array(values, table.field(name).type))


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("rows", [3, 1000])
def test_a_query_over_many_equals_the_query_of_each(query: str, rows: int, sets: Path) -> None:
    found = list(find(query, find_datasets([str(sets)]), rows=rows))
    assert [Path(f.dataset).name for f in found] == ["more", "set_0000", "set_0001"]
    for one in found:
        episodes = layout.read_episodes(layout.read_info(Path(one.dataset)))
        assert one.episodes.tolist() == where(query, episodes)
        assert one.scanned == len(episodes)
        assert one.frames == 200 * len(one.episodes)
    assert 0 < sum(len(f.episodes) for f in found) < 70


def test_only_what_a_query_needs_is_read_a_block_at_a_time(sets: Path) -> None:
    sources = find_datasets([str(sets)])
    columns = [part.column for part in understand(QUERIES[0], sources)]
    assert columns == ["gap_outcome", "gap_dimensions"]
    sizes = [len(block) for block in blocks(sources[1], columns, rows=8)]
    assert sizes == [8, 8, 8, 6]
    block = next(blocks(sources[1], None))
    assert not any(name.startswith("stats/") for name in block.column_names)


def test_a_condition_that_one_dataset_has_is_known_in_all(sets: Path) -> None:
    change(sets / "set_0001", lambda t: replaced(t, "gap_conditions", 4, '{"tray": "blue"}'))
    found = list(find("tray=blue", find_datasets([str(sets)])))
    assert [f.episodes.tolist() for f in found] == [[], [], [4]]
    with pytest.raises(UnusableInputError, match=r"Unknown field 'tary'.*tray"):
        list(find("tary=blue", find_datasets([str(sets)])))


def test_a_damaged_dataset_is_named_and_the_others_are_searched(sets: Path, capsys: Any) -> None:
    path = sets / "set_0000" / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["label", str(sets), "--where=outcome=failure", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    more, broken, whole = answer["by_dataset"]
    assert "can't be read" in broken["skipped"]
    assert broken["episodes"] == []
    assert (more["skipped"], whole["skipped"]) == ("", "")
    assert answer["found"] == len(more["episodes"]) + len(whole["episodes"]) > 0
    assert main(["check", str(sets), "--json"]) == 1
    codes = [[f["code"] for f in one["findings"]] for one in json.loads(
        capsys.readouterr().out)["by_dataset"]]  # fmt: skip
    assert codes == [[], ["unreadable"], []]


def test_sound_datasets_have_no_findings(sets: Path, capsys: Any) -> None:
    assert main(["check", str(sets)]) == 0
    text = capsys.readouterr().out
    assert "3 datasets, 70 episodes, 14000 frames." in text
    assert "Nothing wrong" in text


def remove_uid(table: pa.Table) -> pa.Table:
    return replaced(table, "gap_uid", 5, table["gap_uid"][3].as_py())


def number_again(table: pa.Table) -> pa.Table:
    return replaced(table, "episode_index", 12, 11)


FAULTS: dict[str, Callable[[Path], object]] = {
    "bad_uid": lambda root: change(root, remove_uid),
    "episode_numbers": lambda root: change(root, number_again),
    "bad_rows": lambda root: change(root, lambda t: replaced(t, "dataset_to_index", 9, 5)),
    "bad_gap_value": lambda root: change(root, lambda t: replaced(t, "gap_outcome", 2, "great")),
    "episode_count": lambda root: change(root, lambda t: t.slice(0, 29)),
    "missing_data": lambda root: shutil.rmtree(root / "data"),
    "missing_stats": lambda root: (root / "meta" / "stats.json").unlink(),
    "missing_gap_columns": lambda root: change(root, lambda t: t.drop_columns(["gap_plan"])),
    "no_gap_columns": lambda root: change(root, lambda t: t.drop_columns(list(EPISODE_COLUMNS))),
    "unreadable": lambda root: (root / "meta" / "info.json").write_text("{"),
}


@pytest.mark.parametrize("code", FAULTS)
@pytest.mark.parametrize("rows", [4])
def test_planted_faults_are_found_in_blocks_of_any_size(code: str, rows: int, sets: Path) -> None:
    FAULTS[code](sets / "set_0000")
    by_name: dict[str, Overview] = {
        Path(one.dataset).name: one for one in overviews(find_datasets([str(sets)]), rows)
    }
    codes = [finding.code for finding in by_name["set_0000"].findings]
    assert code in codes
    assert len(codes) <= 3
    assert by_name["set_0001"].findings == by_name["more"].findings == ()


def test_takes_in_several_datasets_are_counted_once(sets: Path) -> None:
    shutil.copytree(sets / "set_0000", sets / "copy")
    shutil.copytree(sets / "set_0000", sets / "copy2")
    parts = [one.uids for one in overviews(find_datasets([str(sets)]))]
    assert shared_uids(parts) == 30
    assert shared_uids(parts[:1]) == 0
    assert np.concatenate(parts).dtype == np.uint64


@pytest.mark.parametrize("name", ["nowhere/at/all", "./nothing", ".", "here/mistyped"])
def test_what_is_no_dataset_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    assert main(["check", name]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "not found" in line or "neither a dataset" in line


def test_label_and_check_take_many_roots(sets: Path, capsys: Any) -> None:
    query = "--where=outcome=failure"
    assert main(["label", f"--roots=[{sets}]", query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"] > 0
    assert main(["check", *map(str, sorted(sets.iterdir()))]) == 0
    assert "3 datasets" in (said := capsys.readouterr().out)
    assert "Nothing wrong" in said
    assert main(["label", f"--roots=[{sets}]", query, "--outcome=success"]) == 2
    assert main(["label", f"--roots=[{sets}]"]) == 2
    assert main(["check", str(sets), "--fix"]) == 2


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
