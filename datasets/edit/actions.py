"""Changing which takes a dataset holds: delete, keep, split, merge; never in half.

An edit is planned first, so that it can be shown, and then carried out in a hidden folder that
takes its place at once: killed at any instant, there is the old dataset or the new one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.datasets import lineage, staging
from gaploop.datasets.consented import note_and_refuse_withdrawn
from gaploop.datasets.edit import splits
from gaploop.datasets.edit.compose import compose
from gaploop.datasets.edit.compose_videos import VideoRules, VideosDone
from gaploop.datasets.edit.pieces import DatasetPiece
from gaploop.datasets.edit.splits import Parts


@dataclass(frozen=True)
class EditPlan:
    """What an edit would write.

    Attributes:
        command: such as `edit split`.
        parts: folder below the output folder, or "" for itself, to what goes into it.
        config: the options that decided, for `run.json`.
        shared_sessions: sessions that are in more than one part.
        notes: what its user should know, in words.
    """

    command: str
    parts: Mapping[str, tuple[DatasetPiece, ...]]
    config: Mapping[str, Any] = field(default_factory=dict)
    shared_sessions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The folder of the first dataset that takes come from."""
        return next(piece.info.root for pieces in self.parts.values() for piece in pieces)

    @property
    def takes(self) -> int:
        """How many takes it would write, in all parts."""
        return sum(len(piece.chosen) for pieces in self.parts.values() for piece in pieces)


@contextlib.contextmanager
def opened(roots: Sequence[Path], change: bool = False) -> Iterator[tuple[DatasetPiece, ...]]:
    """Keep datasets from being changed by others, and return what they hold.

    Args:
        roots: their folders.
        change: they are about to be changed. Otherwise nothing is written beside one that
            gaploop has never written to, such as a downloaded one, and it is read without a lock.

    Raises:
        UnusableInputError: a folder without a dataset, the same one twice, or one that another
            process writes.
    """
    full = [existing_folder(Path(root), "Dataset").resolve() for root in roots]
    if len(set(full)) < len(full):
        twice = next(path for path in full if full.count(path) > 1)
        raise UnusableInputError(f"{twice} is named twice. Name every dataset once.")
    with ExitStack() as stack:
        for root in sorted(full):  # in one order everywhere, so that two edits never wait in a ring
            if change or (
                staging.beside(root, "lock").exists() and os.access(root.parent, os.W_OK)
            ):
                stack.enter_context(staging.locked(root))
                staging.recover(root)
        yield tuple(DatasetPiece.whole(root) for root in full)


def plan_choice(
    command: str, piece: DatasetPiece, kept: Collection[int], config: Mapping[str, Any]
) -> EditPlan:
    """Plan a dataset of just some episodes.

    Raises:
        UnusableInputError: none would be left.
    """
    if not kept:
        raise UnusableInputError(
            f"{piece.info.root}: none of its {len(piece.held)} takes would be left, and LeRobot "
            "knows no empty dataset. Choose others, or remove the folder."
        )
    return EditPlan(command, {"": (piece.only(kept),)}, config)


def plan_split(
    piece: DatasetPiece, parts: Parts, config: Mapping[str, Any], *, named: bool, shared: bool
) -> EditPlan:
    """Plan one dataset for each part.

    Args:
        parts: name to episodes.
        named: the episodes were named one by one.
        shared: a session may be in several parts.

    Raises:
        UnusableInputError: a part without takes, a take in two parts, or a session in two.
    """
    empty = [name for name, indices in parts.items() if not indices]
    if empty or len(parts) < 2:
        raise UnusableInputError(
            f"{piece.info.root}: part {', '.join(empty) or next(iter(parts), '')} would hold "
            f"{'none' if empty else 'all'} of its {len(piece.held)} takes: nothing to split."
        )
    every = [index for indices in parts.values() for index in indices]
    twice = sorted(index for index, n in Counter(every).items() if n > 1)
    if twice:
        raise UnusableInputError(f"Episodes {twice} are in two parts. Name each in one.")
    common = splits.shared_sessions(parts, piece.held)
    if not shared:
        common = splits.check_whole_sessions(parts, piece.held, named)
    notes = []
    if common:
        notes.append(f"In several parts, so that they know each other: {_some(common)}.")
    if not any(e.info.session for e in piece.held):
        notes.append("No take says of which session it is: each counts for itself.")
    elif not common:
        total = len(piece.held)
        held = (f"{name} {len(p)} ({len(p) / total:.0%})" for name, p in parts.items())
        notes.append(f"Sessions stay whole; of {total} takes: {', '.join(held)}.")
    left_out = len(piece.held) - len(every)
    if left_out:
        notes.append(f"{left_out} takes are in no part.")
    chosen = {name: (piece.only(indices),) for name, indices in parts.items()}
    return EditPlan("edit split", chosen, config, tuple(common), tuple(notes))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"session {', '.join(names[:3])}{more}"


@dataclass(frozen=True)
class EditRules:
    """How a plan is carried out.

    Attributes:
        reencode: pictures that can't be cut out are decoded and encoded again.
        consents: the consent register; the default one where None.
        on_episode: called after each take.
        hook: called with the name of each step.
    """

    reencode: bool = False
    consents: Path | None = None
    on_episode: Callable[[], None] | None = None
    hook: staging.Hook = staging.no_hook


def carry_out(
    plan: EditPlan,
    output: Path | None,
    rules: EditRules,
    amend: Callable[[Path], None] | None = None,
) -> VideosDone:
    """Write what was planned; within `opened`.

    Args:
        plan: the plan.
        output: a new folder; None to put the result in the place of the plan's only dataset.
        rules: how.
        amend: changes each new dataset before anybody sees it.

    Raises:
        UnusableInputError: the output folder can't be used, or a source is damaged. Nothing is
            changed then.
    """
    sources = {piece.info.root for pieces in plan.parts.values() for piece in pieces}
    target = plan.source if output is None else Path(output).resolve()
    with ExitStack() as stack:
        if output is not None:
            stack.enter_context(staging.new_folder(target, *sources))
            takes = {
                target / name: [e.info for piece in pieces for e in piece.episodes]
                for name, pieces in plan.parts.items()
            }
            note_and_refuse_withdrawn(takes, rules.consents)
        stage = staging.beside(target, "staging")
        stack.callback(shutil.rmtree, stage, ignore_errors=True)
        total = VideosDone()
        inputs = {p.info.root: lineage.source_of(p) for ps in plan.parts.values() for p in ps}
        for name, pieces in plan.parts.items():
            video_rules = VideoRules(link=output is None, reencode=rules.reencode)
            done = compose(
                pieces, stage / name, video_rules, on_episode=rules.on_episode, hook=rules.hook
            )
            if amend is not None:
                amend(stage / name)
            _write_run(plan, name, stage / name, inputs)
            total = VideosDone(
                [], total.whole + done.whole, total.cut + done.cut, total.encoded + done.encoded
            )
        rules.hook("staged")
        staging.commit(stage, target, rules.hook)
    return total


def _write_run(
    plan: EditPlan, name: str, folder: Path, inputs: Mapping[Path, Mapping[str, Any]]
) -> None:
    used = [
        {
            **inputs[piece.info.root],
            "episodes": lineage.spans(piece.chosen),
            "takes": len(piece.chosen),
        }
        for piece in plan.parts[name]
    ]
    result = {
        "part": name,
        "takes": sum(len(piece.chosen) for piece in plan.parts[name]),
        "frames": sum(e.length for piece in plan.parts[name] for e in piece.episodes),
        "shared_sessions": list(plan.shared_sessions),
    }
    lineage.write_run(folder, plan.command, plan.config, used, result)
