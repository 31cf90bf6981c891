"""A CSV log to takes, by a mapping file that says which column is what and where takes lie.

Takes are windows around event onsets, and event-free windows of the same length. Which event a
window holds is told beside the take. Windows never overlap, never span a pause in the log, hold
no event before their own, and end soon after its onset: what follows an event (the arm at rest, an
operator's reset) would give the label away without saying anything about its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.messages import FloatArray
from gaploop.core.schema import check_keys, load_yaml, number
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Domain, Outcome, TakeKind

SCHEMA: Final = "gaploop.csv.v1"
TIME_UNITS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
"""Unit of a numeric time column to nanoseconds."""
ISO: Final = "iso8601"


@dataclass(frozen=True)
class CsvMapping:
    """How to read one kind of CSV log.

    Attributes:
        time_unit: `iso8601`, or a unit of `TIME_UNITS` for numbers.
        channels: column to (telemetry name, unit).
        events: boolean column to the name of the event that begins where it turns true.
        before_s, after_s: how much of the log around an event's onset is a take [s].
        max_gap_s: a take never spans a longer pause in the log [s].
        controls: how many event-free takes to cut, at most.
        clear_s: how far a control keeps from any event [s].
    """

    where: str
    separator: str
    decimal: str
    time_column: str
    time_unit: str
    channels: Mapping[str, tuple[str, str]]
    events: Mapping[str, str] = field(default_factory=dict)
    before_s: float = 20.0
    after_s: float = 5.0
    max_gap_s: float = 3.0
    controls: int = 0
    clear_s: float = 20.0
    robot_type: str = ""
    task: str = ""
    station: str = ""

    @property
    def length_s(self) -> float:
        """Length of every take [s]."""
        return self.before_s + self.after_s


def load_mapping(path: Path) -> CsvMapping:
    """Read and check a mapping file; UnusableInputError says what is wrong and what is valid."""
    value, where = load_yaml(path, "Mapping"), str(path)
    if value.get("schema") != SCHEMA:
        raise UnusableInputError(f"{where}: schema must be {SCHEMA}, got {value.get('schema')!r}.")
    words = ("schema", "separator", "decimal", "robot_type", "task", "station")
    keys = (*words, "time", "channels", "events", "window", "controls")
    check_keys(value, keys, where, ("time", "channels"))
    time = _mapping(value, "time", where)
    check_keys(time, ("column", "unit"), f"{where}: time", ("column", "unit"))
    if time["unit"] not in (ISO, *TIME_UNITS):
        raise unknown_choice("time unit", time["unit"], (ISO, *TIME_UNITS), where)
    window, controls = _mapping(value, "window", where), _mapping(value, "controls", where)
    check_keys(window, ("before_s", "after_s", "max_gap_s"), f"{where}: window")
    check_keys(controls, ("takes", "clear_s"), f"{where}: controls")
    separator, decimal = str(value.get("separator", ",")), str(value.get("decimal", "."))
    if len(separator) != 1 or len(decimal) != 1 or separator == decimal:
        raise UnusableInputError(
            f"{where}: separator {separator!r} and decimal {decimal!r} must be two different "
            "characters."
        )
    columns = _mapping(value, "channels", where)
    if not columns:
        raise UnusableInputError(f"{where}: channels is empty. Name at least one column.")
    channels: dict[str, tuple[str, str]] = {}
    for column, spec in columns.items():
        place = f"{where}: channel {column!r}"
        if not isinstance(spec, dict):
            raise UnusableInputError(f"{place} must be {{name: …, unit: …}}, got {spec!r}.")
        check_keys(spec, ("name", "unit"), place, ("name", "unit"))
        name = str(spec["name"])
        if "/" in name or name == "t_ns" or name in {n for n, _ in channels.values()}:
            raise UnusableInputError(
                f"{place}: name {name!r} is taken or holds a slash. Choose another."
            )
        channels[str(column)] = (name, str(spec["unit"]))
    return CsvMapping(
        where,
        separator,
        decimal,
        str(time["column"]),
        str(time["unit"]),
        channels,
        {str(k): str(v) for k, v in _mapping(value, "events", where).items()},
        number(window.get("before_s", 20.0), f"{where}: before_s", 0, 3600),
        number(window.get("after_s", 5.0), f"{where}: after_s", 0, 3600),
        number(window.get("max_gap_s", 3.0), f"{where}: max_gap_s", 1e-6, 3600),
        int(number(controls.get("takes", 0), f"{where}: controls: takes", 0, 1e6)),
        number(controls.get("clear_s", 20.0), f"{where}: controls: clear_s", 0, 3600),
        *(str(value.get(key, "")) for key in ("robot_type", "task", "station")),
    )


def _mapping(value: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = value.get(key) or {}
    if not isinstance(found, dict):
        raise UnusableInputError(f"{where}: {key} must be a mapping, got {found!r}.")
    return found


_TRUE = frozenset(("true", "1", "1.0", "yes"))


@dataclass(frozen=True)
class Log:
    """A log in memory.

    Attributes:
        t_ns: time of each row [ns since 1970 or since the log began], rising, shape (n,).
        values: channels in the mapping's order, NaN where missing, shape (n, n_channels).
        active: event name to whether it holds in each row, shape (n,).
    """

    t_ns: NDArray[np.int64]
    values: FloatArray
    active: dict[str, NDArray[np.bool_]]


@dataclass(frozen=True)
class TakeRows:
    """One take to be: its rows, and the event that it is about."""

    rows: slice
    event: str = "none"


@dataclass(frozen=True)
class LabelledTake:
    """One stretch of a foreign log, and what the source says about it."""

    take: Take
    label: str


def read_csv_takes(source: Path, mapping: CsvMapping) -> tuple[list[LabelledTake], list[str]]:
    """Cut a CSV log into takes; return them in order of time, and notes on what was left out.

    Raises:
        UnusableInputError: the file or a column is missing, a cell isn't a number, or time
            doesn't rise.
    """
    log = read_log(source, mapping)
    windows, notes = cut(log, mapping)
    if not windows:
        raise UnusableInputError(
            f"{source}: no take of {mapping.length_s:g} s fits between its pauses. Shorten the "
            f"window in {mapping.where}."
        )
    missing = np.isnan(log.values)
    for column, is_missing in zip(mapping.channels, missing.T, strict=True):
        if is_missing.any():
            notes.append(
                f"{is_missing.sum()} of {len(is_missing)} rows hold no number in column {column} "
                f"(first: data row {int(is_missing.argmax()) + 1}): missing in the takes."
            )
    takes = []
    for window in windows:
        rows, t_ns = window.rows, log.t_ns[window.rows]
        info = TakeInfo(
            uid=f"{source.stem}-{rows.start}",
            task=mapping.task,
            fps=round(1e9 / float(np.median(np.diff(t_ns))), 3),
            kind=TakeKind.IMPORT,
            domain=Domain.REAL,
            robot_type=mapping.robot_type,
            station=mapping.station,
            session=source.stem,
            t0_ns=int(t_ns[0]),
        )
        channels = dict(mapping.channels.values())
        columns = dict(zip(channels, log.values[rows].T, strict=True))
        record = Telemetry((t_ns - t_ns[0]) * 1e-9, columns, channels)
        take = Take(info, Outcome.UNLABELLED, Frames.empty(), record)
        takes.append(LabelledTake(take, window.event))
    return takes, notes


def read_log(source: Path, mapping: CsvMapping) -> Log:
    """Read the columns that the mapping names."""
    import pandas as pd  # here: half a second

    if not source.is_file():
        raise UnusableInputError(f"{source} not found, or not a file. Name the CSV file.")
    try:
        table = pd.read_csv(source, sep=mapping.separator, dtype=str, encoding="utf-8-sig")
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        reason = " ".join(str(error).split())
        raise UnusableInputError(
            f"{source} can't be read as CSV ({reason}). Save it as comma-separated text in UTF-8."
        ) from None
    table.columns = [str(name).strip() for name in table.columns]
    for name in (mapping.time_column, *mapping.channels, *mapping.events):
        if name not in table.columns:
            valid = [n for n in table.columns if not n.startswith("Unnamed:")]
            raise unknown_choice("column", name, valid, f"{mapping.where}, file {source}")
    column = table[mapping.time_column]
    if mapping.time_unit == ISO:
        text = column.str.strip().str.strip('"')
        times = pd.to_datetime(text, utc=True, errors="coerce", format="ISO8601")
        bad = times.isna().to_numpy()
        t_ns = times.to_numpy(dtype="datetime64[ns]").astype(np.int64)
    else:
        seconds = _floats(column, mapping.decimal, source)
        bad = ~np.isfinite(seconds)
        t_ns = np.round(np.nan_to_num(seconds) * TIME_UNITS[mapping.time_unit]).astype(np.int64)
    if bad.any():
        raise UnusableInputError(
            f"{source}, data row {int(bad.argmax()) + 1}: no time in column {column.name}. "
            f"Fix that row, or the time unit in {mapping.where}."
        )
    if len(t_ns) < 2 or (np.diff(t_ns) <= 0).any():
        row = int((np.diff(t_ns) <= 0).argmax()) + 2 if len(t_ns) > 1 else 1
        raise UnusableInputError(
            f"{source}, data row {row}: time in column {column.name} doesn't rise. Sort the log."
        )
    values = [_floats(table[name], mapping.decimal, source) for name in mapping.channels]
    active = {
        event: table[name].str.strip().str.lower().isin(_TRUE).to_numpy()
        for name, event in mapping.events.items()
    }
    return Log(t_ns, np.stack(values, axis=1), active)


def _floats(column: Any, decimal: str, source: Path) -> FloatArray:
    import pandas as pd

    text = column.str.strip().str.replace(decimal, ".", regex=False)
    values = pd.to_numeric(text, errors="coerce")
    bad = (values.isna() & text.notna() & (text.str.lower() != "nan") & (text != "")).to_numpy()
    bad |= np.isinf(values.to_numpy(dtype=np.float64))
    if bad.any():
        row = int(bad.argmax())
        raise UnusableInputError(
            f"{source}, data row {row + 1}, column {column.name}: {column.iloc[row]!r} is not a "
            f"number with decimal {decimal!r}. Fix the cell or the mapping."
        )
    return np.asarray(values.to_numpy(dtype=np.float64))


def cut(log: Log, mapping: CsvMapping) -> tuple[list[TakeRows], list[str]]:
    """Return windows around event onsets and event-free ones, in order of time, and notes."""
    onsets = sorted(
        (int(row), event)
        for event, active in log.active.items()
        for row in np.flatnonzero(active & ~np.concatenate(([False], active[:-1])))
    )
    around: list[TakeRows] = []
    busy = np.zeros(len(log.t_ns), dtype=bool)
    for active in log.active.values():
        busy |= active
    skipped = {"lay in the take of an earlier one": 0, "followed one too soon": 0}
    skipped["lay at a pause"] = 0
    for row, event in onsets:
        last = around[-1].rows if around else slice(0, 0)
        start = log.t_ns[row] - round(mapping.before_s * 1e9)
        rows = _rows(log, int(start), mapping)
        if row < last.stop:
            skipped["lay in the take of an earlier one"] += 1
        elif rows is None:
            skipped["lay at a pause"] += 1
        elif rows.start < last.stop or busy[rows.start : row].any():
            skipped["followed one too soon"] += 1
        else:
            around.append(TakeRows(rows, event))
    free: list[TakeRows] = []
    if mapping.controls or not log.active:
        # Evenly chosen among all that fit one after another, clear of any event.
        busy_ns, clear_ns = log.t_ns[busy], round(mapping.clear_s * 1e9)
        taken = [(log.t_ns[w.rows.start], log.t_ns[w.rows.stop - 1]) for w in around]
        at = 0
        while at < len(log.t_ns):
            fits = _rows(log, int(log.t_ns[at]), mapping)
            if fits is None:
                at += 1
                continue
            first, final = log.t_ns[fits.start], log.t_ns[fits.stop - 1]
            near = busy_ns[(busy_ns >= first - clear_ns) & (busy_ns <= final + clear_ns)]
            if len(near):
                at = int(np.searchsorted(log.t_ns, near[-1] + clear_ns, side="right"))
            elif any(a <= final and first <= b for a, b in taken):
                at += 1
            else:
                free.append(TakeRows(fits))
                at = fits.stop
        if 0 < mapping.controls < len(free):
            chosen = np.linspace(0, len(free) - 1, mapping.controls).round().astype(int)
            free = [free[k] for k in chosen]
    notes = [f"{len(onsets)} event onsets; {len(around)} takes around them."] if onsets else []
    notes += [f"{count} onsets {why}." for why, count in skipped.items() if count]
    if mapping.controls:
        notes.append(f"{len(free)} event-free takes of the same length.")
    return sorted([*around, *free], key=lambda w: w.rows.start), notes


def _rows(log: Log, start_ns: int, mapping: CsvMapping) -> slice | None:
    """Return the rows of a take that begins at `start_ns`; None where a pause cuts it."""
    end_ns = start_ns + round(mapping.length_s * 1e9)
    gap_ns = round(mapping.max_gap_s * 1e9)
    first, stop = (int(i) for i in np.searchsorted(log.t_ns, [start_ns, end_ns], side="left"))
    if stop - first < 2 or log.t_ns[first] - start_ns > gap_ns:
        return None
    inside = log.t_ns[first:stop]
    if (np.diff(inside) > gap_ns).any() or end_ns - inside[-1] > gap_ns:
        return None
    return slice(first, stop)
