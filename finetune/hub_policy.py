"""An adapter or policy onto a Hub: with its base, its lineage, and nothing of this computer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.consent import Use, require_consent
from gaploop.core.consent_store import load_register
from gaploop.core.errors import UnusableInputError
from gaploop.core.paths import refuse_links_out
from gaploop.core.take import TakeInfo
from gaploop.datasets import layout
from gaploop.datasets.hub import card as hub_card
from gaploop.datasets.hub import upload
from gaploop.datasets.hub.dataset import PushOptions
from gaploop.datasets.hub.scan import require_clean
from gaploop.datasets.hub.target import HubTarget
from gaploop.datasets.hub.upload import README, ChangedError, Contents, HubFile, Pushed
from gaploop.finetune.hub_policy_card import LINEAGE, card_of
from gaploop.finetune.hub_policy_files import files_of, owns, portable
from gaploop.finetune.lerobot_policy import load_policy, policy_id, resolve
from gaploop.finetune.runs import run_of, withdrawn_from

SCHEMA: Final = "gaploop.lineage.v1"
_CONFIG: Final = ("share_real", "lora", "full", "spec", "select", "sim_takes")
_INPUT: Final = ("sha256", "domain", "share", "takes", "frames", "uids", "plans")
_RESULT: Final = ("steps", "loss", "held_out", "merged")


@dataclass(frozen=True)
class PolicyParcel:
    """What would be pushed.

    Attributes:
        contents: files, with the card.
        card: README.md.
        warnings: what the user should know and may ignore.
    """

    contents: Contents
    card: str
    warnings: tuple[str, ...]


def push_policy(
    folder: Path,
    target: HubTarget,
    options: PushOptions | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Pushed, PolicyParcel]:
    """Push a policy, an adapter or the adapter of a run.

    Raises:
        UnusableInputError: it must not be pushed, or the Hub refuses; why, and how to fix it.
        HubUnreachableError: the Hub can't be reached or goes on failing; try again later.
    """
    options = options or PushOptions()
    folder = resolve(folder)
    pack_policy(folder, target, options)  # before anything is asked of the Hub
    before = upload.read_remote(target, README, options.patience)
    parcel = pack_policy(folder, target, options, before)
    try:
        return upload.push(target, parcel.contents, options.patience, on_progress), parcel
    except ChangedError:
        raise UnusableInputError(
            f"{folder} is being written by another process. Push it when that is done."
        ) from None


def pack_policy(
    folder: Path, target: HubTarget, options: PushOptions, before: str = ""
) -> PolicyParcel:
    """Return what would be pushed. `before` is the card that the Hub has, or "".

    Raises:
        UnusableInputError: it doesn't load, a consent is missing, or it holds a secret or a path.
    """
    refuse_links_out(folder, of_snapshot=False)
    load_policy(folder)
    identity = policy_id(folder)
    lineage, roots, warnings = _lineage(folder, identity)

    def still_allowed() -> None:
        if policy_id(folder) != identity:
            raise ChangedError(f"{folder} was changed while it was pushed.")
        _require_consent(folder, lineage, roots, options.consents)

    _require_consent(folder, lineage, roots, options.consents)
    require_clean(folder, files_of(folder), options.allow_paths)
    contents = portable(folder, target.repo_id)
    card = card_of(folder, identity, lineage, target, options, before)
    contents.append(HubFile(README, card.encode()))
    if lineage:
        contents.append(HubFile(LINEAGE, hub_card.json_bytes(lineage)))
    message = f"gaploop push: policy {identity}"
    packed = Contents(tuple(contents), message, owns, check=still_allowed)
    return PolicyParcel(packed, card, tuple(warnings))


def _lineage(folder: Path, identity: str) -> tuple[dict[str, Any], list[Path], list[str]]:
    """Return what went into a policy without a word about this computer, and where that lies."""
    value = run_of(folder, identity)
    if not value:
        return {}, [], ["No run.json beside it: the card can't say what it was trained on."]
    result = value.get("result", {})
    inputs = [entry for entry in value.get("inputs", ()) if isinstance(entry, dict)]
    lineage = {
        "schema": SCHEMA,
        "policy": identity,
        **{key: value.get(key) for key in ("id", "command", "at", "versions", "seed")},
        "base": value.get("lineage", {}).get("base", ""),
        "config": {k: v for k, v in value.get("config", {}).items() if k in _CONFIG},
        "datasets": [{k: entry.get(k) for k in _INPUT} for entry in inputs],
        "result": {key: result.get(key) for key in _RESULT},
    }
    roots = [Path(str(entry.get("root", ""))) for entry in inputs]
    lost = [str(root) for root in roots if not layout.is_dataset(root) and root.is_absolute()]
    warnings = [f"Consent can't be asked again for takes of {', '.join(lost)}."] if lost else []
    return lineage, roots, warnings


def _require_consent(
    folder: Path, lineage: Mapping[str, Any], roots: list[Path], consents: Path | None
) -> None:
    """Refuse a policy that learned from somebody who doesn't agree to a push, or not any more.

    Raises:
        UnusableInputError: which take, and why.
    """
    reason = withdrawn_from(folder, policy_id(folder), consents)
    if reason:
        raise UnusableInputError(
            f"{folder} can't be pushed: it {reason}. Train it again without them."
        )
    uids = {uid for entry in lineage.get("datasets", ()) for uid in entry.get("uids") or ()}
    if not uids:
        return
    register = load_register(consents)
    infos: list[TakeInfo] = []
    for root in filter(layout.is_dataset, roots):
        infos += [e.info for e in layout.read_episodes(layout.read_info(root))]
    used = [info for info in infos if info.uid in uids]
    require_consent(register, used, Use.PUSH, f"{folder}, which learned from it,")
