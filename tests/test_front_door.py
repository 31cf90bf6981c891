"""`import gaploop`: seventeen names, loaded when first used, with the commands' own options."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gaploop
from gaploop.core.errors import UnusableInputError
from gaploop.scripts.cli import command, commands, config_class_of
from gaploop.scripts.options import PublishedDataset
from gaploop.scripts.publish import PublishConfig

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))


def test_importing_gaploop_loads_nothing_but_itself() -> None:
    code = (
        "import sys, gaploop; print([m for m in sys.modules if m in ('numpy', 'torch', 'lerobot')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", gaploop.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(gaploop, name)
    assert callable(value)
    assert (value.__doc__ or "").strip()
    assert name in dir(gaploop)
    assert f"`{name}`" in (ROOT / "docs" / "extend" / "api.md").read_text() or inspect.isclass(
        value
    )


def test_finetune_is_a_function_and_a_folder() -> None:
    from gaploop.finetune import adapt

    assert gaploop.finetune.adapt is adapt  # type: ignore[attr-defined]
    with pytest.raises(UnusableInputError, match="Where to"):
        gaploop.finetune(real=["takes"])


def test_options_by_name_are_those_of_the_dataclass(tmp_path: Path) -> None:
    seen: list[Any] = []
    by_name = command(_named("publish", "gaploop.scripts.publish", seen.append))
    by_name(tmp_path, journal="journal", dataset={})
    by_name(dataset={"root": tmp_path}, journal=Path("journal"))
    config = PublishConfig(Path("journal"), PublishedDataset(tmp_path))
    by_name(config)
    assert seen == [config] * 3


def _named(name: str, module: str, work: Any) -> Any:
    def function(config: PublishConfig) -> None:
        work(config)

    function.__name__, function.__module__ = name, module
    return function


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaploop.diagnose("x", trainedon="y"), "Unknown option 'trainedon'. Did you mean"),
        (lambda: gaploop.diagnose("nowhere"), "nowhere"),
        (lambda: gaploop.plan(budget={"takes": "many"}), "budget.takes"),
        (lambda: gaploop.publish("a", "b"), "Unexpected argument 'b'"),
    ],
)
def test_what_the_command_line_refuses_is_refused_in_its_words(call: Any, message: str) -> None:
    with pytest.raises(UnusableInputError, match=message.replace(".", r"\.")):
        call()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_use_the_front_door_only(example: Path) -> None:
    tree = ast.parse(example.read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert "gaploop" in imported
    assert not {name for name in imported if name.startswith("gaploop.")}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "gaploop"
    }
    assert used
    assert used <= set(gaploop.__all__)
    refused = _unknown_options(tree)
    assert not refused


def test_the_page_about_the_library_names_options_that_there_are() -> None:
    page = (ROOT / "docs/extend/api.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    assert blocks
    assert [_unknown_options(ast.parse(block)) for block in blocks] == [[]] * len(blocks)


def _unknown_options(tree: ast.AST) -> list[str]:
    """Return options in calls such as `gaploop.plan(budget=…)` that the command hasn't.

    Incident: two examples and the page let a policy drive by `record`, long after it was `rollout`.
    """
    unknown = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        named = ast.unparse(call.func).removeprefix("gaploop.")
        if not ast.unparse(call.func).startswith("gaploop.") or named not in commands():
            continue
        module = importlib.import_module(f"gaploop.scripts.{named}")
        kinds = [config_class_of(module, named, chosen) for chosen in ([], ["--env.gym=ID"])]
        known = {f.name.rstrip("_") for kind in kinds for f in dataclasses.fields(kind)}
        unknown += [f"{named}({k.arg}=)" for k in call.keywords if k.arg and k.arg not in known]
    return unknown


def test_a_take_is_recorded_checked_and_loaded(tmp_path: Path) -> None:
    """Record two takes, check them and load them again: what a newcomer does first."""
    recorded = gaploop.record(
        dataset={"root": tmp_path / "takes", "num_episodes": 1, "single_task": "Put it there"}
    )
    assert (recorded.end.counted, recorded.published) == (1, 1)
    assert [f for f in gaploop.check(tmp_path / "takes") if f.severity == "error"] == []
    (take,) = gaploop.load_takes(tmp_path / "takes")
    assert isinstance(take, gaploop.Take)
    assert take.info.task == "Put it there"
    again = gaploop.publish(
        journal=recorded.journal, dataset={"root": recorded.root, "repo_id": "me/again"}
    )
    assert (len(again.published), again.present) == (0, 1)
