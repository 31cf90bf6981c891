"""Telemetry on disk and in memory say the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaploop.core.errors import UnusableInputError
from gaploop.core.telemetry import JOINT_QUANTITIES, Telemetry, arrow_schema, joint_columns

VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none(), max_size=20)


@given(VALUES)
def test_columns_survive_the_way_through_arrow_and_null_is_nan(values: list[float | None]) -> None:
    channels = {"wrist.fx_n": "N"}
    t_ns = [7_000_000_000 + 10_000_000 * n for n in range(len(values))]
    table = pa.table({"t_ns": t_ns, "wrist.fx_n": values}, schema=arrow_schema(channels))
    telemetry = Telemetry.from_table(table)
    expected = np.array([np.nan if v is None else v for v in values], dtype=float)
    np.testing.assert_array_equal(telemetry.columns["wrist.fx_n"], expected)
    np.testing.assert_allclose(telemetry.t_s, 0.01 * np.arange(len(values)), atol=1e-9)
    assert telemetry.units == channels


def test_joints_keep_their_order_and_missing_quantities_are_nan() -> None:
    joints = ("pan", "lift", "elbow")
    channels = joint_columns("follower", joints) | {"wrist.fx_n": "N", "loop.period_s": "s"}
    columns = {name: np.full(4, float(n)) for n, name in enumerate(channels)}
    telemetry = Telemetry(np.arange(4.0), columns, channels)
    assert telemetry.arms() == ("follower",)
    assert telemetry.joints("follower") == joints
    assert len(channels) == 3 * len(JOINT_QUANTITIES) + 2
    stacked = telemetry.stack("follower", "current_a")
    assert stacked.shape == (4, 3)
    assert stacked[0].tolist() == [columns[f"follower.{j}.current_a"][0] for j in joints]
    del columns["follower.lift.current_a"]
    assert np.isnan(telemetry.stack("follower", "current_a")[:, 1]).all()
    assert telemetry.stack("nobody", "current_a").shape == (4, 0)


def test_what_is_no_telemetry_is_refused_with_its_place() -> None:
    with pytest.raises(UnusableInputError, match="here has no column t_ns"):
        Telemetry.from_table(pa.table({"x": [1.0]}), "here")
    endless = pa.table({"t_ns": [0], "a.b.current_a": [float("inf")]})
    with pytest.raises(UnusableInputError, match=r"here: column a\.b\.current_a holds infinite"):
        Telemetry.from_table(endless, "here")
