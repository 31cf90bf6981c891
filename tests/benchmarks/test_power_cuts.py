"""What a disk may hold after a power cut, and what of ours must be on it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.power_cuts import CLAIMS, DISKS, Claims, Op, left_by_cut, recorded
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import append_line, make_folder, write_json

FILE: list[Op] = [
    ("new", 1, 0o40755), ("name", 0, "d", 1), ("new", 2, 0o100644), ("name", 1, "f", 2),
    ("write", 2, 0, b"x" * 5000),
]  # fmt: skip
SYNCED = {2: b"x" * 5000, 1: {"f"}, 0: {"d"}}


@pytest.mark.parametrize("synced", [(), (2,), (1, 2), (0, 1), (0, 1, 2)])
def test_only_what_was_synced_is_there_for_sure(synced: tuple[int, ...]) -> None:
    ops = [*FILE, *(("sync", node) for node in synced)]
    draw = np.random.default_rng(0)
    for disk in (*DISKS, *["drawn"] * 20):
        left = left_by_cut(ops, disk, draw)
        for node in (0, 1):
            names = set(left.nodes[node].names)
            assert names == SYNCED[node] if node in synced or disk == "in order" else True
            assert disk != "worst" or node in synced or not names
        data = bytes(left.nodes[2].data)
        assert data == SYNCED[2] if 2 in synced or disk == "in order" else True
        assert disk != "worst" or 2 in synced or not data


def write(work: Path) -> None:
    claims = Claims(work / CLAIMS)
    make_folder(work / "a" / "b")
    claims.send(("a/b",))
    append_line(work / "a" / "b" / "lines", '{"n": 1}')
    claims.send(("a/b/lines",))
    write_json(work / "a" / "b" / "whole.json", {"n": 2})
    claims.send(("a/b/whole.json",))
    write_json(work / "a" / "b" / "whole.json", {"n": 3})


def test_files_that_were_claimed_are_there_whenever_the_power_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new folder's name, and a new file of labels, were never synced in the folder above."""
    posix = pytest.importorskip("posix")
    for name in ("fsync", "fdatasync"):  # tests sync nothing otherwise
        monkeypatch.setattr(os, name, getattr(posix, name))
    try:
        with recorded(tmp_path / "fuse") as (mount, ops):
            write(mount)
    except UnusableInputError as error:
        pytest.skip(str(error))
    draw = np.random.default_rng(0)
    at = next(op[3] for op in ops if op[0] == "name" and op[2] == CLAIMS)
    for cut in range(1, len(ops) + 1):
        said = b"".join(op[3] for op in ops[:cut] if op[:2] == ("write", at))
        for number, disk in enumerate(DISKS):
            left = tmp_path / f"{cut}_{number}"
            left_by_cut([op for op in ops[:cut] if at not in (op[1], op[-1])], disk, draw).lay_out(
                left
            )
            for (path,) in map(json.loads, said.splitlines()):
                assert (left / path).exists(), (cut, disk)
                if path.endswith(".json"):
                    assert json.loads((left / path).read_text())["n"] in (2, 3)
                elif path.endswith("lines"):
                    assert (left / path).read_text() == '{"n": 1}\n'


def test_new_names_are_synced_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without FUSE: which folders are told to be synced."""
    synced: set[int] = set()
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, lambda handle: synced.add(os.fstat(handle).st_ino))
    write(tmp_path)
    places = (".", "a", "a/b", "a/b/lines", "a/b/whole.json")
    assert {(tmp_path / place).stat().st_ino for place in places} <= synced
