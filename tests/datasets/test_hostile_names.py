"""What a dataset, take or foreign file names never leads out of the folder it belongs to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import change, episode_files, info, set_info

from gaploop.collect.recovery import recover
from gaploop.core import consent, journal_format
from gaploop.core.consent import Place, Use, new_id, today
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import read_header, take_folders
from gaploop.datasets.check.dataset import check
from gaploop.datasets.check.findings import ERROR
from gaploop.datasets.labels import open_labelled
from gaploop.datasets.layout import is_template, read_info
from gaploop.datasets.lerobot_publish import publish_takes
from gaploop.datasets.lerobot_read import read_takes
from gaploop.scripts._review import _locked
from gaploop.scripts.cli import main

type WriteTake = Callable[..., str]
type Refused = Callable[..., str]
ESCAPE = "../../precious"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that holds the journal, the dataset and things of the user's own."""
    folder = tmp_path / "home"
    (folder / "precious").mkdir(parents=True)
    (folder / "precious" / "thesis.txt").write_text("years of work")
    (folder / "precious.zarr.zip").write_text("years of work, too")
    return folder


@pytest.fixture
def journal(home: Path, write_take: WriteTake) -> Path:
    for k in range(2):
        write_take(home / "journal", 4, code=10 * k)
    return home / "journal"


@pytest.fixture
def dataset(home: Path, journal: Path) -> Path:
    publish_takes(journal, home / "set", "me/set")
    return home / "set"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return what runs a command that must refuse with one line, and returns the line."""

    def run(*words: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        told = capsys.readouterr().err.strip()
        assert "\n" not in told
        assert "Traceback" not in told
        return told

    return run


def files(folder: Path) -> dict[str, bytes]:
    """Return everything below a folder, links and empty folders too, but no locks."""

    def content(path: Path) -> bytes:
        if path.is_symlink():
            return f"-> {path.readlink()}".encode()
        return path.read_bytes() if path.is_file() else b"(folder)"

    return {
        path.relative_to(folder).as_posix(): content(path)
        for path in folder.rglob("*")
        if not path.name.endswith(".lock")
    }


def rename_take(root: Path, uid: str) -> None:
    for path in episode_files(root):
        change(path, "gap_uid", lambda values: [uid, *values[1:]])


def change_header(folder: Path, **changes: Any) -> None:
    """Change what is known about a take; the seal stays as it was."""
    value = json.loads((folder / journal_format.HEADER).read_text())
    value["info"] |= changes
    (folder / journal_format.HEADER).write_text(json.dumps(value))


def test_withdrawing_a_consent_deletes_nothing_outside_the_journal(
    home: Path,
    write_take: WriteTake,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`gap_uid` of `../precious` in a dataset: the folder beside the journal was deleted, and
    the report said finished. Now the rest is cleared, and that dataset named as not cleared."""
    register, journal = home / "consents.jsonl", home / "journal"
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    ana = consent.add(register, new_id(), today(), frozenset(Use)).id
    hers = write_take(journal, 4, consent=ana, conditions={"human": "handover"})
    write_take(journal, 4)
    publish_takes(journal, home / "set", "me/set")
    rename_take(home / "set", "../precious")
    for place in (Place("journal", str(journal)), Place("dataset", str(home / "set"))):
        consent.add_place(register, ana, place)
    before = files(home / "precious")
    assert main(["consent", "withdraw", ana, "--yes"]) == 1
    assert files(home / "precious") == before
    assert not (journal / hers).exists()
    said = capsys.readouterr().out
    assert "'../precious' is a path" in said


def test_editing_writes_nothing_outside_the_new_dataset(
    home: Path, dataset: Path, refused: Refused
) -> None:
    """`edit keep` copied telemetry to wherever `gap_uid` led."""
    rename_take(dataset, ESCAPE)
    before = files(home)
    told = refused("edit", "keep", dataset, "--episodes=[0]", f"--output_dir={home / 'new'}")
    assert "gap_uid '../../precious' is a path" in told
    assert files(home) == before


@pytest.mark.parametrize("name", ["uid", "camera"])
def test_publishing_writes_nothing_outside_the_dataset(
    home: Path, journal: Path, name: str, refused: Refused
) -> None:
    """The uid in take.json led a take's telemetry out of the dataset."""
    folder = take_folders(journal)[0]
    if name == "uid":
        change_header(folder, uid=ESCAPE)
    else:
        value = json.loads((folder / journal_format.HEADER).read_text())
        value["cameras"] = {ESCAPE: value["cameras"]["overhead"]}
        (folder / journal_format.HEADER).write_text(json.dumps(value))
    before = files(home)
    told = refused("publish", f"--journal={journal}", f"--dataset.root={home / 'set'}")
    assert f"take.json: {name} '../../precious' is a path" in told
    assert files(home) == before


def test_a_take_that_was_changed_after_its_seal_is_not_published(home: Path, journal: Path) -> None:
    """`publish` took a take.json that differed from the seal; only `check` saw it."""
    changed, good = take_folders(journal)
    change_header(changed, operator="somebody else")
    report = publish_takes(journal, home / "set", "me/x")
    assert report.published == (good.name,)
    why = report.refused[changed.name]
    assert "take.json isn't what was sealed" in why
    assert main(["label", str(journal), f"--episodes={changed.name}", "--outcome=discarded"]) == 0
    assert not publish_takes(journal, home / "set", "me/x").refused


@pytest.mark.members(2)
@pytest.mark.parametrize("key", ["data_path", "video_path"])
@pytest.mark.parametrize("value", ["/etc/{chunk_index}", "../{file_index}", "a\\{file_index}"])
def test_a_template_that_leads_out_is_refused(
    home: Path, dataset: Path, key: str, value: str, refused: Refused
) -> None:
    """An absolute `data_path` in info.json was opened."""
    set_info(dataset, **{key: value})
    told = refused("convert", dataset, "--to=lerobot_v21", f"--output_dir={home / 'x'}")
    assert f"info.json: {key} " in told
    assert any(f.severity == ERROR for f in check(dataset))
    assert main(["check", str(dataset), "--fix"]) == 0
    assert read_info(dataset).data_path.startswith("data/")


@pytest.mark.parametrize(
    "value", ["{chunk_index.__class__}", "{file_index:099999999999d}", "{file_index!r}", "{0}", "{"]
)
def test_a_template_only_places_numbers(value: str) -> None:
    assert not is_template(f"data/{value}.parquet")


def test_a_feature_that_is_a_path_is_refused(dataset: Path, refused: Refused) -> None:
    features = info(dataset)["features"]
    set_info(dataset, features={**features, ESCAPE: features["observation.images.overhead"]})
    told = refused("convert", dataset, "--to=lerobot_v21", f"--output_dir={dataset.parent / 'x'}")
    assert "feature '../../precious' is a path" in told
    assert [f for f in check(dataset) if f.severity == ERROR]


def test_a_dataset_with_links_out_is_left_alone(
    home: Path, dataset: Path, refused: Refused
) -> None:
    """`label` replaced a linked `videos/` by an empty folder; `edit keep` copied what a link in
    `meta/` led to."""
    shutil.move(dataset / "videos", home / "big")
    (dataset / "videos").symlink_to(home / "big")
    before = files(home)
    new = f"--output_dir={home / 'new'}"
    for words in (
        ("label", dataset, "--episodes=0", "--outcome=failure", "--author=ana"),
        ("edit", "keep", dataset, "--episodes=[0]", new),
        ("check", dataset, "--fix"),
        ("convert", dataset, new),
        ("convert", dataset, "--to=lerobot_v21", f"--output_dir={home / 'x'}"),
        ("diagnose", dataset, new),
    ):
        assert "videos is a link that leads out" in refused(*words)
    assert files(home) == before
    assert [(f.code, f.where) for f in check(dataset)] == [("link_out", "videos")]


def test_a_link_in_meta_is_not_copied(home: Path, dataset: Path, refused: Refused) -> None:
    (dataset / "meta" / "notes.txt").symlink_to(home / "precious" / "thesis.txt")
    refused("edit", "keep", dataset, "--episodes=[0]", f"--output_dir={home / 'new'}")
    assert [f.where for f in check(dataset) if f.code == "link_out"] == ["meta/notes.txt"]


def test_a_link_that_stays_inside_outlives_a_change(
    dataset: Path, journal: Path, write_take: WriteTake
) -> None:
    """A linked folder was replaced by an empty one."""
    (dataset / "videos").rename(dataset / "pictures")
    (dataset / "videos").symlink_to("pictures")
    write_take(journal, 4, code=20)
    publish_takes(journal, dataset, "me/set")
    assert (dataset / "videos").readlink() == Path("pictures")
    takes = list(read_takes(dataset))
    assert [sum(1 for _ in take.cameras["overhead"]()) for take in takes] == [4, 4, 4]


@pytest.mark.parametrize("labelled", [True, False])
def test_a_snapshot_of_the_hub_is_read_through_its_own_blobs_and_never_written(
    home: Path, dataset: Path, refused: Refused, labelled: bool
) -> None:
    """Hugging Face's cache is made of links: they lead out of the snapshot, into its blobs.

    Labels went through such a link into the blob, which then wasn't what its name says. The review
    page took labels that couldn't be saved, and named a command that put them into the blob. Where
    nobody had labelled yet, labels were saved where the next download doesn't look.
    """
    label = ("--episodes=0", "--outcome=failure", "--author=ana")
    assert not labelled or main(["label", str(dataset), *label]) == 0
    repository = home / "datasets--me--set"
    snapshot = repository / "snapshots" / "abc"
    shutil.copytree(dataset, snapshot)
    (repository / "blobs").mkdir()
    for n, path in enumerate(sorted(p for p in snapshot.rglob("*") if p.is_file())):
        blob = repository / "blobs" / f"{n:040x}"
        path.rename(blob)
        up = [".."] * (len(path.relative_to(repository).parts) - 1)
        path.symlink_to(Path(*up, "blobs", blob.name))
    before = files(repository / "blobs")
    assert not [f for f in check(snapshot) if f.severity == ERROR]
    assert len(list(read_takes(snapshot))) == 2
    for words in (("convert",), ("edit", "keep", "--episodes=[0]")):
        new = home / f"new_{words[0]}"
        place = 1 if words[0] == "convert" else 2
        assert main([*words[:place], str(snapshot), *words[place:], f"--output_dir={new}"]) == 0
        assert not any(path.is_symlink() for path in new.rglob("*"))
        assert not [f for f in check(new) if f.severity == ERROR]
    for writing in (
        ("label", snapshot, "--episodes=0", "--outcome=success"),
        ("check", snapshot, "--fix"),
        ("edit", "delete", snapshot, "--episodes=0", "--yes"),
    ):
        assert f"cp -rL {snapshot} set" in refused(*writing)
    assert f"cp -rL {snapshot} set" in _locked(open_labelled(snapshot), snapshot)
    assert all(path.is_symlink() or path.is_dir() for path in snapshot.rglob("*"))
    assert [path.name for path in snapshot.parent.iterdir()] == ["abc"]
    assert files(repository / "blobs") == before


def test_a_linked_take_is_neither_read_nor_recovered(
    home: Path, journal: Path, write_take: WriteTake, refused: Refused
) -> None:
    """A take's folder, or a video in it, that leads out of the journal is somebody else's."""
    uid = write_take(home / "other", 4, outcome=None)
    (journal / uid).symlink_to(home / "other" / uid)
    before = files(home)
    with pytest.raises(UnusableInputError, match=f"{uid} is a link that leads out"):
        recover(journal)
    told = refused("publish", f"--journal={journal}", f"--dataset.root={home / 'set'}")
    assert f"{uid} is a link that leads out" in told
    assert files(home) == before
    (journal / uid).unlink()
    folder = take_folders(journal)[0]
    shutil.move(folder / "overhead.mkv", home / "overhead.mkv")
    (folder / "overhead.mkv").symlink_to(home / "overhead.mkv")
    told = refused("publish", f"--journal={journal}", f"--dataset.root={home / 'set'}")
    assert "overhead.mkv is a link that leads out" in told
    with pytest.raises(UnusableInputError, match="leads out"):
        read_header(folder)
    assert [f.code for f in check(journal)] == ["link_out"]


def test_a_label_is_not_written_through_a_link(home: Path, journal: Path, refused: Refused) -> None:
    """`labels.jsonl` of a journal is appended to: as a link it would write anywhere."""
    (journal / journal_format.LABELS).symlink_to(home / "startup")
    told = refused("label", journal, "--episodes=0", "--outcome=failure", "--author=ana")
    assert "labels.jsonl is a link that leads out" in told
    assert not (home / "startup").exists()
