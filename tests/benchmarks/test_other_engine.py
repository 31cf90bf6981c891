"""The cell in another engine: what can be said of it where that engine isn't installed."""

from __future__ import annotations

import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

from benchmarks.other_engine import PickPlace, arm_mjcf, stations
from gaploop.core.errors import UnusableInputError
from gaploop.sim.catalogue import SO101
from gaploop.sim.conditions import PAINT


def test_the_file_that_the_other_engine_reads_has_the_cells_arm(tmp_path: Path) -> None:
    ours = SO101.spec(PAINT).compile()
    theirs = mujoco.MjModel.from_xml_path(str(arm_mjcf(tmp_path)))
    for name in ("body_mass", "body_inertia", "jnt_range", "dof_damping", "dof_armature"):
        np.testing.assert_allclose(getattr(theirs, name), getattr(ours, name), rtol=1e-6)
    collides = [np.flatnonzero(m.geom_contype | m.geom_conaffinity) for m in (ours, theirs)]
    bodies = [m.geom_bodyid[g].tolist() for m, g in zip((ours, theirs), collides, strict=True)]
    assert bodies[0] == bodies[1]


def test_without_the_engine_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydrake", None)
    with pytest.raises(UnusableInputError, match="pip install drake"):
        PickPlace()


def test_a_station_has_one_fault_and_is_the_same_each_time() -> None:
    drawn = stations()
    assert drawn == stations()
    assert len({key for key, _ in drawn}) == len(drawn)
    assert all(len({name.split("_")[0] for name in arguments}) == 1 for _, arguments in drawn)
