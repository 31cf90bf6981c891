"""The short form of `make fuzz`: the same mutations each time, of every reader that is quick."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz.__main__ import main
from fuzz.mutations import mutate

SHORT = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.timeout(900)  # half a minute where nothing else runs
def test_no_reader_falls_over_a_mutated_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deep JSON, alias bombs, `fps: 0`, wrong types and pipes ended commands in tracebacks."""
    words = [f"--folder={folder}", f"--mutations={SHORT}", "--short"]
    monkeypatch.setattr(sys, "argv", ["fuzz", *words])
    is_wrong, said = main(), capsys.readouterr().out
    assert not is_wrong, said
    assert said.rstrip().endswith("0 findings")


@pytest.mark.parametrize(
    "seed", ["files/plan.yaml", "set/meta/info.json", "files/outcomes.csv", "set"]
)
def test_a_mutation_is_the_same_each_time(folder: Path, tmp_path: Path, seed: str) -> None:
    """A finding that can't be replayed can't be fixed."""
    source = folder / "corpus" / seed
    files = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    for file in files:
        made = []
        for number in range(2):
            copy = tmp_path / str(number) / file.name
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(file, copy)
            mutate(copy, Random(7))
            made.append(copy.read_bytes())
        assert made[0] == made[1]
