"""Labels of a dataset or journal: shown at once, kept through whatever happens meanwhile."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaploop.core import labels
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import columns, layout, staging
from gaploop.datasets.edit.actions import delete_takes
from gaploop.datasets.labels import open_labelled
from gaploop.datasets.lerobot_publish import publish, publish_takes
from gaploop.scripts.cli import main

Write = Callable[..., str]
SLOW_S = 60.0


@pytest.fixture
def journal(tmp_path: Path, write_take: Write) -> Path:
    for code, outcome in enumerate((Outcome.SUCCESS, Outcome.UNLABELLED, Outcome.FAILURE)):
        write_take(tmp_path / "journal", 3, outcome, code=code, cameras=())
    return tmp_path / "journal"


@pytest.fixture
def root(tmp_path: Path, journal: Path) -> Path:
    assert publish(journal, tmp_path / "set", "me/x") == 3
    return tmp_path / "set"


def column(root: Path, name: str) -> list[object]:
    return [
        v for p in layout.episode_files(root) for v in pq.read_table(p)[f"gap_{name}"].to_pylist()
    ]


def word(uid: str, value: str, field: str = "outcome", who: str = "ana") -> LabelEvent:
    return LabelEvent(uid, field, value, who, "engineer")


def test_what_is_said_stands_in_the_columns_and_nothing_else_changes(root: Path) -> None:
    files = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file()}
    [path] = layout.episode_files(root)
    before = pq.read_table(path)
    store = open_labelled(root)
    uid = store.episodes[1].info.uid
    cause = LabelEvent(uid, "dimensions", {"contact_dynamics": 0.8}, "ana", "engineer")
    assert store.say([word(uid, "failure"), word(uid, "slip", "failure_mode"), cause])
    assert column(root, "outcome") == ["success", "failure", "failure"]
    assert column(root, "failure_mode") == ["", "slip", ""]
    assert column(root, "dimensions") == [[], ["contact_dynamics"], []]
    assert column(root, "dimension_weights") == [[], [0.8], []]
    after = pq.read_table(path)
    assert after.schema.equals(before.schema)
    said = {"gap_outcome", "gap_failure_mode", "gap_dimensions", "gap_dimension_weights"}
    kept = [name for name in before.column_names if name not in said]
    assert after.select(kept).equals(before.select(kept))
    changed = {p for p in root.rglob("*") if p.is_file() and files.get(p) != p.stat().st_mtime_ns}
    assert changed == {path, root / layout.LABELS}


@pytest.mark.parametrize("place", ["journal", "set"])
def test_taken_back_is_as_it_was_recorded(root: Path, journal: Path, place: str) -> None:
    """A judge's success, overruled by mistake, came back as unlabelled once that was undone."""
    where = root.parent / place
    assert [e.outcome for e in open_labelled(where).episodes] == [
        "success",
        "unlabelled",
        "failure",
    ]
    store = open_labelled(where)
    uids = [e.info.uid for e in store.episodes]
    store.say([word(uids[0], "failure"), word(uids[1], "success")])
    store = open_labelled(where)
    assert [e.outcome for e in store.episodes] == ["failure", "success", "failure"]
    for _ in range(2):
        act = labels.last_act(open_labelled(where).events, "ana")
        open_labelled(where).say([labels.retraction(e) for e in act])
    assert [e.outcome for e in open_labelled(where).episodes] == [
        "success",
        "unlabelled",
        "failure",
    ]
    publish(journal, root, "me/x")
    assert column(root, "outcome") == ["success", "unlabelled", "failure"]
    publish(journal, root.parent / "anew", "me/x")
    assert column(root.parent / "anew", "outcome") == ["success", "unlabelled", "failure"]


def test_a_label_published_and_then_taken_back_leaves_what_was_sealed(
    tmp_path: Path, journal: Path
) -> None:
    uid = open_labelled(journal).episodes[0].info.uid
    open_labelled(journal).say([word(uid, "failure")])
    root = tmp_path / "later"
    publish(journal, root, "me/x")
    assert column(root, "outcome")[0] == "failure"
    act = labels.last_act(open_labelled(root).events, "ana")
    open_labelled(root).say([labels.retraction(e) for e in act])
    assert column(root, "outcome")[0] == "success"


def test_an_older_word_from_the_journal_does_not_replace_a_newer_one(
    root: Path, journal: Path
) -> None:
    uid = open_labelled(root).episodes[1].info.uid
    older = LabelEvent(uid, "outcome", "failure", "bo", "operator", at="2026-01-01T10:00:00+00:00")
    newer = LabelEvent(uid, "outcome", "success", "ana", "operator", at="2026-01-01T11:00:00+00:00")
    open_labelled(root).say([newer])
    open_labelled(journal).say([older])
    publish(journal, root, "me/x")
    assert column(root, "outcome")[1] == "success"
    assert [e.author for e in open_labelled(root).events] == ["bo", "ana"]
    assert publish_takes(journal, root, "me/x").labels == 0


STEPS = ("cloned", "finalized", "columns written", "synced", "swapped")


@pytest.mark.members(2)
@pytest.mark.parametrize("step", STEPS)
def test_a_label_given_while_the_dataset_is_published_to_is_kept(
    root: Path, journal: Path, write_take: Write, step: str
) -> None:
    uid = open_labelled(root).episodes[0].info.uid
    open_labelled(root).say([word(uid, "success", who="bo")])
    write_take(journal, 3, code=9, cameras=())
    event = word(uid, "failure")
    labeller = threading.Thread(target=lambda: open_labelled(root).say([event]))

    def hook(name: str) -> None:
        if name == step:
            labeller.start()
            wait_for(lambda: event in labels.readable(root / layout.LABELS))

    publish_takes(journal, root, "me/x", hook=hook)
    labeller.join(SLOW_S)
    assert open_labelled(root).events.count(event) == 1
    assert column(root, "outcome") == ["failure", "unlabelled", "failure", "success"]


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + SLOW_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("first", [True, False])
def test_a_label_given_while_the_folder_is_away_is_kept(root: Path, first: bool) -> None:
    """Where names can't be exchanged, the dataset is absent between two renames."""
    store = open_labelled(root)
    uid = store.episodes[0].info.uid
    if not first:
        store.say([word(uid, "success", who="bo")])
    event = word(uid, "failure")
    labeller = threading.Thread(target=open_labelled(root).say, args=([event],))

    def hook(name: str) -> None:
        if name == "renamed away":
            labeller.start()
            time.sleep(0.2)  # whether it has come to its write by now doesn't matter

    with staging.locked(root):
        stage = staging.sibling(root, "staging")
        staging.clone(root, stage)
        staging.commit(stage, root, hook, exchange=lambda _a, _b: False)
    labeller.join(SLOW_S)
    assert event in open_labelled(root).events
    assert column(root, "outcome")[0] == "failure"


def test_labels_of_deleted_takes_do_not_come_back(root: Path) -> None:
    store = open_labelled(root)
    gone, kept = store.episodes[0].info.uid, store.episodes[1].info.uid
    store.say([word(gone, "failure"), word(kept, "success")])
    late = [word(gone, "slip", "failure_mode"), word(kept, "slip", "failure_mode")]

    def hook(name: str) -> None:
        if name == "staged":
            labels.append(root / layout.LABELS, *late)

    delete_takes(root, lambda e: e.info.uid == gone, hook=hook)
    assert {e.uid for e in open_labelled(root).events} == {kept}
    assert column(root, "failure_mode") == ["slip", ""]


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    """PyArrow opens a path several times: beside somebody who labelled, an eighth failed."""
    path, over = tmp_path / "file.parquet", threading.Event()
    tables = [pa.table({"n": list(range(n)), "s": [str(n)] * n}) for n in (5, 3000)]
    pq.write_table(tables[0], path)

    def replace() -> None:
        for table in itertools.cycle(tables):
            if over.is_set():
                return
            pq.write_table(table, path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(300):
            assert layout.read_parquet(path, ["n", "s"]) in tables
    finally:
        over.set()
        writer.join()


LABELLER = """
import sys
from pathlib import Path
from gaploop.core.labels import LabelEvent
from gaploop.datasets.labels import open_labelled
root, who, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for n in range(count):
    store = open_labelled(root)
    uid = store.episodes[n % len(store.episodes)].info.uid
    store.say([LabelEvent(uid, "phase", "grasp", who, "operator", note=str(n))])
"""


def test_people_who_label_a_dataset_at_once_lose_nothing(root: Path) -> None:
    count, people = 6, "ab"
    writers = [
        subprocess.Popen([sys.executable, "-c", LABELLER, str(root), who, str(count)])
        for who in people
    ]
    assert [writer.wait() for writer in writers] == [0] * len(people)
    said = [(e.author, e.note) for e in open_labelled(root).events if e.source == "operator"]
    for who in people:
        assert [note for author, note in said if author == who] == [str(n) for n in range(count)]
    assert column(root, "phase") == ["grasp"] * 3


def test_the_folder_one_stands_in_is_labelled_under_its_own_lock(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gaploop label .` locked `./..lock`, a file within the dataset that nobody else asked for."""
    monkeypatch.chdir(root)
    store = open_labelled(Path())
    store.say([word(store.episodes[0].info.uid, "failure")])
    assert column(root, "outcome")[0] == "failure"
    assert not [p.name for p in root.iterdir() if p.name.startswith(".")]


def test_a_busy_dataset_takes_the_label_and_shows_it_later(
    root: Path, journal: Path, write_take: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = open_labelled(root).episodes[0].info.uid
    open_labelled(root).say([word(uid, "success")])
    write_take(journal, 3, code=9, cameras=())
    publish(journal, root, "me/x")
    assert len(layout.episode_files(root)) == 2
    monkeypatch.setattr(staging, "LOCK_WAIT_S", 0.05)
    with staging.locked(root):
        assert not open_labelled(root).say([word(uid, "failure")])
    assert column(root, "outcome")[0] == "success"
    assert open_labelled(root).episodes[0].outcome == "failure"
    assert open_labelled(root).say([]), "the same label once more says nothing new, and is shown"
    assert column(root, "outcome")[0] == "failure"
    open_labelled(root).write([word(uid, "success")])  # killed before its columns showed it
    other = open_labelled(root).episodes[3].info.uid
    open_labelled(root).say([word(other, "slip", "failure_mode")])
    assert column(root, "outcome")[0] == "success", "though it is in another file"
    assert column(root, "failure_mode") == ["", "", "", "slip"]
    said = open_labelled(root).events
    back = [labels.retraction(e) for e in labels.last_act(said, "ana")]
    open_labelled(root).write(back)  # killed before its columns showed it: not one more is undone
    assert main(["label", str(root), "--undo", "--author=ana"]) == 0
    assert column(root, "failure_mode") == ["", "", "", ""]
    assert len(open_labelled(root).events) == len(said) + len(back)


def test_a_dataset_of_plain_lerobot_gets_columns_and_uids_that_stay(root: Path) -> None:
    [path] = layout.episode_files(root)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(list(columns.EPISODE_COLUMNS)), path)
    shutil.rmtree(root / "meta/gap")
    store = open_labelled(root)
    assert store.lacks_columns
    uids = [e.info.uid for e in store.episodes]
    store = store.add_columns()
    assert not store.lacks_columns
    assert [e.info.uid for e in store.episodes] == uids == column(root, "uid")
    store.say([word(uids[2], "success")])
    assert column(root, "outcome") == ["unlabelled", "unlabelled", "success"]


def test_a_line_ends_at_its_line_break_alone(journal: Path) -> None:
    """Notes of another tool held U+2028 as it is: refreshing took it for the line's end."""
    store = open_labelled(journal)
    uid = store.episodes[0].info.uid
    line = word(uid, "failure").to_line().replace('"note": ""', '"note": "a\u2028b"')
    with store.file.open("a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")
    assert store.refresh() >= {uid}
    assert store.events == open_labelled(journal).events
    assert store.events[-1].note == "a\u2028b"
