"""Serves a benchmark: takes what is entered, runs it, publishes what came of it.

Everything is worked out from the server's own folder; the board gets copies. So what somebody
changes on the board is found by its signature, and put right by the next serving.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import filelock

from benchmarks.board import contest, programs, sandbox
from benchmarks.board.contest import Attempt, Tried
from benchmarks.board.entries import (
    ATTRIBUTION,
    POLICY,
    TRACKS,
    Submission,
    entered,
    listing,
    stage,
)
from benchmarks.board.page import board_page
from benchmarks.board.ranking import ranked
from benchmarks.board.sandbox import NAMESPACES, EndedError, Limits
from benchmarks.board.signing import Server, is_signed
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_atomically, write_json
from gaploop.core.paths import inside
from gaploop.core.run_record import versions
from gaploop.core.vocabulary import Domain
from gaploop.datasets.hub import upload
from gaploop.datasets.hub.target import HubTarget, endpoint, is_hub_name
from gaploop.datasets.hub.upload import FETCH_PATIENCE, fetch
from gaploop.finetune import evaluation
from gaploop.finetune.evaluate import CellSpec
from gaploop.finetune.lerobot_policy import policy_id

log = logging.getLogger(__name__)

BENCHMARK: Final = "benchmark.json"
RANKING: Final = "ranking.json"
PAGE: Final = "index.html"
SCHEMA: Final = "gaploop.benchmark.v1"
RESULT_SCHEMA: Final = "gaploop.benchmark_result.v1"
RANKING_SCHEMA: Final = "gaploop.benchmark_ranking.v1"
FETCHED: Final = re.compile(
    r"benchmark\.json|ranking\.json|results/[\w.-]+/[\w.-]+\.json|"
    r"submissions/[\w.-]+/[\w.-]+/entry\.json"
)
"""What is read of a board on a Hub."""
LARGEST: Final = 1 << 20
"""A file that is larger isn't read [bytes]."""
KIND: Final = "dataset"


@dataclass(frozen=True)
class Measure:
    """What is measured; fixed when a benchmark is first served.

    Attributes:
        conditions: settings, the base first.
        max_s: longest attempt [simulated s].
    """

    name: str
    task: str = "pick_place"
    conditions: Sequence[Mapping[str, Any]] = ({},)
    n: int = 20
    robot: str = "so101"
    max_s: float = 8.0

    @property
    def cell(self) -> CellSpec:
        """The cell, in which policies are told nothing of the setting."""
        return CellSpec(task=self.task, max_s=self.max_s, domain=0.0, robot=self.robot)


@dataclass(frozen=True)
class Serving:
    """How a board is served.

    Attributes:
        board: the folder that people look at, here a mirror where the board is on a Hub.
        per_user: submissions of one user that are taken, in the order of their names.
        takes: journals with their truth, for those.
        load: says why a policy can't be loaded, "" where it can.
    """

    board: Path
    private: Path
    limits: Limits = field(default_factory=Limits)
    per_user: int = 10
    programs: bool = False
    takes: Path | None = None
    workers: int = 1
    make: Attempt = contest.attempt
    load: Callable[[Tried, CellSpec, Limits], str] = contest.trial
    film: Callable[[Tried, CellSpec, Limits, Path], None] = contest.film


@dataclass
class Served:
    """What came of serving.

    Attributes:
        new: names of those that were run or refused now.
        waiting: why others were left, by name or file.
    """

    results: list[dict[str, Any]]
    new: list[str]
    waiting: dict[str, str]


def opened(private: Path, board: Path, wanted: Measure | None) -> tuple[Server, Measure]:
    """Return a benchmark's server and what it measures; begun where there is none.

    Raises:
        UnusableInputError: it measures something else, or there is none and nothing is wanted.
    """
    path = private / BENCHMARK
    if not path.exists() and wanted is None:
        raise UnusableInputError(f"{private} serves no benchmark. Name one with --private=DIR.")
    if private.resolve().is_relative_to(board.resolve()):
        raise UnusableInputError(
            f"--private={private} is on the board, where everybody reads. Name another folder."
        )
    server = Server.opened(private)
    if not path.exists() and wanted is not None:
        said = {
            "schema": SCHEMA, **asdict(wanted), "tracks": TRACKS,
            "evidence": evaluation.evidence(Domain.SIM_TARGET),
            "commitment": server.commitment, "key": server.public,
        }  # fmt: skip
        write_json(path, server.signed(said))
    value = read_json(path)
    if not is_signed(value, server.public):
        raise UnusableInputError(f"{path} isn't what this server signed. Restore it.")
    known = {k: v for k, v in value.items() if k in Measure.__dataclass_fields__}
    asked = known if wanted is None else json.loads(json.dumps(asdict(wanted)))
    if other := [k for k in known if asked[k] != known[k]]:
        raise UnusableInputError(
            f"{private} serves a benchmark with another {', '.join(other)}. Leave these options "
            "out, or begin a new one with another --private and another board."
        )
    return server, Measure(**known)


def serve(
    how: Serving, wanted: Measure | None = None,
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> Served:  # fmt: skip
    """Take what is entered, run it, and write results, ranking and page to the board.

    Args:
        wanted: what is measured, for a new benchmark.
        progress: called with what is done, how much just was, and how much there is.

    Raises:
        UnusableInputError: as `opened`; another server is at work.
    """
    how.board.mkdir(parents=True, exist_ok=True)
    server, measure = opened(how.private, how.board, wanted)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(filelock.FileLock(how.private / ".lock", timeout=0))
        except filelock.Timeout:
            raise UnusableInputError(f"Another server is at work in {how.private}.") from None
        stack.callback(contest.close)
        # What is entered and has no result, by track; what is left out, and why.
        found: dict[str, list[Submission]] = {track: [] for track in TRACKS}
        waiting, each = dict[str, str](), Counter[str]()
        for entry in entered(how.board):
            if isinstance(entry, UnusableInputError):
                file, _, why = str(entry).partition(": ")
                waiting[file] = why
                continue
            each[entry.user] += 1
            if _kept(how, entry).exists():
                continue
            if each[entry.user] > how.per_user:
                waiting[entry.key] = f"only {how.per_user} submissions per user are accepted"
            else:
                found[entry.track].append(entry)
        new = _policies(how, server, measure, found[POLICY], progress)
        new += _programs(how, server, found[ATTRIBUTION], waiting, progress)
        results = _published(how, server, read_json(how.private / BENCHMARK))
    return Served(results, new, waiting)


def _kept(how: Serving, entry: Submission) -> Path:
    return how.private / "results" / entry.user / f"{entry.name}.json"


def _alias(server: Server, entry: Submission, policy: str = "") -> str:
    """Return what a submission is called among attempts; another, once its files are others."""
    return f"{server.drawn('alias', entry.key, policy):012x}"


def _policies(
    how: Serving, server: Server, measure: Measure, queue: Sequence[Submission],
    progress: Callable[[str, int, int], None],
) -> list[str]:  # fmt: skip
    """Run policies, all of them scene by scene; return the names of those that came to an end."""
    tried: dict[str, tuple[Submission, Tried]] = {}
    for entry in queue:
        progress("Looking at submissions", 1, len(queue))
        place = how.private / "staged" / _alias(server, entry)
        try:
            folder = stage(entry, how.board, place, how.limits)
            policy = policy_id(folder)
            one = Tried(_alias(server, entry, policy), folder, policy)
            if reason := how.load(one, measure.cell, how.limits):
                raise EndedError(reason.replace(str(folder), entry.key))
        except (UnusableInputError, EndedError) as error:
            _keep(how, server, entry, {"refused": _reason(error)})
        else:
            tried[one.alias] = (entry, one)
    total = len(tried) * measure.n * len(measure.conditions)
    attempts, gone = contest.contest(
        server, [one for _, one in tried.values()], measure.cell, measure.conditions, measure.n,
        how.private / "attempts", how.limits, workers=how.workers, make=how.make,
        progress=lambda done: progress("Rolling out", done, total),
    )  # fmt: skip
    for alias, (entry, one) in tried.items():
        if alias in gone:
            reason = f"Given up after {contest.STRIKES} attempts: it {gone[alias]}."
            _keep(how, server, entry, {"refused": reason})
            continue
        value = {"policy": one.policy, **_counted(attempts[alias])}
        video = how.private / "videos" / entry.user / f"{entry.name}.mp4"
        video.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(EndedError):
            how.film(one, measure.cell, how.limits, video)
            value["video"] = video.relative_to(how.private).as_posix()
        _keep(how, server, entry, value)
    return [entry.key for entry in queue]


def _programs(
    how: Serving, server: Server, queue: Sequence[Submission], waiting: dict[str, str],
    progress: Callable[[str, int, int], None],
) -> list[str]:  # fmt: skip
    """Run attribution programs, where that is allowed; return their names."""
    if not queue:
        return []
    why = ""
    if not how.programs or how.takes is None:
        why = "programs are run only with --programs and --takes=DIR"
    elif sandbox.isolation() != NAMESPACES:
        why = "programs are run only in Linux namespaces, which this system doesn't permit"
    if why or how.takes is None:
        waiting |= dict.fromkeys((entry.key for entry in queue), why)
        return []
    known = programs.known_failures(how.takes)
    takes = programs.shown(known, how.private / "takes")
    for entry in queue:
        progress("Running programs", 1, len(queue))
        alias = _alias(server, entry)
        target = how.private / "attempts" / alias
        try:
            program = stage(entry, how.board, how.private / "staged" / alias, how.limits)
            path = programs.run_program(program, takes, how.limits, target)
            figures, rows = programs.scored(path, known)
        except (UnusableInputError, EndedError) as error:
            _keep(how, server, entry, {"refused": _reason(error)})
            continue
        _keep(how, server, entry, {"figures": figures, **_counted(rows)})
        write_json(target / "stations.json", [asdict(row) for row in rows])
    return [entry.key for entry in queue]


def _reason(error: Exception) -> str:
    return f"It {error.reason}." if isinstance(error, EndedError) else str(error)


def _counted(rows: Sequence[evaluation.Rollout]) -> dict[str, Any]:
    """Return what is said of attempts: counts, never a scene."""
    found = evaluation.summarise(rows, paired=False)
    failures = Counter(row.category or "unknown" for row in rows if not row.success)
    return {
        "rate": asdict(found.total),
        "settings": {name: asdict(rate) for name, rate in found.by_condition.items()},
        "failures": dict(failures.most_common()),
    }


def _keep(how: Serving, server: Server, entry: Submission, value: Mapping[str, Any]) -> None:
    """Sign what came of a submission and keep it."""
    path = _kept(how, entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {
        "schema": RESULT_SCHEMA, **asdict(entry), **value,
        "isolation": sandbox.isolation(), "limits": asdict(how.limits), "versions": versions(),
        "commitment": server.commitment, "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    write_json(path, server.signed(said))


def _published(how: Serving, server: Server, benchmark: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write everything that is public to the board; return the results."""
    results = [read_json(path) for path in sorted((how.private / "results").glob("*/*.json"))]
    tracks: dict[str, Any] = {}
    for track in TRACKS:
        rows = {}
        for result in results:
            if result["track"] == track and not result.get("refused"):
                entry = Submission(**{k: result[k] for k in Submission.__dataclass_fields__})
                alias = _alias(server, entry, result.get("policy", ""))
                attempts = how.private / "attempts" / alias
                stations = attempts / "stations.json"
                rows[entry.key] = (
                    [evaluation.Rollout(**row) for row in read_json(stations)]
                    if stations.exists()
                    else list(evaluation.read_rollouts(attempts / evaluation.ROLLOUTS))
                )
        tracks[track] = ranked(rows).to_json()
    ranking: dict[str, Any] = {"schema": RANKING_SCHEMA, "tracks": tracks, "results": len(results),
               "at": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip
    ranking = server.signed(ranking)
    page = board_page(benchmark, results, ranking).encode()
    files = {RANKING: json.dumps(ranking, indent=1).encode(), PAGE: page}
    kept = (how.private / BENCHMARK, *how.private.glob("[rv]*/*/*.*"))  # results and videos
    files |= {p.relative_to(how.private).as_posix(): p.read_bytes() for p in kept}
    for name, content in files.items():
        path = inside(how.board, name, "file")  # who may write there may have put a link
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return results


# -- a board on a Hub ------------------------------------------------------------------------------


def pulled(board: str, mirror: Path | None = None) -> Path:
    """Return a board's folder: itself, or what a Hub has of it.

    Args:
        board: a folder, or a dataset repository's name.
        mirror: where the server keeps its copy; what is entered is brought there.

    Raises:
        UnusableInputError: it can't be read.
    """
    if not is_hub_name(board):
        return Path(board)
    try:
        commit, sizes = listing(board, kind=KIND)
        wanted = [n for n, size in sizes.items() if FETCHED.fullmatch(n) and size <= LARGEST]
        folder = fetch(board, commit, KIND, wanted or ["none"])
    except UnusableInputError as error:
        if mirror is None:
            raise
        log.warning("No new submission is accepted: %s", error)  # also a board not there yet
        return mirror
    if mirror is None:
        return folder
    for entry in entered(folder):
        if isinstance(entry, Submission) and entry.source:  # no files: those are on the Hub
            path = entry.folder(mirror) / "entry.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, (entry.folder(folder) / "entry.json").read_bytes())
    return mirror


def pushed(board: str, folder: Path, names: Sequence[Path], message: str) -> None:
    """Bring files of a folder to the board on a Hub; nothing else there is changed.

    Raises:
        UnusableInputError: it can't be written.
        HubUnreachableError: the Hub can't be reached.
    """
    files = tuple(upload.HubFile(n.relative_to(folder).as_posix(), n) for n in names)
    target = HubTarget(board, KIND, endpoint())
    upload.push(target, upload.Contents(files, message), FETCH_PATIENCE)


def public_files(board: Path) -> list[Path]:
    """Return what a server writes to its board."""
    patterns = (BENCHMARK, RANKING, PAGE, "results/*/*.json", "videos/*/*.mp4")
    return [path for pattern in patterns for path in sorted(board.glob(pattern))]


# -- looking at one --------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoardContents:
    """What a board says, and whether its server said so.

    Attributes:
        wrong: files that aren't as the server signed them.
    """

    benchmark: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    ranking: Mapping[str, Any]
    wrong: Sequence[str]


def look(board: Path, key: str = "") -> BoardContents:
    """Read a board and check every signature.

    Args:
        key: the server's, as known from elsewhere; the board's own unless given.

    Raises:
        UnusableInputError: it is no board.
    """
    if not (board / BENCHMARK).exists() or not (board / RANKING).exists():
        raise UnusableInputError(f"{board} is no benchmark that was served. Check the name.")
    paths = [board / BENCHMARK, board / RANKING, *sorted(board.glob("results/*/*.json"))]
    values = [read_json(path) for path in paths]
    for path, value in zip(paths, values, strict=True):
        if not isinstance(value, dict):
            raise UnusableInputError(f"{path} is no JSON object. Ask who serves it.")
    key, wrong = key or str(values[0].get("key", "")), []
    for path, value in zip(paths, values, strict=True):
        name = path.relative_to(board).as_posix()
        place = f"results/{value.get('user')}/{value.get('name')}.json"
        if not is_signed(value, key) or (path not in paths[:2] and name != place):
            wrong.append(name)
    if not wrong and values[1].get("results") != len(values) - 2:
        wrong.append(f"{values[1].get('results')} results are ranked, {len(values) - 2} are here")
    return BoardContents(values[0], values[2:], values[1], wrong)
