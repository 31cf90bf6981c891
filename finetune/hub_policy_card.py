"""The model card of a policy or an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gaploop.core.files import read_json
from gaploop.core.vocabulary import Domain
from gaploop.datasets.hub import card as hub_card
from gaploop.datasets.hub.dataset import PushOptions
from gaploop.datasets.hub.target import HubTarget
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.hub_policy_files import needs_gaploop
from gaploop.finetune.hub_policy_results import Results, results_of

LINEAGE: Final = "lineage.json"
TEMPLATE: Final = Path(__file__).parent / "hub_policy_card.md"
_SIMULATED: Final = frozenset({Domain.SIM.value, Domain.SIM_TARGET.value})


def card_of(
    folder: Path,
    identity: str,
    lineage: Mapping[str, Any],
    target: HubTarget,
    options: PushOptions,
    before: str,
) -> str:
    """Return README.md of a policy.

    Args:
        folder: the policy's or adapter's own folder.
        identity: its id.
        lineage: what went into it, as `lineage.json` says, or nothing.
        target: where it goes.
        options: licence and tags.
        before: the card that the Hub has, or "".
    """
    config = read_json(folder / "config.json")
    datasets = lineage.get("datasets", [])
    domains = {str(entry["domain"]) for entry in datasets}
    is_adapter = adapter.is_adapter(folder)
    kind = str(config.get("type", "policy"))
    base = str(lineage.get("base", ""))
    same = {identity, str(lineage.get("result", {}).get("merged") or identity)}
    results = results_of(folder.parent, same, base) if lineage else Results()
    facts = {
        "adapter": is_adapter,
        "kind": kind.upper() if len(kind) < 5 else kind,
        "identity": identity,
        "simulated": bool(domains) and domains <= _SIMULATED,
        "datasets": datasets,
        "base": base,
        "result": lineage.get("result", {}),
        "lora": lineage.get("config", {}).get("lora") if is_adapter else None,
        "rows": results.rows,
        "gate": results.gate,
        "repo_id": target.repo_id,
        "steps": needs_gaploop(folder),
        "domain": _domain(folder),
        "licence": hub_card.licence_of(before, options.license),
        "lineage": LINEAGE if lineage else "",
    }
    tags = ["robotics", "lerobot", "gaploop", kind, *(["lora"] if is_adapter else [])]
    tags += ["sim-to-sim"] if Domain.SIM_TARGET in domains else []
    metadata = {"library_name": "lerobot", "pipeline_tag": "robotics", "tags": tags}
    title, body = target.repo_id.partition("/")[2], hub_card.render(TEMPLATE, facts)
    return hub_card.card(before, title, body, metadata, options.license, options.tags)


def _domain(folder: Path) -> float | None:
    """Return where the policy is told that it drives: 0 in sim, 1 on the real arm; None if not."""
    file = folder / "policy_preprocessor.json"
    steps = read_json(file).get("steps", ()) if file.exists() else ()
    said = [step.get("config", {}).get("domain") for step in steps]
    return next((float(value) for value in said if value is not None), None)
