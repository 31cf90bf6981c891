"""`gaploop edit retag`: tags of takes said again, in place or in a new dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gaploop.core.errors import UnusableInputError
from gaploop.scripts._label_write import named_author
from gaploop.scripts.options import emit, progress

if TYPE_CHECKING:
    from gaploop.core.labels import LabelEvent
    from gaploop.datasets.layout import EpisodeRow
    from gaploop.scripts.edit import EditConfig


def retag(config: EditConfig) -> int:
    """Show which tags change, and change them unless that is a dry run or nobody said where."""
    from gaploop.datasets.edit.pieces import DatasetPiece
    from gaploop.datasets.edit.retag import tag_events
    from gaploop.datasets.labels.labelled import lacks_columns, open_labelled, say
    from gaploop.scripts.edit import chosen

    if not config.set:
        raise UnusableInputError("""Which tags? Set them with --set='{"station": "bench_3"}'.""")
    piece = DatasetPiece.whole(config.dataset.folder().resolve())
    folder = open_labelled(piece.info.root)
    if lacks_columns(folder):
        raise UnusableInputError(
            f"{folder.root} has no gap columns to set. Add them: gaploop import {folder.root} "
            "--format=lerobot --output_dir=OUT"
        )
    indices = chosen(config, piece)
    episodes = [e for e in folder.episodes if e.index in indices]
    events = tag_events(episodes, config.set, named_author(config.author), config.note)
    rows = _changes(episodes, events)
    write = bool(events) and not config.dry_run
    shown = True
    told = config.yes or config.output_dir is not None
    if write and config.output_dir is not None:
        _to_new(config, events)
    elif write and config.yes:
        shown = say(folder, events)
    answer = {"changed": write and told, "columns": shown, "changes": rows}
    emit(config.json, {"command": "edit retag", **answer})
    if not config.json:
        _show(rows, len(episodes), shown)
    if write and not told:
        raise UnusableInputError(
            "Nothing was changed. Write a new dataset with --output_dir=OUT, or change this one "
            "with --yes."
        )
    return 0


def _to_new(config: EditConfig, events: Sequence[LabelEvent]) -> None:
    from gaploop.datasets.edit.actions import EditRules, carry_out, opened, plan_choice
    from gaploop.datasets.edit.retag import add_events
    from gaploop.scripts.edit import told

    with opened([config.dataset.folder()]) as (piece,), progress("Writing", len(piece.held)) as go:
        plan = plan_choice("edit retag", piece, piece.chosen, told(config))
        rules = EditRules(config.reencode, config.consents, go)
        carry_out(
            plan, config.output_dir, rules, lambda stage: add_events(stage, piece.held, events)
        )


def _changes(episodes: Sequence[EpisodeRow], events: Sequence[LabelEvent]) -> list[dict[str, Any]]:
    """Return what changes, episodes with the same change together."""
    by_uid = {e.info.uid: e for e in episodes}
    found: dict[tuple[str, str, str], list[int]] = {}
    for event in events:
        episode = by_uid[event.uid]
        old = getattr(episode.info, event.field)
        key = (event.field, json.dumps(old), json.dumps(event.value))
        found.setdefault(key, []).append(episode.index)
    return [
        {"tag": tag, "from": json.loads(old), "to": json.loads(new), "episodes": indices}
        for (tag, old, new), indices in found.items()
    ]


def _show(rows: Sequence[dict[str, Any]], takes: int, shown: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from gaploop.datasets.lineage import spans
    from gaploop.scripts._label_report import NOT_SHOWN

    console = Console()
    if not rows:
        console.print(f"The {takes} takes have these tags already.")
        return
    table = Table("tag", "was", "is", "episodes", "takes", show_edge=False, pad_edge=False)
    for row in rows:
        words = [
            value if isinstance(value, str) else json.dumps(value)
            for value in (row["from"], row["to"])
        ]
        cells = [row["tag"], *(escape(word) or "-" for word in words), spans(row["episodes"])]
        table.add_row(*cells, str(len(row["episodes"])))
    console.print(table)
    if not shown:
        console.print(NOT_SHOWN, soft_wrap=True, highlight=False)
