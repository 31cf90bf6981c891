"""`gaploop diagnose`: what went wrong in a set of takes, when, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_atomically
from gaploop.scripts import options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gaploop.core.take import Take
    from gaploop.core.types import Image
    from gaploop.failure_analysis.across.across import Across
    from gaploop.failure_analysis.diagnosis import Diagnosis
    from gaploop.failure_analysis.reference import Reference
    from gaploop.failure_analysis.signals.registry import TakeSignals
    from gaploop.failure_analysis.views.policy_view import PolicyTrace
    from gaploop.failure_analysis.views.view import TakeView

EXAMPLE = """\
gaploop diagnose ./rollouts --output_dir=./diagnosis
gaploop diagnose ./rollouts --policy.path=adapted --trained_on=./demonstrations
"""


@dataclass
class DiagnoseConfig:
    """Say what went wrong in each failed take, when, and why: mode, phase, gap dimensions.

    And what the takes say together: what each condition costs, changes over time, groups among the
    failures that nothing explains. Reads images, telemetry and outcomes of a journal or dataset.
    Successful takes in it, or those of --reference, say what is usual. Writes diagnosis.json,
    report.html, its figures as PNG, and run.json.
    """

    dataset: options.DatasetEpisodes = field(default_factory=options.DatasetEpisodes)
    reference: Path | None = None
    """What is usual: a reference file, or a folder of takes that went well."""
    save_reference: Path | None = None
    """Write what is usual in these takes to this file, and diagnose nothing."""
    images: bool = True
    """Look at pictures; without, only telemetry and the tracked scene."""
    labels: Path | None = None
    """What engineers say of these takes, a labels.jsonl; the folder's own unless given. From 12
    labelled failures on, the others are judged by what they teach about this station."""
    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    trained_on: Path | None = None
    """With --policy.path: takes that the policy learned from, to say how far from them the failed
    takes are, in its own encoder."""
    budget: int = 50
    """Takes that the report's plan may ask for; `gaploop plan` knows more ways to say it."""
    json: bool = False
    """Print the diagnosis as one JSON object on stdout."""
    output_dir: Path | None = None
    """Where to write; <DIR>_diagnosis by default."""


def run(config: DiagnoseConfig) -> int:
    """Diagnose; exit code 0, whatever was found."""
    from gaploop.core.run_record import write_run
    from gaploop.datasets.sources import open_takes
    from gaploop.failure_analysis.diagnosis import save_diagnosis
    from gaploop.failure_analysis.lineage import takes_input

    source = config.dataset.folder()
    takes = _chosen(list(open_takes(source)), config.dataset.episodes)
    if config.save_reference is not None:
        return _save_reference(takes, config.save_reference, source)
    reference = _reference(config.reference)
    default = source.parent / f"{source.resolve().name}_diagnosis"
    folder = writable_folder(config.output_dir or default)
    causes = _causes(source, config.labels)
    ask_policy = _ask_policy(config)
    diagnosis, across = _diagnose(takes, reference, source, config.images, causes, ask_policy)
    save_diagnosis(diagnosis, folder / "diagnosis.json")
    _write_report(diagnosis, across, takes, folder, config)
    result = {"id": diagnosis.id, "diagnosed": len(diagnosis.takes)}
    inputs = [takes_input(source, takes)]
    write_run(folder, "diagnose", options.jsonable(config), inputs, result)
    options.emit(config.json, diagnosis.to_json(), _text(diagnosis, across, folder))
    return 0


def _chosen(takes: list[Take], episodes: list[int] | None) -> list[Take]:
    if episodes is None:
        return takes
    missing = sorted(set(episodes) - {t.episode for t in takes if t.episode is not None})
    if missing:
        raise UnusableInputError(
            f"--dataset.episodes: {missing} not in it. It holds {len(takes)} takes from 0."
        )
    return [t for t in takes if t.episode in episodes]


def _causes(source: Path, path: Path | None) -> dict[str, dict[str, float]]:
    """Return what engineers say caused failures, by uid."""
    from gaploop.datasets.labels.store import open_labelled
    from gaploop.failure_analysis.attribution.station_labels import engineers_say

    if path is not None and not path.is_file():
        raise UnusableInputError(
            f"--labels={path} is no file. Name a labels.jsonl, or leave it away: the labels of "
            f"{source} itself are read anyway."
        )
    return engineers_say(path or open_labelled(source).file)


def _diagnose(
    takes: Sequence[Take],
    reference: Reference | None,
    source: Path,
    images: bool,
    causes: Mapping[str, Mapping[str, float]],
    ask_policy: Callable[[Take], PolicyTrace | None] | None,
) -> tuple[Diagnosis, Across]:
    from gaploop.failure_analysis.across.across import across_takes
    from gaploop.failure_analysis.across.unexplained import Unexplained
    from gaploop.failure_analysis.diagnosis import diagnose, needs_diagnosis
    from gaploop.failure_analysis.reference import choose_reference
    from gaploop.failure_analysis.signals.registry import measure

    signals: dict[str, TakeSignals] = {}
    total = sum(needs_diagnosis(take) for take in takes)
    usual = choose_reference(takes, reference)
    with options.progress("Diagnosing", total=total) as advance:

        def keep(take: Take, view: TakeView) -> None:
            signals[take.info.uid] = measure(view)
            advance()

        found = diagnose(
            takes,
            usual,
            source=source.resolve().name,
            images=images,
            on_take=keep,
            ask_policy=ask_policy,
            causes=causes,
        )
    unclear = [
        Unexplained(t.uid, t.mode, signals[t.uid])
        for t in found.takes
        if t.abstained and t.uid in signals
    ]
    across = across_takes(takes, unclear, usual.signals)
    more = {"policy": _policy_signals(signals)} if ask_policy is not None else {}
    return replace(found, summary={**found.summary, **more, "across": across.to_json()}), across


def _ask_policy(config: DiagnoseConfig) -> Callable[[Take], PolicyTrace | None] | None:
    """Return what asks the policy along a take; None where none is named."""
    from gaploop.datasets.sources import open_takes
    from gaploop.failure_analysis.views.policy_view import FeatureSpace, ask, features_of

    if not config.policy.path:
        if config.trained_on is not None:
            raise UnusableInputError("--trained_on needs the policy: add --policy.path=DIR.")
        return None
    from gaploop.finetune.lerobot_policy import load_policy
    from gaploop.finetune.lerobot_probe import probe

    asked, space = probe(load_policy(config.policy.path)), None
    if config.trained_on is not None:
        with options.progress("Asking the policy about its training"):
            space = FeatureSpace.fit(features_of(open_takes(config.trained_on), asked))
    return lambda take: ask(take, asked, space)


def _policy_signals(signals: Mapping[str, TakeSignals]) -> dict[str, dict[str, float]]:
    """Return what was measured of the policy: signal to take to value."""
    from gaploop.failure_analysis.signals.registry import registry

    return {
        name: {uid: m[name] for uid, m in signals.items() if not math.isnan(m[name])}
        for name, spec in registry().items()
        if spec.source == "policy"
    }


def _write_report(
    diagnosis: Diagnosis,
    across: Across,
    takes: Sequence[Take],
    folder: Path,
    config: DiagnoseConfig,
) -> None:
    from gaploop.failure_analysis.planning.plan import make_plan
    from gaploop.failure_analysis.report.report import diagnosis_report, report_pngs

    plan = make_plan(diagnosis, config.budget) if diagnosis.takes else None
    pictures = _pictures(diagnosis, across, takes) if config.images else {}
    for name, png in report_pngs(diagnosis, across).items():
        write_atomically(folder / name, png)
    write_atomically(folder / "report.html", diagnosis_report(diagnosis, pictures, across, plan))


def _pictures(
    diagnosis: Diagnosis, across: Across, takes: Sequence[Take]
) -> dict[str, Sequence[Image]]:
    """Return pictures of the takes that the report shows; of thousands they would fill memory."""
    from gaploop.failure_analysis.report.report import shown_takes
    from gaploop.failure_analysis.views.pictures import example_pictures
    from gaploop.failure_analysis.views.view import TakeView

    shown = {t.uid for t in shown_takes(diagnosis.takes)} | {g.uids[0] for g in across.groups}
    return {
        take.info.uid: example_pictures(TakeView(take).pictures)
        for take in takes
        if take.info.uid in shown
    }


def _reference(path: Path | None) -> Reference | None:
    from gaploop.datasets.sources import open_takes
    from gaploop.failure_analysis.modes.foreign_sets import LEAST_TAKES
    from gaploop.failure_analysis.reference import build_reference, load_reference

    if path is None:
        return None
    if not path.is_dir():
        return load_reference(path)
    built = build_reference(open_takes(path), f"successful takes of {path.resolve().name}")
    if built is None:
        raise UnusableInputError(
            f"--reference={path} holds fewer than {LEAST_TAKES} successful takes. Name more."
        )
    return built


def _save_reference(takes: Sequence[Take], path: Path, source: Path) -> int:
    from gaploop.failure_analysis.modes.foreign_sets import LEAST_TAKES
    from gaploop.failure_analysis.reference import build_reference, save_reference

    writable_folder(path.parent, "Folder")
    built = build_reference(takes, f"{source.resolve().name}")
    if built is None:
        raise UnusableInputError(
            f"{source} holds fewer than {LEAST_TAKES} successful takes. Record more first."
        )
    save_reference(built, path)
    options.emit(False, {}, f"{path}: what is usual in {built.takes} takes that went well")
    return 0


def _text(diagnosis: Diagnosis, across: Across, folder: Path) -> str:
    from gaploop.failure_analysis.across.words import across_lines

    summary = diagnosis.summary
    lines = [
        f"{summary['diagnosed']} of {summary['takes']} takes diagnosed, "
        f"{summary['abstained']} without a clear cause (usual: {summary['reference']['name']})"
    ]
    if summary["sim_to_sim"]:
        lines.append("sim-to-sim: the embedded cell stands for the real one")
    lines += _judged_by(summary)
    lines += _policy_lines(summary.get("policy", {}))
    for take in diagnosis.takes:
        name = f"episode {take.episode}" if take.episode is not None else take.uid[:13]
        why = " and ".join(take.named) or take.top or "no clear cause"
        share = f" {take.dimensions[take.top]:.0%}" if take.top and len(take.named) < 2 else ""
        when = f" in {take.phase}" if take.phase else ""
        first = f": {take.evidence[0].says}" if take.evidence else ""
        lines.append(f"  {name}  {take.mode}{when}, {why}{share}{first}")
    lines += ["", "All takes together:", *across_lines(across), f"{folder / 'report.html'}"]
    return "\n".join(lines)


def _policy_lines(policy: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Say what the policy makes of the takes: the median, and the take where it is most."""
    from statistics import median

    from gaploop.failure_analysis.signals.registry import registry

    lines = []
    for name, values in policy.items():
        if values:
            worst = max(values, key=lambda uid: values[uid])
            spec = registry()[name]
            says = spec.says.format(value=spec.show(median(values.values())))
            lines.append(f"{says} (median; most in {worst[:13]}: {spec.show(values[worst])})")
    return lines


def _judged_by(summary: Mapping[str, Any]) -> list[str]:
    """Say where the learned model didn't judge, and whether it learned from labels."""
    lines = []
    if summary["labels_learned_from"]:
        lines.append(f"learned from {summary['labels_learned_from']} labels of engineers")
    for by, count in summary["attributed_by"].items():
        if by != "model":
            lines.append(f"{count} judged by the {by}")
    return lines
