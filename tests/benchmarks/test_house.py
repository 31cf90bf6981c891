"""The counts of the house say what they promise, on trees made for it and on this one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import house
from benchmarks.__main__ import main


def trees(**sources: str) -> dict[Path, ast.Module]:
    return {Path(name): ast.parse(text) for name, text in sources.items()}


def test_a_name_counts_as_a_duplicate_where_two_modules_define_it() -> None:
    found = house.duplicates(trees(
        a="class Seen: ...\nclass Only: ...\nclass _Hidden: ...",
        b="class Seen: ...\nclass _Hidden: ...",
        c="class Twice: ...\nclass Twice: ...",
    ))  # fmt: skip
    assert found == {"Seen": 2}


def test_functions_used_once_are_told_from_those_used_more_or_never() -> None:
    source = """
def _once(): ...
def _twice(): ...
def _never(): ...
def __dunder(): ...
def public(): return _once(), _twice, _twice
class Holder:
    def _method(self): ...
    def call(self): return self._method()
"""
    assert house.private_functions(trees(a=source)) == (4, 2)
    elsewhere = "from a import _never"
    assert house.private_functions(trees(a=source, b=elsewhere)) == (4, 3)


def test_imports_in_functions_count_once_and_every_capability_is_there() -> None:
    source = "import a\ndef f():\n    import b\n    def g():\n        from c import d, e\n"
    assert house.imports_in_functions(trees(a=source)) == 2
    sizes = house.sizes(Path(house.__file__).parent.parent)
    assert len(sizes) == len(house.CAPABILITIES)
    assert min(sizes.values()) > 1000
    files = (p for places, _ in house.CAPABILITIES.values() for p in places.split())
    assert all((Path(house.__file__).parent.parent / p).exists() for p in files)


def test_a_walk_stays_in_a_file_until_it_leaves_it() -> None:
    walk = house.stays(["scripts/a.py", "scripts/a.py", "core/b.py", "scripts/a.py", "sim/c.py"])
    assert walk == ["scripts/a.py", "core/b.py", "scripts/a.py", "sim/c.py"]


def test_calls_climb_to_a_layer_above_and_may_go_both_ways() -> None:
    calls = {("scripts/a.py", "core/b.py"), ("core/b.py", "sim/c.py"), ("sim/c.py", "core/b.py")}
    calls |= {("sim/c.py", "teleop/d.py")}  # one layer
    assert house.climbs(calls) == ["core/b.py -> sim/c.py"]
    assert house.both_ways(calls) == ["core/b.py <-> sim/c.py"]


def test_what_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["house", f"--root={tmp_path}", f"--output_dir={tmp_path / 'out'}"]) == 2
    assert "no checkout of gaploop" in capsys.readouterr().err
