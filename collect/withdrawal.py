"""Withdrawn consent: the takes of a person out of every journal and dataset that the tool reaches.

First the register says so, which stops recording, publishing and pushing; then takes are removed
from the places that the register knows or the caller names. Killed at any instant, running it
again goes on: a take of a journal keeps its header until everything else of it is gone.

What was made of takes goes, too: frame caches, what `check --fix` kept, pages of analyses. Runs
that used them are found by their `run.json`, where the register has noted them, beside the
datasets, and where the caller says.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gaploop.collect.recovery import held_take, without_header
from gaploop.core import consent, journal_format, labels, platform_calls
from gaploop.core.consent import Consent, Place, consent_ids
from gaploop.core.errors import DAMAGE, GaploopError, UnusableInputError
from gaploop.core.files import read_json, remove_lines, write_atomically
from gaploop.core.paths import inside, is_plain_name, snapshot_of
from gaploop.core.run_record import RUN, read_run
from gaploop.core.take import TakeInfo
from gaploop.datasets import columns, layout, staging
from gaploop.datasets.cache.folder import cache_path, is_cache, remove_cache
from gaploop.datasets.check.dataset import kept_copies
from gaploop.datasets.edit.actions import delete_takes
from gaploop.datasets.edit.compose import EDIT_SCHEMA

SCHEMA: Final = "gaploop.withdrawal.v1"
HEADER_WAIT_S: Final = 2.0
"""A take's header is written within half a second of its beginning [s]."""
NAMELESS: Final = "it has no take.json, so nobody knows whose it is: delete it if it is theirs"
OUT_OF_REACH: Final = (
    "copies made without gaploop: uploads, backups, snapshots, other computers",
    "datasets, journals and runs that were copied or moved by hand, and their frame caches, unless "
    "you name them",
    "what policies learned from the episodes, adapters among them, and what was made from those",
    "tables, pages and pictures that you saved elsewhere, and older revisions on a Hub",
    "caches of other programs, such as ~/.cache/huggingface with what was downloaded from a Hub",
    "videos of a review that is open or was killed, in the folder for temporary files",
)
"""What no register can know of; every report says so."""


@dataclass(frozen=True)
class TakesFound:
    """Takes of the participant in one place, removed or to be removed."""

    what: str
    where: str
    uids: tuple[str, ...]


@dataclass(frozen=True)
class Unreached:
    """A place that holds, or may hold, takes and that was not cleared; and what to do about it."""

    where: str
    why: str


@dataclass(frozen=True)
class WithdrawalReport:
    """What a withdrawal did, or would do.

    Attributes:
        withdrawn: when, ISO 8601, UTC; "" in a dry run of a consent that still stands.
        done: False in a dry run, where nothing is changed.
        found: takes by place, removed where `done`.
        unreached: known places that were not cleared.
        trained: runs that learned from the takes; models can't unlearn, they can be deleted.
        shown: analyses that name the takes; their pages with pictures are among `copies`.
        copies: caches, kept copies and pages that show the takes, removed where `done`.
    """

    id: str
    withdrawn: str
    done: bool
    found: tuple[TakesFound, ...]
    unreached: tuple[Unreached, ...]
    trained: tuple[RunOfTakes, ...]
    shown: tuple[RunOfTakes, ...] = ()
    copies: tuple[str, ...] = ()
    out_of_reach: tuple[str, ...] = OUT_OF_REACH


def withdraw(
    register: Path,
    id_: str,
    *,
    places: Sequence[Place] = (),
    runs: Sequence[Path] = (),
    remove: bool = False,
) -> WithdrawalReport:
    """Withdraw a consent and remove its takes, or say what that would do.

    Args:
        places: journals and datasets to look in besides those that the register knows.
        runs: folders to look for training runs in, besides those beside the datasets.
        remove: do it; otherwise nothing is changed.

    Raises:
        UnusableInputError: no such consent, or a named place is neither journal nor dataset.
    """
    known: Consent = consent.get(consent.load_register(register), id_)
    for place in places:
        folder = Path(place.where)
        fits = layout.is_dataset if place.what == "dataset" else journal_format.is_journal
        if not fits(folder):
            raise UnusableInputError(
                f"{folder} is no {place.what}. Name {place.what}s with --{place.what}s='[DIR, …]'."
            )
    if remove:
        known = consent.withdraw(register, id_)
        consent.set_name(register, id_, None)
        consent.set_bands(register, id_, None)
    where = dict.fromkeys((*consent.load_register(register).places.get(id_, ()), *places))
    uids = noted_uids(register, id_)
    for place in where:
        with contextlib.suppress(GaploopError):  # below it is named as not cleared
            uids |= frozenset(_uids(place, id_))
    policies, emptied = noted_policies(register, id_), _noted(register, id_, "emptied")
    known_before = {"policies": sorted(policies), "emptied": sorted(emptied)}
    if remove:
        _note(register, id_, {"uids": sorted(uids), "finished": False, **known_before})
    found: list[TakesFound] = []
    unreached: list[Unreached] = []
    for place in where:
        if place.what in ("cache", "run") or (
            place.where in emptied and not Path(place.where).exists()
        ):
            continue
        try:
            taken, left = _clear(place, id_, uids) if remove else (_uids(place, id_, uids), ())
            found += [TakesFound(place.what, place.where, tuple(taken))] if taken else []
            unreached += left if remove else _obstacles(place)
        except (GaploopError, OSError) as error:
            unreached.append(Unreached(place.where, str(error)))
    roots = [Path(p.where) for p in where if p.what in ("dataset", "journal")]
    noted_runs = [Path(p.where) for p in where if p.what == "run"]
    made = tuple(runs_of(uids, roots, runs, noted_runs))
    trained = tuple(run for run in made if run.is_training)
    shown = tuple(run for run in made if not run.is_training)
    cleared, kept = _clear_copies(where, id_, uids, shown, remove=remove)
    unreached += kept
    report = WithdrawalReport(
        id_, known.withdrawn, remove, tuple(found), tuple(unreached), trained, shown, tuple(cleared)
    )
    if remove:
        now = {
            "policies": sorted(policies.union(*(run.policies for run in report.trained))),
            "emptied": sorted(emptied | {f.where for f in found if not Path(f.where).exists()}),
        }
        known_now = {"uids": sorted(uids), "finished": not unreached, **now}
        _note(register, id_, {**known_now, **asdict(report)})
    return report


def _clear_copies(
    where: Iterable[Place],
    id_: str,
    uids: Collection[str],
    shown: Iterable[RunOfTakes],
    *,
    remove: bool,
) -> tuple[list[str], list[Unreached]]:
    """Remove what gaploop made of the takes by itself; return what, and what is left."""
    gone, left = list[str](), list[Unreached]()
    if not uids:
        return gone, left
    roots = [Path(p.where) for p in where if p.what == "dataset"]
    noted = (Path(p.where) for p in where if p.what == "cache")
    caches = dict.fromkeys((*map(cache_path, roots), *noted))
    for cache in filter(is_cache, caches):
        why = ""
        try:
            if remove and not remove_cache(cache):
                why = "a frame cache in use: end the training, then run this again"
        except OSError as error:
            why = f"a frame cache that can't be removed ({error.strerror}): delete it"
        left += [Unreached(str(cache), why)] if why else []
        gone += [] if why else [str(cache)]
    folders = lerobot_tables(uids)
    is_theirs = functools.partial(_is_theirs, id_=id_, uids=uids)
    for root in roots:
        folders += [copy for copy in kept_copies(root) if may_hold(copy, uids, is_theirs)]
    for folder in folders:
        try:
            if remove:
                shutil.rmtree(folder)
            gone.append(str(folder))
        except OSError as error:
            left.append(Unreached(str(folder), f"can't be removed ({error.strerror}): delete it"))
    for page in (Path(run.folder) / PAGE for run in shown):
        if page.is_file() and not page.is_symlink():
            if remove:
                page.unlink()
            gone.append(str(page))
    return gone, left


def report_path(register: Path, id_: str) -> Path:
    """Return where the report of a withdrawal is kept: beside the register, mode 0600."""
    return register.parent / f"withdrawal_{id_}.json"


def _note(register: Path, id_: str, content: dict[str, Any]) -> None:
    """Keep which takes are theirs before they go: a run that goes on later needs to know."""
    text = json.dumps({"schema": SCHEMA, **content}, indent=1, ensure_ascii=False) + "\n"
    write_atomically(report_path(register, id_), text, 0o600)


def noted_uids(register: Path, id_: str) -> frozenset[str]:
    """Return the takes that a withdrawal found; UnusableInputError for a damaged report."""
    return _noted(register, id_, "uids")


def noted_policies(register: Path, id_: str) -> frozenset[str]:
    """Return the ids of the policies that learned from them: noted then, or trained on since."""
    known = consent.load_register(register).places.get(id_, ())
    folders = [Path(place.where) for place in known if place.what == "run"]
    later = (run.policies for run in runs_of(noted_uids(register, id_), (), (), folders))
    return _noted(register, id_, "policies").union(*later)


def _noted(register: Path, id_: str, key: str) -> frozenset[str]:
    path = report_path(register, id_)
    if not path.exists():
        return frozenset()
    try:
        value = read_json(path)
        return frozenset(map(str, value[key] if key == "uids" else value.get(key, ())))
    except DAMAGE:
        raise UnusableInputError(f"{path} is no withdrawal report. Move it away.") from None


def _is_theirs(info: TakeInfo, id_: str, uids: Collection[str]) -> bool:
    if info.uid in uids:
        return True
    try:
        return id_ in consent_ids(info.consent)
    except UnusableInputError:
        return False  # somebody else's way of naming consents


def _uids(place: Place, id_: str, uids: Collection[str] = ()) -> list[str]:
    """Return the takes in a place that are the participant's; none where it can't be read."""
    path = Path(place.where)
    if place.what == "journal":
        found = []
        for folder in journal_format.take_folders(path):
            with contextlib.suppress(UnusableInputError):  # a damaged header is somebody's take
                info = journal_format.read_header(folder).info
                found += [info.uid] if _is_theirs(info, id_, uids) else []
        return found
    if place.what == "dataset" and layout.is_dataset(path):
        episodes = layout.read_episodes(layout.read_info(path))
        return [e.info.uid for e in episodes if _is_theirs(e.info, id_, uids)]
    return []


def _obstacles(place: Place) -> list[Unreached]:
    """Say why a place can't be cleared, as far as looking tells."""
    if place.what == "hub":
        why = (
            "a copy on the Hub: push the cleaned dataset again and delete the old revisions, "
            "or delete the repository there; downloads of it stay where they are"
        )
    elif snapshot_of(Path(place.where)):
        why = "in the Hub's cache, which keeps every file that it had: delete it with hf cache rm"
    elif Path(place.where).exists():
        if place.what != "export":
            return []
        why = "an export in another layout: delete it, and export the cleaned dataset again"
    elif place.what == "export":
        why = "an export that is not there any more: if it was moved, delete it there"
    else:
        why = f"not there any more: if it was moved, name it with --{place.what}s='[DIR]'"
    return [Unreached(place.where, why)]


def _clear(place: Place, id_: str, uids: Collection[str]) -> tuple[list[str], list[Unreached]]:
    """Remove the participant's takes from a place; return those removed and what is left."""
    path = Path(place.where)
    if place.what == "dataset" and path.parent.exists() and not snapshot_of(path):
        with staging.locked(path):
            staging.recover(path)  # what a killed run left beside it
            shutil.rmtree(staging.sibling(path, "blurred"), ignore_errors=True)
    left = _obstacles(place)
    if left:
        return [], left
    if place.what == "dataset":
        if not layout.is_dataset(path):
            return [], []
        return list(delete_takes(path, lambda e: _is_theirs(e.info, id_, uids))), []
    until_s = time.monotonic() + HEADER_WAIT_S
    while (nameless := without_header(path)) and time.monotonic() <= until_s:
        time.sleep(0.02)  # a take that is just beginning says soon whose it is
    theirs = {uid for uid in uids if is_plain_name(uid) and inside(path, uid, "take").exists()}
    theirs |= set(_uids(place, id_, uids))
    gone = [uid for uid in sorted(theirs) if _delete_take(inside(path, uid, "take"))]
    still_open = theirs - set(gone)
    about = {*theirs, *uids} - still_open  # also what a killed run left of takes that are gone
    for file in (journal_format.LABELS, journal_format.TRUTH):
        remove_lines(path / file, lambda line: labels.is_about(line, about))
    left = [
        Unreached(str(path / uid), "being recorded: end the session, then run this again")
        for uid in sorted(still_open)
    ]
    return gone, left + [Unreached(str(f), NAMELESS) for f in nameless if f.name not in theirs]


def _delete_take(folder: Path) -> bool:
    """Delete a take's folder, its seal first and its header last; False while it's recorded.

    Links in it go, what they lead to stays.
    """
    with held_take(folder) as is_ours:
        if not is_ours:
            return False
        (folder / journal_format.END).unlink(missing_ok=True)
        for path in sorted(folder.iterdir()):
            if path.name != journal_format.HEADER:
                is_folder = path.is_dir() and not path.is_symlink()
                shutil.rmtree(path) if is_folder else path.unlink()
        (folder / journal_format.HEADER).unlink(missing_ok=True)
        folder.rmdir()
    platform_calls.sync_path(folder.parent)
    return True


# -- what was made of takes ---------------------------------------------------------------------


def may_hold(root: Path, uids: Collection[str], is_theirs: Callable[[TakeInfo], bool]) -> bool:
    """Say whether a damaged dataset holds takes; True where its tables can't be read to the end."""
    hashes = {columns.take_hash(uid) for uid in uids}
    try:
        if any(is_theirs(e.info) for e in layout.read_episodes(layout.read_info(root))):
            return True
        for path in sorted(root.glob("data/**/*.parquet")):
            held = pq.read_table(path, columns=[columns.TAKE])[columns.TAKE]
            if hashes & set(held.unique().to_pylist()):
                return True
        texts = [p.read_bytes() for p in (root / "meta" / "gap").glob("*") if p.is_file()]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, UnusableInputError):
        return True
    names = {p.name.partition(".")[0] for p in (root / "telemetry").glob("*")}
    return any(uid in names or any(uid.encode() in t for t in texts) for uid in uids)


def lerobot_tables(uids: Collection[str]) -> list[Path]:
    """Return folders in which LeRobot's loader keeps tables with some takes in them.

    Hugging Face's `datasets` writes every Parquet file that it reads once more, as Arrow, with
    pictures that stand in the tables. What is deleted there is made anew when it is needed.
    """
    needles = [u.encode() for u in uids]
    needles += [columns.take_hash(u).to_bytes(8, "little") for u in uids]
    found = dict[Path, None]()
    # Hugging Face's folder for tables, by its own rules (datasets.config).
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    tables = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets").expanduser()
    for path in sorted(tables.glob("parquet/*/*/*/*.arrow")):
        with (
            contextlib.suppress(OSError, ValueError),  # an empty one, or one that has just gone
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if any(content.find(needle) >= 0 for needle in needles):
                found[path.parent] = None
    return list(found)


RUN_DEPTH: Final = 3
"""How many folders below a dataset's parent its training runs are looked for."""
TRAININGS: Final = ("finetune", "pretrain", "train")
PAGE: Final = "report.html"
"""The only file of an analysis with pictures of episodes in it."""
TEXTS: Final = (".json", ".jsonl", ".csv", ".yaml", ".html")


@dataclass(frozen=True)
class RunOfTakes:
    """A run that some of the takes went into; an analysis shows them, where it is no training.

    Attributes:
        takes: how many of them; 1 where the run names only the dataset's folder, 0 where a policy
            that it started from learned from them.
        policies: ids of the policies that came of it.
    """

    folder: str
    id: str
    command: str
    takes: int
    policies: tuple[str, ...] = ()
    is_training: bool = True


def runs_of(
    uids: Collection[str], roots: Sequence[Path], folders: Sequence[Path], noted: Sequence[Path]
) -> Iterator[RunOfTakes]:
    """Yield the runs whose inputs name one of the takes; by folder where they list no takes.

    Args:
        roots: datasets and journals that hold them; runs are looked for beside these.
        folders: further folders to look in, however deep.
        noted: folders of runs that the register knows.
    """
    paths = {path for folder in folders for path in folder.rglob(RUN)}
    paths.update(folder / RUN for folder in noted)
    for root in roots:
        for depth in range(RUN_DEPTH + 1):
            paths.update(root.parent.glob("*/" * depth + RUN))
    names = {str(root.resolve()) for root in roots}
    later = list[tuple[RunOfTakes, str]]()
    known = set[str]()
    for path in sorted(paths):
        try:
            run, base = _read(path, uids, names)
        except (OSError, ValueError, UnusableInputError):
            continue  # not one of ours
        if run.takes:
            known.update(run.policies)
            yield run
        else:
            later.append((run, base))
    while found := [(run, base) for run, base in later if base in known]:
        later = [entry for entry in later if entry not in found]
        for run, _ in found:
            known.update(run.policies)
            yield run


def _read(path: Path, uids: Collection[str], names: set[str]) -> tuple[RunOfTakes, str]:
    value = read_run(path)
    if value.get("schema") == EDIT_SCHEMA:
        raise ValueError("a dataset's own, which is cleared as a dataset")
    used = sum(_used(entry, uids, names, path.parent) for entry in value["inputs"])
    command, result = str(value.get("command", "")), value["result"]
    is_training = command in TRAININGS or "policy" in result
    policies = {result.get("policy", ""), result.get("merged", ""), *result["policies"]}
    if not used and not is_training:  # `plan` writes its run.json over that of the diagnosis
        files = (p for p in path.parent.iterdir() if p.suffix in TEXTS and p.is_file())
        texts = [p.read_bytes() for p in files]
        used = sum(any(uid.encode() in text for text in texts) for uid in uids)
    made = tuple(sorted(policies - {""}))
    run = RunOfTakes(str(path.parent), str(value.get("id", "")), command, used, made, is_training)
    return run, value["lineage"]["base"] or "-"


def _used(entry: Mapping[str, Any], uids: Collection[str], names: set[str], folder: Path) -> int:
    if "uids" in entry:
        return len(set(entry["uids"]) & set(uids))
    if not entry.get("root"):
        return 0
    root = Path(str(entry["root"]))
    candidates = (root, folder / root)
    return int(bool(uids) and any(str(c.resolve()) in names for c in candidates))
