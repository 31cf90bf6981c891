"""What takes were recorded with, said again where it was noted wrongly: as events, with history.

The tags are columns of the episode table; each change is an event of its own beside the labels,
so that `gaploop label --history` shows who changed what, and it can be taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gaploop.core import labels
from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.labels import TAGS, LabelEvent
from gaploop.core.units import noted
from gaploop.core.vocabulary import Domain
from gaploop.datasets.layout import EpisodeRow

SOURCE: Final = "engineer"
_NOT_TAGS: Final = {
    "consent": "consent is what people in a take gave; manage it with: gaploop consent",
    "uid": "labels and lineage are tied to a take's uid; it never changes",
    "t0_ns": "when a take was recorded never changes",
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
