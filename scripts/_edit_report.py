"""What `gaploop edit` and `gaploop merge` would do, or did, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaploop.datasets.edit.actions import EditPlan
    from gaploop.datasets.edit.compose_videos import VideosDone
    from gaploop.datasets.edit.pieces import DatasetPiece
    from gaploop.datasets.layout import EpisodeRow


def answer(plan: EditPlan, target: Path, done: VideosDone | None) -> dict[str, Any]:
    """Return the JSON object: what each part holds, what goes, and what was done with videos."""
    pieces = {p.info.root: p for ps in plan.parts.values() for p in ps}
    return {
        "command": plan.command,
        "changed": done is not None,
        "parts": [_part(name, ps, target) for name, ps in plan.parts.items()],
        "left_out": [_source(piece, _gone(plan, piece)) for piece in pieces.values()],
        "shared_sessions": list(plan.shared_sessions),
        "notes": list(plan.notes),
        "videos": None
        if done is None
        else {"files_whole": done.whole, "takes_cut": done.cut, "takes_encoded": done.encoded},
    }


def _gone(plan: EditPlan, piece: DatasetPiece) -> list[EpisodeRow]:
    """Return the episodes of a source that go into no part."""
    kept = {
        index
        for pieces in plan.parts.values()
        for other in pieces
        if other.info.root == piece.info.root
        for index in other.chosen
    }
    return [e for e in piece.held if e.index not in kept]


def _part(name: str, pieces: Iterable[DatasetPiece], target: Path) -> dict[str, Any]:
    pieces = tuple(pieces)
    every = [e for piece in pieces for e in piece.episodes]
    return {
        "name": name,
        "root": str(target / name),
        **_counts(every),
        "from": [_source(piece, piece.episodes) for piece in pieces],
    }


def _source(piece: DatasetPiece, episodes: Iterable[EpisodeRow]) -> dict[str, Any]:
    return {"root": str(piece.info.root), "episodes": [e.index for e in episodes]}


def _counts(episodes: Iterable[EpisodeRow]) -> dict[str, Any]:
    episodes = list(episodes)
    return {
        "takes": len(episodes),
        "frames": sum(e.length for e in episodes),
        "outcomes": dict(Counter(e.outcome.value for e in episodes)),
        "sessions": sorted({e.info.session for e in episodes if e.info.session}),
    }


def show(plan: EditPlan, target: Path, done: VideosDone | None) -> None:
    """Print a table of what goes where, and one line that says whether it was done."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from gaploop.datasets.lineage import spans

    table = Table(title_justify="left", show_edge=False, pad_edge=False)
    for column in ("goes to", "from", "episodes"):
        table.add_column(column, overflow="fold")
    for column in ("takes", "frames", "sessions"):
        table.add_column(column, justify="right")
    table.add_column("outcomes")
    rows = [
        (str(target / name), piece, list(piece.episodes))
        for name, pieces in plan.parts.items()
        for piece in pieces
    ]
    sources = {p.info.root: p for ps in plan.parts.values() for p in ps}.values()
    rows += [("nowhere", piece, gone) for piece in sources if (gone := _gone(plan, piece))]
    for where, piece, episodes in rows:
        counts = _counts(episodes)
        outcomes = ", ".join(f"{n} {word}" for word, n in counts["outcomes"].items())
        table.add_row(
            escape(_short(where)),
            escape(piece.info.root.name),
            spans(e.index for e in episodes),
            str(counts["takes"]),
            str(counts["frames"]),
            str(len(counts["sessions"]) or "-"),
            outcomes,
        )
    console = Console()
    console.print(table)
    for note in plan.notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True, highlight=False)
    if done is not None:
        console.print(_videos(done), soft_wrap=True, highlight=False)


def _short(where: str) -> str:
    """Return a path as seen from here, where that is shorter."""
    here = Path.cwd()
    path = Path(where)
    return str(path.relative_to(here)) if path.is_relative_to(here) else where


def _videos(done: VideosDone) -> str:
    if not done.whole + done.cut + done.encoded:
        return "Done."
    encoded = f"{done.encoded} takes encoded again" if done.encoded else "nothing encoded again"
    return f"Done. Videos: {done.whole} files as they were, {done.cut} takes cut out, {encoded}."
