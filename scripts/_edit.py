"""What `gaploop edit` does."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml
from rich.markup import escape
from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.core.paths import plain_name
from gaploop.datasets.columns import STATE
from gaploop.datasets.differences import shown
from gaploop.datasets.edit import harmonised
from gaploop.datasets.edit.actions import (
    EditPlan,
    by_field,
    by_share,
    carry_out,
    done_unsaid,
    now_said,
    opened,
    plan_choice,
    plan_merge,
    plan_split,
    tag_events,
)
from gaploop.datasets.edit.changes import corrections, find_idle, with_forces
from gaploop.datasets.edit.changes import trims as left_out
from gaploop.datasets.edit.compose import DatasetPiece, spans
from gaploop.datasets.edit.harmonise import as_renamed, conversion, derive, tidy
from gaploop.datasets.edit.harmonise_spec import HarmoniseSpec, load_spec
from gaploop.datasets.episodes_table import add_events
from gaploop.datasets.labels import open_labelled, where
from gaploop.datasets.layout import EpisodeRow, parse_episodes
from gaploop.scripts import options
from gaploop.scripts.edit import ACTIONS, EditConfig
from gaploop.scripts.label import NOT_SHOWN, named_author
from gaploop.scripts.options import emit, jsonable, progress

_ONLY_FOR: Final[dict[str, tuple[str, ...]]] = {
    "splits": ("split",),
    **dict.fromkeys(("subtract", "swap"), ("correct",)),
    "set": ("retag",),
    **dict.fromkeys(("to", "spec", "rename_map"), ("harmonise",)),
    "yes": ("delete", "keep", "trim", "correct", "force", "retag"),
    **dict.fromkeys(("episodes", "where"), (*ACTIONS[:5], "retag")),
    "reencode": ACTIONS[:8],
}
"""Option to the actions that heed it."""
MOST_MORE_S: Final = 1.0
"""Idle time that trim keeps without a refusal where videos can't be cut [s]."""
UNCHANGED: Final = (
    "Nothing was changed. Write a new dataset with --output_dir=OUT, or change this one with --yes."
)


def run(config: EditConfig) -> int:
    """Edit; the work is in `datasets.edit`."""
    options.require_action(config.action, ACTIONS, "edit")
    plain = EditConfig()
    for name, actions in _ONLY_FOR.items():
        if config.action not in actions and getattr(config, name) != getattr(plain, name):
            raise UnusableInputError(f"--{name} is for {', '.join(actions)}. Leave it out.")
    if config.action == "merge":
        with opened(config.roots) as pieces:
            return finish(config, plan_merge(pieces))
    if len(config.roots) != 1:
        raise UnusableInputError(
            f"Which dataset? Name one folder: gaploop edit {config.action} DIR"
        )
    if config.action == "harmonise":
        return harmonise(config)
    if config.action == "retag":  # as a label, it is written without keeping anybody waiting
        return retag(config)
    change = config.yes and config.output_dir is None and not config.dry_run
    with opened(config.roots, change) as (piece,):
        command, root = f"edit {config.action}", piece.info.root
        if change and done_unsaid(root, command, _deciding_options(config)):
            text = (
                f"{root} was changed so already: the command was ended before it could say so. "
                "Type it again to do it once more."
            )
            emit(config.json, {"command": command, "changed": False, "notes": [text]}, text)
            return 0
        if config.action == "trim":
            return trim(config, piece)
        if config.action == "split":
            parts, named = _parts(config, piece)
            plan = plan_split(piece, parts, _deciding_options(config), named=named)
        elif config.action == "force":
            piece = with_forces(piece)
            notes = tuple(
                f"Adds {name}: {', '.join(spec['names'])}." for name, spec in piece.features.items()
            )
            plan = EditPlan("edit force", {"": (piece,)}, notes=notes)
        elif config.action == "correct":
            plan = plan_correction(config, piece, _chosen(config, piece))
        else:
            these = _chosen(config, piece)
            kept = these if config.action == "keep" else piece.chosen - these
            plan = plan_choice(command, piece, kept, _deciding_options(config))
        return finish(config, plan)


def trim(config: EditConfig, piece: DatasetPiece) -> int:
    """Show what would be left out at the ends of episodes, and leave it out if that is
    confirmed."""
    every = not config.episodes and not config.where
    chosen = piece.chosen if every else _chosen(config, piece)
    trims = find_idle(piece, chosen, exact=config.reencode)
    cut, fps = [t for t in trims if t.left_out], piece.info.fps
    total = sum(t.episode.length for t in trims)
    gone = sum(t.left_out for t in trims)
    notes = [f"{gone} of {total} frames are left out, {gone / fps:.1f} s, of {len(cut)} episodes."]
    if more := [t.more for t in trims if t.more]:
        longest_s = max(more) / fps
        text = (
            f"Up to {longest_s:.2f} s more stay in {options.counted(len(more), 'episode')}, since "
            "videos can only be cut at key frames. Encode those again, with a loss, and cut "
            "anywhere: --reencode=true"
        )
        confirmed = (config.yes or config.output_dir is not None) and not config.dry_run
        if longest_s > MOST_MORE_S and confirmed:
            raise UnusableInputError(f"{piece.info.root}: {text}")
        notes.append(text)
    if idle := [t.episode.index for t in trims if t.never_moves]:
        notes.append(
            f"Nothing ever moves in these, which stay as they are: episodes {spans(idle)}."
        )
    ends = [
        {
            "episode": t.episode.index,
            "frames": t.episode.length,
            "first": t.first,
            "end": t.end,
            "start_s": round(t.first / fps, 3),
            "end_s": round((t.episode.length - t.end) / fps, 3),
        }
        for t in cut
    ]
    if not config.json:
        seconds = {"left out at start [s]": "start_s", "at end [s]": "end_s"}
        _print(
            {
                "episode": e["episode"],
                "frames": e["frames"],
                "stay": f"{e['first']}:{e['end']}",
                **{title: e[key] or None for title, key in seconds.items()},
            }
            for e in ends
        )
    piece = replace(piece, changes=left_out(piece, trims))
    plan = EditPlan("edit trim", {"": (piece,)}, _deciding_options(config), notes=tuple(notes))
    if not cut and config.output_dir is None:  # nothing to change
        config = replace(config, dry_run=True)
    return finish(config, plan, {"ends": ends})


def plan_correction(config: EditConfig, piece: DatasetPiece, chosen: frozenset[int]) -> EditPlan:
    """Plan what `correct` changes in the chosen episodes."""
    if not config.subtract and not config.swap:
        raise UnusableInputError(
            """Correct what? Give --subtract='{"elbow_flex.pos": 17.0}' or --swap='[top, wrist]'."""
        )
    nested = config.subtract and all(isinstance(v, dict) for v in config.subtract.values())
    subtract = config.subtract if nested or not config.subtract else {STATE: config.subtract}
    changes = corrections(piece, chosen, subtract, config.swap)
    where, notes = f"in episodes {spans(chosen)}", []
    for feature, entries in subtract.items():
        less = ", ".join(f"{value:g} from {name}" for name, value in entries.items())
        notes.append(f"{feature}: subtracts {less}, {where}. Telemetry stays as it was read.")
    if config.swap:
        notes.append(f"Swaps the pictures of {' and '.join(config.swap)} {where}.")
    parts = {"": (replace(piece, changes=changes),)}
    return EditPlan("edit correct", parts, _deciding_options(config), notes=tuple(notes))


def _chosen(config: EditConfig, piece: DatasetPiece) -> frozenset[int]:
    """Return the episodes that --episodes and --where both name."""
    if not config.episodes and not config.where:
        raise UnusableInputError(
            f"Which episodes? Name them with --episodes='[0, 3]' or --where=outcome=failure; "
            f"there are {len(piece.held)}."
        )
    chosen = piece.chosen
    if config.episodes:
        chosen &= frozenset(parse_episodes(config.episodes, len(piece.held)))
    if config.where:
        chosen &= frozenset(where(config.where, piece.held))
    if not chosen:
        raise UnusableInputError(
            f"--where={config.where} chooses none of the {len(piece.held)} episodes. See what "
            f"there is: gaploop label {piece.info.root} --where=…"
        )
    return chosen


def _deciding_options(config: EditConfig) -> dict[str, Any]:
    """Return the options that decided what the result holds."""
    names = ("episodes", "where", "splits", "set", "reencode", "subtract", "swap")
    return {name: getattr(config, name) for name in names if getattr(config, name)}


def _parts(config: EditConfig, piece: DatasetPiece) -> tuple[dict[str, list[int]], bool]:
    """Return the parts of a split, and whether their episodes were named one by one."""

    if bool(config.episodes or config.where) == bool(config.splits):
        raise UnusableInputError(
            'Split how? Give one of --splits=\'{"train": 0.8, "test": 0.2}\', --splits=FIELD, '
            "--episodes='[0, 3]', --where=QUERY."
        )
    if isinstance(config.splits, str) and config.splits:
        return by_field(piece.held, config.splits), False
    if config.episodes or config.where:
        these = _chosen(config, piece)
        parts = {"chosen": sorted(these), "rest": sorted(piece.chosen - these)}
        return parts, not config.where
    shares: dict[str, Any] = {}
    given = config.splits if isinstance(config.splits, dict) else {}
    for name, share in given.items():  # each a folder of the output folder
        folder = plain_name(str(name).strip(), "part", "--splits", "Name it such as train.")
        if folder in shares:
            raise UnusableInputError(f"--splits: two parts are named '{folder}'. Rename one.")
        shares[folder] = share
    if all(isinstance(share, int | float) for share in shares.values()):
        return by_share(piece.held, shares), False
    for name, indices in shares.items():
        if not isinstance(indices, list | str):
            raise UnusableInputError(
                f"--splits: {name} is {indices!r}. Give every part a share such as 0.8, or every "
                "part its episodes such as [0, 3] or '0:30'."
            )
    return {n: parse_episodes(str(i), len(piece.held)) for n, i in shares.items()}, True


def finish(config: EditConfig, plan: EditPlan, more: Mapping[str, Any] | None = None) -> int:
    """Show a plan, and carry it out unless that is a dry run or nobody said where to.

    It goes to the new folder, or takes the place of the plan's only dataset. `more` is put into
    the JSON answer.
    """
    done, output = None, config.output_dir
    if output is None and config.action in ("merge", "split"):
        if not config.dry_run:
            raise UnusableInputError("Where to? Name a new folder with --output_dir=OUT.")
        output = Path("OUT")  # any name will do
    if (config.yes or output is not None) and not config.dry_run:
        with progress("Writing", plan.takes) as advance:
            done = carry_out(plan, output, config.reencode, on_episode=advance)
    target = output.resolve() if output else plan.source
    kept: dict[Path, set[int]] = {}
    sources = {}
    for piece in (piece for pieces in plan.parts.values() for piece in pieces):
        kept.setdefault(piece.info.root, set()).update(piece.chosen)
        sources[piece.info.root] = piece

    def origin(piece: DatasetPiece, episodes: Sequence[EpisodeRow]) -> dict[str, Any]:
        """Return where episodes come from, and how many of what they are."""
        indices = [e.index for e in episodes]
        return {"root": str(piece.info.root), "episodes": indices, **_counts(episodes)}

    parts = [
        {
            "name": name,
            "root": str(target / name),
            **_counts([e for piece in pieces for e in piece.episodes]),
            "from": [origin(piece, piece.episodes) for piece in pieces],
        }
        for name, pieces in plan.parts.items()
    ]
    left = [
        origin(p, [e for e in p.held if e.index not in kept[root]]) for root, p in sources.items()
    ]
    answer: dict[str, Any] = {
        "command": plan.command,
        "changed": done is not None,
        "parts": parts,
        "left_out": left,
        "shared_sessions": list(plan.shared_sessions),
        "notes": list(plan.notes),
        "videos": None,
        **(more or {}),
    }
    lines = [f"Note: {note}" for note in plan.notes]
    if done is not None:
        videos = {"files_whole": done.whole, "takes_cut": done.cut, "takes_encoded": done.encoded}
        answer["videos"] = videos
        again = options.counted(done.encoded, "episode") if done.encoded else "nothing"
        whole, cut = options.counted(done.whole, "file"), options.counted(done.cut, "episode")
        said = f" Videos: {whole} kept as before, {cut} cut out, {again} "
        lines.append("Done." + (f"{said}encoded again." if any(videos.values()) else ""))
    if not config.json:
        here, gone = Path.cwd(), {"root": None, "from": [one for one in left if one["takes"]]}
        rows = []
        for part in (*parts, gone):
            path = Path(part["root"]) if part["root"] else None
            short = path.relative_to(here) if path and path.is_relative_to(here) else path
            for one in part["from"]:
                outcomes = ", ".join(f"{n} {word}" for word, n in one["outcomes"].items())
                rows.append({
                    "goes to": short or "nowhere", "from": Path(one["root"]).name,
                    "episodes": spans(one["episodes"]), "number": one["takes"],
                    "frames": one["frames"], "sessions": len(one["sessions"]) or None,
                    "outcomes": outcomes,
                })  # fmt: skip
        _print(rows)
    emit(config.json, answer, "\n".join(lines))
    if done is None and not config.dry_run:
        raise UnusableInputError(UNCHANGED)
    if done is not None and output is None:
        now_said(plan.source)
    return 0


def _counts(episodes: Sequence[EpisodeRow]) -> dict[str, Any]:
    return {
        "takes": len(episodes),
        "frames": sum(e.length for e in episodes),
        "outcomes": dict(Counter(e.outcome.value for e in episodes)),
        "sessions": sorted({e.info.session for e in episodes if e.info.session}),
    }


def _print(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a table with the rows' keys as columns; nothing where there is no row."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    table = Table(show_edge=False, pad_edge=False)
    for key, values in columns.items():
        is_number = all(value is None or isinstance(value, int | float) for value in values)
        table.add_column(escape(key), overflow="fold", justify="right" if is_number else "left")
    for cells in zip(*columns.values(), strict=True):
        words = (
            f"{cell:.2f}" if isinstance(cell, float) else "-" if cell in (None, "") else str(cell)
            for cell in cells
        )
        table.add_row(*map(escape, words))
    if columns:
        options.console().print(table)


def retag(config: EditConfig) -> int:
    """Show which tags change, and change them unless that is a dry run or nobody said where."""
    options.required(config.set, """Which tags? Set them with --set='{"station": "bench_3"}'.""")
    piece = DatasetPiece.whole(config.roots[0].resolve())
    store = open_labelled(piece.info.root)
    if store.lacks_columns:
        raise UnusableInputError(
            f"{store.root} has no gap columns to set. Add them: gaploop convert {store.root} "
            "--output_dir=OUT"
        )
    indices = _chosen(config, piece)
    episodes = [e for e in store.episodes if e.index in indices]
    events = tag_events(episodes, config.set, named_author(""))
    write = bool(events) and not config.dry_run
    shown = True
    told = config.yes or config.output_dir is not None
    if write and config.output_dir is not None:
        with opened(config.roots) as (piece,), progress("Writing", len(piece.held)) as advance:
            plan = plan_choice("edit retag", piece, piece.chosen, _deciding_options(config))
            amend = partial(add_events, episodes=piece.held, events=events)
            out, exact = config.output_dir, config.reencode
            carry_out(plan, out, exact, on_episode=advance, amend=amend)
    elif write and config.yes:
        shown = store.say(events)
    # What changes, episodes with the same change together.
    by_uid = {e.info.uid: e for e in episodes}
    found: dict[tuple[str, str, str], list[int]] = {}
    for event in events:
        episode = by_uid[event.uid]
        old = getattr(episode.info, event.field)
        key = (event.field, json.dumps(old), json.dumps(event.value))
        found.setdefault(key, []).append(episode.index)
    changes = [
        {"tag": tag, "from": json.loads(old), "to": json.loads(new), "episodes": indices}
        for (tag, old, new), indices in found.items()
    ]
    answer = {"changed": write and told, "columns": shown, "changes": changes}
    emit(config.json, {"command": "edit retag", **answer})
    if not config.json:

        def word(value: Any) -> str:
            return value if isinstance(value, str) else json.dumps(value)

        rows = [(c["tag"], word(c["from"]), word(c["to"]), c["episodes"]) for c in changes]
        _print(
            {"tag": tag, "was": old, "is": new, "episodes": spans(which), "number": len(which)}
            for tag, old, new, which in rows
        )
        lines = [] if changes else [f"The {len(episodes)} episodes have these tags already."]
        emit(False, {}, "\n".join(lines if shown or not changes else [*lines, NOT_SHOWN]))
    if write and not told:
        raise UnusableInputError(UNCHANGED)
    return 0


def harmonise(config: EditConfig) -> int:
    """Convert, or say what a conversion would be; 1 where a dry run leaves something open."""
    if not (config.spec or config.to or config.rename_map):
        raise UnusableInputError(
            "Convert it how? Give --to=REFERENCE, --spec=FILE.yaml or --rename_map."
        )
    with opened([*config.roots, *([config.to] if config.to else [])]) as pieces:
        if config.dry_run and config.to and not config.spec:
            return _show_draft(config, as_renamed(pieces[0], config.rename_map), pieces[1])
        spec = HarmoniseSpec() if config.spec is None else load_spec(config.spec)
        reference = pieces[1] if config.to and config.spec is None else None
        steps = conversion(pieces[0], spec, reference, config.rename_map)
        if config.dry_run:
            shapes = {n: list(f["shape"]) for n, f in steps.features().items()}
            answer = {"done": steps.record(), "features": shapes}
            emit(config.json, answer, _yaml(answer))
            return 0
        out = options.required(
            config.output_dir, "Where to? Name a new folder with --output_dir=OUT."
        )
        with progress("Converting", len(pieces[0].episodes)) as advance:
            takes = harmonised.harmonise(pieces[0], steps, out, advance)
        left: list[str] = []
        text = f"{options.counted(takes, 'episode')} written to {out}."
        if config.to is not None:
            draft = derive(DatasetPiece.whole(out), pieces[1])
            left = [*draft.impossible, *draft.undecided, *map(str, draft.spec)]
            if not left:
                text += f" They go with {config.to}: gaploop edit merge, gaploop finetune."
        if left:
            text += f" Still different from {config.to}: {'; '.join(left)}"
        done = {"output_dir": out, "takes": takes, "done": steps.record(), "differs_in": left}
        emit(config.json, done, text)
        return int(bool(left))


def _show_draft(config: EditConfig, piece: DatasetPiece, reference: DatasetPiece) -> int:
    draft = derive(piece, reference)
    open_ = bool(draft.undecided or draft.impossible)
    answer = {
        "differences": [asdict(d) for d in draft.differences],
        "spec": tidy(draft.spec),
        "undecided": draft.undecided,
        "impossible": draft.impossible,
    }
    console = options.console(stderr=True, quiet=config.json)
    ours, theirs = str(piece.info.root), str(reference.info.root)
    table = Table("what", ours, theirs, title="What differs", title_justify="left")
    for d in draft.differences:
        name = d.what if d.aspect in (d.what, "presence") else f"{d.what}, {d.aspect}"
        values = (shown(d.have), shown(d.want))
        if d.aspect == "presence":
            values = ("there" if d.have else "missing", "there" if d.want else "missing")
        table.add_row(name, *map(escape, values))
    how = "so renamed" if config.rename_map else "as it is"
    console.print(table if draft.differences else f"{ours} goes with {theirs} {how}.")
    for line in draft.impossible:
        console.print(f"✗ {line}", markup=False, highlight=False, soft_wrap=True)
    for line in draft.undecided:
        console.print(f"? {line}", markup=False, highlight=False, soft_wrap=True)
    emit(config.json, answer, _yaml(answer["spec"]) if draft.spec else "")
    return int(open_)


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(jsonable(value), sort_keys=False, allow_unicode=True)).rstrip()
