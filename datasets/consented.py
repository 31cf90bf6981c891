"""Whether a dataset may be passed on: every take with people in it needs consent that covers it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from gaploop.core.consent import Use, require_consent
from gaploop.core.consent_store import load_register
from gaploop.datasets.layout import read_episodes, read_info


def require_dataset_consent(
    root: Path, use: Use = Use.PUSH, consents: Path | None = None, on: date | None = None
) -> None:
    """Refuse to pass a dataset on where anybody in it doesn't agree, or not any more.

    Args:
        root: dataset folder.
        use: what is to be done with it.
        consents: the consent register; the default one where None.
        on: the day, UTC; today unless given.

    Raises:
        UnusableInputError: which take, why, and how to mend it.
    """
    infos = [episode.info for episode in read_episodes(read_info(root))]
    require_consent(load_register(consents), infos, use, f"Dataset {root}", on)
