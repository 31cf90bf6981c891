"""A site's cells: what is there isn't done again, and arms that record the same share it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_rows import row

import gaploop
from benchmarks.closed_loop import _code
from benchmarks.proof.design import Part, StudyArm, draw_site
from benchmarks.proof.site import SiteJob, run_site
from benchmarks.starts import LoopStart, start_for
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import write_json
from gaploop.core.vocabulary import GapDimension

SPATIAL = GapDimension.SPATIAL_GEOMETRY.value


def test_cells_that_have_a_row_are_not_run_again(tmp_path: Path) -> None:
    site, part = draw_site("pick_place", SPATIAL, 0), Part(budgets=(5,), arms=(StudyArm.UNIFORM,))
    kept = row("uniform", 5, 0.5)
    write_json(tmp_path / "row_uniform_5.json", kept.to_json())
    nothing = LoopStart(str(tmp_path / "no_such_policy"), tmp_path / "no_such_takes")
    assert run_site(SiteJob(site, part, nothing, tmp_path, "c")) == [kept]


def test_the_hash_of_the_program_covers_what_a_checkout_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of a checkout are links: the first rows carried a hash of `__init__.py` alone."""
    (tmp_path / "finetune").mkdir()
    module = tmp_path / "finetune" / "arms.py"
    module.write_text("a = 1\n")
    package = tmp_path / "gaploop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "finetune").symlink_to(tmp_path / "finetune")
    monkeypatch.setattr(gaploop, "__file__", str(package / "__init__.py"))
    before = _code()
    module.write_text("a = 2\n")
    assert _code() != before


def test_a_cell_with_other_rollouts_is_refused_and_not_taken_for_a_result(tmp_path: Path) -> None:
    """A quick trial in the folder of the study would otherwise have become a part of it."""
    site = draw_site("pick_place", SPATIAL, 0)
    part = Part(budgets=(5,), arms=(StudyArm.UNIFORM,), rollouts=4)
    write_json(tmp_path / "row_uniform_5.json", row("uniform", 5, 0.5).to_json())
    nothing = LoopStart(str(tmp_path / "no_such_policy"), tmp_path / "no_such_takes")
    with pytest.raises(UnusableInputError, match="100 rollouts, and 4 are wanted"):
        run_site(SiteJob(site, part, nothing, tmp_path, "c"))


@pytest.mark.slow
def test_a_site_is_run_from_base_to_rows(tmp_path: Path) -> None:
    part = Part(
        gaps=(SPATIAL,), seeds=(0,), budgets=(3,), rollouts=2, diagnosed=4, steps=4,
        arms=(StudyArm.TARGETED, StudyArm.UNIFORM, StudyArm.ORACLE, StudyArm.REMEDY),
    )  # fmt: skip
    (site,) = part.sites()
    start = start_for("pick_place", tmp_path, 3)
    rows = {r.arm: r for r in run_site(SiteJob(site, part, start, tmp_path / site.name, "c"))}
    assert list(rows) == ["targeted", "uniform", "oracle", "remedy"]
    assert all(len(r.before) == len(r.after) == 2 for r in rows.values())
    assert rows["uniform"].takes == 3
    assert len(rows["uniform"].planned) == 3
    assert rows["oracle"].planned == {SPATIAL: 3}
    assert rows["remedy"].takes == 0
    if rows["targeted"].planned == rows["oracle"].planned:
        assert rows["targeted"].data == rows["oracle"].data  # recorded and trained once
    assert rows["uniform"].data != rows["oracle"].data
