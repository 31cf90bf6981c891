"""`make setup` finds an interpreter that works, or says in one line what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIND = Path(__file__).resolve().parent.parent / ".ci" / "find_python.sh"
SHIM = "#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n"
OLD = "#!/bin/sh\necho ''\n"  # what our question prints where Python is older than 3.12


def find(home: Path, path: list[Path], *arguments: str) -> subprocess.CompletedProcess[str]:
    folders = os.pathsep.join([*map(str, path), "/nowhere"])
    environment = {"HOME": str(home), "PATH": folders}
    command = ["/bin/sh", str(FIND), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A folder with a Python that works; it answers as the one that runs the tests."""
    text = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    return script(tmp_path / "good" / "python3.12", text).parent


def test_a_shim_that_refuses_is_passed_over(tmp_path: Path, good: Path) -> None:
    """A pyenv shim stood first on PATH and refused: `command -v` alone would have chosen it."""
    shims = script(tmp_path / "shims" / "python3.12", SHIM).parent
    old = script(tmp_path / "old" / "python3", OLD).parent
    found = find(tmp_path, [shims, old, good])
    assert (found.returncode, found.stdout.strip()) == (0, sys.executable)


def test_pyenv_versions_are_looked_at_where_path_has_nothing(tmp_path: Path) -> None:
    version = tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python"
    script(version, f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    found = find(tmp_path, [])
    assert (found.returncode, found.stdout.strip()) == (0, sys.executable)


def test_uv_is_asked_last(tmp_path: Path, good: Path) -> None:
    uv = script(tmp_path / "uv" / "uv", f"#!/bin/sh\necho {good / 'python3.12'}\n").parent
    found = find(tmp_path, [uv])
    assert (found.returncode, found.stdout.strip()) == (0, sys.executable)


def test_nothing_found_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    shims = script(tmp_path / "shims" / "python3.12", SHIM).parent
    found = find(tmp_path, [shims])
    assert (found.returncode, found.stdout) == (2, "")
    (line,) = found.stderr.splitlines()
    assert "Python >= 3.12" in line
    assert "make setup PYTHON=" in line


def test_a_named_interpreter_is_the_only_one_tried(tmp_path: Path, good: Path) -> None:
    named = str(good / "python3.12")
    assert find(tmp_path, [], named).stdout.strip() == sys.executable
    old = script(tmp_path / "old" / "python3", OLD)
    refused = find(tmp_path, [good], str(old))
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
