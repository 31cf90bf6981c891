"""JSON and YAML that somebody else wrote: a value that can be used, or one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import DEEPEST, parse_json, read_content, read_json
from gaploop.core.schema import load_yaml, parse_yaml

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
)
MERGES = BOMB.replace("[x, x, x, x, x, x, x, x, x]", "{x: 1}").replace("&a1 [", "&a1 [")


@given(VALUES)
def test_what_is_sound_reads_as_it_is(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        '{"a":' * 500 + "1" + "}" * 500,
        '{"fps": 1' + "0" * 400 + "}",
        "9" * 5000,
        '"\\ud800"',
        "{",
        "",
        "\udcff",
    ],
)
def test_hostile_json_is_one_error(text: str, tmp_path: Path) -> None:
    """Nested deeply, `label`, `edit` and `export` ended in a RecursionError."""
    path = tmp_path / "info.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UnusableInputError) as caught:
        read_json(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.members(8)
@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        BOMB + "\nid: *a11",
        MERGES,
        "a: &a [*a]",
        "a: &a {b: *a}",
        "a: " + "[" * 5000,
        "a: 0x" + "F" * 6000,
        "a: " + "9" * 6000,
        "a: 2001-13-45",
        "a: !!int x",
        "a: !!binary x",
        "a: !!python/object/apply:os.system [true]",
        "? [a, b]\n: c",
        "a: *nothing",
        "a: 1\na: 2",
        "\udcff",
    ],
)
def test_hostile_yaml_is_one_error(text: str, tmp_path: Path) -> None:
    """A few lines of aliases stand for 31 billion values, and a date may have a month 13."""
    path = tmp_path / "plan.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UnusableInputError) as caught:
        load_yaml(path, "Plan")
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_aliases_that_people_write_are_read() -> None:
    said = parse_yaml("usual: &usual {n: 1}\nhere: {<<: *usual, m: 2}", "File")
    assert said["here"] == {"n": 1, "m": 2}


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_only_files_are_opened(tmp_path: Path, make: object) -> None:
    """A pipe in the place of a data file hung `gaploop edit`: nobody ever wrote into it."""
    path = tmp_path / "labels.jsonl"
    make(path)  # type: ignore[operator]
    for read in (read_json, read_content, lambda p: list(labels.read(p)), labels.readable):
        with pytest.raises(UnusableInputError, match=r"not a file"):
            read(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    with path.open("wb") as stream:
        stream.truncate(10 << 30)  # it takes no space
    with pytest.raises(UnusableInputError, match=r"larger than 256 MiB"):
        read_json(path)
