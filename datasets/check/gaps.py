"""What gaploop adds: gap columns, labels, calibration, consent, telemetry; and units.

`--fix` attaches gap columns and labels to the recordings they belong to by `gap.take`.
"""

import contextlib
import difflib
import shlex
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gaploop.core import journal_format, labels
from gaploop.core.consent import ConsentRegister, Use, consent_ids, load_register
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import parse_json, regular_file
from gaploop.core.journal_format import read_end, read_header, take_folders
from gaploop.core.paths import is_plain_name, refuse_links_out
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, Outcome, TakeKind, plainly_radians
from gaploop.datasets import columns, episodes_table, layout, staging
from gaploop.datasets.check.episodes import EpisodeTable
from gaploop.datasets.check.findings import (
    DAMAGE,
    NOTE,
    WARNING,
    Finding,
    Findings,
    FixDraft,
)
from gaploop.datasets.check.frames import Scan, WholeEpisode
from gaploop.datasets.columns import STATE
from gaploop.datasets.episodes_table import apply_labels, bring_events
from gaploop.datasets.layout import DatasetInfo, numbers
from gaploop.datasets.telemetry_zarr import read_telemetry, telemetry_path, telemetry_rows

TELEMETRY_BYTES: Final = 512 * 1024**2
"""Telemetry archives are read whole up to this size in all; beyond it, their directories only."""
_ROWS: Final = 10_000
type Row = dict[str, Any]
_SAYS: Final = "the dataset or journal in which the episodes still have their labels"


def is_json_object(text: object) -> bool:
    """Say whether conditions are what they should be; "" stands for none."""
    if not isinstance(text, str):
        return False
    try:
        return text == "" or isinstance(parse_json(text), dict)
    except ValueError:
        return False


def check_gaps(
    info: DatasetInfo,
    episodes: EpisodeTable,
    scan: Scan | None,
    findings: Findings,
) -> None:
    """Check gaploop's columns: there, typed, in words of the vocabulary, true to the labels."""
    expected = {columns.TIME, columns.TAKE, columns.SENT, columns.INTERVENTION, columns.SAFETY}
    lacking = sorted(expected - set(info.features))
    if lacking and len(lacking) < len(expected):
        text = f"Frame columns {', '.join(lacking)} are missing."
        fix = "Publish the journal again to a new folder: gaploop publish --help"
        findings.error("missing_gap_columns", layout.INFO, text, fix)
    if not len(episodes):
        return
    if not set(columns.EPISODE_COLUMNS) & set(episodes.table.column_names):
        if columns.TAKE in info.features:
            severity, whose = WARNING, "the"
            text = f"No gap columns, though {columns.TAKE} is there: an edit tool dropped them."
            fix = findings.command("--labels_from=OLD")
            fix += "  # OLD: the dataset or journal before the edit"
        else:
            severity, whose = NOTE, "its"
            text = "No gap columns: recorded elsewhere."
            fix = f"gaploop convert {shlex.quote(str(info.root))} "
            fix += f"--output_dir={shlex.quote(f'{info.root}_imported')}"
            if columns.STATE not in info.features:  # which `convert` wants
                fix = f"gaploop label {shlex.quote(str(info.root))} --episodes=0 --outcome=success"
                fix += "  # the first label adds them"
        text += f" Outcome, domain and gap dimension of {whose} episodes are unknown."
        findings.items.append(Finding("no_gap_columns", severity, layout.EPISODES, text, fix))
        return
    whole = True
    for code, name, text, bad in gap_faults(episodes.table):
        whole &= code not in ("missing_gap_columns", "gap_column_type")
        where = f"{layout.EPISODES}: {name}"
        findings.about(bad.tolist(), code, where, f"{text}.")
    if not whole:  # the columns can't be read as they should
        return
    uids = [str(uid or "") for uid in episodes.table["gap_uid"].to_pylist()]
    pairs, seen = list(zip(episodes.index.tolist(), uids, strict=True)), Counter(uids)
    where = f"{layout.EPISODES}: gap_uid"
    twice = [index for index, uid in pairs if uid and seen[uid] > 1]
    text = "they have no uid of their own: labels can't tell them apart."
    findings.about(twice, "bad_uid", where, text)
    odd = [index for index, uid in pairs if uid and not is_plain_name(uid)]
    findings.about(odd, "bad_uid", where, "their uid can't be used as a file name.")
    of_episode = dict(pairs)
    wrong = [
        run.episode
        for run in (scan.runs if scan is not None else ())
        if run.takes
        and (uid := of_episode.get(run.episode))
        and run.takes != {columns.take_hash(uid)}
    ]
    text = "rows belong to another episode than gap_uid names, so labels are attached to the wrong "
    fix = findings.command("--labels_from=OLD") + "  # OLD: a dataset or journal with the episodes"
    findings.about(wrong, "wrong_take", f"data: {columns.TAKE}", f"{text}recording.", fix)
    _check_rows(info, episodes, findings)
    archives = sorted((info.root / layout.TELEMETRY).glob("*.zarr.zip"))
    in_full = sum(path.stat().st_size for path in archives) <= TELEMETRY_BYTES
    for path in archives:
        name, fault = str(path.relative_to(info.root)), ""
        try:
            with zipfile.ZipFile(regular_file(path)) as archive:
                if in_full and (member := archive.testzip()) is not None:
                    fault = f"{member} in it is damaged."
        except DAMAGE as error:
            fault = f"It can't be read: {error}"
        if not fault:
            try:
                rows = len(read_telemetry(path)) if in_full else telemetry_rows(path)
                fault = "" if rows else "It holds no rows."
            except UnusableInputError as error:
                fault = f"It can't be used: {error}"
        if fault:
            fix = "Copy the file again, or publish the journal again to a new folder."
            findings.error("bad_telemetry", name, fault, fix)
        elif path.name.removesuffix(".zarr.zip") not in seen:
            text = "It belongs to no episode."
            findings.warn("orphan_telemetry", name, text, "It may be deleted.")


def gap_faults(table: pa.Table) -> Iterator[tuple[str, str, str, NDArray[np.int64]]]:
    """Yield what is wrong with the gap columns of some rows of `meta/episodes`.

    That is code, column, what is wrong in words, and the episodes of which that is so.
    """
    table = table.combine_chunks()
    index = table["episode_index"].to_numpy()
    whole = True
    for name, kind in columns.EPISODE_COLUMNS.items():
        if name not in table.column_names:
            yield "missing_gap_columns", name, f"column {name} is missing", index[:1]
        elif not table[name].type.equals(kind):
            text = f"type is {table[name].type}, not {kind}; LeRobot refuses to append then"
            yield "gap_column_type", name, text, index[:1]
        else:
            nothing = _flags(table[name].is_null())
            if nothing.any():
                yield "bad_gap_value", name, f"{name} has no value", index[nothing]
            continue
        whole = False
    if not whole:
        return
    for name, words in columns.EPISODE_WORDS.items():
        column, rows = table[name], np.arange(len(table))
        if pa.types.is_list(column.type):
            column, rows = pc.list_flatten(column), pc.list_parent_indices(column).to_numpy()
        for word in sorted(set(column.unique().to_pylist()) - words - {None}):
            bad = np.unique(rows[_flags(pc.equal(column, word))])
            valid = ", ".join(sorted(words - {""}))
            text = f"{word!r} is not in the vocabulary. One of: {valid}"
            yield "bad_gap_value", name, text, index[bad]
    conditions = table["gap_conditions"]
    odd = [c for c in conditions.unique().to_pylist() if c is not None and not is_json_object(c)]
    if odd:
        bad = _flags(pc.is_in(conditions, pa.array(odd, pa.string())))
        yield "bad_gap_value", "gap_conditions", "they are not a JSON object", index[bad]
    names, weights = table["gap_dimensions"], table["gap_dimension_weights"]
    other = _flags(pc.not_equal(pc.list_value_length(names), pc.list_value_length(weights)))
    flat, rows = pc.list_flatten(weights), pc.list_parent_indices(weights).to_numpy()
    outside = ~_flags(pc.and_(pc.greater_equal(flat, 0), pc.less_equal(flat, 1)))
    other[rows[outside]] = True
    if other.any():
        text = "weights must be one number in [0, 1] for each dimension"
        yield "bad_gap_value", "gap_dimension_weights", text, index[other]
    empty = _flags(pc.equal(table["gap_uid"], ""))
    if empty.any():
        yield "bad_uid", "gap_uid", "there is no uid: labels can't tell them apart", index[empty]


def _flags(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.array(pc.fill_null(column, False).to_numpy(zero_copy_only=False), dtype=bool)


def _check_rows(info: DatasetInfo, episodes: EpisodeTable, findings: Findings) -> None:
    """Check that the columns say what the labels say; calibrations; and consents."""
    path, said = info.root / layout.LABELS, dict[str, dict[str, Any]]()
    try:
        if path.exists() and not path.is_file():
            raise UnusableInputError("It is not a file.")
        said = labels.current(labels.read(path))
    except DAMAGE as error:
        text = " ".join(str(error).split())
        fix = f"Fix that line of {layout.LABELS}." if path.is_file() else "Remove it."
        findings.error("bad_labels", layout.LABELS, text, fix)
    try:
        register = load_register()
    except UnusableInputError as error:
        findings.error("bad_consent", "consents.jsonl", str(error), "Fix that line.")
        register = ConsentRegister({}, {})
    stale, uncalibrated = list[int](), list[int]()
    ids = defaultdict[tuple[str, str], set[str]](set)
    reasons = defaultdict[str, list[int]](list)
    table = episodes.table.select(["episode_index", *columns.EPISODE_COLUMNS])
    for row in (row for batch in table.to_batches(_ROWS) for row in batch.to_pylist()):
        index, uid = int(row["episode_index"]), str(row["gap_uid"])
        if uid in said and apply_labels(row, said[uid]) != row:
            stale.append(index)
        if row["gap_domain"] == Domain.REAL and row["gap_kind"] != TakeKind.IMPORT:
            if row["gap_calibration"]:
                where = str(row["gap_station"]) or "?", str(row["gap_session"]) or "?"
                ids[where].add(row["gap_calibration"])
            else:
                uncalibrated.append(index)
        try:
            consent_ids(row["gap_consent"])
            reason = register.refusal(TakeInfo(**columns.info_fields(row)), Use.PUBLISH)
        except DAMAGE as error:
            reason = str(error)
        if reason:
            reasons[reason].append(index)
    text = f"the columns differ from {layout.LABELS}."
    findings.about(stale, "stale_labels", layout.EPISODES, text)
    name = f"{layout.EPISODES}: gap_calibration"
    if ids:  # a dataset of which no episode names one was recorded without
        text, fix = "they name no calibration, other episodes do.", "gaploop calibrate --help"
        findings.about(uncalibrated, "no_calibration", name, text, fix, WARNING)
    for (station, session), found in ids.items():
        if len(found) > 1:
            text = f"Station {station}, session {session}: {len(found)} calibrations in one "
            text += "session; poses before and after may differ."
            fix = "gaploop calibrate --help  # its drift check shows by how much"
            findings.warn("mixed_calibration", name, text, fix)
    for reason, without in reasons.items():
        text, name = f"{reason}.", f"{layout.EPISODES}: gap_consent"
        if "was withdrawn" in reason:
            fix = f"gaploop consent withdraw {reason.split()[1]} --places='[{findings.root}]'"
            findings.about(without, "withdrawn_consent", name, text, f"{fix} --yes")
        else:
            fix = "gaploop consent add --help  # or remove them: " + findings.delete(without)
            findings.about(without, "no_consent", name, text, fix, WARNING)


def fix_labels(draft: FixDraft, episodes: Sequence[WholeEpisode], labels_from: Path | None) -> None:
    """Give every episode the gap columns of its take, where the dataset has any, or had.

    Raises:
        UnusableInputError: `labels_from`, where they come from, knows none of the takes.
    """
    given = _source_rows(labels_from) if labels_from is not None else {}
    files = layout.episode_files(draft.root)
    table = pa.concat_tables([pq.read_table(path, partitioning=None) for path in files])
    present = [n for n in columns.EPISODE_COLUMNS if n in table.column_names]
    if not present and not given:
        return
    old: list[Row] = table.select(present).to_pylist() if present else [{} for _ in episodes]
    own = {
        columns.take_hash(str(r["gap_uid"])): r
        for r in old
        if is_plain_name(r.get("gap_uid"))
        and all(r.get(n) is not None for n in columns.EPISODE_COLUMNS)
    }
    if labels_from is not None:
        if not any(e.take for e in episodes):
            raise UnusableInputError(
                f"--labels_from={labels_from}: the frames have no column {columns.TAKE}, by which "
                "labels find their recordings. Label the episodes anew: gaploop label --help"
            )
        if not any(e.take in given for e in episodes):
            raise UnusableInputError(
                f"--labels_from={labels_from} knows none of the {len(episodes)} episodes. "
                f"Name {_SAYS}."
            )
        new = bring_events(labels_from, draft.root, {e.take for e in episodes})
        if new:
            draft.did("brought_labels", f"{layout.LABELS}: {new} events from {labels_from}")
        brought = 0
        for uid in (str(given[e.take]["gap_uid"]) for e in episodes if e.take in given):
            record, target = telemetry_path(labels_from, uid), telemetry_path(draft.root, uid)
            if record.is_file() and not target.exists():
                staging.link_or_copy(record, target)
                brought += 1
        if brought:
            text = f"{layout.TELEMETRY}: {brought} records from {labels_from}"
            draft.did("brought_telemetry", text)
    # Where no columns name a take whose hash the rows carry, its telemetry or labels may.
    records = (draft.root / layout.TELEMETRY).glob("*.zarr.zip")
    uids = {path.name.removesuffix(".zarr.zip") for path in records}
    with contextlib.suppress(*DAMAGE):
        events = labels.read(draft.root / layout.LABELS)
        uids |= {event.uid for event in events if is_plain_name(event.uid)}
    named = {columns.take_hash(uid): uid for uid in uids}
    rows = []
    for at, (episode, row) in enumerate(zip(episodes, old, strict=True)):
        known = own.get(episode.take) or given.get(episode.take)
        uid = str(row.get("gap_uid") or "")
        if known:
            uid = str(known["gap_uid"])
        elif episode.take in named:
            uid = named[episode.take]
        elif not is_plain_name(uid) or (episode.take and columns.take_hash(uid) != episode.take):
            uid = layout.foreign_uid({"episode_index": at, "length": len(episode), **row})
        default = columns.default_row(TakeInfo(uid, kind=TakeKind.IMPORT), Outcome.UNLABELLED)
        rows.append({**default, **_usable(known or row)})
    before = [p.read_bytes() for p in files]
    episodes_table.materialise(draft.root, dict(enumerate(rows)))
    if [p.read_bytes() for p in files] != before:
        draft.did("attached_labels", f"gap columns of {len(rows)} episodes brought in line")


def _source_rows(source: Path) -> dict[int, Row]:
    """Return `gap.take` to gap columns, of every episode of a dataset or take of a journal."""
    refuse_links_out(source)
    found: list[Row] = []
    if layout.is_dataset(source):
        rows = [r for r in layout.episode_rows(source) if r.get("gap_uid")]
        found = [{n: r.get(n) for n in columns.EPISODE_COLUMNS} for r in rows]
    elif journal_format.is_journal(source):
        for folder in take_folders(source):
            header, end = read_header(folder), read_end(folder)
            if end is not None:
                found.append(columns.default_row(header.info, Outcome(end.outcome)))
    else:
        raise UnusableInputError(f"--labels_from={source}: name {_SAYS}.")
    if not found:
        raise UnusableInputError(f"--labels_from={source} has no gap columns. Name {_SAYS}.")
    return {columns.take_hash(row["gap_uid"]): row for row in found}


def _usable(row: Mapping[str, Any]) -> Row:
    """Return the gap columns that make sense, with words put right that are near a valid one."""
    kept: Row = {}
    for name, value in row.items():
        if name in ("gap_uid", "gap_dimensions", "gap_dimension_weights") or value is None:
            continue
        words = columns.EPISODE_WORDS.get(name)
        if words is not None and value not in words:
            near = difflib.get_close_matches(str(value), sorted(words - {""}), n=1, cutoff=0.8)
            if not near:
                continue
            value = near[0]
        if name == "gap_conditions" and not is_json_object(value):
            continue
        kept[name] = value
    names, weights = row.get("gap_dimensions"), row.get("gap_dimension_weights")
    if isinstance(names, list) and isinstance(weights, list) and len(names) == len(weights):
        words = columns.EPISODE_WORDS["gap_dimensions"]
        pairs = {n: w for n, w in zip(names, weights, strict=True) if n in words}
        fine = {n: float(w) for n, w in pairs.items() if isinstance(w, float) and 0 <= w <= 1}
        kept |= columns.dimension_columns(fine)
    return kept


def check_units(episodes: EpisodeTable, scan: Scan | None, findings: Findings) -> None:
    """Find episodes in other units than most: as their gap columns say, else as values do."""
    said: dict[str, list[int]] = {}
    if "gap_units" in episodes.table.column_names:
        units = episodes.table["gap_units"].to_pylist()
        for episode, unit in zip(episodes.index.tolist(), units, strict=True):
            if unit:
                said.setdefault(str(unit), []).append(episode)
    if len(said) > 1:
        most = max(said, key=lambda unit: len(said[unit]))
        others = sorted(e for unit, found in said.items() if unit != most for e in found)
        listed = "; ".join(f"{unit}: episodes {numbers(found)}" for unit, found in said.items())
        text = f"State and action are in several units ({listed}): no policy can learn from both."
        fix = (
            f"{findings.delete(others)}  # keeps {most}; or convert a part: gaploop edit harmonise"
        )
        findings.error("mixed_units", f"{layout.EPISODES}: gap_units", text, fix)
    moments = scan.moments.get(STATE) if scan is not None else None
    if said or scan is None or moments is None or len(moments.low) != len(scan.runs):
        return
    odd = [scan.runs[i].episode for i in plainly_radians(moments.low, moments.high)]
    text = "they look like radians, the others like degrees: no policy can learn from both."
    fix = f"{findings.delete(odd)}  # or convert a part: gaploop edit split, gaploop edit harmonise"
    findings.about(odd, "mixed_units", f"data: {STATE}", text, fix)
