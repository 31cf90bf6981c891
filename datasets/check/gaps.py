"""Rules of `check` for what gaploop adds: gap columns, labels, calibration, consent, telemetry."""

from __future__ import annotations

import shlex
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from gaploop.core import labels
from gaploop.core.consent import ConsentRegister, Use, consent_ids
from gaploop.core.consent_store import load_register
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import regular_file
from gaploop.core.paths import is_plain_name
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, TakeKind
from gaploop.datasets import columns, layout
from gaploop.datasets.check.episodes import EpisodeTable, is_json_object
from gaploop.datasets.check.findings import DAMAGE, Findings, numbers
from gaploop.datasets.check.frames import Scan
from gaploop.datasets.episodes_table import apply_labels
from gaploop.datasets.layout import DatasetInfo
from gaploop.datasets.telemetry_zarr import read_telemetry, telemetry_rows

TELEMETRY_BYTES: Final = 512 * 1024**2
"""Telemetry archives are read whole up to this size in all; beyond it, their directories only."""
_ROWS: Final = 10_000


def check_gaps(
    info: DatasetInfo,
    episodes: EpisodeTable,
    scan: Scan | None,
    consents: Path | None,
    findings: Findings,
) -> None:
    """Check gaploop's columns: there, typed, in words of the vocabulary, true to the labels."""
    expected = {columns.TIME, columns.TAKE, columns.SENT, columns.INTERVENTION, columns.SAFETY}
    lacking = sorted(expected - set(info.features))
    if lacking and len(lacking) < len(expected):
        text = f"Frame columns {', '.join(lacking)} are missing."
        mend = "Publish the journal again to a new folder: gaploop publish --help"
        findings.error("missing_gap_columns", layout.INFO, text, mend)
    if not len(episodes):
        return
    if not set(columns.EPISODE_COLUMNS) & set(episodes.table.column_names):
        if columns.TAKE in info.features:
            findings.warn(
                "no_gap_columns",
                layout.EPISODES,
                f"No gap columns, though {columns.TAKE} is there: an edit tool dropped them. "
                "Outcome, domain and gap dimension of the episodes are unknown.",
                findings.repair("--labels_from=OLD")
                + "  # OLD: the dataset or journal before the edit",
            )
        else:
            findings.note(
                "no_gap_columns",
                layout.EPISODES,
                "No gap columns: recorded elsewhere. Outcome, domain and gap dimension of its "
                "episodes are unknown.",
                f"gaploop import {shlex.quote(str(info.root))} --format=lerobot "
                f"--output_dir={shlex.quote(f'{info.root}_imported')}",
            )
        return
    if not _check_gap_types(info, findings):
        return
    _check_words(episodes, findings)
    _check_uids(episodes, scan, findings)
    _check_labels(info, episodes, findings)
    _check_calibration(episodes, findings)
    _check_consent(episodes, consents, findings)
    _check_telemetry(info, episodes, findings)


def _check_gap_types(info: DatasetInfo, findings: Findings) -> bool:
    """Check the columns' types; False where they can't be read as they should."""
    whole = True
    for path in layout.episode_files(info.root):
        schema = pq.read_schema(path)
        for name, kind in columns.EPISODE_COLUMNS.items():
            where = f"{path.relative_to(info.root)}: {name}"
            if name not in schema.names:
                findings.error("missing_gap_columns", where, f"Column {name} is missing.")
                whole = False
            elif not schema.field(name).type.equals(kind):
                found = schema.field(name).type
                text = f"Type is {found}, not {kind}; LeRobot refuses to append then."
                findings.error("gap_column_type", where, text)
                whole = False
    return whole


def _gap_rows(episodes: EpisodeTable) -> Iterator[dict[str, Any]]:
    """Yield each episode's gap columns, with its index."""
    table = episodes.table.select(["episode_index", *columns.EPISODE_COLUMNS])
    for batch in table.to_batches(_ROWS):
        yield from batch.to_pylist()


def _check_words(episodes: EpisodeTable, findings: Findings) -> None:
    wrong: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in _gap_rows(episodes):
        index = int(row["episode_index"])
        for name in columns.EPISODE_COLUMNS:
            if row[name] is None:
                wrong[name, "nothing"].append(index)
        for name, words in columns.EPISODE_WORDS.items():
            value = row[name]
            for word in value if isinstance(value, list) else [value]:
                if word is not None and word not in words:
                    wrong[name, str(word)].append(index)
        conditions = row["gap_conditions"]
        if conditions is not None and not is_json_object(conditions):  # nothing: reported already
            wrong["gap_conditions", "no JSON object"].append(index)
        weights, names = row["gap_dimension_weights"] or [], row["gap_dimensions"] or []
        if len(weights) != len(names) or not all(0 <= w <= 1 for w in weights if w is not None):
            wrong["gap_dimension_weights", "other weights than one in [0, 1] each"].append(index)
    for (name, word), found in wrong.items():
        valid = sorted(w for w in columns.EPISODE_WORDS.get(name, ()) if w)
        hint = f" One of: {', '.join(valid)}." if valid else ""
        findings.error(
            "bad_gap_value",
            f"{layout.EPISODES}: {name}",
            f"Episodes {numbers(found)} hold {word!r}.{hint}",
        )


def _check_uids(episodes: EpisodeTable, scan: Scan | None, findings: Findings) -> None:
    """Check that each episode has a uid of its own, and that its rows' `gap.take` is its hash."""
    indices = episodes.index.tolist()
    uids = [str(uid or "") for uid in episodes.table["gap_uid"].to_pylist()]
    seen = Counter(uids)
    where = f"{layout.EPISODES}: gap_uid"
    pairs = list(zip(indices, uids, strict=True))
    twice = [index for index, uid in pairs if not uid or seen[uid] > 1]
    if twice:
        text = f"Episodes {numbers(twice)} have no uid of their own: labels can't tell them apart."
        findings.error("bad_uid", where, text)
    odd = [index for index, uid in pairs if uid and not is_plain_name(uid)]
    if odd:
        text = f"Episodes {numbers(odd)} have a uid that can't name a file, such as a path."
        findings.error("bad_uid", where, text)
    of_episode = dict(pairs)
    wrong = [
        run.episode
        for run in (scan.runs if scan is not None else ())
        if run.takes
        and (uid := of_episode.get(run.episode))
        and run.takes != {columns.take_hash(uid)}
    ]
    if wrong:
        findings.error(
            "wrong_take",
            f"data: {columns.TAKE}",
            f"Episodes {numbers(wrong)}: rows belong to another take than gap_uid names, so that "
            "labels stand beside the wrong recording.",
            findings.repair("--labels_from=OLD") + "  # OLD: a dataset or journal with the takes",
        )


def _check_labels(info: DatasetInfo, episodes: EpisodeTable, findings: Findings) -> None:
    path = info.root / layout.LABELS
    if path.exists() and not path.is_file():
        mend = f"Take {layout.LABELS} away; it is no file."
        findings.error("bad_labels", layout.LABELS, "It is no file.", mend)
        return
    try:
        said = labels.current(labels.read(path))
    except DAMAGE as error:
        text = " ".join(str(error).split())
        findings.error("bad_labels", layout.LABELS, text, f"Fix that line of {layout.LABELS}.")
        return
    stale = []
    for row in _gap_rows(episodes):
        uid = str(row["gap_uid"])
        if uid in said and apply_labels(row, said[uid]) != row:
            stale.append(int(row["episode_index"]))
    if stale:
        findings.error(
            "stale_labels",
            layout.EPISODES,
            f"Episodes {numbers(stale)}: the columns say something else than {layout.LABELS}.",
        )


def _check_calibration(episodes: EpisodeTable, findings: Findings) -> None:
    """Find real takes that lack the calibration id of others, and sessions with several."""
    without: list[int] = []
    ids: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in _gap_rows(episodes):
        if row["gap_domain"] != Domain.REAL or row["gap_kind"] == TakeKind.IMPORT:
            continue
        if row["gap_calibration"]:
            ids[str(row["gap_station"]), str(row["gap_session"])].add(row["gap_calibration"])
        else:
            without.append(int(row["episode_index"]))
    where = f"{layout.EPISODES}: gap_calibration"
    if without and ids:  # a dataset of which no episode names one was recorded without
        text = f"Episodes {numbers(without)} name no calibration, others do."
        findings.warn("no_calibration", where, text, "gaploop calibrate --help")
    for (station, session), found in ids.items():
        if len(found) > 1:
            text = f"Station {station or '?'}, session {session or '?'}: {len(found)} calibrations "
            text += "in one session; poses before and after may differ."
            mend = "gaploop calibrate --help  # its drift check says by how much"
            findings.warn("mixed_calibration", where, text, mend)


def _check_consent(episodes: EpisodeTable, consents: Path | None, findings: Findings) -> None:
    try:
        register = load_register(consents)
    except UnusableInputError as error:
        findings.error("bad_consent", "consents.jsonl", str(error), "Mend that line.")
        register = ConsentRegister({}, {})
    reasons: dict[str, list[int]] = defaultdict(list)
    for row in _gap_rows(episodes):
        try:
            consent_ids(row["gap_consent"])
            reason = register.refusal(TakeInfo(**columns.info_fields(row)), Use.PUBLISH)
        except DAMAGE as error:
            reason = str(error)
        if reason:
            reasons[reason].append(int(row["episode_index"]))
    for reason, found in reasons.items():
        withdrawn = "was withdrawn" in reason
        say = findings.error if withdrawn else findings.warn
        id_ = reason.split()[1] if withdrawn else ""
        say(
            "withdrawn_consent" if withdrawn else "no_consent",
            f"{layout.EPISODES}: gap_consent",
            f"Episodes {numbers(found)}: {reason}.",
            f"gaploop consent withdraw {id_} --dataset='[{findings.root}]' --yes"
            if withdrawn
            else "gaploop consent add --help  # or remove them: " + findings.delete(found),
        )


def _check_telemetry(info: DatasetInfo, episodes: EpisodeTable, findings: Findings) -> None:
    folder = info.root / layout.TELEMETRY
    files = sorted(folder.glob("*.zarr.zip")) if folder.is_dir() else []
    whole = sum(path.stat().st_size for path in files) <= TELEMETRY_BYTES
    known = set(episodes.table["gap_uid"].to_pylist())
    restore = "Copy the file again, or publish the journal again to a new folder."
    for path in files:
        name = path.relative_to(info.root)
        try:
            with zipfile.ZipFile(regular_file(path)) as archive:
                bad = archive.testzip() if whole else None
        except DAMAGE as error:
            findings.error("bad_telemetry", name, f"It can't be read: {error}", restore)
            continue
        if bad is not None:
            findings.error("bad_telemetry", name, f"{bad} in it is damaged.", restore)
            continue
        try:
            rows = len(read_telemetry(path)) if whole else telemetry_rows(path)
        except UnusableInputError as error:
            findings.error("bad_telemetry", name, f"It can't be used: {error}", restore)
            continue
        if not rows:
            findings.error("bad_telemetry", name, "It holds no rows.", restore)
        elif path.name.removesuffix(".zarr.zip") not in known:
            text = "It belongs to no episode."
            findings.warn("orphan_telemetry", name, text, "It may be deleted.")
