"""The run folder of a training: what went in, by id and hash, and what came of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.files import uuid7, write_json
from gaploop.finetune.batches import Source

SCHEMA: Final = "gaploop.run.v1"
PACKAGES: Final = ("gaploop", "lerobot", "torch", "peft", "mujoco", "so101-nexus", "numpy")


@dataclass(frozen=True)
class RunRecord:
    """What `run.json` holds.

    Attributes:
        command: `pretrain` or `finetune`.
        config: every option, as given or by default.
        inputs: each dataset: root, hash, domain, takes, uids, plans.
        seed: of every draw.
        base: id of the policy that training started from, or "".
        result: what came of it.
    """

    command: str
    config: Mapping[str, Any]
    inputs: Sequence[Mapping[str, Any]]
    seed: int
    base: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=uuid7)

    def write(self, folder: Path) -> None:
        """Write `run.json`, with versions, command line and lineage."""
        plans = sorted({plan for i in self.inputs for plan in i["plans"]})
        write_json(
            folder / "run.json",
            {
                "schema": SCHEMA,
                "id": self.id,
                "command": self.command,
                "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
                "at": datetime.now(UTC).isoformat(),
                "versions": versions(),
                "seed": self.seed,
                "config": dict(self.config),
                "inputs": list(self.inputs),
                "lineage": {
                    "base": self.base,
                    "datasets": [i["sha256"] for i in self.inputs],
                    "plans": plans,
                    "takes": [uid for i in self.inputs for uid in i["uids"]],
                },
                "result": dict(self.result),
            },
        )


def describe(source: Source, share: float) -> dict[str, Any]:
    """Return how `run.json` names a dataset that was trained on."""
    return {
        "root": source.root,
        "sha256": source_hash(source),
        "domain": source.domain.value,
        "share": share,
        "takes": len(source.episodes),
        "frames": source.frames,
        "uids": [e.uid for e in source.episodes],
        "plans": sorted({e.plan for e in source.episodes if e.plan}),
    }


def source_hash(source: Source) -> str:
    """Return the SHA-256 of what training reads of a source, however its files are laid out."""
    digest = hashlib.sha256()
    for episode in source.episodes:
        digest.update(episode.uid.encode())
        for array in (episode.state, episode.environment, episode.action, episode.usable):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found
