"""Datasets, records and exports whose content can't be: one line, exit code 2, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.check.dataset import FixOptions, check, plan
from gaploop.datasets.formats.lerobot_v2 import export_v21
from gaploop.datasets.hub.dataset import scan
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.telemetry_zarr import read_telemetry
from gaploop.datasets.v3_files import load_frames
from gaploop.scripts.cli import main


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, write_take: Callable[..., str]) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    for code in range(2):
        write_take(folder / "journal", code=code)
    publish(folder / "journal", folder / "set", "local/set")
    return folder / "set"


@pytest.fixture
def dataset(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(tmp_path / "consents.jsonl"))
    return Path(shutil.copytree(sound, tmp_path / "set"))


def set_info(root: Path, text: Callable[[dict[str, Any]], str]) -> None:
    path = root / "meta" / "info.json"
    path.write_text(text(json.loads(path.read_text())))


def replaced(root: Path, column: str, values: Callable[[list[Any]], Any]) -> None:
    (path,) = root.glob("data/*/*.parquet")
    table = pq.read_table(path, partitioning=None)
    new = values(table[column].to_pylist())
    pq.write_table(table.set_column(table.column_names.index(column), column, new), path)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "fps 0": lambda root: set_info(root, lambda i: json.dumps({**i, "fps": 0})),
    "fps of 400 digits": lambda root: set_info(root, lambda i: json.dumps({**i, "fps": 10**400})),
    "fps NaN": lambda root: set_info(root, lambda i: json.dumps({**i, "fps": float("nan")})),
    "fps in words": lambda root: set_info(root, lambda i: json.dumps({**i, "fps": "fast"})),
    "deep": lambda root: set_info(root, lambda _: "[" * 100_000),
    "a list": lambda root: set_info(root, lambda _: "[]"),
    "features are words": lambda root: set_info(root, lambda i: json.dumps({**i, "features": "x"})),
    "a shape of a billion": lambda root: set_info(
        root, lambda i: json.dumps({**i, "features": {"action": {"shape": [10**9]}}})
    ),
    "a pipe as labels": lambda root: os.mkfifo(root / "meta" / "gap" / "labels.jsonl"),
}
COMMANDS = {
    "label": ["label", "{}"],
    "edit": ["edit", "keep", "{}", "--episodes=[0]", "--output_dir={}_out"],
    "export": ["convert", "{}", "--to=lerobot_v21", "--output_dir={}_out"],
    "import": ["convert", "{}", "--output_dir={}_out"],
}


@pytest.mark.members(12)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_dataset_is_one_line(
    what: str, command: str, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fps: 0` and the like ended label, edit, export and import in tracebacks."""
    (dataset / "meta" / "gap" / "labels.jsonl").unlink(missing_ok=True)
    (dataset / "meta" / "gap").mkdir(exist_ok=True)
    HOSTILE[what](dataset)
    assert main([word.replace("{}", str(dataset)) for word in COMMANDS[command]]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in lines if line.startswith("gaploop")]) == 1
    assert not dataset.with_name("set_out").exists()


@pytest.mark.members(4)
@pytest.mark.parametrize("what", HOSTILE)
def test_check_finds_what_is_hostile(what: str, dataset: Path) -> None:
    (dataset / "meta" / "gap" / "labels.jsonl").unlink(missing_ok=True)
    (dataset / "meta" / "gap").mkdir(exist_ok=True)
    HOSTILE[what](dataset)
    assert {f.code for f in check(dataset)} & {"bad_info", "bad_labels"}


def test_a_pipe_as_data_file_is_not_waited_for(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gaploop edit` hung: it opened a pipe that nobody writes into."""
    (path,) = dataset.glob("data/*/*.parquet")
    path.unlink()
    os.mkfifo(path)
    words = [word.replace("{}", str(dataset)) for word in COMMANDS["edit"]]
    assert main(words) == 2
    assert f"{path} is a pipe" in capsys.readouterr().err


def test_a_text_as_video_opens_no_other_file(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FFmpeg takes a file for what it holds: a list of files as .mp4 was opened with what it
    listed, and a pipe among these was waited for without end."""
    video = sorted(dataset.glob("videos/*/*/*.mp4"))[0]
    video.rename(video.with_name("other.mp4"))
    os.mkfifo(video.with_name("pipe.mp4"))
    for listed in ("other.mp4", "pipe.mp4", video.name):
        video.write_text(f"ffconcat version 1.0\nfile {listed}\n")
        assert "unreadable" in {f.code for f in check(dataset)}
        assert main([word.replace("{}", str(dataset)) for word in COMMANDS["export"]]) == 2
        assert f"{video} can't be opened" in capsys.readouterr().err


@pytest.mark.members(2)
@pytest.mark.parametrize(
    "name",
    ["data/*/*.parquet", "meta/episodes/*/*.parquet", "meta/tasks.parquet", "meta/stats.json",
     "meta/info.json", "videos/*/*/*.mp4", "telemetry/*.zip", "README.md"],
)  # fmt: skip
def test_no_command_waits_for_a_pipe(dataset: Path, name: str) -> None:
    """A check of many waited for a table of episodes, `check` and `push` for telemetry."""
    path = next(iter(sorted(dataset.glob(name))), dataset / name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    push = ["push", "{}", "--repo_id=me/x", "--dry_run"]
    for words in (["check", "{}"], ["check", "{}", "{}"], push, *COMMANDS.values()):
        assert main([word.replace("{}", str(dataset)) for word in words]) in (0, 1, 2)


def test_takes_of_one_name_are_not_exported(dataset: Path, tmp_path: Path) -> None:
    """Two episodes with one uid ended an export in a traceback."""
    (path,) = dataset.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(path, partitioning=None)
    uids = pa.array([table["gap_uid"][0].as_py()] * len(table))
    pq.write_table(table.set_column(table.column_names.index("gap_uid"), "gap_uid", uids), path)
    out = tmp_path / "out"
    with pytest.raises(UnusableInputError, match="names several episodes"):
        export_v21(dataset, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("action", lambda rows: pa.array([["fast"] * len(r) for r in rows]), "not numbers"),
        ("observation.state", lambda rows: with_nan(rows), "first in row 3"),
        ("action", lambda rows: pa.array([r[:2] for r in rows]), "info.json says 3"),
    ],
    ids=["text", "nan", "narrow"],
)
def test_only_finite_numbers_are_exported(
    dataset: Path, tmp_path: Path, column: str, values: Any, says: str
) -> None:
    """Text was exported as actions, and NaN as states, with exit code 0."""
    replaced(dataset, column, values)
    out = tmp_path / "out"
    with pytest.raises(UnusableInputError, match=rf"episode 0: {column} .*{says}"):
        export_v21(dataset, out)
    assert not out.exists()


def with_nan(rows: list[list[float]]) -> pa.Array:
    return pa.array([[float("nan"), *r[1:]] if k == 3 else r for k, r in enumerate(rows)])


@pytest.mark.parametrize("what", ["no entry", "no rows", "no group", "text"])
def test_a_record_that_holds_nothing_is_found(dataset: Path, what: str) -> None:
    """An empty archive in the place of a take's telemetry passed `check`."""
    path = sorted(dataset.glob("telemetry/*.zip"))[0]
    with zipfile.ZipFile(path) as archive:
        held = {n: archive.read(n) for n in archive.namelist()}
    if what == "no entry":
        held = {}
    elif what == "no group":
        held = {n: c for n, c in held.items() if n.startswith("t_s")}
    for name in [n for n in held if n.endswith("zarr.json") and "/" in n]:
        known = json.loads(held[name])
        if what == "no rows":
            known["shape"][0] = 0
        elif what == "text" and name.startswith("t_s"):
            known |= {"data_type": "string", "fill_value": ""}
        held[name] = json.dumps(known).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    assert "bad_telemetry" in {f.code for f in check(dataset)}


@pytest.mark.parametrize("start", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_video_that_starts_at_no_time_is_refused(
    dataset: Path, start: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN where a video begins ended the export in a traceback."""
    (path,) = dataset.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(path, partitioning=None)
    column = next(n for n in table.column_names if n.endswith("/from_timestamp"))
    starts = pa.array([start, *table[column].to_pylist()[1:]], pa.float64())
    pq.write_table(table.set_column(table.column_names.index(column), column, starts), path)
    for command in ("export", "edit"):
        assert main([word.replace("{}", str(dataset)) for word in COMMANDS[command]]) == 2
        assert "starts at" in capsys.readouterr().err


def test_a_dataset_does_not_steer_the_terminal(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`diagnose` and tables printed conditions and tasks with whatever codes they held."""
    (path,) = dataset.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(path, partitioning=None)
    codes = "\x1b]0;mine\x07\x1b[2J\x9b2J"
    for name in ("gap_operator", "gap_station"):
        texts = pa.array([f"{codes}{k}" for k in range(len(table))])
        table = table.set_column(table.column_names.index(name), name, texts)
    texts = pa.array([json.dumps({f"{codes}{k % 2}": codes}) for k in range(len(table))])
    table = table.set_column(table.column_names.index("gap_conditions"), "gap_conditions", texts)
    pq.write_table(table, path)
    label = ["label", str(dataset), "--episodes=0", "--outcome=failure", f"--author={codes}"]
    main(label)
    root, out = str(dataset), f"--output_dir={dataset}_out"
    for words in (["label", root], ["diagnose", root, out], ["check", root], ["check", root, root]):
        main(words)
        said = "".join(capsys.readouterr())
        assert said
        assert not {c for c in said if not c.isprintable()} - {"\n"}


def test_an_archive_is_not_unpacked_beyond_bounds(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two megabytes of a telemetry archive asked for two gigabytes of memory."""
    monkeypatch.setattr("gaploop.datasets.telemetry_zarr.LARGEST_TEXT", 100_000)
    monkeypatch.setattr("gaploop.datasets.hub.dataset.LARGEST_TEXT", 100_000)
    path = sorted(dataset.glob("telemetry/*.zip"))[0]
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more/zarr.json", " " * 100_001)
    for read in (
        read_telemetry,
        lambda p: list(scan([(p.name, p)])),
    ):
        with pytest.raises(UnusableInputError, match=r"zarr.json .*unpacks to 0 MiB"):
            read(path)


def test_an_array_that_is_said_to_be_huge_is_not_made(dataset: Path) -> None:
    """A few bytes of metadata asked for any amount of memory."""
    path = sorted(dataset.glob("telemetry/*.zip"))[0]
    with zipfile.ZipFile(path) as archive:
        held = {n: archive.read(n) for n in archive.namelist()}
    known = json.loads(held["t_s/zarr.json"])
    held["t_s/zarr.json"] = json.dumps({**known, "shape": [10**12]}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    with pytest.raises(UnusableInputError, match=r"t_s declares the shape"):
        read_telemetry(path)


def test_a_table_that_claims_more_rows_than_it_can_hold_is_refused_at_once(tmp_path: Path) -> None:
    """6.6 MB that claimed 300 million rows kept five commands busy for more than a minute."""
    root = damage.record(tmp_path / "set", 2, 12, videos=False)
    [path] = damage.data_files(root)
    row, same = pq.read_table(path).slice(0, 1), pa.array(np.zeros(400_000, int))
    group = pa.table(
        {
            f.name: pa.nulls(len(same), f.type)
            if pa.types.is_struct(f.type)
            else row[f.name].take(same)
            for f in row.schema
        }
    )
    with pq.ParquetWriter(path, group.schema) as writer:
        for _ in range(3):
            writer.write_table(group)
    [found] = [f for f in check(root) if f.code == "unreadable"]
    assert "claims 1200000 rows" in found.message
    assert found.fix == "Restore it from a copy."
    for act in (lambda: plan(root, FixOptions()), lambda: load_frames(root, ["action"])):
        with pytest.raises(UnusableInputError, match="claims 1200000 rows"):
            act()
