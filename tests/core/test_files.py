"""Files are whole or absent, names sort by time, hashes name contents."""

from __future__ import annotations

import math
import random
import signal
import stat
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import (
    append_line,
    append_lines,
    existing_folder,
    read_json,
    remove_lines,
    sha256,
    uuid7,
    writable_folder,
    write_atomically,
    write_json,
)

SIZE = 1_000_000
WRITER = f"""
import sys
from pathlib import Path
from gaploop.core.files import write_atomically
path = Path(sys.argv[1])
print("ready", flush=True)
while True:
    for letter in b"ab":
        write_atomically(path, bytes([letter]) * {SIZE})
"""


@pytest.mark.members(3)
@pytest.mark.parametrize("seed", range(8))
def test_kill_during_write_leaves_a_whole_file(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * SIZE)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.0, 0.05))
        writer.send_signal(signal.SIGKILL)
    content = path.read_bytes()
    assert len(content) == SIZE
    assert len(set(content)) == 1


def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": math.nan})
    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_concurrent_appenders_do_not_interleave(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [f"{n:04d}" * 100 for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda line: append_line(path, line), lines))
    assert sorted(path.read_text().splitlines()) == lines


def test_append_after_a_torn_line_starts_a_new_one(tmp_path: Path) -> None:
    """A torn label and the next one ran together, and every label of the journal was lost."""
    path = tmp_path / "lines"
    for torn in (b"whole\nto", b"to"):
        path.write_bytes(torn)
        append_line(path, "next")
        assert path.read_text().splitlines() in (["whole", "next"], ["next"])


def test_uuid7_sorts_by_time_and_says_so() -> None:
    made = []
    for _ in range(20):
        made.append(uuid7())
        time.sleep(2e-6)  # takes of one millisecond have an order, too
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    for text in made:
        value = uuid.UUID(text)
        assert (value.version, value.variant) == (7, uuid.RFC_4122)
        assert abs((value.int >> 80) / 1000 - time.time()) < 60


def test_hash_depends_on_contents_and_names(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in ((first, "a"), (second, "b")):
        folder.mkdir()
        (folder / name).write_text("same")
    assert sha256(first / "a") == sha256(second / "b")
    assert sha256(first) != sha256(second)
    (second / "b").rename(second / "a")
    assert sha256(first) == sha256(second)


def test_unreadable_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "file").write_text("")
    for attempt in (
        lambda: read_json(tmp_path / "none.json"),
        lambda: read_json(tmp_path / "bad.json"),
        lambda: existing_folder(tmp_path / "none", "Dataset"),
        lambda: existing_folder(tmp_path / "file", "Dataset"),
        lambda: writable_folder(tmp_path / "file" / "out"),
    ):
        with pytest.raises(UnusableInputError) as caught:
            attempt()
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    with pytest.raises(UnusableInputError, match="hf download me/cups --repo-type=dataset"):
        existing_folder(Path("me/cups"), "Dataset")


def test_text_is_written_as_utf8(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", "°C")
    assert (tmp_path / "x").read_bytes() == "°C".encode()


def test_a_files_permissions_stay_unless_others_are_named(tmp_path: Path) -> None:
    """labels.jsonl of a folder that a group writes became 0644, and nobody else could label."""

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    path = tmp_path / "labels.jsonl"
    write_atomically(path, "{}\n")
    assert mode(path) == 0o644
    path.chmod(0o664)
    write_atomically(path, "{}\n")
    append_lines(path, ["1", "2"])
    remove_lines(path, lambda line: line == b"2")
    assert path.read_text() == "{}\n1\n"
    assert mode(path) == 0o664
    write_atomically(path, "", 0o600)
    assert mode(path) == 0o600
