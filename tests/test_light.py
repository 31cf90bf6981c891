"""An installation without extras: what needs no robot, no training and no simulation runs in it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.review_dataset import write_dataset

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    *("torch", "torchvision", "lerobot", "mujoco", "mink", "so101_nexus", "gymnasium"),
    *("transformers", "peft", "accelerate", "safetensors", "datasets", "pandas", "sklearn"),
    *("statsmodels", "cryptography", "segno", "serial"),
)
LIGHT = ("failure_analysis", "datasets/check", "datasets/labels.py", "datasets/edit",
         "datasets/formats", "datasets/lerobot_read.py", "datasets/formats/new_dataset.py",
         "datasets/lerobot_import.py", "datasets/lerobot_publish.py",
         "datasets/whole_stats.py")  # fmt: skip
"""Folders and files that import nothing heavy, however far one follows them."""
MODELS = ("core/arms/", "core/kinematics.py")
"""What makes an arm's model imports MuJoCo, in functions that what is light doesn't call."""
WITH_A_POLICY = {"sklearn"}

BLOCK = f"""
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
from gaploop.scripts import cli
"""


def _imports(path: Path) -> Iterator[str]:
    """Yield what a module imports, in functions too, but not for annotations alone."""
    seen = list[ast.AST](ast.parse(path.read_text()).body)
    while seen:
        node = seen.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        seen += ast.iter_child_nodes(node)


def _module(name: str) -> Path | None:
    """Return the file of one of our modules, or of the module that has this name in it."""
    parts = name.split(".")[1:]
    for place in (ROOT.joinpath(*parts), ROOT.joinpath(*parts[:-1])):
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if parts and path.is_file():
                return path
    return None


def test_what_is_light_imports_nothing_heavy_however_far_one_follows_it() -> None:
    ways: dict[Path, str] = {}
    for place in LIGHT:
        here = ROOT / place
        ways |= dict.fromkeys(here.rglob("*.py") if here.is_dir() else [here], place)
    following = list(ways)
    while following:
        path = following.pop()
        if str(path.relative_to(ROOT)).startswith(MODELS):
            continue
        for name in _imports(path):
            root = name.partition(".")[0]
            assert root not in set(HEAVY) - WITH_A_POLICY, f"{ways[path]}: {name}"
            other = _module(name) if root == "gaploop" else None
            if other is not None and other not in ways:
                ways[other] = f"{ways[path]} > {other.relative_to(ROOT)}"
                following.append(other)


def test_commands_run_without_what_is_heavy(tmp_path: Path) -> None:
    """All in one program, from which everything that only extras bring is kept away."""
    takes = tmp_path / "takes"
    write_dataset(takes, 2)
    runs = [
        f"check {takes}",
        f"label {takes} --episodes=0 --outcome=failure --author=ana",
        f"label {takes} --history",
        f"diagnose {takes} --output_dir=diagnosis",
        "plan diagnosis --budget.takes=20 --output_dir=plan",
        f"convert {takes} --to=lerobot_v21 --output_dir=old",
        "convert old --output_dir=new",
    ]
    code = (
        BLOCK + f"for line in {runs}:\n    print(line, cli.main(line.split()), file=sys.stderr)\n"
    )
    code += (
        "from gaploop.failure_analysis.review.takes import TakeSource\n"
        "from gaploop.datasets.labels import open_labelled\n"
        f"store = open_labelled({str(takes)!r})\n"
        "assert TakeSource(store).take(store.episodes[0]).frames.t_s.size\n"
        "import gaploop.failure_analysis.review.server\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    answered = dict(line.rsplit(" ", 1) for line in done.stderr.splitlines() if line[-2:] == " 0")
    assert not [line for line in runs if line not in answered], done.stderr
