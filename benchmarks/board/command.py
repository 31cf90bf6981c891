"""`python -m benchmarks.board`: a benchmark that others enter, by folder or Hub repository."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.board.sandbox import LimitOptions, Limits
from gaploop.core.errors import DAMAGE, UnusableInputError, unknown_choice
from gaploop.core.files import existing_folder, read_json
from gaploop.core.paths import refuse_links_out
from gaploop.core.statistics import Estimate, points
from gaploop.finetune.evaluation import NOMINAL
from gaploop.finetune.factors import order, settings, words
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.board.entries import Submission
    from benchmarks.board.serving import BoardContents

POSITIONAL: Final = ("action", "board")
ACTIONS: Final = ("serve", "submit", "show")
RARE: Final = ("limits.*", "per_user", "workers", "every_s")
EXAMPLE: Final = """
python -m benchmarks.board submit board --policy.path=base --user=ana --training_data='my takes'
python -m benchmarks.board submit lab/cup --policy.path=ana/placer --training_data='ana/takes'
python -m benchmarks.board serve board --factors='[lighting, distractors]' --n=20
python -m benchmarks.board serve board --programs --takes=takes    attribution programs, too
python -m benchmarks.board show board
"""


@dataclass
class BoardConfig:
    """Enter a policy into a benchmark, serve one, show one.

    BOARD is a folder that all can reach, or a dataset repository on a Hub. `serve` checks what is
    entered (weights as .safetensors only, no code, no path that leads out), runs it in a process
    without network, with limits on memory and time, on hidden scenes, in a random order, under the
    base setting and each level of each factor; and publishes signed results, groups that don't
    differ significantly, videos and a page. Ctrl-C keeps the rollouts; the same command continues.
    `show` prints the table and exits with 1 where a signature is wrong.

    An attribution submission is a program: a folder with run.py, or a model repository. Programs
    are run only with --programs, and only in Linux namespaces. All of it is sim-to-sim.
    """

    action: str = ""
    """serve, submit or show."""
    board: str = ""
    """Folder of the benchmark, or its dataset repository on the Hub, such as lab/cup."""
    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    revision: str = ""
    """submit: commit, branch or tag on the Hub; the newest unless given."""
    program: str = ""
    """submit: folder or model repository of an attribution program, instead of a policy."""
    training_data: str = ""
    """submit: the training set, declared in one line."""
    user: str = ""
    """submit: whose it is; the repository's owner where it is on the Hub."""
    name: str = ""
    """submit: what it is called; the folder's or repository's name unless given."""
    private: Path | None = None
    """serve: folder with the server's secret and logs; BOARD_private unless given."""
    task: str | None = None
    """serve, at first: pick_place (unless given), pick_lift or stack_cube."""
    factors: list[str] | None = None
    """serve, at first: what is varied, one at a time, as of gaploop evaluate."""
    n: int | None = None
    """serve, at first: hidden scenes under each setting; 20 unless given."""
    programs: bool = False
    """serve: run attribution programs; read docs/figures/benchmark.md first."""
    takes: Path | None = None
    """serve: journals with their truth.jsonl; programs see the failures in them."""
    per_user: int = 10
    """serve: submissions that are taken of one user."""
    workers: int = 1
    """serve: processes that make attempts."""
    every_s: float = 0.0
    """serve: look for new submissions this often [s]; 0 serves once."""
    limits: LimitOptions = field(default_factory=LimitOptions)
    key: str = ""
    """show: the server's public key as you know it; else the board's own is trusted."""
    json: bool = False
    """Print one JSON object."""


def run(config: BoardConfig) -> int:
    """Serve, submit or show."""
    if config.action not in ACTIONS:
        raise unknown_choice("action", config.action, ACTIONS)
    where = f"Which? python -m benchmarks.board {config.action} FOLDER, or me/name."
    options.required(config.board, where)
    return {"serve": _serve, "submit": _submit, "show": _show}[config.action](config)


def _submit(config: BoardConfig) -> int:
    from benchmarks.board.entries import enter
    from benchmarks.board.serving import pulled, pushed
    from gaploop.datasets.hub.target import is_hub_name

    on_hub = is_hub_name(config.board)
    entry, files = _entry(config)
    if not on_hub:
        folder = enter(Path(config.board), entry, files)
    elif not entry.source:
        raise UnusableInputError(
            f"{config.board} is on a Hub, so what is entered must be, too: gaploop push it first, "
            "and give its name."
        )
    else:
        if entry.folder(pulled(config.board)).exists():
            raise UnusableInputError(f"{entry.key} is entered already. Give it another --name.")
        with tempfile.TemporaryDirectory() as scratch:
            folder = enter(Path(scratch), entry, files)
            pushed(config.board, Path(scratch), [folder / "entry.json"], f"Enter {entry.key}")
    answer = {"submission": entry.key, "track": entry.track, "revision": entry.revision}
    at = f", {entry.source} at {entry.revision}" if entry.source else ""
    options.emit(
        config.json, answer, f"{entry.key} is entered in {config.board} ({entry.track}){at}."
    )
    return 0


def _entry(config: BoardConfig) -> tuple[Submission, Mapping[str, Path]]:
    """Return what is entered, and its files where it isn't on a Hub."""
    from benchmarks.board.entries import ATTRIBUTION, IGNORED, POLICY, Submission, listing
    from gaploop.datasets.hub.dataset import require_clean
    from gaploop.datasets.hub.target import is_hub_name
    from gaploop.finetune.hub_policy import files_of
    from gaploop.finetune.lerobot_policy import PACKAGED, resolve

    if bool(config.program) == bool(config.policy.path):
        raise UnusableInputError("Enter what? Give either --policy.path or --program.")
    track, path = (ATTRIBUTION, config.program) if config.program else (POLICY, config.policy.path)
    name = config.name or Path(str(path)).name
    if str(path) not in PACKAGED and is_hub_name(str(path)):
        commit, _ = listing(str(path), config.revision or None)
        owner = str(path).partition("/")[0]
        user = config.user or owner
        return Submission(user, name, track, config.training_data, str(path), commit), {}
    entry = Submission(config.user, name, track, config.training_data)
    if track == POLICY:
        folder = resolve(str(path))
        refuse_links_out(folder)
        files = {n: p for n, p in files_of(folder).items() if n not in IGNORED}
        require_clean(folder, files, False)
        return entry, files
    folder = existing_folder(Path(str(path)), "Program")
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts)
    return entry, {p.relative_to(folder).as_posix(): p for p in found}


def _serve(config: BoardConfig) -> int:
    from benchmarks.board.serving import Serving, public_files, pulled, pushed, serve
    from gaploop.datasets.hub.target import is_hub_name

    on_hub = is_hub_name(config.board)
    name = Path(config.board).resolve().name
    near = Path() if on_hub else Path(config.board).resolve().parent
    private = config.private or near / f"{name}_private"
    while True:
        board = pulled(config.board, private / "board")
        how = Serving(
            board, private, Limits(**vars(config.limits)), config.per_user, config.programs,
            config.takes, config.workers,
        )  # fmt: skip
        with _progress() as tell:
            served = serve(how, _wanted(config, name, private), tell)
        if on_hub:
            pushed(config.board, board, public_files(board), "python -m benchmarks.board: results")
        left = [f"{name}: waits, {why}." for name, why in served.waiting.items()]
        lines = [f"{len(served.new)} new, {len(served.results)} results in {config.board}.", *left]
        refused = {f"{r['user']}/{r['name']}": r.get("refused") for r in served.results}
        lines += [f"{k}: refused. {refused[k]}" for k in served.new if refused.get(k)]
        answer = {"new": served.new, "results": served.results, "waiting": served.waiting}
        options.emit(config.json, answer, "\n".join(lines))
        if config.every_s <= 0:
            return 0
        time.sleep(config.every_s)


def _wanted(config: BoardConfig, name: str, private: Path) -> Any:
    """Return what a new benchmark measures; of one that is there only what was asked for."""
    from benchmarks.board.serving import BENCHMARK, Measure

    conditions = None if config.factors is None else settings(config.factors)
    asked: dict[str, Any] = {"task": config.task, "n": config.n, "conditions": conditions}
    given = {k: v for k, v in asked.items() if v is not None}
    known = private / BENCHMARK
    if known.exists():
        value = read_json(known)
        before = {k: value[k] for k in Measure.__dataclass_fields__ if k in value}
        return Measure(**{**before, **given}) if given else None
    if config.n is not None and config.n < 1:
        raise UnusableInputError(f"--n={config.n} must be at least 1.")
    return Measure(name, **given)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar after the other, each for as long as its work goes on."""
    with contextlib.ExitStack() as stack:
        bar: tuple[str, Callable[..., None]] | None = None

        def tell(what: str, done: int, total: int) -> None:
            nonlocal bar
            if bar is None or bar[0] != what:
                stack.close()
                bar = what, stack.enter_context(options.progress(what, total or None))
            bar[1](done)

        yield tell


def _show(config: BoardConfig) -> int:
    from benchmarks.board.serving import look, pulled

    found = look(pulled(config.board), config.key)
    answer = {**vars(found), "verified": not found.wrong}
    try:
        lines = _lines(found, config.key)
    except DAMAGE as error:
        raise UnusableInputError(
            f"{config.board} isn't as a server writes it ({error!r}). Ask who serves it."
        ) from None
    options.emit(config.json, answer, "\n".join(lines))
    return 1 if found.wrong else 0


def _lines(found: BoardContents, key: str) -> list[str]:
    from benchmarks.board.page import TITLES
    from gaploop.finetune.evaluation import Rate

    benchmark, ranking = found.benchmark, found.ranking
    lines = [
        f"{benchmark['name']}: {benchmark['task']}, {benchmark['n']} hidden scenes under each of "
        f"{len(benchmark['conditions'])} settings"
    ]
    declared = {f"{r['user']}/{r['name']}": r for r in found.results}
    for track, ranked in ranking["tracks"].items():
        lines += [f"{TITLES.get(track, track)}:"] if ranked["order"] else []
        width = max((len(e["submission"]) for e in ranked["order"]), default=0)
        for e in ranked["order"]:
            told = declared.get(e["submission"], {}).get("trained_on", "?")
            who = f"{e['group']:<3} {e['submission']:<{width}}"
            lines.append(f"  {who}  {Rate.from_json(e)!s:<26}  {told}")
        if track == "policy" and ranked["order"]:
            names = [e["submission"] for e in ranked["order"] if e["submission"] in declared]
            rows = [["", *names]]
            every = sorted(declared[names[0]]["settings"], key=lambda s: order(s, NOMINAL))
            for setting in every:
                counts = (declared[name]["settings"][setting] for name in names)
                rows.append([words(setting), *(f"{c['successes']}/{c['trials']}" for c in counts)])
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines += [
                "    " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
                for row in rows
            ]
        for p in ranked["differences"]:
            apart = "told apart" if p["told_apart"] else "not told apart"
            size = points(Estimate(p["value"], *p["interval"]))
            lines.append(f"  {p['better']} - {p['other']}: {size}, {apart} (p {p['p_family']:.2g})")
    lines += [f"  refused: {k}. {r['refused']}" for k, r in declared.items() if r.get("refused")]
    kept_apart = ", ".join(sorted({str(r["isolation"]) for r in found.results}))
    lines.append(
        f"Evidence: {benchmark['evidence']}. Isolation: {kept_apart or 'nothing was run'}."
    )
    if found.wrong:
        return [*lines, f"NOT as the server signed it: {', '.join(found.wrong)}"]
    by = "the key you gave" if key else f"the board's own key {benchmark['key']}"
    return [*lines, f"All {len(found.results)} results are signed by {by}."]
