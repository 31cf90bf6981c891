"""Where a training's figures go beside metrics.jsonl: W&B, trackio, TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from accelerate import tracking

from gaploop.core.errors import UnusableInputError, unknown_choice

TRACKERS: Final = ("wandb", "trackio", "tensorboard")
PROJECT: Final = "gaploop"


def tracked(
    names: Sequence[str], folder: Path, settings: Mapping[str, Any]
) -> Callable[[Mapping[str, float] | None], None]:
    """Start trackers; return what hands them the figures of a step, None at the end.

    Their own environment variables say the rest, such as WANDB_MODE, WANDB_ENTITY.

    Args:
        names: of `TRACKERS`.
        folder: run folder; its name becomes the run's.

    Raises:
        UnusableInputError: an unknown tracker, or one that isn't installed.
    """
    opened = []
    for name in names:
        if name not in TRACKERS:
            raise unknown_choice("tracker", name, TRACKERS, "--trackers")
        if name not in [str(known) for known in tracking.get_available_trackers()]:
            raise UnusableInputError(f"--trackers={name}: not installed: pip install {name}")
        kind: Any = tracking.LOGGER_TYPE_TO_CLASS[name]
        if kind.requires_logging_directory:
            tracker = kind(folder.name, folder)
        else:
            tracker = kind(PROJECT, name=folder.name)
        tracker.start()
        tracker.store_init_configuration(dict(settings))
        opened.append(tracker)

    def tell(line: Mapping[str, float] | None) -> None:
        for tracker in opened:
            if line is None:
                tracker.finish()
            else:
                tracker.log({k: v for k, v in line.items() if k != "step"}, step=int(line["step"]))

    return tell
