"""The short form of `make fuzz`: the same mutations each time, of every reader that is quick."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz.mutations import mutate

SHORT = 8


def fuzz(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuzz", f"--folder={folder}", *words]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.timeout(900)  # half a minute where nothing else runs
def test_no_reader_falls_over_a_mutated_file(folder: Path) -> None:
    """Deep JSON, alias bombs, `fps: 0`, wrong types and pipes ended commands in tracebacks."""
    done = fuzz(folder, f"--mutations={SHORT}", "--short")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("0 findings")


@pytest.mark.parametrize("seed", ["files/plan.yaml", "set/meta/info.json", "files/log.csv", "set"])
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
