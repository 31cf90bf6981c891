"""`check` finds what is planted, says how to fix it, and never ends in a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.frames import RunMoments
from gaploop.datasets.check.stats import _fault_of_run
from gaploop.datasets.lerobot_publish import publish
from gaploop.scripts.cli import main

Write = Callable[..., str]
DATA = "data/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.overhead/chunk-000/file-000.mp4"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def root(store: Path, tmp_path: Path, write_take: Write) -> Path:
    """A sound dataset of three episodes, made once and copied for each test."""
    if not (store / "set").exists():
        for i in range(3):
            write_take(store / "journal", 12, code=50 * i)
        publish(store / "journal", store / "set", "me/x")
    return Path(shutil.copytree(store / "set", tmp_path / "set"))


def codes(root: Path) -> set[str]:
    return {f.code for f in check(root)}


def edit_info(root: Path, **changes: object) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_action(root: Path) -> None:
    pq.write_table(pq.read_table(root / DATA).drop_columns(["action"]), root / DATA)


def without_data(root: Path) -> None:
    shutil.rmtree(root / "data")


def test_a_sound_dataset_has_no_findings(root: Path) -> None:
    assert check(root) == []


@pytest.mark.parametrize(
    ("plant", "code"), [(without_data, "missing_data"), (without_action, "missing_column")]
)
def test_what_no_command_can_fix_is_not_sent_to_one(
    root: Path, plant: Callable[[Path], None], code: str
) -> None:
    """check said repair, and that said: nothing that repair can fix."""
    plant(root)
    fixes = {f.fix for f in check(root) if f.code == code}
    assert fixes
    assert all(fix.startswith("Restore") for fix in fixes), fixes


def test_a_dataset_stored_as_lance_is_told_from_a_damaged_one(root: Path) -> None:
    """LeRobot 0.7 reads Lance; check said that the data files were gone, and to repair it."""
    edit_info(root, storage_format="lance")
    [finding] = check(root)
    assert "Lance" in finding.message
    assert "gaploop" not in finding.fix


def test_misnamed_feature_is_named_with_what_stands_there(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.stat"] = info["features"].pop("observation.state")
    edit_info(root, features=info["features"])
    [finding] = [f for f in check(root) if f.code == "missing_feature"]
    assert "observation.stat?" in finding.message


def test_absurd_statistics_are_found(root: Path) -> None:
    path = root / "meta/stats.json"
    stats = json.loads(path.read_text())
    stats["action"]["mean"] = [1e9] * 3
    path.write_text(json.dumps(stats))
    assert "absurd_stats" in codes(root)


def test_a_missing_video_says_how_to_go_on_without(root: Path) -> None:
    (root / VIDEO).unlink()
    [finding] = [f for f in check(root) if f.code == "missing_video"]
    assert VIDEO in finding.where
    assert "--drop_videos=true" in finding.fix


def test_no_damage_ends_in_a_traceback(root: Path, tmp_path: Path) -> None:
    """Cut, empty, scramble or delete any file: findings, or one clear error."""
    draw = random.Random(1)
    files = [p.relative_to(root) for p in sorted(root.rglob("*")) if p.is_file()]
    for number, name in enumerate(files * 3):
        copy = Path(shutil.copytree(root, tmp_path / f"copy{number}"))
        path, data = copy / name, bytearray((copy / name).read_bytes())
        if number < len(files):
            path.unlink()
        elif number < 2 * len(files):
            path.write_bytes(b"")
        else:
            at = draw.randrange(len(data)) if data else 0
            data[at : at + 40] = draw.randbytes(40)
            path.write_bytes(bytes(data))
        with contextlib.suppress(UnusableInputError):
            check(copy)
        shutil.rmtree(copy)


def test_a_journal_is_checked_too(tmp_path: Path, write_take: Write) -> None:
    journal = tmp_path / "journal"
    good, unsealed = write_take(journal), write_take(journal, outcome=None)
    found = check(journal)
    assert [(f.code, f.severity, f.where) for f in found] == [("unsealed", "warning", unsealed)]
    assert found[0].fix == f"gaploop check {journal} --fix"
    truncate(journal / good / "telemetry.arrows")
    assert "changed_file" in codes(journal)
    (journal / good / "overhead.mkv").unlink()
    assert "missing_file" in codes(journal)


@pytest.mark.parametrize("kind", ["missing", "empty", "other", "file"])
def test_what_is_neither_is_unusable(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "x"
    if kind == "file":
        root.write_text("")
    elif kind != "missing":
        root.mkdir()
    if kind == "other":
        (root / "notes.txt").write_text("")
    assert main(["check", str(root)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_command_answers_with_json_and_exit_codes(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(root), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["findings"]) == (True, [])
    (root / VIDEO).unlink()
    assert main(["check", str(root), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert set(answer["findings"][0]) == {"code", "severity", "where", "message", "mend"}
    assert main(["check", str(root)]) == 1
    assert "missing" in capsys.readouterr().out


@pytest.mark.members(2)
@pytest.mark.parametrize(
    "change",
    [
        {"features": {"action": "x"}},
        {"features": [1]},
        {"video_path": "{x}"},
        {"fps": float("nan")},
        {"codebase_version": 3},
    ],
    ids=str,
)
def test_a_description_that_makes_no_sense_is_a_finding_and_repaired(
    root: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    edit_info(root, **change)
    assert codes(root) & {"bad_info", "bad_fps"}
    assert main(["check", str(root), "--fix", f"--output_dir={tmp_path / 'out'}"]) == 0
    assert [f for f in check(tmp_path / "out") if f.severity == "error"] == []


def test_pipes_and_folders_in_place_of_files_are_findings(root: Path) -> None:
    """Opening a pipe that nobody writes to waits for ever."""
    for name in ("meta/stats.json", DATA):
        (root / name).unlink()
        os.mkfifo(root / name)
    (root / "meta/tasks.parquet").unlink()
    (root / "meta/tasks.parquet").mkdir()
    assert {"missing_stats", "missing_data", "missing_tasks"} <= codes(root)


def test_an_older_format_is_not_repaired_into_something_else(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_info(root, codebase_version="v2.1")
    [finding] = check(root)
    assert finding.fix.startswith(f"gaploop convert {root} --output_dir=")
    assert "--fix" not in finding.fix
    assert main(["check", str(root), "--fix"]) == 2
    assert f"gaploop convert {root}" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [30, 3_000, 36_000])
def test_lerobots_float32_statistics_of_what_stands_are_those_of_their_frames(rows: int) -> None:
    """Of a humanoid's legs that stand, float32 sums err by the row: check called them wrong."""
    values = np.repeat(np.random.default_rng(0).uniform(-100, 100, (1, 20)), rows, axis=0)
    frames = values.astype(np.float32)
    wide = frames.astype(np.float64)
    found = RunMoments(
        *(x[None] for x in (wide.min(0), wide.max(0), wide.sum(0), (wide**2).sum(0)))
    )
    mean = frames.mean(axis=0)
    deviation = np.sqrt(np.maximum((frames**2).mean(axis=0) - mean**2, 0))
    written = {"min": wide[0], "max": wide[0], "mean": mean, "std": deviation}
    assert not _fault_of_run(written, found, np.array([float(rows)]), 0)
    assert _fault_of_run(written | {"mean": 1.01 * mean}, found, np.array([float(rows)]), 0)


def test_a_deviation_computed_in_float32_is_reported_and_repaired(tmp_path: Path) -> None:
    """Of a joint at 23° that hardly moves, stats.json gave 0.073 where the frames have 0.009. check
    passed it, and repair's "computed anew" added up the same float32 figures of the episodes."""
    from damage import record

    from gaploop.datasets.v3_files import load_frames

    root = record(tmp_path / "set", 3)
    draw = np.random.default_rng(1)
    for path in (root / "data").glob("*/*.parquet"):
        table = pq.read_table(path)
        values = np.stack(table["observation.state"].to_pylist())
        values[:, 1] = 23 + draw.normal(0, 0.009, len(values))
        values[::12, 1] += 0.1
        at = table.column_names.index("observation.state")
        column = pa.array(values.tolist(), table.schema.field(at).type)
        pq.write_table(table.set_column(at, table.schema.field(at), column), path)
    assert main(["check", str(root), "--fix"]) == 0
    stats = root / "meta/stats.json"
    written = json.loads(stats.read_text())
    written["observation.state"]["std"][1] = 0.07
    stats.write_text(json.dumps(written))
    [path] = (root / "meta/episodes").glob("*/*.parquet")
    table = pq.read_table(path)
    name = "stats/observation.state/std"
    values = [[a, 0.07, c] for a, _, c in table[name].to_pylist()]
    at = table.column_names.index(name)
    pq.write_table(table.set_column(at, name, pa.array(values, table.schema.field(at).type)), path)
    found = [f for f in check(root) if f.code.endswith("_stats")]
    codes_found = {(f.code, f.severity) for f in found}
    assert codes_found == {("wrong_stats", "warning"), ("episode_stats", "warning")}, found
    assert main(found[0].fix.split()[1:]) == 0
    frames = load_frames(root, ["observation.state"]).columns["observation.state"]
    again = json.loads(stats.read_text())["observation.state"]["std"]
    np.testing.assert_allclose(again, frames.astype(np.float64).std(axis=0), 1e-4)


def test_a_timestamp_one_frame_short_is_a_warning(tmp_path: Path) -> None:
    """Some tools write the last picture's time as the end; the set loads and trains as it is."""
    from damage import CAMERA, FPS, record

    root = record(tmp_path / "set", 2)
    [path] = (root / "meta/episodes").glob("*/*.parquet")
    table = pq.read_table(path)
    name = f"videos/{CAMERA}/to_timestamp"
    values = [t - 1 / FPS for t in table[name].to_pylist()]
    pq.write_table(table.set_column(table.column_names.index(name), name, [values]), path)
    [finding] = [f for f in check(root) if f.code == "video_timestamps"]
    assert finding.severity == "warning"
    assert main(finding.fix.split()[1:]) == 0
    assert "video_timestamps" not in codes(root)
