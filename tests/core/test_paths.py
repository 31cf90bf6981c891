"""Names and links that a file gives never lead out of the folder they belong to."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.paths import (
    LONGEST_BYTES,
    inside,
    is_plain_name,
    links_out,
    plain_name,
    refuse_links_out,
    relative_path,
)

HOSTILE = (
    "", " ", ".", "..", "../precious", "a/b", "/etc/passwd", "a\\b", "..\\a", "C:\\x", "c:x",
    "a\0b", "a\nb", "\x1b[2J", ".hidden", "x" * 256, "\u202egpj", "\ud800", None, 7, b"a",
    10**5000,
)  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=lambda v: repr(v)[:20] if v != 10**5000 else "big")
def test_a_hostile_name_is_refused_with_one_line(value: object) -> None:
    with pytest.raises(UnusableInputError, match=r"^meta/x: gap_uid .*Rename it") as caught:
        plain_name(value, "gap_uid", "meta/x")
    line = str(caught.value)
    assert line.isprintable(), "a message never carries what a file would do to a terminal"
    assert len(line) < 400
    assert not is_plain_name(value)


@pytest.mark.parametrize(
    "name",
    ["01a20aca-0c1d-7cca-b22b-3dbf126df564", "demo_0", "AUTOLab+5d05+07-09h", "-dQw4", "wrist cam"],
)
def test_names_that_people_give_pass(name: str) -> None:
    assert plain_name(name, "uid") == name


@given(st.text(st.characters() | st.sampled_from("./\\:"), max_size=300))
def test_whatever_passes_is_one_component_below_any_folder(name: str) -> None:
    if is_plain_name(name):
        path = Path("/root", f"{name}.zarr.zip")
        assert path.parent == Path("/root")
        assert os.path.normpath(path) == str(path)
        assert len(path.name.encode()) <= LONGEST_BYTES + len(".zarr.zip")


@given(st.text(string.ascii_letters + "./\\", max_size=30))
def test_whatever_relative_path_passes_stays_below_any_folder(path: str) -> None:
    try:
        relative_path(path, "data_path")
    except UnusableInputError:
        return
    assert Path(os.path.normpath(Path("/root", path))).is_relative_to("/root")
    assert os.path.normpath(Path("/root", path)) != "/root"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a/..", 7, None])
def test_a_path_out_of_the_folder_is_refused(path: object) -> None:
    with pytest.raises(UnusableInputError, match="data_path"):
        relative_path(path, "data_path")


def test_a_link_out_is_refused_and_one_that_stays_passes(tmp_path: Path) -> None:
    root, other = tmp_path / "set", tmp_path / "other"
    (root / "a").mkdir(parents=True)
    other.mkdir()
    (root / "here").symlink_to("a")
    assert inside(root, "here/x.txt", "file") == root / "here" / "x.txt"
    refuse_links_out(root)
    (root / "videos").symlink_to(other)
    (root / "a" / "loop").symlink_to("loop")
    with pytest.raises(UnusableInputError, match="videos is a link that leads out"):
        inside(root, "videos/x.mp4", "file")
    assert links_out(root) == [root / "a" / "loop", root / "videos"]
    with pytest.raises(UnusableInputError, match="leads out"):
        refuse_links_out(root)


def test_a_folder_reached_through_a_link_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "set").symlink_to("real")
    assert inside(tmp_path / "set", "x", "file") == tmp_path / "set" / "x"
    assert not links_out(tmp_path / "set")


def test_a_snapshot_of_the_hub_is_read_through_its_own_blobs_only(tmp_path: Path) -> None:
    repository = tmp_path / "datasets--a--b"
    snapshot, blob = repository / "snapshots" / "abc", repository / "blobs" / "1234"
    (snapshot / "meta").mkdir(parents=True)
    blob.parent.mkdir()
    blob.write_text("{}")
    (snapshot / "meta" / "info.json").symlink_to("../../../blobs/1234")
    assert not links_out(snapshot)
    assert links_out(snapshot, of_snapshot=False) == [snapshot / "meta" / "info.json"]
    (tmp_path / "secret").write_text("")
    (repository / "blobs" / "5678").symlink_to(tmp_path / "secret")
    (snapshot / "meta" / "stats.json").symlink_to("../../../blobs/5678")
    assert links_out(snapshot) == [snapshot / "meta" / "stats.json"]
