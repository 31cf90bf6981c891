"""What a mixture draws in a run, source by source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from gaploop.datasets.mixing.mixture import Mixture
from gaploop.datasets.mixing.sources import MixedTake, OpenMixture

REPORT: Final = "mixture.json"
"""Beside LeRobot's checkpoints: what was drawn from which source."""


def report(opened: OpenMixture, mixture: Mixture, steps: int) -> dict[str, Any]:
    """Return what `mixture.json` holds of a run of `steps` training steps."""
    return {
        "schema": "gaploop.mixture.v1",
        "steps": steps,
        "batch_size": mixture.batch_size,
        "ranks": mixture.world_size,
        "seed": opened.spec.seed,
        "sources": describe(opened, mixture, steps),
    }


def describe(opened: OpenMixture, mixture: Mixture, steps: int) -> list[dict[str, Any]]:
    """Return, for each source, what it holds and how often it is drawn in a run.

    Args:
        steps: training steps of the run.
    """
    drawn, result = mixture.counts(steps), []
    for index, source in enumerate(opened.spec.sources):
        mine = [t for t in opened.takes if t.source == index]
        frames = sum(len(t.frames) for t in mine)
        result.append(
            {
                "name": source.name,
                "datasets": [str(r) for r in source.roots],
                "domains": sorted({t.episode.info.domain.value for t in mine}),
                "takes": len(mine),
                "frames": frames,
                "samples": int(drawn[index]),
                "share": float(drawn[index] / max(1, steps * mixture.per_step)),
                "epochs": float(drawn[index] / frames),
                "dimensions": _dimensions(mine, int(drawn[index])),
            }
        )
    return result


def _dimensions(takes: Sequence[MixedTake], samples: int) -> dict[str, float]:
    """Return how many of a source's samples are expected to serve each dimension."""
    mass = sum(t.weight * len(t.frames) for t in takes)
    served: Counter[str] = Counter()
    for take in takes:
        for dimension, part in take.episode.info.dimensions.items():
            served[str(dimension)] += part * samples * take.weight * len(take.frames) / mass  # type: ignore[assignment]
    return dict(served)
