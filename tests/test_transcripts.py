"""The transcripts that pages of docs/ open with, typed again: what a user reads is what comes.

A block marked `console` is typed line by line in a folder of its page, in which `cups` lies: six
plain LeRobot episodes of an emulated Koch arm. A line `…` stands for any lines, and `…` in a line
for any text. Blocks marked `console slow` are typed by `make test-all`.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import koch_cups
from gaploop.scripts import cli

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```console( slow)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"\s+# exit code (\d+)$")


def typed(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a block with the lines that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = re.sub(r"\\\n\s*", "", part).partition("\n")
        yield command, [line.rstrip() for line in printed.splitlines() if line.strip()]


def pages() -> list[object]:
    """Return each page with its block's number."""
    return [
        pytest.param(page, n, id=f"{page.stem}-{n}", marks=[pytest.mark.slow] if slow else [])
        for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
        for n, (slow, _) in enumerate(BLOCK.findall(page.read_text()))
    ]


def missing(expected: list[str], printed: str) -> str:
    """Return the first line that wasn't printed in its place, or nothing."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    anywhere = False
    for line in expected:
        if line.strip() == "…":
            anywhere = True
            continue
        pattern = re.compile(".*?".join(map(re.escape, line.split("…"))))
        here = next((k for k, got in enumerate(lines) if pattern.fullmatch(got)), None)
        if here is None or (here and not anywhere):
            return line
        lines, anywhere = lines[here + 1 :], False
    return "" if anywhere or not lines else f"(nothing more, but there was) {lines[0]}"


@pytest.fixture(scope="module")
def cups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the dataset that `python -m benchmarks.koch_cups cups 6` makes."""
    folder = tmp_path_factory.mktemp("cups") / "cups"
    koch_cups.main(folder, episodes=6)
    return folder


@pytest.mark.parametrize(("page", "block"), pages())
def test_a_page_shows_what_is_printed(
    page: Path, block: int, request: pytest.FixtureRequest, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    text = BLOCK.findall(page.read_text())[block][1]
    if "cups" in text:
        shutil.copytree(request.getfixturevalue("cups"), tmp_path / "cups")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for command, expected in typed(text):
        code = CODE.search(command)
        program, *words = shlex.split(CODE.sub("", command), comments=True)
        assert program == "gaploop"
        to = words.pop(words.index(">") + 1) if ">" in words else None
        words = [word for word in words if word != ">"]
        capfd.readouterr()
        ended = 0
        with contextlib.suppress(SystemExit):
            ended = cli.main(words)
        out, err = capfd.readouterr()
        if to:
            Path(to).write_text(out)
            out = ""
        line = missing(expected, err + out)
        assert not line, f"$ {command}\nnot printed in its place: {line}\n{err}{out}"
        assert ended == (int(code[1]) if code else 0), command
