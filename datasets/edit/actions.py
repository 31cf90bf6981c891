"""Changing which takes a dataset holds, or their tags: delete, keep, split, merge, re-tag.

An edit is planned first, so that it can be shown, and then carried out in a hidden folder that
takes its place at once: killed at any instant, there is the old dataset or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import existing_folder, write_json
from gaploop.core.labels import TAGS, LabelEvent
from gaploop.core.run_record import RUN, write_record
from gaploop.core.vocabulary import Domain, noted
from gaploop.datasets import layout, staging
from gaploop.datasets.differences import profile, require_same
from gaploop.datasets.edit.compose import (
    EDIT_SCHEMA,
    DatasetPiece,
    VideosDone,
    compose,
    note_and_refuse_withdrawn,
    read_run,
    source_of,
    spans,
)
from gaploop.datasets.layout import EpisodeRow, numbers


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
                staging.sibling(root, "lock").exists() and os.access(root.parent, os.W_OK)
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
            f"{piece.info.root}: none of its {len(piece.held)} episodes would be left, and LeRobot "
            "can't load an empty dataset. Choose others, or remove the folder."
        )
    return EditPlan(command, {"": (piece.only(kept),)}, config)


def plan_split(
    piece: DatasetPiece, parts: Parts, config: Mapping[str, Any], *, named: bool
) -> EditPlan:
    """Plan one dataset for each part.

    Args:
        named: the episodes were named one by one: a session may then be in several parts.

    Raises:
        UnusableInputError: a part without takes, a take in two parts, or a session in two.
    """
    empty = [name for name, indices in parts.items() if not indices]
    if empty or len(parts) < 2:
        raise UnusableInputError(
            f"{piece.info.root}: part {', '.join(empty) or next(iter(parts), '')} would hold "
            f"{'none' if empty else 'all'} of its {len(piece.held)} episodes: nothing to split."
        )
    every = [index for indices in parts.values() for index in indices]
    twice = sorted(index for index, n in Counter(every).items() if n > 1)
    if twice:
        raise UnusableInputError(f"Episodes {twice} are in two parts. Name each in one.")
    common = shared_sessions(parts, piece.held)
    names = numbers(common, 3)
    if common and not named:
        raise UnusableInputError(
            f"Session {names} would be in several parts: a policy would be tested on a session "
            f"that it was trained on. Give --splits=session or shares, or {NAME}."
        )
    notes = []
    if common:
        notes.append(f"In several parts, which are thus not independent: session {names}.")
    if not any(e.info.session for e in piece.held):
        notes.append("No episode names its session: each counts as its own session.")
    elif not common:
        total = len(piece.held)
        held = (f"{name} {len(p)} ({len(p) / total:.0%})" for name, p in parts.items())
        notes.append(f"Sessions stay whole; of {total} episodes: {', '.join(held)}.")
    left_out = len(piece.held) - len(every)
    if left_out:
        notes.append(f"{left_out} episodes are in no part.")
    chosen = {name: (piece.only(indices),) for name, indices in parts.items()}
    return EditPlan("edit split", chosen, config, tuple(common), tuple(notes))


def carry_out(
    plan: EditPlan,
    output: Path | None,
    reencode: bool = False,
    *,
    on_episode: Callable[[], None] = lambda: None,
    amend: Callable[[Path], None] | None = None,
    hook: staging.Hook = staging.no_hook,
) -> VideosDone:
    """Write what was planned; within `opened`.

    Args:
        output: a new folder; None to put the result in the place of the plan's only dataset.
        reencode: pictures that can't be cut out are decoded and encoded again.
        amend: changes each new dataset before anybody sees it.

    Raises:
        UnusableInputError: the output folder can't be used, or a source is damaged. Nothing is
            changed then.
    """
    sources = {piece.info.root: piece for pieces in plan.parts.values() for piece in pieces}
    target = plan.source if output is None else Path(output).resolve()
    with ExitStack() as stack:
        if output is not None:
            stack.enter_context(staging.new_folder(target, *sources))
            takes = {
                target / name: [e.info for piece in pieces for e in piece.episodes]
                for name, pieces in plan.parts.items()
            }
            note_and_refuse_withdrawn(takes)
        stage = staging.sibling(target, "staging")
        stack.callback(shutil.rmtree, stage, ignore_errors=True)
        inputs = {root: source_of(piece) for root, piece in sources.items()}
        done = VideosDone()
        for name, pieces in plan.parts.items():
            part = stage / name
            compose(pieces, part, done, output is None, reencode, on_episode=on_episode, hook=hook)
            if amend is not None:
                amend(part)
            used = [
                {
                    **inputs[piece.info.root],
                    "episodes": spans(piece.chosen),
                    "takes": len(piece.chosen),
                    **_changed(piece),
                }
                for piece in pieces
            ]
            result = {
                "part": name,
                "takes": sum(len(piece.chosen) for piece in pieces),
                "frames": sum(e.length for piece in pieces for e in piece.episodes),
                "shared_sessions": list(plan.shared_sessions),
            }
            more = {"said": False} if output is None else None
            write_record(part, EDIT_SCHEMA, plan.command, plan.config, used, result, more)
        hook("staged")
        staging.commit(stage, target, hook)
    return done


def done_unsaid(root: Path, command: str, config: Mapping[str, Any]) -> bool:
    """Return whether the dataset was last changed by this edit, which ended before it said so.

    Done once more, another episode would go, or a value would be subtracted twice. Asked once:
    after it, the same edit is a new one.
    """
    run = read_run(root)
    same = (run.get("command"), run.get("config")) == (command, json.loads(json.dumps(config)))
    if found := same and run.get("said") is False:
        now_said(root)
    return found


def now_said(root: Path) -> None:
    """Note in the dataset that its user was told of its last change in place."""
    write_json(root / RUN, {**read_run(root), "said": True})


def _changed(piece: DatasetPiece) -> dict[str, Any]:
    """Return which episodes were changed, and which frames of them stayed, `first:end`."""
    found: dict[str, Any] = {"changed": spans(piece.changes)} if piece.changes else {}
    frames = {str(i): c.frames for i, c in piece.changes.items() if c.frames is not None}
    if frames:
        found["frames"] = {i: f"{first}:{end}" for i, (first, end) in frames.items()}
    return found


HARMONISE: Final = "Make them alike first: gaploop edit harmonise {b} --to={a} --output_dir=OUT"


PACKING: Final = (
    "depth_unit",
    *(f"video.{n}" for n in ("depth_min", "depth_max", "shift", "use_log")),
)
"""What LeRobot reads depth by."""


def plan_merge(pieces: Sequence[DatasetPiece]) -> EditPlan:
    """Plan the dataset that holds all takes of several, in order.

    A take that is in several is taken once, from the first, with the labels of all.

    Raises:
        UnusableInputError: fewer than two, or datasets that differ in robot, rate, features,
            units or gap columns.
    """
    if len(pieces) < 2:
        raise UnusableInputError("Merge what? Name two or more: gaploop edit merge A B")
    a = pieces[0]
    for b in pieces[1:]:
        if a.tagged != b.tagged:
            bare = b if a.tagged else a
            raise UnusableInputError(
                f"{bare.info.root} has no gap columns, the other has. Add them, with what its "
                f"episodes are: gaploop convert {bare.info.root} --set='{{kind: …, domain: …}}' "
                "--output_dir=OUT"
            )
        fix = HARMONISE.format(a=a.info.root, b=b.info.root)
        require_same(profile(a.info, a.held), profile(b.info, b.held), fix)
        for key in set(a.info.picture_keys) - {*a.info.camera_keys}:
            have, want = (p.info.features[key].get("info") or {} for p in (b, a))
            for name in (n for n in PACKING if have.get(n) != want.get(n)):
                raise UnusableInputError(
                    f"{b.info.root}: {key} is depth with {name} {have.get(name)}, not "
                    f"{want.get(name)} as in {a.info.root}: together it couldn't be read. Leave it "
                    f"out of both: gaploop edit harmonise, with drop: [{key}]"
                )
    seen, chosen, twice = set[str](), list[DatasetPiece](), 0
    for piece in pieces:
        new = [e for e in piece.episodes if e.info.uid not in seen]
        twice += len(piece.episodes) - len(new)
        seen |= {e.info.uid for e in new}
        chosen.append(piece.only([e.index for e in new]))
    notes = (f"{twice} episodes are in several datasets; each is kept once.",) if twice else ()
    return EditPlan("edit merge", {"": tuple(chosen)}, {}, notes=notes)


def delete_takes(
    root: Path, unwanted: Callable[[EpisodeRow], bool], *, hook: staging.Hook = staging.no_hook
) -> tuple[str, ...]:
    """Delete episodes from the dataset at `root`, and return their uids.

    Pictures that can't be cut out of a video without decoding are encoded again: that the takes
    go matters more here. Where none is left the dataset's folder goes: LeRobot knows no empty
    dataset. Killed at any instant, the dataset is the old one or the new one.

    Raises:
        UnusableInputError: no dataset there, a damaged file, or another process is writing it.
    """
    root = Path(root).resolve()
    with staging.locked(root):
        staging.recover(root)
        info = layout.read_info(root)
        episodes = tuple(layout.read_episodes(info))
        gone = tuple(e.info.uid for e in episodes if unwanted(e))
        kept = frozenset(e.index for e in episodes if not unwanted(e))
        if gone and not kept:
            stage = staging.sibling(root, "staging")
            os.rename(root, stage)  # a kill from here on: `recover` deletes it
            shutil.rmtree(stage)
        elif gone:
            plan = EditPlan("edit delete", {"": (DatasetPiece(info, episodes, kept),)})
            carry_out(plan, None, reencode=True, hook=hook)
    return gone


type Parts = dict[str, list[int]]
"""Name of each part to the episodes in it."""

NAME: Final = """name episodes: --splits='{"train": "0:40", "test": "40:"}'"""
_FIELDS: Final[dict[str, Callable[[EpisodeRow], object]]] = {
    **{name: attrgetter(name) for name in ("outcome", "failure_mode", "phase")},
    "dimension": lambda e: max(e.info.dimensions, key=lambda d: e.info.dimensions[d], default=""),
    **{name: attrgetter(f"info.{name}") for name in ("kind", "domain", "session", "operator")},
    **{n: attrgetter(f"info.{n}") for n in ("station", "calibration", "policy", "plan", "task")},
}


def session_of(episode: EpisodeRow) -> str:
    """Return what tells a take's session from others; a take without one is its own."""
    return episode.info.session or f"episode {episode.info.uid}"


def shared_sessions(parts: Parts, episodes: Sequence[EpisodeRow]) -> list[str]:
    """Return the sessions that are in more than one part."""
    session = {e.index: session_of(e) for e in episodes}
    seen: dict[str, set[str]] = {}
    for name, indices in parts.items():
        for index in indices:
            seen.setdefault(session[index], set()).add(name)
    return sorted(s for s, names in seen.items() if len(names) > 1)


def by_share(episodes: Sequence[EpisodeRow], shares: Mapping[str, float]) -> Parts:
    """Split at random by shares of the takes, which add up to 1; the same parts each time.

    Sessions stay together, which may miss the shares.

    Raises:
        UnusableInputError: shares that don't add up, or fewer sessions than parts.
    """
    bad = [s for s in shares.values() if not 0 < s < 1]
    if bad or len(shares) < 2 or abs(sum(shares.values()) - 1) > 1e-6:
        text = ", ".join(f"{name}: {share:g}" for name, share in shares.items())
        raise UnusableInputError(
            f"Shares {{{text}}} must be two or more numbers between 0 and 1 that add up to 1."
        )
    groups: dict[str, list[int]] = {}
    for episode in episodes:
        groups.setdefault(session_of(episode), []).append(episode.index)
    if len(groups) < len(shares):
        names = ", ".join(sorted(groups)[:3])
        raise UnusableInputError(
            f"The {len(episodes)} episodes are of {len(groups)} session{'s'[: len(groups) != 1]} "
            f"({names}), too few for {len(shares)} parts that share no session. "
            f"Record in another session, or {NAME}."
        )
    drawn = [groups[key] for key in sorted(groups)]
    random.Random(0).shuffle(drawn)
    drawn.sort(key=len, reverse=True)  # stable: equal ones stay shuffled
    parts: Parts = {name: [] for name in shares}
    for left, group in zip(range(len(drawn), 0, -1), drawn, strict=True):
        empty = [name for name in parts if not parts[name]]
        open_to = empty if left == len(empty) else list(parts)
        wanted = {name: shares[name] * len(episodes) - len(parts[name]) for name in open_to}
        parts[max(open_to, key=lambda name: wanted[name])] += group
    return {name: sorted(indices) for name, indices in parts.items()}


def by_field(episodes: Sequence[EpisodeRow], name: str) -> Parts:
    """Split by a field such as `outcome`, or a condition: one part for each value.

    Raises:
        UnknownChoiceError: no take has such a condition.
        UnusableInputError: all takes have the same value, or two values the same folder.
    """
    conditions = {key for e in episodes for key in e.info.conditions}
    if name not in _FIELDS and name not in conditions:
        raise unknown_choice("field", name, [*_FIELDS, *conditions], "--splits")
    read: Callable[[EpisodeRow], object]
    read = _FIELDS.get(name, lambda e: e.info.conditions.get(name, ""))
    parts: Parts = {}
    values: dict[str, str] = {}
    for episode in episodes:
        value = read(episode)
        text = str(value) if isinstance(value, str) else json.dumps(value)
        part = re.sub(r"[^\w.+=-]+", "_", text).strip("_.") or "none"  # a folder's name
        if values.setdefault(part, text) != text:
            raise UnusableInputError(
                f"--splits={name}: '{values[part]}' and '{text}' would both go to {part}. "
                "Make them one word with gaploop edit retag, or name the parts: --splits='{…}'."
            )
        parts.setdefault(part, []).append(episode.index)
    if len(parts) < 2:
        raise UnusableInputError(
            f"All {len(episodes)} episodes have {name} '{next(iter(parts))}': nothing to split."
            " Split by something in which they differ."
        )
    return dict(sorted(parts.items()))


SOURCE: Final = "engineer"
_NOT_TAGS: Final = {
    "consent": "consent is what people in an episode gave; manage it with: gaploop consent",
    "uid": "labels and lineage are tied to an episode's uid; it never changes",
    "t0_ns": "when an episode was recorded never changes",
    **dict.fromkeys(labels.FIELDS, "that is a label; set it with: gaploop label"),
}


def tag_events(
    episodes: Sequence[EpisodeRow], values: Mapping[str, Any], author: str
) -> list[LabelEvent]:
    """Return the events that give episodes tags that they don't have yet.

    Args:
        values: tag to value; conditions are added to those that a take has, null removes one.

    Raises:
        UnusableInputError: no such tag or value, episodes without gap columns, or simulated takes
            that are to pass for real ones.
    """
    for name in values:
        bare = name.removeprefix("gap_")
        if bare in _NOT_TAGS:
            raise UnusableInputError(f"--set: {bare} can't be set here: {_NOT_TAGS[bare]}.")
        if name not in TAGS:
            raise unknown_choice("tag", name, TAGS, "--set")
    if not isinstance(values.get("conditions", {}), Mapping):
        raise UnusableInputError(
            f'--set: conditions must map names to values, such as {{"lighting": "lamp"}}; '
            f"got {values['conditions']!r}."
        )
    at, events = labels.now(), []
    for episode in episodes:
        info = episode.info
        for name, value in values.items():
            old: Any = dict(info.conditions) if name == "conditions" else str(getattr(info, name))
            new: Any = str(value)
            if name == "conditions":
                new = {k: v for k, v in {**old, **value}.items() if v is not None}
            elif name == "units":
                new = noted(new)
            if new != old:
                simulated = info.domain in (Domain.SIM, Domain.SIM_TARGET)
                if name == "domain" and new == Domain.REAL and simulated:
                    raise UnusableInputError(
                        f"--set: episode {episode.index} is tagged as simulated ({info.domain}); "
                        "it can't be tagged as real. Was it converted wrongly? Do it again with "
                        "--set='{domain: real}'."
                    )
                events.append(LabelEvent(info.uid, name, new, author, SOURCE, at))
    return events
