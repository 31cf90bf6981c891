"""A take is readable up to the instant its writer died."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gaploop.core import journal_format as journal
from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import uuid7, write_json
from gaploop.core.journal_format import TakeHeader, frames_schema, read_stream, read_take
from gaploop.core.labels import LabelEvent
from gaploop.core.take import TakeInfo
from gaploop.core.telemetry import arrow_schema
from gaploop.core.vocabulary import Domain, Outcome, TakeKind

JOINTS = ("pan", "lift")


def make_header() -> TakeHeader:
    info = TakeInfo(
        uid=uuid7(),
        task="Put the cube on the disc",
        kind=TakeKind.ROLLOUT,
        domain=Domain.SIM_TARGET,
        joint_names=JOINTS,
        conditions={"distractors": 2},
        dimensions={"contact_dynamics": 0.5},
    )
    channels = {"follower.pan.current_a": "A", "wrist.fx_n": "N"}
    return TakeHeader(info, ("azimuth", "radius"), {}, channels)


def write_take(root: Path, header: TakeHeader, batches: int = 3) -> Path:
    folder = root / header.info.uid
    folder.mkdir(parents=True)
    write_json(folder / journal.HEADER, header.to_json())
    schema = frames_schema(len(JOINTS), 2)
    with (
        pa.OSFile(str(folder / journal.FRAMES), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        for n in range(batches):
            writer.write_batch(frame_batch(n, schema))
    schema = arrow_schema(header.channels)
    with (
        pa.OSFile(str(folder / journal.TELEMETRY), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        for n in range(batches):
            columns = {c: [float(n), None] for c in header.channels}
            columns["t_ns"] = [20 * n, 20 * n + 10]
            writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=schema))
    return folder


def frame_batch(n: int, schema: pa.Schema) -> pa.RecordBatch:
    rows = [2 * n, 2 * n + 1]
    pairs = [[float(r), -float(r)] for r in rows]
    columns = {
        "t_s": [0.02 * r for r in rows],
        **dict.fromkeys(("state", "action", "sent", "environment_state"), pairs),
        "intervention": [r % 2 == 0 for r in rows],
        "safety": rows,
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema)


@pytest.mark.parametrize("name", [journal.FRAMES, journal.TELEMETRY])
def test_a_stream_cut_anywhere_gives_a_prefix(tmp_path: Path, name: str) -> None:
    path = write_take(tmp_path, make_header()) / name
    whole, content = read_stream(path), path.read_bytes()
    rows_before = 0
    for length in [*range(0, len(content), 5), len(content)]:
        path.write_bytes(content[:length])
        table = read_stream(path)
        assert rows_before <= table.num_rows
        rows_before = table.num_rows
        if rows_before:
            assert table.equals(whole.slice(0, rows_before))
    assert rows_before == whole.num_rows == 6


def test_a_take_cut_anywhere_is_still_a_take(tmp_path: Path) -> None:
    folder = write_take(tmp_path, make_header())
    contents = {n: (folder / n).read_bytes() for n in (journal.FRAMES, journal.TELEMETRY)}
    for share in np.linspace(0, 1, 40):
        for name, content in contents.items():
            (folder / name).write_bytes(content[: int(share * len(content))])
        take = read_take(folder)
        assert take.outcome is Outcome.INTERRUPTED
        assert take.frames.state.shape == (len(take.frames), 2)
        np.testing.assert_array_equal(take.frames.state[:, 0], np.arange(len(take.frames)))
        assert take.telemetry.columns.keys() <= make_header().channels.keys()


def test_headers_come_back_as_they_were(tmp_path: Path) -> None:
    header = make_header()
    folder = write_take(tmp_path, header)
    assert journal.read_header(folder) == header
    assert journal.is_journal(tmp_path)
    assert not journal.is_journal(folder)


def test_the_seal_says_how_it_ended_and_a_label_has_the_last_word(tmp_path: Path) -> None:
    header = make_header()
    folder = write_take(tmp_path, header)
    assert journal.read_end(folder) is None
    write_json(folder / journal.END, {"outcome": "failure", "frames": 6, "telemetry_rows": 6})
    assert read_take(folder).outcome is Outcome.FAILURE
    said = {"outcome": "success", "failure_mode": "slip", "dimensions": {"visual_domain": 1.0}}
    for field, value in said.items():
        event = LabelEvent(header.info.uid, field, value, "ana", "engineer")
        labels.append(tmp_path / journal.LABELS, event)
    (take,) = journal.read_journal(tmp_path)
    assert (take.outcome, take.failure_mode) == (Outcome.SUCCESS, "slip")
    assert take.info == replace(header.info, dimensions={"visual_domain": 1.0})


def test_takes_come_oldest_first(tmp_path: Path) -> None:
    headers = [make_header() for _ in range(3)]
    for header in reversed(headers):
        write_take(tmp_path, header, batches=1)
    uids = [take.info.uid for take in journal.read_journal(tmp_path)]
    assert uids == sorted(h.info.uid for h in headers)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (journal.HEADER, "{"),
        (journal.HEADER, json.dumps({"schema": "other"})),
        (journal.HEADER, json.dumps({"schema": journal.SCHEMA})),
        (journal.HEADER, json.dumps({"schema": journal.SCHEMA, "info": {"kind": "x"}})),
        (journal.END, json.dumps({"outcome": "won"})),
        (journal.END, json.dumps({"frames": 3})),
        (journal.END, json.dumps({"outcome": "success", "more": 1})),
        (journal.END, json.dumps([1])),
    ],
)
def test_a_spoilt_file_is_named_in_one_line(tmp_path: Path, name: str, content: str) -> None:
    folder = write_take(tmp_path, make_header(), batches=1)
    (folder / name).write_text(content)
    with pytest.raises(UnusableInputError) as caught:
        read_take(folder)
    assert str(folder / name) in str(caught.value)
    assert "\n" not in str(caught.value)
