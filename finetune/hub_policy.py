"""An adapter or policy onto a Hub: with its base, its lineage, what was measured,
and nothing of this computer.

LeRobot loads an adapter's base from `base_model_name_or_path`. A path would mean a folder of this
computer. So the repository names itself: LeRobot then takes `model.safetensors` from its root,
which is the base's, once more beside `base/` (the Hub and the download cache keep one copy of
equal files). Whoever has the repository has the base.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.consent import Use, load_register, require_consent
from gaploop.core.errors import GaploopError, UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.paths import refuse_links_out
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain
from gaploop.datasets import layout
from gaploop.datasets.hub import card as hub_card
from gaploop.datasets.hub import upload
from gaploop.datasets.hub.dataset import NOTICES, PushOptions, UploadPlan, require_clean
from gaploop.datasets.hub.target import REPO_ID, HubTarget
from gaploop.datasets.hub.upload import README, ChangedError, Contents, HubFile, Pushed
from gaploop.finetune import evaluation
from gaploop.finetune import lerobot_adapter as adapter
from gaploop.finetune.evaluation import NOMINAL, Rate, evidence
from gaploop.finetune.lerobot_adapter import BASE_KEY
from gaploop.finetune.lerobot_policy import WEIGHTS, load_policy, policy_id, resolve
from gaploop.finetune.runs import run_of, withdrawn_from

log = logging.getLogger(__name__)

EVALUATION: Final = "evaluation.json"
GATE: Final = "gate.json"
DEPTH: Final = 3
"""How many folders below the run's files are looked for."""
PARTS: Final = frozenset({".safetensors", ".json", ".yaml", ".yml"})
"""What policies consist of, as LeRobot's own push has it."""
LINEAGE: Final = "lineage.json"
TEMPLATE: Final = Path(__file__).parent / "hub_policy_card.md"
_SIMULATED: Final = frozenset({Domain.SIM.value, Domain.SIM_TARGET.value})
SCHEMA: Final = "gaploop.lineage.v1"
_CONFIG: Final = ("share_real", "lora", "full", "spec", "select", "sim_takes")
_INPUT: Final = ("sha256", "domain", "share", "takes", "frames", "uids", "plans")
_RESULT: Final = ("steps", "loss", "held_out", "merged")


def push_policy(
    folder: Path,
    target: HubTarget,
    options: PushOptions,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Pushed, UploadPlan]:
    """Push a policy, an adapter or the adapter of a run.

    Raises:
        UnusableInputError: it must not be pushed, or the Hub refuses; why, and how to fix it.
        HubUnreachableError: the Hub can't be reached or goes on failing; try again later.
    """
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
) -> UploadPlan:
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
            raise ChangedError(f"{folder} was changed while it was pushed. Push it again.")
        _require_consent(folder, lineage, roots)

    _require_consent(folder, lineage, roots)
    require_clean(folder, files_of(folder), options.allow_paths)
    contents = portable(folder, target.repo_id)
    card = card_of(folder, identity, lineage, target, options, before)
    contents.append(HubFile(README, card.encode()))
    if lineage:
        text = json.dumps(lineage, indent=1, sort_keys=True, default=str)  # the same for the same
        contents.append(HubFile(LINEAGE, f"{text}\n".encode()))
    message = f"gaploop push: policy {identity}"
    packed = Contents(tuple(contents), message, owns, check=still_allowed)
    return UploadPlan(packed, card, tuple(warnings))


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
    warnings = [f"Consent can't be asked again for episodes of {', '.join(lost)}."] if lost else []
    return lineage, roots, warnings


def _require_consent(folder: Path, lineage: Mapping[str, Any], roots: list[Path]) -> None:
    """Refuse a policy that learned from somebody who doesn't agree to a push, or not any more.

    Raises:
        UnusableInputError: which take, and why.
    """
    reason = withdrawn_from(folder, policy_id(folder))
    if reason:
        raise UnusableInputError(
            f"{folder} can't be pushed: it {reason}. Train it again without them."
        )
    uids = {uid for entry in lineage.get("datasets", ()) for uid in entry.get("uids") or ()}
    if not uids:
        return
    register = load_register()
    infos: list[TakeInfo] = []
    for root in filter(layout.is_dataset, roots):
        infos += [e.info for e in layout.read_episodes(layout.read_info(root))]
    used = [info for info in infos if info.uid in uids]
    require_consent(register, used, Use.PUSH, f"{folder}, which learned from it,")


def files_of(folder: Path) -> dict[str, Path]:
    """Return what belongs to a policy's folder: name to path."""
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        p.relative_to(folder).as_posix(): p
        for p in found
        if (p.suffix in PARTS or p.stem.upper() in NOTICES)
        and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    }


def portable(folder: Path, repo_id: str) -> list[HubFile]:
    """Return the files of a policy so that plain LeRobot loads it by the name `repo_id`.

    Raises:
        UnusableInputError: an adapter whose base is a path of this computer.
    """
    files: dict[str, Path | bytes] = dict(files_of(folder))
    if adapter.is_adapter(folder):
        config = read_json(folder / adapter.CONFIG)
        if (folder / adapter.BASE / WEIGHTS).is_file():
            config = {**config, BASE_KEY: repo_id}
            files[adapter.CONFIG] = (json.dumps(config, indent=1, sort_keys=True) + "\n").encode()
            files[WEIGHTS] = folder / adapter.BASE / WEIGHTS
        elif not REPO_ID.fullmatch(base := str(config.get(BASE_KEY) or "")) or Path(base).exists():
            raise UnusableInputError(
                f"{folder} names {base or 'nothing'} as its base, which nobody else has. Copy the "
                f"base policy to {folder / adapter.BASE}, or push the merged folder of the same "
                "run."
            )
    return [HubFile(name, source) for name, source in files.items()]


def owns(name: str) -> bool:
    """Say whether a file on the Hub belongs to a policy: an old adapter's must not stay beside."""
    path = Path(name)
    return path.suffix in PARTS and (len(path.parts) == 1 or path.parts[0] == adapter.BASE)


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
        lineage: what went into it, as `lineage.json` says, or nothing.
        before: the card that the Hub has, or "".
    """
    config = read_json(folder / "config.json")
    datasets = lineage.get("datasets", [])
    domains = {str(entry["domain"]) for entry in datasets}
    is_adapter = adapter.is_adapter(folder)
    kind = str(config.get("type", "policy"))
    base = str(lineage.get("base", ""))
    same = {identity, str(lineage.get("result", {}).get("merged") or identity)}
    rows, gate = results_of(folder.parent, same, base) if lineage else ((), "")
    # Where the policy is told that it drives: 0 in sim, 1 on the real arm; None if not.
    files = sorted(folder.glob("policy_*processor.json"))
    steps = [step for file in files for step in read_json(file).get("steps", ())]
    said = [step.get("config", {}).get("domain") for step in steps]
    classes = (str(step.get("class", "")) for step in steps)
    facts = {
        "adapter": is_adapter,
        "kind": kind.upper() if len(kind) < 5 else kind,
        "identity": identity,
        "simulated": bool(domains) and domains <= _SIMULATED,
        "datasets": datasets,
        "base": base,
        "result": lineage.get("result", {}),
        "lora": lineage.get("config", {}).get("lora") if is_adapter else None,
        "rows": rows,
        "gate": gate,
        "repo_id": target.repo_id,
        "steps": tuple(name for name in classes if name.startswith("gaploop.")),  # its own
        "domain": next((float(value) for value in said if value is not None), None),
        "licence": hub_card.licence_of(before, options.license),
        "lineage": LINEAGE if lineage else "",
    }
    tags = ["robotics", "lerobot", "gaploop", kind, *(["lora"] if is_adapter else [])]
    tags += ["sim-to-sim"] if Domain.SIM_TARGET in domains else []
    metadata = {"library_name": "lerobot", "pipeline_tag": "robotics", "tags": tags}
    title, body = target.repo_id.partition("/")[2], hub_card.render(TEMPLATE, facts)
    return hub_card.card(before, title, body, metadata, options.license)


@dataclass(frozen=True)
class ResultRow:
    """Success under one setting.

    Attributes:
        dimensions: gap dimensions that were injected, or "".
        before: of the base; None where it wasn't measured.
        after: of the policy; None where it wasn't measured.
    """

    dimensions: str
    setting: str
    evidence: str
    before: Rate | None
    after: Rate | None


def results_of(
    run: Path, identities: Collection[str], base: str
) -> tuple[tuple[ResultRow, ...], str]:
    """Return what the files in a run folder say of its policy and of its base.

    Args:
        run: the run folder; evaluations of the policy and of its base may lie in it.
        identities: ids of the policy: of the adapter and of its merged twin.
        base: id of the policy that it was adapted from, or "".

    Returns:
        success by setting, the nominal cell first; verdict and reason of the gate, or "".
    """
    found: dict[tuple[str, str, str], dict[str, Rate]] = {}
    for value in _values(run, EVALUATION):
        if value.get("schema") != evaluation.SCHEMA:
            continue
        policy = str(value.get("policy"))
        who = "after" if policy in identities else "before" if policy == base else ""
        if not who:
            continue
        gaps = {name: severity for name, severity in value.get("gaps", {}).items() if severity}
        injected = ", ".join(f"{name} {severity:g}" for name, severity in gaps.items())
        cell = [f"{injected} (gap_seed {value.get('gap_seed', 0)})"] if gaps else []
        dimensions = ", ".join(sorted({name.partition(".")[0] for name in gaps}))
        where = str(value.get("evidence") or evidence(Domain(value["domain"])))
        for condition, rate in value["by_condition"].items():
            words = [*cell, condition] if condition != NOMINAL or not cell else cell
            rates = found.setdefault((dimensions, "; ".join(words), where), {})
            measured = Rate.from_json(rate)
            if who not in rates or rates[who].trials < measured.trials:
                rates[who] = measured
    order = sorted(found, key=lambda key: (bool(key[0]), key[1] != NOMINAL, key))
    rows = [ResultRow(*key, found[key].get("before"), found[key].get("after")) for key in order]
    gates = [
        value
        for value in _values(run, GATE)
        if isinstance(value.get("contest"), Mapping)
        and value["contest"].get("candidate") in identities
    ]
    # What a gate's stages counted of both sides, task by task.
    stages = [(value, stage) for value in gates for stage in value.get("stages", ())]
    for value, stage in stages:
        rates = {name: Rate.from_json(said) for name, said in stage.get("rates", {}).items()}
        for name, after in rates.items():
            task, _, side = name.rpartition(": ")
            if side == "candidate":
                before = rates.get(f"{task}: baseline" if task else "baseline")
                where = f"gate, {stage['stage']}, until it was decided"
                setting = f"{where}: {task}" if task else where
                rows.append(ResultRow("", setting, str(value.get("evidence", "")), before, after))
    verdict = ""
    if gates:
        value = gates[0]
        verdict = f"{value['verdict']} against `{value['contest']['baseline']}`: "
        verdict += str(value.get("message") or value.get("says") or "")
        verdict += f" (evidence: {value['evidence']})" if value.get("evidence") else ""
    return tuple(rows), verdict


def _values(run: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the files called `name` in a run folder, leaving out what can't be read."""
    for depth in range(DEPTH + 1):
        for file in sorted(run.glob("*/" * depth + name)):
            try:
                value = read_json(file)
            except GaploopError as error:
                log.warning("%s isn't used for the card: %s", file, error)
                continue
            if isinstance(value, dict):
                yield value
