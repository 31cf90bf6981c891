"""What is entered is looked at before any of it is loaded: hostile names, files and weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.board.entries import Submission, enter, entered, look_at_weights, stage
from benchmarks.board.sandbox import Limits
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.finetune.hub_policy import files_of
from gaploop.finetune.lerobot_policy import PACKAGED_BASE

BASE = Submission("ana", "base", "policy", "scripted takes")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    enter(tmp_path / "board", BASE, files_of(PACKAGED_BASE))
    return tmp_path / "board"


def change(file: Path, **values: Any) -> None:
    write_json(file, {**read_json(file), **values})


def with_header(file: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def tensor(shape: list[int], *offsets: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": offsets}


def sparse(file: Path, size: int) -> None:
    with file.open("wb") as stream:
        stream.truncate(size)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pickle": (lambda f: (f / "weights.bin").write_bytes(b"\x80\x04"), "is a pickle"),
    "a pickle by another case": (lambda f: (f / "W.PKL").write_bytes(b""), "is a pickle"),
    "a program": (lambda f: (f / "modeling.py").write_text("import os"), "no file of a policy"),
    "a library": (lambda f: (f / "step.so").write_bytes(b"\x7fELF"), "no file of a policy"),
    "a link out": (lambda f: (f / "x.json").symlink_to("/etc/passwd"), "is a link or no file"),
    "a linked folder": (lambda f: (f / "x").symlink_to("/etc"), "is a link or no file"),
    "a pipe": (lambda f: os.mkfifo(f / "x.json"), "is a link or no file"),
    "too large": (lambda f: sparse(f / "more.safetensors", 3 << 30), "are the most"),
    "too many": (lambda f: [(f / f"{n}.json").write_text("{}") for n in range(300)], "the most"),
    "no weights": (lambda f: list(map(Path.unlink, f.glob("*.safetensors"))), "no weights"),
    "a header like a bomb": (
        lambda f: with_header(f / "model.safetensors", b"{}", length=1 << 62), "a header of"),
    "a tensor like a bomb": (
        lambda f: with_header(f / "model.safetensors", {"a": tensor([1 << 38], 0, 4)}, bytes(4)),
        "no sound .safetensors"),
    "nested without end": (
        lambda f: with_header(f / "model.safetensors", b"[" * 90_000), "no sound .safetensors"),
    "a path out": (
        lambda f: change(f / "config.json", pretrained_path="/home/ana/policy"), "leads out"),
    "a path up": (
        lambda f: change(f / "config.json", use_peft="../../server.json"), "leads out"),
    "another's base": (
        lambda f: write_json(f / "adapter_config.json", {"base_model_name_or_path": "~/base"}),
        "leads out"),
    "code in the config": (
        lambda f: change(f / "config.json", auto_map={"AutoModel": "evil.Model"}), "auto_map"),
    "another type": (lambda f: change(f / "config.json", type="evil"), "policy type"),
    "a program as a step": (
        lambda f: change(f / "policy_preprocessor.json",
                         steps=[{"class": "subprocess.Popen", "config": {"args": ["true"]}}]),
        "processor step"),
    "a step's file outside": (
        lambda f: change(f / "policy_preprocessor.json",
                         steps=[{"registry_name": "device_processor", "state_file": "../s"}]),
        "leads out"),
}  # fmt: skip


@pytest.mark.members(6)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_policy_is_refused_without_a_word_of_this_computer(
    what: str, board: Path, tmp_path: Path
) -> None:
    put, words = HOSTILE[what]
    put(BASE.folder(board) / "files")
    with pytest.raises(UnusableInputError, match=words) as error:
        stage(BASE, board, tmp_path / "staged", Limits())
    assert str(tmp_path) not in str(error.value)


def test_a_sound_policy_is_copied_and_what_is_changed_later_does_not_count(
    board: Path, tmp_path: Path
) -> None:
    folder = stage(BASE, board, tmp_path / "staged", Limits())
    before = (folder / "config.json").read_bytes()
    (BASE.folder(board) / "files" / "config.json").write_text("{}")
    assert (folder / "config.json").read_bytes() == before
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, 12),  # overlapping
        ({"a": tensor([2], 0, 8), "b": tensor([2], 12, 20)}, 20),  # a hole
        ({"a": tensor([2], 0, 8)}, 12),  # bytes left over
        ({"a": tensor([2], 0, 8)}, 4),  # bytes missing
        ({"a": tensor([-2], 0, 8)}, 8),
        ({"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}, 4),
        ({"a": 7}, 0),
        ([], 0),
    ],
)
def test_weights_are_their_header_s_tensors_and_nothing_else(
    header: Any, data: int, tmp_path: Path
) -> None:
    with_header(tmp_path / "w.safetensors", header, bytes(data))
    with pytest.raises(UnusableInputError, match="no sound"):
        look_at_weights(tmp_path / "w.safetensors")
    with_header(tmp_path / "w.safetensors", {"a": tensor([2], 0, 8)}, bytes(8))
    look_at_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        {"user": "../ana"}, {"user": ""}, {"user": ".ana"}, {"name": "a/b"}, {"name": "a..b"},
        {"name": "a\n"}, {"name": "x" * 65}, {"track": "rce"}, {"trained_on": "  "},
        {"trained_on": "x" * 501}, {"trained_on": "a\x1b[2J"}, {"source": "eve/base"},
        {"source": "ana/base", "revision": "main"}, {"user": 7},
    ],
)  # fmt: skip
def test_an_entry_that_can_not_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnusableInputError):
        replace(BASE, **change)


def test_a_board_s_odd_files_are_named_and_passed_over(board: Path) -> None:
    """Anybody may write there: a file of another's name, no JSON, one that is endless."""
    for name, text in {
        "eve/ana": (BASE.folder(board) / "entry.json").read_text(),
        "eve/broken": "{",
        "eve/list": "[]",
        "eve/long": " " * (1 << 20),
    }.items():
        (board / "submissions" / name).mkdir(parents=True)
        (board / "submissions" / name / "entry.json").write_text(text)
    found = list(entered(board))
    assert [e for e in found if isinstance(e, Submission)] == [BASE]
    assert sum(isinstance(e, UnusableInputError) for e in found) == 4


def test_a_link_on_the_board_leads_nowhere(board: Path, tmp_path: Path) -> None:
    """Else somebody who may write there has the server copy a folder of its operator's."""
    files = BASE.folder(board) / "files"
    files.rename(tmp_path / "operator")
    files.symlink_to(tmp_path / "operator")
    with pytest.raises(UnusableInputError, match="leads out"):
        stage(BASE, board, tmp_path / "staged", Limits())
    (BASE.folder(board) / "entry.json").rename(tmp_path / "entry.json")
    (BASE.folder(board) / "entry.json").symlink_to(tmp_path / "entry.json")
    assert [type(found) for found in entered(board)] == [UnusableInputError]


def test_a_name_is_entered_once(board: Path) -> None:
    with pytest.raises(UnusableInputError, match="another --name"):
        enter(board, BASE, {})
    shutil.rmtree(BASE.folder(board))
    enter(board, BASE, {})
