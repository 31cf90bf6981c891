"""How the `run.json` of a training names what went in, and where that file is."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.collect.withdrawal import noted_policies, noted_uids
from gaploop.core.consent import default_register, load_register
from gaploop.core.run_record import RUN, read_run
from gaploop.datasets.edit.compose import dataset_hash
from gaploop.datasets.layout import DatasetInfo, EpisodeRow
from gaploop.finetune.batches import TrainingSource

CHECKPOINTS: Final = "checkpoints"
"""Where LeRobot's training puts them, two folders above each policy."""


def run_files(policy: Path) -> tuple[Path, ...]:
    """Return where the `run.json` of a policy's training may be, the nearest first."""
    folder = policy.resolve()
    found = [policy / RUN, policy.parent / RUN]
    if folder.parent.parent.name == CHECKPOINTS:
        found.append(folder.parents[2] / RUN)
    return tuple(found)


def run_of(folder: Path, identity: str) -> dict[str, Any]:
    """Return the record of a policy's training; empty where there is none.

    One of LeRobot's training is written before there are policies: all below its folder are its.
    """
    for path in run_files(folder):
        if not path.exists():
            continue
        value = read_run(path)
        result = value["result"]
        named = {result.get("policy"), result.get("merged"), *result["policies"]}
        if identity in named or value.get("command") == "train":
            return value
    return {}


def withdrawn_from(folder: Path, identity: str) -> str:
    """Say that a policy learned from a person who withdrew; "" where that isn't known.

    Raises:
        UnusableInputError: the register or a withdrawal's report can't be read.
    """
    register = default_register()
    withdrawn = [c for c in load_register(register).consents.values() if c.withdrawn]
    if not withdrawn:
        return ""
    run = run_of(folder, identity)
    uids = {uid for e in run.get("inputs", ()) for uid in e.get("uids") or ()}
    ids = {identity, run.get("lineage", {}).get("base", "")} - {""}
    for consent in withdrawn:
        if uids & noted_uids(register, consent.id) or ids & noted_policies(register, consent.id):
            return (
                f"learned from episodes of {consent.id}, whose consent was withdrawn on "
                f"{consent.withdrawn[:10]}"
            )
    return ""


def describe(source: TrainingSource, share: float) -> dict[str, Any]:
    """Return how `run.json` names a dataset that was trained on."""
    digest = hashlib.sha256()  # of what training reads, however its files are laid out
    for episode in source.episodes:
        digest.update(episode.uid.encode())
        for array in (episode.state, episode.environment, episode.action, episode.usable):
            digest.update(np.ascontiguousarray(array).tobytes())
    return {
        "root": source.root,
        "sha256": digest.hexdigest(),
        "domain": source.domain.value,
        "share": share,
        "takes": len(source.episodes),
        "frames": source.frames,
        "uids": [e.uid for e in source.episodes],
        "plans": sorted({e.plan for e in source.episodes if e.plan}),
    }


def takes_inputs(
    taken: Sequence[tuple[DatasetInfo, Sequence[EpisodeRow]]],
) -> tuple[dict[str, Any], ...]:
    """Return how `run.json` names datasets that LeRobot's own training reads.

    Args:
        taken: each dataset, and the takes of it that are learned from.
    """
    return tuple(
        {
            "root": str(info.root.absolute()),
            "hash": dataset_hash(info.root),
            "domain": ", ".join(sorted({e.info.domain.value for e in episodes})),
            "takes": len(episodes),
            "frames": sum(e.length for e in episodes),
            "uids": [e.info.uid for e in episodes],
            "plans": sorted({e.info.plan for e in episodes if e.info.plan}),
        }
        for info, episodes in taken
        if episodes
    )
