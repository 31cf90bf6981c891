"""The command `gaploop push`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError
from gaploop.scripts._pushing import DATASET, PushRequest, kind_of, requested_push, send
from gaploop.scripts.options import emit, required

log = logging.getLogger(__name__)

POSITIONAL: Final = "folder"
RARE: Final = ("allow_paths", "license", "tags")
EXAMPLE: Final = """
gaploop push recordings/pick_place --repo_id=me/pick_place --private
gaploop push outputs/run/adapter --repo_id=me/pick_place_adapter --license=cc-by-4.0
HF_ENDPOINT=https://hub.example.org gaploop push recordings/pick_place --repo_id=lab/pick_place
"""


@dataclass
class PushConfig:
    """Push a dataset or an adapter to a Hub.

    Checks it first: it must load, every participant must have agreed to pushing, and no file
    may hold a secret or a path on this computer. Then what the Hub doesn't have yet goes up in
    one commit with a card, and LeRobot's version tag is moved to it. Run again after a fault or a
    kill, it continues where it stopped. Exit code 1 where the Hub can't be reached, 2 where it or
    gaploop refuses.

    HF_ENDPOINT names another Hub, HF_TOKEN or `hf auth login` who you are. Repositories that don't
    exist yet are made as LeRobot makes them: public, unless --private or the owner's account sets
    otherwise.
    """

    folder: Path | None = None
    """Dataset, adapter, policy, or run folder of gaploop finetune."""
    repo_id: str = ""
    """Owner and name on the Hub, such as me/pick_place."""
    private: bool | None = None
    """Make a new repository private; refuse one that is public already."""
    license: str = ""
    """Licence for the card, such as cc-by-4.0; the card's own, or else apache-2.0 as LeRobot."""
    tags: list[str] = field(default_factory=list)
    """More tags for the card, such as '[so101, kitchen]'."""
    allow_paths: bool = False
    """Push although a file names a path on this computer. Secrets are never pushed."""
    dry_run: bool = False
    """Check, and show what would be pushed; contact no Hub; --json has the card."""
    json: bool = False
    """Print {"state", "repo_id", "url", "commit", "reason", "command", …}."""


def run(config: PushConfig) -> int:
    """Push; 1 where a Hub can't be reached, 2 where the push was refused."""
    from gaploop.datasets.hub.upload import Patience

    folder = required(config.folder, "Which folder? Name it: gaploop push DIR --repo_id=me/name")
    asked = requested_push(folder, kind_of(folder), config)
    if config.dry_run:
        return _dry_run(config, asked)
    sent = send(asked, Patience())
    if sent.state == "refused":
        raise UnusableInputError(sent.reason)
    for line in sent.warnings:
        log.info("%s", line)
    emit(config.json, sent.as_json(), sent.as_text())
    return int(sent.state != "pushed")


def _dry_run(config: PushConfig, asked: PushRequest) -> int:
    from gaploop.datasets.hub import dataset as hub_dataset

    options = hub_dataset.PushOptions(asked.license, asked.tags, allow_paths=asked.allow_paths)
    folder, target = asked.folder, asked.target
    if target.kind == DATASET:
        parcel = hub_dataset.pack(hub_dataset.inspect(folder, options), target, options, "")
    else:
        from gaploop.finetune.hub_policy import pack_policy
        from gaploop.finetune.lerobot_policy import resolve

        parcel = pack_policy(resolve(folder), target, options)
    card, warnings = parcel.card, parcel.warnings
    files = {f.name: f.size for f in parcel.contents.files}
    size, where = sum(files.values()), target.url
    answer: dict[str, Any] = {"repo_id": target.repo_id, "kind": target.kind, "files": files}
    answer |= {"bytes": size, "warnings": warnings, "card": card}
    would = f"Would push {len(files)} files, {size / 1e6:.1f} MB, to {where}."
    emit(config.json, answer, "\n".join([*warnings, would]))
    return 0
