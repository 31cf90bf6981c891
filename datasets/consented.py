"""Whether a dataset may be passed on: every take with people in it needs consent that covers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from gaploop.core.consent import (
    Place,
    Use,
    consent_ids,
    load_register,
    note_places,
    require_consent,
)
from gaploop.core.errors import UnusableInputError
from gaploop.core.take import TakeInfo
from gaploop.datasets.layout import read_episodes, read_info


def require_dataset_consent(root: Path, use: Use, on: date | None = None) -> None:
    """Refuse to pass a dataset on where anybody in it doesn't agree, `on` a day (UTC) or today."""
    infos = [episode.info for episode in read_episodes(read_info(root))]
    require_consent(load_register(), infos, use, f"Dataset {root}", on)


def note_and_refuse_withdrawn(takes: Mapping[Path, Sequence[TakeInfo]]) -> None:
    """Note into which new datasets takes go, and refuse those whose consent was withdrawn.

    The place is noted first: a withdrawal at the same moment is seen here, or finds the place.
    """
    infos = [info for placed in takes.values() for info in placed]
    for where, placed in takes.items():
        note_places(placed, Place("dataset", str(where)))
    known = load_register().consents if any(info.consent for info in infos) else {}
    for info in infos:
        for id_ in consent_ids(info.consent):
            if id_ in known and known[id_].withdrawn:
                raise UnusableInputError(
                    f"Take {info.uid} is of a person who withdrew consent {id_}. Remove it first: "
                    f"gaploop consent withdraw {id_} --yes"
                )
