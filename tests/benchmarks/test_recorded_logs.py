"""Foreign logs: takes lie where the events are, and labels beside them."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recorded.csv_log import CsvMapping, LabelledTake, load_mapping, read_csv_takes
from benchmarks.recorded.foreign_modes import force_mode, force_set
from benchmarks.recorded.uci_failures import CHANNELS, read_uci_failures
from gaploop.core.errors import UnusableInputError
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import FailureMode, Outcome, TakeKind
from gaploop.failure_analysis.views.view import TakeView

START = datetime(2022, 10, 26, 8, 0, tzinfo=UTC)


def write_uci(path: Path, labels: tuple[str, ...]) -> None:
    draw = np.random.default_rng(0)
    cases = []
    for label in labels:
        rows = draw.integers(-99, 99, size=(15, 6))
        cases.append("\n".join([label, *("\t" + "\t".join(map(str, row)) for row in rows)]))
    path.write_text("\n\n\n".join(cases) + "\n")


def write_log(path: Path, rows: int = 400, stops: tuple[int, ...] = (100, 300)) -> None:
    """Write a log at 1 Hz with decimal commas, a gap of time at row 200, and empty cells."""
    lines = ["Timestamp;Current;Speed;Stop"]
    for k in range(rows):
        t = START + timedelta(seconds=k + (1000 if k >= 200 else 0))
        stop = any(s <= k < s + 3 for s in stops)
        cell = "" if k == 95 else f"{k / 10:.1f}".replace(".", ",")
        lines.append(f"{t.isoformat().replace('+00:00', 'Z')};{cell};-7,5E-3;{stop}")
    path.write_text("\n".join(lines) + "\n")


MAPPING = """
schema: gaploop.csv.v1
separator: ";"
decimal: ","
robot_type: arm
time: {column: Timestamp, unit: iso8601}
channels:
  Current: {name: arm.j0.current_a, unit: A}
  Speed: {name: arm.j0.velocity_rad_s, unit: rad/s}
events: {Stop: protective_stop}
window: {before_s: 20, after_s: 5, max_gap_s: 3}
controls: {takes: 4, clear_s: 20}
"""


@pytest.fixture
def mapping(tmp_path: Path) -> CsvMapping:
    path = tmp_path / "mapping.yaml"
    path.write_text(MAPPING)
    return load_mapping(path)


def wrench(force_n: np.ndarray, uid: str, seed: int) -> Take:
    """Return a force window whose fz is `force_n` plus a 60 N weight and 1 N of noise."""
    rows = np.random.default_rng(seed).normal(0.0, 1.0, (len(CHANNELS), len(force_n)))
    columns = dict(zip(CHANNELS, rows, strict=True))
    columns["wrist.fz_n"] = columns["wrist.fz_n"] + 60.0 + force_n
    record = Telemetry(np.arange(len(force_n)) / 50.0, columns)
    return Take(TakeInfo(uid), Outcome.UNLABELLED, Frames.empty(), record)


def test_uci_windows_become_unlabelled_real_takes(tmp_path: Path) -> None:
    write_uci(tmp_path / "lp1.data", ("normal", "collision", "obstruction"))
    found = read_uci_failures(tmp_path / "lp1.data")
    assert [one.label for one in found] == ["normal", "collision", "obstruction"]
    for one in found:
        assert (one.take.info.kind, one.take.outcome) == (TakeKind.IMPORT, Outcome.UNLABELLED)
        assert len(one.take.telemetry) == 15
        assert one.take.telemetry.t_s[-1] == pytest.approx(14 * 0.021)
        assert one.take.telemetry.units["wrist.tz_nm"] == "Nm"


def first_rows(takes: list[LabelledTake], label: str) -> list[int]:
    return [int(t.take.info.uid.split("-")[-1]) for t in takes if t.label == label]


def test_force_windows_tell_contact_from_pressing_and_from_nothing() -> None:
    n = 15
    quiet = [wrench(np.zeros(n), uid=f"quiet-{k}", seed=k) for k in range(8)]
    knock = wrench(np.r_[80.0, 40.0, 15.0, np.zeros(n - 3)], uid="knock", seed=90)
    press = [wrench(np.linspace(100, 1500, n), uid=f"press-{k}", seed=91 + k) for k in range(3)]
    usual = force_set([*quiet, knock, *press])
    assert {force_mode(TakeView(take), usual) for take in quiet} == {None}
    assert force_mode(TakeView(knock), usual) == FailureMode.COLLISION
    assert {force_mode(TakeView(t), usual) for t in press} == {FailureMode.OBSTRUCTION}


def test_free_motion_at_several_loads_is_no_collision() -> None:
    """20 of 44 normal windows of a set were called a collision: they bore a part, others didn't.

    What the part's weight reads was set against the rest of the empty gripper.
    """
    n, knock = 15, np.r_[np.zeros(5), 70.0, 90.0, 60.0, np.zeros(7)]
    empty = [wrench(np.zeros(n), uid=f"empty-{k}", seed=k) for k in range(24)]
    loaded = [wrench(np.full(n, 45.0), uid=f"loaded-{k}", seed=40 + k) for k in range(20)]
    hit = [wrench(knock, uid=f"hit-{k}", seed=80 + k) for k in range(9)]
    hit += [wrench(45.0 + knock, uid=f"hit-loaded-{k}", seed=90 + k) for k in range(9)]
    press = [wrench(np.linspace(100, 1500, n), uid=f"press-{k}", seed=99 + k) for k in range(6)]
    takes = [*empty, *loaded, *hit, *press]
    usual = force_set(takes)
    for take in takes:
        expected = {"hit": "collision", "press": "obstruction"}.get(take.info.uid.split("-")[0])
        assert force_mode(TakeView(take), usual) == expected, take.info.uid


def test_csv_takes_lie_around_onsets_and_in_event_free_stretches(
    tmp_path: Path, mapping: CsvMapping
) -> None:
    write_log(tmp_path / "log.csv")
    takes, _ = read_csv_takes(tmp_path / "log.csv", mapping)
    assert first_rows(takes, "protective_stop") == [80, 280]
    controls = first_rows(takes, "none")
    assert len(controls) == 4
    assert {len(one.take.telemetry) for one in takes} == {25}
    for first in controls:
        assert all(first + 45 <= s or first >= s + 3 + 20 for s in (100, 300))
        assert not first < 200 < first + 25
    assert all(b - a >= 25 for a, b in itertools.pairwise(sorted([80, 280, *controls])))


def test_an_empty_cell_is_null_telemetry(tmp_path: Path, mapping: CsvMapping) -> None:
    write_log(tmp_path / "log.csv")
    takes, _ = read_csv_takes(tmp_path / "log.csv", mapping)
    record = takes[[one.label for one in takes].index("protective_stop")].take.telemetry
    current, speed = record.columns.values()
    assert np.flatnonzero(np.isnan(current)).tolist() == [15]
    assert current[16] == pytest.approx(9.6)
    assert speed[0] == pytest.approx(-7.5e-3)


def test_rows_without_a_number_are_counted(tmp_path: Path, mapping: CsvMapping) -> None:
    """A force log with NaN was imported without a word."""
    write_log(tmp_path / "log.csv")
    log = (tmp_path / "log.csv").read_text().replace(";9,0;", ";NaN;")
    (tmp_path / "log.csv").write_text(log)
    _, notes = read_csv_takes(tmp_path / "log.csv", mapping)
    assert notes[-1].startswith(
        "2 of 400 rows hold no number in column Current (first: data row 91)"
    )


def test_unusable_takes_raise_our_error(tmp_path: Path, mapping: CsvMapping) -> None:
    write_log(tmp_path / "log.csv")
    text = (tmp_path / "log.csv").read_text().splitlines()
    (tmp_path / "log.csv").write_text("\n".join([text[0], *reversed(text[1:])]))
    with pytest.raises(UnusableInputError, match="doesn't rise"):
        read_csv_takes(tmp_path / "log.csv", mapping)


def test_a_log_without_events_is_cut_from_end_to_end(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    text = MAPPING.replace("events: {Stop: protective_stop}\n", "").replace("takes: 4", "takes: 0")
    (tmp_path / "m.yaml").write_text(text)
    takes, _ = read_csv_takes(tmp_path / "log.csv", load_mapping(tmp_path / "m.yaml"))
    assert {one.label for one in takes} == {"none"}
    assert sum(len(one.take.telemetry) for one in takes) >= 400 - 2 * 25
