"""Imports: what the source says lands where it belongs, and labels nowhere but in truth.jsonl."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.collect.imports.csv_log import CsvMapping, load_mapping, read_csv_takes
from gaploop.collect.imports.takes import import_uid
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import read_journal
from gaploop.core.vocabulary import Outcome, TakeKind
from gaploop.scripts.cli import main

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
def mapping_file(tmp_path: Path) -> Path:
    path = tmp_path / "mapping.yaml"
    path.write_text(MAPPING)
    return path


@pytest.fixture
def mapping(mapping_file: Path) -> CsvMapping:
    return load_mapping(mapping_file)


def truth(journal: Path) -> dict[str, dict]:
    rows = [json.loads(line) for line in (journal / "truth.jsonl").read_text().splitlines()]
    assert len({row["uid"] for row in rows}) == len(rows)
    return {row["uid"]: row for row in rows}


def test_uci_windows_become_unlabelled_real_imports(tmp_path: Path) -> None:
    write_uci(tmp_path / "lp1.data", ("normal", "collision", "obstruction"))
    journal = tmp_path / "journal"
    assert main(["convert", str(tmp_path), "--from=uci_failures", f"--output_dir={journal}"]) == 0
    takes = list(read_journal(journal))
    assert [truth(journal)[t.info.uid]["label"] for t in takes] == [
        "normal",
        "collision",
        "obstruction",
    ]
    for take in takes:
        assert (take.info.kind, take.outcome) == (TakeKind.IMPORT, Outcome.UNLABELLED)
        assert len(take.telemetry) == 15
        assert take.telemetry.t_s[-1] == pytest.approx(14 * 0.021)
        assert take.telemetry.units["wrist.tz_nm"] == "Nm"


def test_labels_of_the_source_stand_in_truth_only(tmp_path: Path) -> None:
    write_uci(tmp_path / "lp4.data", ("fr_collision",))
    journal = tmp_path / "journal"
    main(["convert", str(tmp_path), "--from=uci_failures", f"--output_dir={journal}"])
    files = [p for p in journal.rglob("*") if p.is_file() and p.name != "truth.jsonl"]
    assert files
    assert not [p for p in files if b"collision" in p.read_bytes()]


def test_importing_twice_equals_once(tmp_path: Path) -> None:
    write_uci(tmp_path / "lp1.data", ("normal", "collision"))
    journal = tmp_path / "journal"
    call = ["convert", str(tmp_path / "lp1.data"), "--from=uci_failures"]
    call.append(f"--output_dir={journal}")
    assert main(call) == 0
    before = {p: p.stat().st_mtime_ns for p in journal.rglob("*")}
    assert main(call) == 0
    assert {p: p.stat().st_mtime_ns for p in journal.rglob("*")} == before


def test_csv_takes_lie_around_onsets_and_in_event_free_stretches(
    tmp_path: Path, mapping: CsvMapping
) -> None:
    write_log(tmp_path / "log.csv")
    takes, _ = read_csv_takes(tmp_path / "log.csv", mapping)
    events = [t for t in takes if t.truth["label"] == "protective_stop"]
    controls = [t for t in takes if t.truth["label"] == "none"]
    assert [t.truth["rows"] for t in events] == [[80, 105], [280, 305]]
    assert len(controls) == 4
    for take in controls:
        first, stop = take.truth["rows"]
        assert stop - first == 25
        assert all(stop + 20 <= s or first >= s + 3 + 20 for s in (100, 300))
        assert not first < 200 < stop
    spans = sorted(tuple(t.truth["rows"]) for t in takes)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def test_an_empty_cell_is_null_telemetry(tmp_path: Path, mapping: CsvMapping) -> None:
    write_log(tmp_path / "log.csv")
    takes, _ = read_csv_takes(tmp_path / "log.csv", mapping)
    [take] = [t for t in takes if t.truth["rows"] == [80, 105]]
    assert np.flatnonzero(np.isnan(take.values[:, 0])).tolist() == [15]
    assert take.values[16, 0] == pytest.approx(9.6)
    assert take.values[0, 1] == pytest.approx(-7.5e-3)


def test_rows_without_a_number_are_counted(tmp_path: Path, mapping: CsvMapping) -> None:
    """A force log with NaN was imported without a word."""
    write_log(tmp_path / "log.csv")
    log = (tmp_path / "log.csv").read_text().replace(";9,0;", ";NaN;")
    (tmp_path / "log.csv").write_text(log)
    _, notes = read_csv_takes(tmp_path / "log.csv", mapping)
    assert notes[-1].startswith(
        "2 of 400 rows hold no number in column Current (first: data row 91)"
    )


@pytest.mark.parametrize("word", ["nan", "inf", "-1e999"])
def test_a_uci_window_without_a_number_is_one_line(tmp_path: Path, word: str, capsys: Any) -> None:
    """NaN in a force window was imported as a measurement."""
    write_uci(tmp_path / "lp1.data", ("normal",))
    lines = (tmp_path / "lp1.data").read_text().splitlines()
    lines[3] = "\t".join(["", word, *lines[3].split()[1:]])
    (tmp_path / "lp1.data").write_text("\n".join(lines) + "\n")
    journal = tmp_path / "journal"
    assert main(["convert", str(tmp_path), "--from=uci_failures", f"--output_dir={journal}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "lp1.data, line 4" in line
    assert not journal.exists()


def test_an_event_inside_the_lead_in_of_another_gives_no_take(
    tmp_path: Path, mapping: CsvMapping
) -> None:
    write_log(tmp_path / "log.csv", stops=(100, 115))
    takes, notes = read_csv_takes(tmp_path / "log.csv", mapping)
    assert [t.truth["rows"] for t in takes if t.truth["onsets"]] == [[80, 105]]
    assert "1 onsets followed one too soon." in notes


def test_csv_command_writes_a_journal_that_checks(tmp_path: Path, mapping_file: Path) -> None:
    write_log(tmp_path / "log.csv")
    journal = tmp_path / "journal"
    assert (
        main(
            [
                "convert",
                str(tmp_path / "log.csv"),
                "--from=csv",
                f"--mapping={mapping_file}",
                f"--output_dir={journal}",
            ]
        )
        == 0
    )
    takes = list(read_journal(journal))
    assert len(takes) == 6
    assert takes[0].telemetry.arms() == ("arm",)
    assert [t.info.t0_ns for t in takes] == sorted(t.info.t0_ns for t in takes)
    assert main(["check", str(journal)]) == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("column: Timestamp", "column: Time", "Did you mean 'Timestamp'"),
        ("Current: {", "Currant: {", "Did you mean 'Current'"),
        ("unit: iso8601", "unit: fortnights", "One of:"),
        ("separator", "seperator", "Did you mean 'separator'"),
        ('decimal: ","', 'decimal: "."', "is not a number"),
        ("gaploop.csv.v1", "v0", "schema must be"),
        ("before_s: 20", "before_s: 5000", "from 0 to 3600"),
        ("before_s: 20", "before_s: 900", "no take of"),
    ],
)
def test_a_wrong_mapping_is_one_line_and_nothing_is_written(
    tmp_path: Path, old: str, new: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log.csv")
    path, journal = tmp_path / "m.yaml", tmp_path / "journal"
    path.write_text(MAPPING.replace(old, new, 1))
    call = ["convert", str(tmp_path / "log.csv"), "--from=csv", f"--mapping={path}"]
    assert main([*call, f"--output_dir={journal}"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not journal.exists()


@pytest.mark.parametrize("kind", ["missing", "cut", "words", "binary"])
def test_a_damaged_uci_file_is_one_line(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lp1.data"
    if kind != "missing":
        write_uci(path, ("normal", "collision"))
    if kind == "cut":
        path.write_text(path.read_text()[:-100])
    elif kind == "words":
        path.write_text(path.read_text().replace("\t", "\tx", 3))
    elif kind == "binary":
        path.write_bytes(bytes(range(128, 256)))
    call = ["convert", str(path), "--from=uci_failures", f"--output_dir={tmp_path / 'j'}"]
    assert main(call) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "j").exists()


def test_uids_repeat_and_sort_by_time() -> None:
    first, later = import_uid(10**15, "a", 1), import_uid(2 * 10**15, "a", 2)
    assert import_uid(10**15, "a", 1) == first < later
    assert import_uid(10**15, "a", 2) != first
    assert first[14] == "7"


def test_an_unknown_format_names_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(tmp_path), "--from=ros", f"--output_dir={tmp_path / 'j'}"]) == 2
    assert "uci_failures" in capsys.readouterr().err


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
    assert {t.truth["label"] for t in takes} == {"none"}
    assert sum(len(t.values) for t in takes) >= 400 - 2 * 25
