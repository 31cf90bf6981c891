"""The command `gaploop label`."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.labels.store import LabelStore, open_labelled, repeats
from gaploop.datasets.layout import EpisodeRow
from gaploop.scripts.options import emit, progress, required

SET: Final = ("outcome", "failure_mode", "phase", "dimensions")
"""Options that set a label."""
POSITIONAL: Final = "root"
RARE = ("history", "undo", "note")
EXAMPLE: Final = """
gaploop label recordings/pick
gaploop label recordings/pick --where='outcome=failure failure_mode=slip,drift'
gaploop label recordings/pick --episodes=3 --outcome=failure --failure_mode=slip \\
    --dimensions='{"contact_dynamics": 0.8}' --author=ana
gaploop label recordings/pick --where=lighting=dim --phase=approach --author=ana
gaploop label recordings/pick --undo --author=ana
gaploop label recordings/pick --episodes=3 --history
"""


@dataclass
class LabelConfig:
    """Label the takes of a dataset or journal, and show their labels.

    Without anything to set it shows the labels that count. Labels are events that are only ever
    added: an engineer's label outranks an operator's, an operator's an automatic one, and within
    a source the newest counts. They survive deleting, splitting and merging with gaploop edit.
    Which takes: --episodes, --where, or both. Exit code 1: there are none.
    """

    root: Path | None = None
    """Folder of the dataset or journal."""
    episodes: str = ""
    """These, such as 3, '[0, 3]' or '0:30'; in a journal the takes at these places, oldest first
    from 0. Or takes by their uids, or the beginnings of them."""
    where: str = ""
    """Those of which this is true, such as 'failure_mode=slip,drift lighting=dim'."""
    outcome: str | None = None
    """Set how it ended: success, failure, discarded, interrupted or unlabelled."""
    failure_mode: str | None = None
    """Set what was seen, such as slip; none clears it."""
    phase: str | None = None
    """Set when: approach, grasp, transport, place or retreat; none clears it."""
    dimensions: dict[str, float] | None = None
    """Set why: gap dimension to weight from 0 to 1; '{}' clears it."""
    author: str = ""
    """Who labels; your login name unless given."""
    note: str = ""
    """In your own words; with --outcome=discarded it is the reason."""
    undo: bool = False
    """Take back what the author labelled last, all of that one command."""
    history: bool = False
    """Show who labelled what when, what counts and why; and how far people agree: raw, and
    Cohen's or Fleiss' kappa, with 95 % intervals."""
    json: bool = False
    """Print one JSON object."""


def run(config: LabelConfig) -> int:
    """Do the one thing that is asked for."""
    from gaploop.datasets.labels.query import where
    from gaploop.scripts import _label_report

    root = required(config.root, "Which folder? Name it: gaploop label DIR")
    sets = any(getattr(config, name) is not None for name in SET)
    if sets + config.undo + config.history > 1:
        raise UnusableInputError("Setting labels, --undo and --history are done one at a time.")
    given = [n for n in ("author", "note") if getattr(config, n) != getattr(LabelConfig, n)]
    if given and not (sets or config.undo):  # it would be lost
        raise UnusableInputError(
            f"--{given[0]} goes with a label to set, such as --outcome=failure, or with --undo."
        )
    store = open_labelled(root)
    takes = store.select(config.episodes) if config.episodes else list(store.episodes)
    if config.where:
        wanted = set(where(config.where, takes))
        takes = [e for e in takes if e.index in wanted]
    if sets:
        return _set_labels(config, store, takes)
    if config.undo:
        return _undo(config, store, takes)
    if config.history:
        from gaploop.datasets.labels.agreement import agreement

        found = _label_report.histories(store, takes)
        agreed = agreement(store.events, [take.info.uid for take in takes])
        emit(config.json, {"dataset": store.root, "takes": found, "agreement": agreed})
        if not config.json:
            _label_report.print_histories(store, found)
            _label_report.print_agreement(agreed)
        return 0
    emit(config.json, _label_report.current(store, takes))
    if not config.json:
        _label_report.print_current(store, takes, config.where)
    return 0 if takes else 1


def named_author(given: str) -> str:
    """Return who says something: the name given, or the login name.

    Raises:
        UnusableInputError: nobody knows who that is.
    """
    try:
        return given.strip() or getpass.getuser()
    except (KeyError, OSError):
        raise UnusableInputError("Who says so? Name yourself with --author=NAME.") from None


def _template(config: LabelConfig) -> LabelEvent:
    """Return an event by the author, of now, to be filled in."""
    author = named_author(config.author)
    return LabelEvent("", "outcome", "unlabelled", author, "engineer", note=config.note)


def _set_labels(config: LabelConfig, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    if not (config.episodes or config.where):
        raise UnusableInputError(
            "Which takes? Name them with --episodes or --where; all of them: --episodes=0:"
        )
    said = _template(config)
    values = {n: v for n in SET if (v := getattr(config, n)) is not None}
    for name in values:
        if values[name] == "none":
            values[name] = labels.NOTHING_SAID[name]
    if config.outcome == Outcome.DISCARDED and config.note:
        values["discard_reason"] = config.note
    own = labels.standing(e for e in store.events if e.author == said.author)
    new = [
        replace(said, uid=take.info.uid, field=name, value=value)
        for take in takes
        for name, value in values.items()
    ]
    return _write(config, store, [e for e in new if not repeats(e, own.get(e.key))], len(new))


def _undo(config: LabelConfig, store: LabelStore, takes: Sequence[EpisodeRow]) -> int:
    """Take back the author's last act about these takes."""
    said = _template(config)
    uids = {take.info.uid for take in takes}
    act = labels.last_act([e for e in store.events if e.uid in uids], said.author)
    if not act:
        people = ", ".join(sorted({e.author for e in store.events if e.source != "auto"}))
        raise UnusableInputError(
            f"{store.root}: {said.author} has no label left to take back. "
            f"Name another with --author: {people or 'nobody has labelled it yet'}."
        )
    new = [labels.retraction(event, said.at, config.note) for event in act]
    return _write(config, store, new, len(new), "taken back")


def _write(
    config: LabelConfig,
    store: LabelStore,
    new: Sequence[LabelEvent],
    stated: int,
    verb: str = "labelled",
) -> int:
    """Write events down and say what that changed; 1 where nothing was said about anything."""
    from gaploop.scripts._label_report import written

    adds = bool(new) and store.lacks_columns
    shown = True
    if new:
        with progress("Writing labels"):
            shown = (store.add_columns() if adds else store).say(new)
    answer, text = written(store, new, stated, verb, shown=shown, adds=adds)
    emit(config.json, answer, text)
    return 0 if stated else 1
