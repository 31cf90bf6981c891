"""The layout holds: links, no root packages, layers, benchmarks outside, a wheel with all else."""

from __future__ import annotations

import ast
import functools
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gaploop"

MAY_IMPORT = {
    "core": set[str](),
    "sim": {"core"},
    "teleop": {"core"},
    "datasets": {"core"},
    "collect": {"teleop", "datasets", "sim", "core"},
    "failure_analysis": {"collect", "teleop", "datasets", "sim", "core"},
    "finetune": {"failure_analysis", "collect", "teleop", "datasets", "sim", "core"},
    "scripts": {"finetune", "failure_analysis", "collect", "teleop", "datasets", "sim", "core"},
}
FOLDERS = tuple(MAY_IMPORT)
HEAVY = {"torch", "lerobot", "mujoco"}
DATA_SUFFIXES = {".json", ".yaml", ".html", ".safetensors", ".md", ".xml", ".js", ".css"}
NOT_SHIPPED = (
    ".git", ".venv", "outputs", "build", "dist", "*.egg-info", "__pycache__", ".*_cache",
    ".hypothesis",
)  # fmt: skip


def modules(folder: str) -> list[Path]:
    return sorted(p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)


BENCHMARKS = modules("benchmarks")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path: Path) -> list[tuple[str, bool]]:
    return list(imports(tree(path)))


def imports(node: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield every imported module, and whether the import stands in a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, inside
        elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
            for alias in child.names:
                yield f"{child.module}.{alias.name}", inside
        elif isinstance(child, ast.ImportFrom):
            yield "." * child.level, inside
        elif isinstance(child, ast.expr):
            continue  # no statement stands in it
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports(child, inside or function)


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield every text that may name a module, as `-m` or `import_module` take it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("folder", FOLDERS)
def test_root_folders_are_linked_and_are_no_packages(folder: str) -> None:
    """A root `datasets/__init__.py` would hide Hugging Face's datasets from everything."""
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()
    assert os.readlink(PACKAGE / folder) == f"../../{folder}"


def test_the_package_holds_nothing_but_links() -> None:
    held = {p.name for p in PACKAGE.iterdir() if p.name != "__pycache__"}
    assert held == {"__init__.py", "__main__.py", "py.typed", *FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_layers(folder: str) -> None:
    for path in modules(folder):
        for name, _ in imports_of(path):
            assert not name.startswith(".."), f"{path}: import from gaploop.…, not relatively"
            parts = name.split(".")
            if parts[0] == "gaploop" and len(parts) > 1 and parts[1] in FOLDERS:
                assert parts[1] in MAY_IMPORT[folder] | {folder}, f"{path} imports {name}"
            assert parts[0] not in ("tests", "benchmarks"), f"{path} imports {name}"
        for name in names_in(tree(path)):
            assert not name.startswith("benchmarks."), f"{path} names {name}, to import or to run"


def test_benchmarks_import_gaploop_and_themselves() -> None:
    """What measures us uses the package as its users do: by its import path."""
    for path in BENCHMARKS:
        for name, _ in imports_of(path):
            assert not name.startswith(".."), f"{path}: import from benchmarks.…, not relatively"
            ours = {*FOLDERS, "tests"} - {"datasets"}  # Hugging Face's has that name
            assert name.split(".")[0] not in ours, f"{path} imports {name}"


def test_benchmarks_are_no_part_of_the_package() -> None:
    assert (ROOT / "benchmarks" / "README.md").is_file()
    assert not (PACKAGE / "benchmarks").exists()


def test_core_imports_nothing_heavy() -> None:
    """Kinematics needs MuJoCo, inside functions, so that importing core stays light."""
    for path in modules("core"):
        for name, inside in imports_of(path):
            root = name.split(".")[0]
            assert root not in HEAVY or (root == "mujoco" and inside), f"{path} imports {name}"


@pytest.mark.parametrize("folder", [*FOLDERS, "benchmarks"])
def test_lerobot_stays_where_its_name_stands(folder: str) -> None:
    for path in modules(folder):
        relative = path.relative_to(ROOT)
        if any(part.startswith("lerobot_") for part in relative.parts):
            continue
        found = [inside for name, inside in imports_of(path) if name.split(".")[0] == "lerobot"]
        if folder in ("scripts", "benchmarks"):
            assert all(found), f"{relative}: import lerobot inside a function"
        else:
            assert not found, f"{relative}: only lerobot_* modules and packages import lerobot"


def test_importing_gaploop_and_core_loads_nothing_heavy() -> None:
    places = (p.relative_to(ROOT).with_suffix("").parts for p in modules("core"))
    names = ", ".join(".".join(("gaploop", *p)).removesuffix(".__init__") for p in places)
    code = f"import sys, gaploop, {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_constraints_are_pins_without_addresses() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
    assert all("==" in pin and "/" not in pin and not pin.startswith("-") for pin in pins)
    names = {pin.partition("==")[0].lower() for pin in pins}
    assert "opencv-python-headless" in names
    assert "opencv-python" not in names


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source distribution, built from a copy so that nothing is left behind."""
    copy = tmp_path_factory.mktemp("source") / "gaploop"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SHIPPED))
    code = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return copy / "dist"


def expected() -> set[str]:
    """Return what must be shipped, relative to the package."""
    files = (p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file())
    shipped = {p for p in files if p.suffix in DATA_SUFFIXES | {".py"}}
    return {"__init__.py", "py.typed"} | {
        str(p.relative_to(ROOT)) for p in shipped if "__pycache__" not in p.parts
    }


def test_wheel_holds_every_module_and_data_file(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    held = {n.removeprefix("gaploop/") for n in names if n.startswith("gaploop/")}
    assert expected() <= held
    assert all(n.startswith(("gaploop/", "gaploop-")) for n in names)
    assert not [n for n in names if "benchmarks/" in n]
    assert any(n.endswith("licenses/LICENSE") for n in names)


def test_source_distribution_holds_every_module_and_data_file(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    held = {n.partition("src/gaploop/")[2] for n in names if "src/gaploop/" in n}
    assert expected() <= held
