"""The command `gaploop push`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.files import writable_folder, write_atomically
from gaploop.datasets.hub import queue as push_queue
from gaploop.datasets.hub.queue import QueuedPush
from gaploop.datasets.hub.target import endpoint
from gaploop.scripts._pushing import DATASET, kind_of, requested_push, send
from gaploop.scripts.options import emit, required

log = logging.getLogger(__name__)

POSITIONAL: Final = "folder"
EXAMPLE: Final = """
gaploop push recordings/pick_place --repo_id=me/pick_place --private
gaploop push outputs/run/adapter --repo_id=me/pick_place_adapter --license=cc-by-4.0
gaploop push                 # send what waits since the Hub couldn't be reached
HF_ENDPOINT=https://hub.example.org gaploop push recordings/pick_place --repo_id=lab/pick_place
"""


@dataclass
class PushConfig:
    """Push a dataset or an adapter to a Hub, or send what waits.

    Checks it first: it must load, every participant must have agreed to pushing, and no file
    may hold a secret or a path on this computer. Then what the Hub doesn't have yet goes up in
    one commit with a card, and LeRobot's version tag is moved to it. Run again after a fault or a
    kill, it continues where it stopped. A push that can't reach the Hub waits on disk (exit
    code 1): gaploop push without a folder sends what waits, and so does the next push.

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
    consents: Path | None = None
    """The consent register; see gaploop consent --help."""
    dry_run: bool = False
    """Check, and show what would be pushed; contact no Hub. --output_dir gets the card."""
    output_dir: Path | None = None
    """With --dry_run: where to write the card and its picture."""
    waiting: bool = False
    """Show what waits and why, and send nothing."""
    forget: str = ""
    """Take the push of this repo_id out of the queue."""
    retries: int = 5
    """How often each step is tried again, after waits that grow to half a minute."""
    timeout_s: float = 30.0
    """Without a byte from the Hub for this long, a request has failed [s]."""
    json: bool = False
    """Print {"pushed", "queued", "refused"}, each a list of {"repo_id", "url", "commit", …}."""


def run(config: PushConfig) -> int:
    """Push; 1 where something waits because a Hub can't be reached, 2 where it was refused."""
    from gaploop.datasets.hub.upload import Patience

    if config.retries < 0 or not config.timeout_s > 0:
        raise UnusableInputError("--retries must be 0 or more and --timeout_s above 0.")
    if config.forget:
        waiting = push_queue.waiting()
        found = [p for p in waiting if p.repo_id == config.forget]
        if not found:
            known = [p.repo_id for p in waiting] or ["(nothing waits)"]
            raise unknown_choice("waiting push", config.forget, known, "--forget")
        for push in found:
            push_queue.drop(push)
        forgotten = {"forgotten": [p.repo_id for p in found]}
        emit(config.json, forgotten, f"{config.forget} waits no more.")
        return 0
    if config.waiting:
        waiting = push_queue.waiting()
        lines = [
            f"{p.repo_id} ({p.kind}) from {p.folder} to {p.endpoint}, since {p.at[:16]} UTC: "
            f"{p.error or 'interrupted'}"
            for p in waiting
        ]
        emit(config.json, {"waiting": waiting}, "\n".join(lines) or "Nothing waits.")
        return 0
    asked = None  # without a folder what waits is sent
    if config.folder is not None or config.repo_id or config.dry_run:
        ask = "Which folder? Name it: gaploop push DIR --repo_id=me/name"
        folder = required(config.folder, ask)
        asked = requested_push(folder, kind_of(folder), config, config.consents)
        if config.dry_run:
            return _dry_run(config, asked)
    patience = Patience(config.retries, timeout_s=config.timeout_s)
    push_queue.waiting()  # what can't be read there is said before anything is sent
    sent = [] if asked is None else [send(asked, patience)]
    if asked is not None and sent[0].state == "refused":
        raise UnusableInputError(sent[0].reason)
    if asked is None or sent[0].state == "pushed":
        for push in push_queue.waiting():
            if push.endpoint == endpoint():
                sent.append(send(push, patience, keep=True))
                continue
            log.info(  # never send it to another Hub
                "%s waits for another Hub. Send it with: HF_ENDPOINT=%s gaploop push",
                push.repo_id,
                push.endpoint,
            )
    states = ("pushed", "queued", "refused")
    answer = {state: [s.as_json() for s in sent if s.state == state] for state in states}
    for one in sent:
        for line in one.warnings:
            log.info("%s", line)
    emit(config.json, answer, "\n".join(one.as_text() for one in sent) or "Nothing waits.")
    return 2 if answer["refused"] else int(bool(answer["queued"]))


def _dry_run(config: PushConfig, asked: QueuedPush) -> int:
    from gaploop.datasets.hub import dataset as hub_dataset
    from gaploop.datasets.hub.card import PICTURE

    options = hub_dataset.PushOptions(asked.license, asked.tags, config.consents, asked.allow_paths)
    folder = Path(asked.folder)
    if asked.kind == DATASET:
        parcel = hub_dataset.pack(hub_dataset.inspect(folder, options), asked.target, options, "")
    else:
        from gaploop.finetune.hub_policy import pack_policy
        from gaploop.finetune.lerobot_policy import resolve

        parcel = pack_policy(resolve(folder), asked.target, options)
    card, warnings = parcel.card, parcel.warnings
    written = {PICTURE: parcel.picture, "README.md": card.encode()}
    if config.output_dir is not None:
        for name, content in written.items():
            if content:
                writable_folder((config.output_dir / name).parent)
                write_atomically(config.output_dir / name, content)
    files = {f.name: f.size for f in parcel.contents.files}
    size, where = sum(files.values()), asked.target.url
    answer: dict[str, Any] = {"repo_id": asked.repo_id, "kind": asked.kind, "files": files}
    answer |= {"bytes": size, "warnings": warnings, "card": card}
    would = f"Would push {len(files)} files, {size / 1e6:.1f} MB, to {where}."
    emit(config.json, answer, "\n".join([*warnings, would]))
    return 0
