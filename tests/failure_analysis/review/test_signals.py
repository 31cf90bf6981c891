"""What is drawn: nothing is smoothed away, nothing is made up."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.labels import LabelStore
from gaploop.failure_analysis.review.signals import MOST_POINTS, curves, options
from gaploop.failure_analysis.review.takes import TakeSource

RATE_HZ = 500.0


@pytest.fixture
def take(store: LabelStore) -> Take:
    return TakeSource(store).take(store.episodes[0])


def test_a_take_is_drawn_with_its_phases_and_marks(take: Take) -> None:
    found = curves(take)
    titles = [strip.title.split(",")[0] for strip in found.strips]
    assert titles == ["off command", "gripper", "fastest joint", "current", "late"]
    phases = [span for span in found.spans if span.kind == "phase"]
    assert [p.label for p in phases][:2] == ["approach", "grasp"]
    assert phases[0].start_s == 0.0
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(phases))
    marks = {(s.kind, s.label): (s.start_s, s.end_s) for s in found.spans if s.kind != "phase"}
    assert marks["intervention", "a person drives"] == pytest.approx((1.2, 1.48))
    assert marks["safety", "velocity"] == pytest.approx((0.6, 0.68))


def test_the_chart_is_plain_json(take: Take) -> None:
    found = options(curves(take))
    json.dumps(found, allow_nan=False)
    assert len(found["grid"]) == len(found["xAxis"]) == len(found["yAxis"])


def test_marks_lie_in_the_phases_band_and_never_over_a_plot(take: Take) -> None:
    """Incident: a filter that worked all the time covered every curve with red."""
    band, *drawn = options(curves(take))["series"]
    names = [start["name"] for start, _ in band["markArea"]["data"]]
    assert {"approach", "a person drives", "velocity"} <= set(names)
    assert drawn
    assert not any("markArea" in series for series in drawn)


def test_one_sample_that_sticks_out_of_many_is_drawn() -> None:
    """A current spike lasts a sample; a curve thinned by taking every n-th would lose it."""
    current = np.full(20_000, 0.2)
    current[12_345] = 3.0
    current[15_000:15_010] = np.nan
    columns = {"follower.pan.current_a": current}
    record = Telemetry(np.arange(20_000) / RATE_HZ, columns)
    bare = Take(TakeInfo("take"), Outcome.FAILURE, Frames.empty(), record)
    line = curves(bare).strips[0].lines[0]
    assert len(line.values) <= MOST_POINTS + 2
    assert np.nanmax(line.values) == 3.0
    assert line.t_s[np.nanargmax(line.values)] == 12_345 / RATE_HZ
    assert np.all(np.diff(line.t_s) > 0)


def test_a_take_without_any_channel_is_drawn_empty() -> None:
    bare = Take(TakeInfo("take"), Outcome.FAILURE, Frames.empty(), Telemetry(np.empty(0), {}))
    found = curves(bare)
    assert (found.strips, found.spans) == ((), ())
    json.dumps(options(found))


def test_rows_of_an_unknown_arm_are_drawn_as_they_stand() -> None:
    """Of a robot whose units nobody knows the page drew nothing; of dozens of joints it draws those
    that move most."""
    t_s, size = np.arange(40) / 10.0, np.arange(1.0, 11.0)
    state = np.sin(t_s)[:, None] * size * 1e-3
    names = (*(f"slide_{k}" for k in range(9)), "gripper")
    frames = replace(
        Frames.empty(10), t_s=t_s, state=state, action=state, sent=state,
        environment_state=np.empty((40, 0)), intervention=np.zeros(40, bool),
        safety=np.zeros(40, np.int64),
    )  # fmt: skip
    info = TakeInfo("take", robot_type="mine", joint_names=names, fps=10.0)
    found = curves(Take(info, Outcome.FAILURE, frames, Telemetry(np.empty(0), {})))
    drawn = {strip.title: [line.name for line in strip.lines] for strip in found.strips}
    most = [f"slide {k}" for k in (8, 7, 6, 5, 4, 3)]
    assert drawn == {
        "gripper": ["gripper reading", "gripper command"],
        "reading of the 6 of 9 that move most": [f"{name} reading" for name in most],
        "command of the 6 of 9 that move most": [f"{name} command" for name in most],
    }
    assert {strip.unit for strip in found.strips} == {"as recorded"}
    line = next(
        one for one in options(found)["series"] if one.get("name", "").startswith("slide 3")
    )
    assert len({value for _, value in line["data"]}) > 35, "4 mm, rounded to whole ones, were steps"


def test_frames_alone_are_drawn(take: Take) -> None:
    found = curves(replace(take, telemetry=Telemetry(np.empty(0), {})))
    assert "gripper" in [strip.title for strip in found.strips]
