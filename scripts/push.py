"""The command `gaploop push`, and pushing after others; one that fails says how to go on."""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import filelock

from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import existing_folder
from gaploop.core.journal_format import is_journal
from gaploop.datasets import staging
from gaploop.datasets.hub.target import HubTarget, check_repo_id, endpoint
from gaploop.datasets.layout import is_dataset
from gaploop.scripts.options import PublishedDataset, counted, emit, progress, required

if TYPE_CHECKING:
    from gaploop.datasets.hub.dataset import PushOptions

log = logging.getLogger(__name__)

RETRIES_AFTER_A_SESSION: Final = 2
"""Nobody waits long for a Hub at the end of a session: the command for later is printed."""
DATASET: Final = "dataset"
POSITIONAL: Final = "folder"
RARE: Final = ("allow_paths", "license")
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
    allow_paths: bool = False
    """Push although a file names a path on this computer. Secrets are never pushed."""
    dry_run: bool = False
    """Check, and show what would be pushed; contact no Hub; --json has the card."""
    json: bool = False
    """Print {"state", "repo_id", "url", "commit", "reason", "command", …}."""


def run(config: PushConfig) -> int:
    """Push; 1 where a Hub can't be reached, 2 where the push was refused."""
    folder = required(config.folder, "Which folder? Name it: gaploop push DIR --repo_id=me/name")
    target = HubTarget(check_repo_id(config.repo_id), _kind(folder), endpoint(), config.private)
    config.folder = folder = folder.absolute()
    if config.dry_run:
        return _dry_run(config, folder, target)
    sent = _sent(config, config.folder, target)
    if sent["state"] == "refused":
        raise UnusableInputError(sent["reason"])
    for line in sent["warnings"]:
        log.info("%s", line)
    emit(config.json, sent, _in_words(sent))
    return int(sent["state"] != "pushed")


def push_after(
    dataset: PublishedDataset, root: Path, stopped: Sequence[int] = ()
) -> dict[str, Any] | None:
    """Push what a session published, if `--dataset.push_to_hub` says so.

    A Hub that is down, or a dataset that must not be pushed, ends nothing: one line says so. Where
    signals `stopped` the session, the command for later is all there is.

    Returns:
        For the command's JSON object: `repo_id`, `state`, `reason`, `url`, …; None where no push
        was asked for or there is nothing to push.
    """
    if not dataset.push_to_hub or not is_dataset(root):
        return None
    config = PushConfig(root.absolute(), dataset.repo_id, dataset.private)
    target = HubTarget(check_repo_id(config.repo_id), DATASET, endpoint(), config.private)
    if stopped:
        sent = _answer(config, target, "unreached", "the session was stopped.")
    else:
        sent = _sent(config, root.absolute(), target, RETRIES_AFTER_A_SESSION)
    for line in (*sent["warnings"], _in_words(sent)):
        log.info("%s", line)
    return sent


def _kind(folder: Path) -> str:
    """Return `dataset` or `model`, or refuse a folder that holds neither."""
    existing_folder(folder, "Folder")
    if is_dataset(folder):
        return DATASET
    if is_journal(folder):
        raise UnusableInputError(
            f"{folder} is a journal. Publish it first: gaploop publish --journal={folder} "
            "--dataset.root=DIR; then push that."
        )
    places = (folder, *(folder / part for part in ("adapter", "policy", "merged")))
    if any(any(p.glob("*.safetensors")) for p in places):
        return "model"
    raise UnusableInputError(
        f"{folder} holds neither a dataset (meta/info.json) nor a policy (*.safetensors). Name a "
        "dataset's folder, an adapter's, or the run folder of gaploop finetune."
    )


def _answer(
    config: PushConfig, target: HubTarget, state: str, reason: str = "", **more: Any
) -> dict[str, Any]:
    """Return what `--json` prints of a push: pushed, unreached or refused; and how to go on."""
    words = ["gaploop push", shlex.quote(str(config.folder)), f"--repo_id={target.repo_id}"]
    words += [] if config.private is None else [f"--private={config.private}".lower()]
    words += [f"--license={config.license}"] if config.license else []
    words += ["--allow_paths"] if config.allow_paths else []
    known = {"repo_id": target.repo_id, "kind": target.kind, "folder": str(config.folder)}
    known |= {"endpoint": target.endpoint, "state": state, "reason": reason}
    counts = dict.fromkeys(("uploaded", "unchanged", "replaced", "deleted"), 0)
    nothing = {"url": "", "commit": "", "before": "", "warnings": ()}
    return {**known, **nothing, **counts, **more, "command": " ".join(words)}


def _in_words(sent: dict[str, Any]) -> str:
    if sent["state"] == "pushed":
        new = counted(sent["uploaded"], "file")
        differed = sent["uploaded"] or sent["deleted"]
        what = f"{new} uploaded" if differed else "nothing had changed"
        line = f"{sent['folder']} is at {sent['url']} ({what}, {sent['unchanged']} were there)."
        gone = " and ".join(f"{sent[h]} {h}" for h in ("replaced", "deleted") if sent[h])
        kept = f" Revision {sent['before'][:8]} keeps what was there before ({gone})."
        return line + kept * bool(gone)
    then = "Go on with" if sent["state"] == "unreached" else "Once that is fixed"
    return f"Not pushed: {sent['reason'].rstrip('.')}. {then}: {sent['command']}"


def _sent(
    config: PushConfig, folder: Path, target: HubTarget, retries: int | None = None
) -> dict[str, Any]:
    """Do one push. Never raises for what Hub or folder are like: that is the answer's state."""
    from gaploop.datasets.hub import dataset as hub_dataset
    from gaploop.datasets.hub import upload

    shown = 0

    def on_progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal shown
        done, total = (math.ceil(size / 1e6) for size in (done_bytes, total_bytes))
        advance(done - shown, total=total)
        shown = done

    try:
        options = _options(config, retries)
        with (
            filelock.FileLock(staging.sibling(folder, "push"), timeout=0),
            progress(f"Pushing {target.repo_id}, MB") as advance,
        ):
            if target.kind == DATASET:
                pushed, plan = hub_dataset.push_dataset(folder, target, options, on_progress)
            else:
                from gaploop.finetune.hub_policy import push_policy

                pushed, plan = push_policy(folder, target, options, on_progress)
    except filelock.Timeout:  # two at once would undo each other
        busy = "another process is pushing it. Wait until it is done."
        return _answer(config, target, "refused", busy)
    except GaploopError as error:
        state = "unreached" if isinstance(error, upload.HubUnreachableError) else "refused"
        return _answer(config, target, state, str(error))
    except (KeyboardInterrupt, SystemExit):
        log.info("Interrupted. Go on with: %s", _answer(config, target, "")["command"])
        raise
    return _answer(
        config,
        target,
        "pushed",
        url=pushed.url,
        commit=pushed.commit,
        uploaded=len(pushed.uploaded),
        unchanged=pushed.unchanged,
        replaced=len(pushed.replaced),
        deleted=len(pushed.deleted),
        before=pushed.before,
        warnings=plan.warnings,
    )


def _options(config: PushConfig, retries: int | None = None) -> PushOptions:
    from gaploop.datasets.hub.dataset import PushOptions
    from gaploop.datasets.hub.upload import Patience

    patience = Patience() if retries is None else Patience(retries=retries)
    return PushOptions(config.license, config.allow_paths, patience)


def _dry_run(config: PushConfig, folder: Path, target: HubTarget) -> int:
    from gaploop.datasets.hub import dataset as hub_dataset

    options = _options(config)
    if target.kind == DATASET:
        look = hub_dataset.inspect(folder, options)
        plan = hub_dataset.pack(look, target, options, "")
    else:
        from gaploop.finetune.hub_policy import pack_policy
        from gaploop.finetune.lerobot_policy import resolve

        plan = pack_policy(resolve(folder), target, options)
    files = {f.name: f.size for f in plan.contents.files}
    size = sum(files.values())
    answer: dict[str, Any] = {"repo_id": target.repo_id, "kind": target.kind, "files": files}
    answer |= {"bytes": size, "warnings": plan.warnings, "card": plan.card}
    would = f"Would push {counted(len(files), 'file')}, {size / 1e6:.1f} MB, to {target.url}."
    emit(config.json, answer, "\n".join([*plan.warnings, would]))
    return 0
