"""What the documents name exists: files, modules, links, commands and their options."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

from gaploop.failure_analysis.signals import registry
from gaploop.finetune.tuning import presets
from gaploop.scripts import cli
from gaploop.scripts._arguments import find_options
from gaploop.scripts.former_names import FORMER, LEROBOT_COMMANDS, OF_LEROBOT, of_lerobot
from gaploop.sim import gaps as sim_gaps
from gaploop.sim.cell import SimCell
from gaploop.sim.gaps import mechanisms

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "core", "sim", "teleop", "collect", "datasets", "failure_analysis", "finetune", "scripts",
    "tests", "docs", "examples", "benchmarks",
)  # fmt: skip
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(p for p in (ROOT / "examples").iterdir() if p.suffix in (".md", ".py", ".yaml")),
    ]
)
NAMED = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w/.-]+)`")
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)#?([^)\s]*)\)")
FILE = re.compile(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:py|md|svg))\b")
MODULE = re.compile(r"\bgaploop((?:\.\w+)+)")
CODE = re.compile(r"```[\w ]*\n(.*?)```|`([^`]+)`", re.DOTALL)
COMMAND = re.compile(r"(?:^|[\s(;&|$])gaploop ([a-z][a-z-]*)\b([^\n;&|]*)")
OPTION = re.compile(r"(?:^|\s)--([\w.]+)")
COMMENT = re.compile(r"(?<!\S)#.*")
QUOTED = re.compile(r"(?<!\w)(?:'[^']*'|\"[^\"]*\")")
DEVICES = ("robot", "teleop", "camera")
SOME_ARM = (("robot", "so101_follower"), ("teleop", "so101_leader"))
"""Brings out the options that a command has with an arm alone."""
WORLD = re.compile(r"--env\.(gym|scene)\b")
"""An environment that is named without its type."""
TYPE = re.compile(r"(?:^|\s)--(\w+)\.type=([\w]+)")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def code(page: Path) -> Iterator[str]:
    """Yield each piece of code with continued lines joined; a Python example is one piece."""
    text = page.read_text()
    if page.suffix != ".md":
        yield text
        return
    for block, inline in CODE.findall(text):
        # A command may be broken over two lines of prose, but not over two of a block.
        yield re.sub(r"\\\n\s*", " ", block) if block else " ".join(inline.split())


def calls(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command that code calls and what stands behind it, then those inside quotes."""
    text = COMMENT.sub("", text)
    yield from COMMAND.findall(QUOTED.sub("''", text))
    for quoted in QUOTED.findall(text):
        yield from calls(quoted[1:-1])


@cache
def options_of(command: str, types: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Return the options of a command, given the types of its devices and environment."""
    module = importlib.import_module(f"gaploop.scripts.{cli.commands()[command].stem}")
    config_class = cli.config_class_of(module, command, [f"--{g}.type={t}" for g, t in types])
    names = {option.name for option in find_options(config_class, dict(types))}
    return frozenset({"help", "config_path", *names})


def unknown_options(command: str, text: str) -> Iterator[str]:
    """Yield the options in a call that the command doesn't have.

    A device's own are known where its type is given; where it isn't, any of that device may stand.
    """
    given = tuple(sorted({*TYPE.findall(text), *(("env", kind) for kind in WORLD.findall(text))}))
    known = options_of(command, given) | options_of(command, SOME_ARM)
    for name in sorted(set(OPTION.findall(text)) - known):
        group = name.partition(".")[0]
        if group not in DEVICES or group in dict(given):
            yield f"gaploop {command} --{name}"


def exists(dotted: Sequence[str]) -> bool:
    """Say whether folders, then a module, then a word in it, go by these names."""
    at = ROOT
    for n, name in enumerate(dotted):
        if (at / name).is_dir():
            at /= name
            continue
        source = at / f"{name}.py"
        rest = dotted[n + 1 :] if source.is_file() else dotted[n:]
        source = source if source.is_file() else at / "__init__.py"
        found = source.read_text() if source.is_file() else ""
        return (source.is_file() or not rest) and all(
            re.search(rf"\b{word}\b", found) for word in rest
        )
    return True


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return what links into a page may name: its headings, as GitHub writes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", page.read_text()), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return frozenset(re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in plain)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    """A heading was renamed, and the page that pointed to it opened at its top."""
    for to, anchor in LINK.findall(page.read_text()):
        at = (page.parent / to).resolve() if to else page
        assert at.exists(), to
        assert not anchor or at.suffix != ".md" or anchor in anchors(at), f"{to}#{anchor}"


@every_page
def test_files_and_modules_exist(page: Path) -> None:
    text = page.read_text()
    files = {*FILE.findall(text), *NAMED.findall(text)}
    gone = sorted(name for name in files if not (ROOT / name).exists())
    for name in MODULE.findall(text):
        dotted = name[1:].split(".")
        if dotted[0] in FOLDERS and not exists(dotted):
            gone.append(f"gaploop{name}")
    assert not gone


@every_page
def test_commands_exist_with_their_options(page: Path) -> None:
    known = cli.commands()
    made = {name.lower() for name in re.findall(r"class (\w+)Config:", page.read_text())}
    wrong = []
    for command, text in (call for piece in code(page) for call in calls(piece)):
        if command in made:  # the page shows how to write it
            continue
        if command not in known:
            wrong.append(f"gaploop {command}")
            continue
        wrong += unknown_options(command, text.partition(" -- ")[0])
    assert not wrong


def messages(file: Path) -> Iterator[str]:
    """Yield the texts of a module that aren't docstrings, with … for what is filled in."""
    tree = ast.parse(file.read_text())
    inside = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            inside.add(id(node.value))  # a docstring
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)


@pytest.mark.parametrize("folder", FOLDERS[:8])
def test_messages_name_commands_that_exist(folder: str) -> None:
    """A plan said to type `gaploop calibrate drift`, and a check `consent withdraw --dataset`."""
    actions = {name: actions_of(name) for name in cli.commands()}
    wrong = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        for text in messages(file):
            for command, rest in COMMAND.findall(f" {text}"):
                # What follows may be about something else.
                rest = re.split(r"[.:,)](?:\s|$)| (?:\(|-- |and |of |or |to |with the )", rest)[0]
                first = re.match(r" ([a-z_]+)\b(?!\.)", rest)
                if command in FORMER:
                    wrong.append(f"{file}: gaploop {command}")
                elif command in actions:  # not a verb
                    anywhere = {*unknown_options(command, f"{rest} --env.scene=…")}
                    unknown = anywhere.intersection(unknown_options(command, rest))
                    wrong += [f"{file}: {option}" for option in unknown]
                    if first and actions[command] and first[1] not in actions[command]:
                        wrong.append(f"{file}: gaploop {command} {first[1]}")
    assert not wrong


def actions_of(command: str) -> frozenset[str]:
    """Return what may stand first behind a command; none where anything may."""
    module = importlib.import_module(f"gaploop.scripts.{cli.commands()[command].stem}")
    config_class = cli.config_class_of(module, command, [])
    named = getattr(module, "POSITIONAL", "")
    first = named if isinstance(named, str) else next(iter(named), "")
    choices = next((o.choices for o in find_options(config_class, {}) if o.name == first), ())
    return frozenset(choices or getattr(module, "ACTIONS", ()))


def test_the_recipes_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of docs/extend/architecture.md, each among the names of the file that it is for."""
    monkeypatch.setattr(registry, "REGISTRY", {})
    arm, gap, signal, preset, command = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs" / "extend" / "architecture.md").read_text(),
        re.DOTALL,
    )
    names: dict[str, Any] = {}
    exec(arm, names)
    assert names["ARM"].emulated.keys() == {"follower", "leader"}
    exec(gap, names := dict(vars(mechanisms)))
    mechanism = names["_RoughTable"]()
    monkeypatch.setattr(sim_gaps, "MECHANISMS", (*sim_gaps.MECHANISMS, mechanism))
    with SimCell(gaps={mechanism.key: 0.9}, image_size=64) as cell:
        cell.reset(0)
    exec(signal, {})
    assert registry.REGISTRY.keys() == {"paused_share"}
    assert isinstance(eval(preset, dict(vars(presets))), presets.Preset)
    takes = ModuleType("takes")
    monkeypatch.setitem(sys.modules, "takes", takes)
    exec(command, vars(takes))
    assert cli.run_module(takes, "takes", [str(tmp_path)], "gaploop takes") == 1


def test_every_file_and_name_of_the_tour_exists() -> None:
    stops = re.findall(
        r"`([\w/]+\.py)(?:: (\w+))?`", (ROOT / "docs" / "extend" / "tour.md").read_text()
    )
    assert len(stops) > 20
    for file, name in stops:
        tree = ast.parse((ROOT / file).read_text())
        defined = {getattr(node, "name", "") for node in tree.body}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", 0)]
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
        assert not name or name in defined, f"{file} has no {name}: {sorted(defined)}"


def test_what_lerobot_is_told_to_discover_is_a_package() -> None:
    """A module in its place passes our commands; LeRobot looks for `__path__` and fell over it."""
    texts = (
        path.read_text()
        for folder in ("docs", "finetune")
        for path in (ROOT / folder).rglob("*.md")
    )
    found = {
        m for text in texts for m in re.findall(r"discover_packages_path=(gaploop[.\w]+)", text)
    }
    assert "gaploop.sim.lerobot_env" in found
    for name in found:
        assert (ROOT / "src" / name.replace(".", "/") / "__init__.py").is_file(), name


def lerobot_options() -> Iterator[tuple[str, str]]:
    """Yield our command and each option of LeRobot's that does the same."""
    from lerobot.configs.eval import EvalPipelineConfig
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.rollout.configs import RolloutConfig
    from lerobot.scripts.lerobot_record import RecordConfig
    from lerobot.scripts.lerobot_teleoperate import TeleoperateConfig

    for command, config in (
        ("record", RecordConfig), ("teleoperate", TeleoperateConfig), ("rollout", RolloutConfig),
        ("finetune", TrainPipelineConfig), ("evaluate", EvalPipelineConfig),
    ):  # fmt: skip
        kinds = get_type_hints(config)
        for top in fields(config):
            below = [k for k in (*get_args(kinds[top.name]), kinds[top.name]) if is_dataclass(k)]
            inner = [f"{top.name}.{f.name}" for k in below for f in fields(k)]
            whole = top.name not in ("dataset", "eval", "wandb", "peft") or not inner
            yield from ((command, name) for name in ([top.name] if whole else inner))


def test_each_command_of_lerobots_is_known_or_told() -> None:
    theirs = {
        e.name.removeprefix("lerobot-")
        for e in entry_points(group="console_scripts")
        if e.name.startswith("lerobot-")
    }
    assert len(theirs) > 10
    assert not theirs - {*cli.commands(), *FORMER, *LEROBOT_COMMANDS}
    assert {
        says.split()[1] for says in LEROBOT_COMMANDS.values() if says.startswith("gaploop ")
    } <= {*cli.commands()}


def test_each_option_of_lerobots_commands_is_known_or_told() -> None:
    """Who pastes a command of LeRobot's reads what does the same here, of all options at once."""
    unknown = []
    for command, name in lerobot_options():
        known = options_of(command, SOME_ARM)
        if name not in known and not any(k.startswith(f"{name}.") for k in known):
            unknown += [] if of_lerobot(command, name) else [f"{command} --{name}"]
    assert not unknown
    told = {
        name for of in OF_LEROBOT.values() for says in of.values() for name in OPTION.findall(says)
    }
    anywhere = {name for command in OF_LEROBOT for name in options_of(command, SOME_ARM)}
    assert told <= anywhere
