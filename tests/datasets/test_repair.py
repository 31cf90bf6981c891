"""Repair: labels find their recordings again, a kill leaves old or new, cut tables are read."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import LFS_POINTER, lfs_pointers
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, layout
from gaploop.datasets.check.dataset import FixOptions, check, fix, plan
from gaploop.datasets.check.parquet_salvage import salvage
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.telemetry_zarr import telemetry_path
from gaploop.scripts.cli import main

Write = Callable[..., str]
DIED = 9
STEPS = ("fixed", "copied", "kept", "swapped")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def published(store: Path, write_take: Write) -> Path:
    """A dataset of four takes with labels, made once; never changed."""
    if not (store / "set").exists():
        for i, outcome in enumerate((Outcome.SUCCESS, Outcome.FAILURE) * 2):
            uid = write_take(store / "journal", 12, outcome, code=50 * i, session=f"s{i}")
        dimensions = {"contact_dynamics": 0.7}
        event = LabelEvent(uid, "dimensions", dimensions, "ana", "engineer")
        labels.append(store / "journal" / "labels.jsonl", event)
        publish(store / "journal", store / "set", "me/x")
    return store / "set"


@pytest.fixture
def edited(store: Path, published: Path, tmp_path: Path) -> Path:
    """What LeRobot's own tool makes of it: episode 1 gone, and every gap column with it."""
    from lerobot.datasets.dataset_tools import delete_episodes
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    if not (store / "edited").exists():
        delete_episodes(LeRobotDataset("me/x", root=published), [1], store / "edited", "me/y")
    return Path(shutil.copytree(store / "edited", tmp_path / "edited"))


@pytest.fixture
def root(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "set"))


def test_a_look_needs_no_symbolic_links(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses them to whoever lacks a privilege, and `repair` with them."""
    (root / "meta" / "stats.json").unlink()
    expected = plan(root, FixOptions())

    def refuse(*_: object, **__: object) -> None:
        raise OSError(22, "A required privilege is not held by the client")

    monkeypatch.setattr(os, "symlink", refuse)
    assert plan(root, FixOptions()) == expected


def gap_rows(root: Path) -> list[dict[str, object]]:
    return [{n: row[n] for n in columns.EPISODE_COLUMNS} for row in layout.episode_rows(root)]


def edit_column(root: Path, name: str, values: list[object]) -> None:
    [path] = layout.episode_files(root)
    table = pq.read_table(path)
    field = table.schema.field(name)
    at = table.column_names.index(name)
    pq.write_table(table.set_column(at, field, pa.array(values, type=field.type)), path)


@pytest.mark.members(1)
@pytest.mark.parametrize("source", ["set", "journal"])
def test_labels_that_lerobots_tool_dropped_find_their_recordings(
    store: Path, published: Path, edited: Path, source: str
) -> None:
    """LeRobot 0.6.1 drops custom episode columns on delete and split."""
    [finding] = [f for f in check(edited) if f.code != "wrong_stats"]
    assert finding.code == "no_gap_columns"
    assert "--labels_from=" in finding.fix
    before = gap_rows(published)
    fix(edited, FixOptions(labels_from=store / source))
    assert gap_rows(edited) == [before[0], *before[2:]]
    assert check(edited) == []
    uids = {row["gap_uid"] for row in gap_rows(edited)}
    assert {e.uid for e in labels.read(edited / layout.LABELS)} <= uids
    if source == "set":
        assert all(telemetry_path(edited, str(uid)).exists() for uid in uids)
    assert fix(edited, FixOptions(labels_from=store / source)).actions == ()


def test_labels_from_what_knows_none_of_the_takes_is_refused(
    edited: Path, tmp_path: Path, write_take: Write
) -> None:
    write_take(tmp_path / "other")
    before = {p: p.read_bytes() for p in edited.rglob("*") if p.is_file()}
    for source, word in ((tmp_path / "other", "none of the 3 episodes"), (tmp_path, "name the")):
        with pytest.raises(UnusableInputError, match=word):
            fix(edited, FixOptions(labels_from=source))
    assert {p: p.read_bytes() for p in edited.rglob("*") if p.is_file()} == before


def test_labels_of_old_stand_behind_newer_ones_of_the_dataset(
    store: Path, edited: Path, tmp_path: Path
) -> None:
    """OLD's events were put last, so that they outvoted what had been said since."""
    uid = next(iter(labels.read(store / "set" / layout.LABELS))).uid
    source = Path(shutil.copytree(store / "journal", tmp_path / "old"))
    early = LabelEvent(uid, "outcome", "failure", "ana", "engineer", at="2020-01-01T00:00:00")
    late = LabelEvent(uid, "outcome", "success", "ana", "engineer", at="2099-01-01T00:00:00")
    labels.append(source / "labels.jsonl", early)
    (edited / layout.LABELS).parent.mkdir(exist_ok=True)
    labels.append(edited / layout.LABELS, late)
    fix(edited, FixOptions(labels_from=source))
    events = list(labels.read(edited / layout.LABELS))
    assert {early.to_line(), late.to_line()} <= {e.to_line() for e in events}
    assert labels.current(events)[uid]["outcome"] == "success"


def test_a_damaged_line_among_labels_is_refused_and_not_written_over(
    store: Path, edited: Path
) -> None:
    """One line that couldn't be read made an empty log of it, which OLD's events took over."""
    path = edited / layout.LABELS
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"uid": 7\n{"uid": 8}\n')
    for way in (plan, fix):
        with pytest.raises(UnusableInputError, match="line 1") as caught:
            way(edited, FixOptions(labels_from=store / "journal"))
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert path.read_text() == '{"uid": 7\n{"uid": 8}\n'


def test_splits_stay_while_the_number_of_episodes_does(root: Path, tmp_path: Path) -> None:
    path = root / layout.INFO
    own = {"train": "0:3", "val": "3:4"}
    info = {**json.loads(path.read_text()), "splits": own}
    for wrong, kept in (("total_frames", True), ("total_episodes", False)):
        path.write_text(json.dumps({**info, wrong: 9}))
        done = fix(root, FixOptions(), tmp_path / wrong)
        codes = {action.code for action in done.actions}
        assert codes == ({"set_counts"} if kept else {"set_counts", "set_splits"})
        splits = json.loads((tmp_path / wrong / layout.INFO).read_text())["splits"]
        assert splits == (own if kept else {"train": "0:4"})


def test_a_lost_description_is_told_in_a_word(root: Path) -> None:
    """It was told as `all, chunks_size, data_files_size_in_mb, …`."""
    (root / layout.INFO).unlink()
    said = {action.code: action.what for action in plan(root, FixOptions()).actions}
    assert said["rebuilt_info"] == f"{layout.INFO}: all made anew"


def test_what_repair_failed_to_fix_is_not_sent_to_repair_again(root: Path) -> None:
    uid = str(gap_rows(root)[0]["gap_uid"])
    telemetry_path(root, uid).write_bytes(b"nothing")
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"]["a/b"] = info["features"]["action"]
    path.write_text(json.dumps(info))
    left = plan(root, FixOptions()).left
    assert left
    assert not any(f.fix == f"gaploop check {root} --fix" for f in left)


def test_labels_beside_the_wrong_recording_go_back_to_their_own(root: Path) -> None:
    before = gap_rows(root)
    for name in columns.EPISODE_COLUMNS:
        edit_column(root, name, [row[name] for row in reversed(before)])
    assert "wrong_take" in {f.code for f in check(root)}
    fix(root, FixOptions())
    assert gap_rows(root) == before
    assert check(root) == []


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("gap_outcome", "sucess", "bad_gap_value"),
        ("gap_outcome", "failure", "stale_labels"),
        ("gap_uid", "", "bad_uid"),
        ("gap_dimensions", ["contact"], "bad_gap_value"),
    ],
)
def test_one_wrong_value_is_put_right(root: Path, name: str, value: object, code: str) -> None:
    before = gap_rows(root)
    event = LabelEvent(str(before[0]["gap_uid"]), "outcome", "success", "ana", "engineer")
    labels.append(root / layout.LABELS, event)
    edit_column(root, name, [value, *[row[name] for row in before[1:]]])
    assert code in {f.code for f in check(root)}
    fix(root, FixOptions())
    assert check(root) == []
    assert gap_rows(root)[0]["gap_uid"] == before[0]["gap_uid"]
    assert gap_rows(root)[0]["gap_outcome"] == "success"
    assert gap_rows(root)[1:] == before[1:]


@pytest.mark.members(2)
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new(root: Path, step: str) -> None:
    (root / layout.STATS).unlink()
    shutil.rmtree(root / layout.EPISODES)

    def hook(reached: str) -> None:
        if reached == step:
            os._exit(DIED)

    before = {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    child = os.fork()
    if child == 0:
        try:
            fix(root, FixOptions(), hook=hook)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED
    now = {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    new = not any(f.severity == "error" for f in check(root))
    assert new == (step == "swapped")
    assert new or now == before
    fix(root, FixOptions())
    assert not [f for f in check(root) if f.severity == "error"]
    kept = sorted(root.parent.glob("set.damaged-*"))
    assert kept
    assert all(
        {p.relative_to(k): p.read_bytes() for p in k.rglob("*") if p.is_file()} == before
        for k in kept
    )


def test_nothing_whole_is_refused_and_nothing_changed(root: Path) -> None:
    for path in root.glob("data/*/*.parquet"):
        path.write_bytes(path.read_bytes()[:200])
    before = sorted(root.parent.rglob("*"))
    for way in (plan, fix):
        with pytest.raises(UnusableInputError, match=r"^set: .*Restore"):
            way(root, FixOptions())
    after = [p for p in sorted(root.parent.rglob("*")) if p.name != ".set.lock"]
    assert after == before


@pytest.mark.parametrize("compression", ["snappy", "none", "zstd"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_a_cut_table_is_read_up_to_the_cut(
    tmp_path: Path, compression: str, dictionary: bool
) -> None:
    """A writer that was killed leaves row groups without the footer that says where they are."""
    draw = np.random.default_rng(0)
    schema = pa.schema(
        [
            ("action", pa.list_(pa.float32(), 3)),
            ("observation.state", pa.list_(pa.float32(), 2)),
            ("timestamp", pa.float32()),
            ("index", pa.int64()),
            ("gap.intervention", pa.bool_()),
            ("note", pa.string()),
        ]
    )
    groups = []
    for size in (30, 1, 400, 25):
        columns_ = [
            pa.array(list(draw.normal(size=(size, 3))), schema.field(0).type),
            pa.array(list(draw.normal(size=(size, 2))), schema.field(1).type),
            pa.array(draw.normal(size=size), pa.float32()),
            pa.array(np.arange(size)),
            pa.array(draw.normal(size=size) > 0),
            pa.array([f"row {i}" for i in range(size)]),
        ]
        groups.append(pa.Table.from_arrays(columns_, schema=schema))
    path, whole = tmp_path / "x.parquet", pa.concat_tables(groups)
    with pq.ParquetWriter(
        path, schema, compression=compression, use_dictionary=dictionary
    ) as writer:
        for group in groups:
            writer.write_table(group)
    data = path.read_bytes()
    ends = np.cumsum([len(g) for g in groups])
    for share in (0.999, 0.9, 0.5, 0.3, 0.1):
        path.write_bytes(data[: int(len(data) * share)])
        try:
            table = salvage(path, schema)
        except UnusableInputError:
            assert share < 0.3
            continue
        assert len(table) in ends
        assert table.equals(whole.slice(0, len(table)))


@pytest.mark.usefixtures("published")
def test_options_of_datasets_are_refused_for_a_journal(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were taken and did nothing."""
    for option in ("--output_dir=x", "--labels_from=x", "--drop", "--deep"):
        assert main(["check", str(store / "journal"), "--fix", option]) == 2
        error = capsys.readouterr().err
        assert option.split("=")[0] in error
        assert error.count("\n") == 1
    assert main(["check", str(store / "journal"), "--fix"]) == 0


def test_command_tries_first_and_does_it_when_told(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(root), "--fix"]) == 0
    assert "nothing to fix" in capsys.readouterr().out
    (root / layout.STATS).unlink()
    assert main(["check", str(root), "--fix", "--dry_run"]) == 1
    out = capsys.readouterr().out
    assert "nothing is changed" in out
    assert f"gaploop check {root} --fix" in out
    assert not (root / layout.STATS).exists()
    assert main(["check", str(root), "--fix", f"--output_dir={tmp_path / 'out'}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert answer["actions"][0]["code"] == "rebuilt_stats"
    assert main(["check", str(root), "--fix", f"--output_dir={tmp_path / 'out'}"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["check", str(root), "--fix"]) == 0
    assert main(["check", str(root)]) == 0
    (tmp_path / "nothing").mkdir()
    assert main(["check", str(tmp_path / "nothing"), "--fix"]) == 2


@pytest.mark.parametrize("times", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_repair_of_anything_never_ends_in_a_traceback(
    root: Path, tmp_path: Path, times: int
) -> None:
    """Cut, emptied, scrambled, deleted, renamed: a sound dataset, what is left, or one line."""
    draw = random.Random(times)
    files = [p.relative_to(root) for p in sorted(root.rglob("*")) if p.is_file()]
    for number in range(times):
        copy = Path(shutil.copytree(root, tmp_path / f"copy{number}"))
        path = copy / draw.choice(files)
        data = bytearray(path.read_bytes())
        way = draw.choice(("cut", "flip", "gone", "rename"))
        if way == "cut":
            path.write_bytes(data[: draw.randrange(len(data) + 1)])
        elif way == "flip" and data:
            for _ in range(5):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
        elif way == "gone":
            path.unlink()
        else:
            path.rename(path.with_name("x" + path.name))
        try:
            report = fix(copy, FixOptions(), tmp_path / f"fixed{number}")
        except UnusableInputError:
            continue
        found = [f for f in check(tmp_path / f"fixed{number}") if f.severity == "error"]
        assert len(found) == len(report.left)
        assert plan(tmp_path / f"fixed{number}", FixOptions()).actions == ()


def test_what_would_be_left_out_is_listed_and_needs_a_yes_of_its_own(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that Git LFS hadn't filled went from 55 episodes to 13, for one word."""
    root = Path(shutil.copytree(published, tmp_path / "set"))
    damage.with_nan(root)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    for words in ([], [f"--output_dir={tmp_path}/out"], ["--dry_run"]):
        assert main(["check", str(root), "--fix", *words]) == 1
        said = capsys.readouterr().out
        assert "episodes 0: NaN" in said
        assert f"gaploop check {root} --fix --drop=true" in said
        assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before
        assert not (tmp_path / "out").exists()
    assert main(["check", str(root), "--fix", "--drop=true"]) == 0
    assert len(layout.episode_rows(root)) == 3


def test_a_lost_description_is_made_of_lists_and_uneven_times(
    published: Path, tmp_path: Path
) -> None:
    """A public set of two SO-100, its vectors plain lists and its times a clock's, was refused."""
    root = Path(shutil.copytree(published, tmp_path / "set"))
    (root / layout.INFO).unlink()
    for path in layout.data_files(root):
        table = pq.read_table(path)
        for at, field in enumerate(table.schema):
            if pa.types.is_fixed_size_list(field.type):
                rows = pa.array(table[field.name].to_pylist(), pa.list_(pa.float64()))
                table = table.set_column(at, field.name, rows)
        clock = np.asarray(table["frame_index"]) * 0.0535 + np.asarray(table["index"]) % 2 * 0.002
        at = table.schema.get_field_index("timestamp")
        table = table.set_column(at, "timestamp", pa.array(clock))
        pq.write_table(table.replace_schema_metadata(None), path)
    shutil.rmtree(root / "videos")
    done = fix(root, FixOptions())
    assert done.lost == ()
    info = layout.read_info(root)
    assert (info.fps, info.width(columns.STATE)) == (19, 3)


def test_rows_that_the_table_has_too_many_of_are_not_missed(
    published: Path, tmp_path: Path
) -> None:
    """A length that was written too large took a whole episode with it."""
    root = Path(shutil.copytree(published, tmp_path / "set"))
    edit_column(root, "length", [12, 12, 12, 13])
    done = fix(root, FixOptions())
    assert (done.lost, done.left) == ((), ())
    assert [row["length"] for row in layout.episode_rows(root)] == [12] * 4


def test_git_lfs_pointers_beside_a_dataset_needn_t_be_fetched(
    published: Path, tmp_path: Path
) -> None:
    """A film for the README and a checkpoint in the same repository had to be fetched, too."""
    root = Path(shutil.copytree(published, tmp_path / "set"))
    (root / "docs").mkdir()
    for beside in (root / "teaser.mp4", root / "docs/model.safetensors"):
        beside.write_bytes(LFS_POINTER + b"\noid sha256:0\nsize 9\n")
    assert lfs_pointers(root) == []
    (root / "videos").mkdir(exist_ok=True)
    wanted = root / "videos/top.mp4"
    wanted.write_bytes(LFS_POINTER + b"\noid sha256:0\nsize 9\n")
    assert lfs_pointers(root) == [wanted]


def test_git_lfs_pointers_are_recognised_first_by_every_command(
    store: Path, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(published, tmp_path / "set"))
    for path in root.rglob("*"):
        if path.suffix in (".parquet", ".mp4"):
            path.write_bytes(LFS_POINTER + b"\noid sha256:0\nsize 9\n")
    for words in (
        ["check", str(root)],
        ["check", str(root), "--fix", "--drop=true"],
        ["convert", str(root), f"--output_dir={tmp_path}/out"],
        ["publish", f"--journal={store}/journal", f"--dataset.root={root}"],
        ["diagnose", str(root), f"--output_dir={tmp_path}/out"],
        ["finetune", "--policy.path=base", f"--real=[{root}]", f"--output_dir={tmp_path}/out"],
        ["edit", "delete", str(root), "--episodes=0", f"--output_dir={tmp_path}/out"],
    ):
        assert main(words) in (1, 2)
        said = capsys.readouterr()
        assert "lfs pull" in " ".join((said.out + said.err).split()), words
        assert not (tmp_path / "out").exists()
