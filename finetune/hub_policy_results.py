"""What was measured of a policy, for its card: from the files that gaploop wrote into its run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import GaploopError
from gaploop.core.files import read_json
from gaploop.core.vocabulary import Domain
from gaploop.finetune.evaluation import NOMINAL, SCHEMA, Rate, evidence

log = logging.getLogger(__name__)

EVALUATION: Final = "evaluation.json"
GATE: Final = "gate.json"
DEPTH: Final = 3
"""How many folders below the run's files are looked for."""


@dataclass(frozen=True)
class ResultRow:
    """Success under one setting.

    Attributes:
        dimensions: gap dimensions that were injected, or "".
        setting: what was set, in words.
        evidence: what the figures are evidence of.
        before: of the base; None where it wasn't measured.
        after: of the policy; None where it wasn't measured.
    """

    dimensions: str
    setting: str
    evidence: str
    before: Rate | None
    after: Rate | None


@dataclass(frozen=True)
class Results:
    """What was measured of a policy and of its base.

    Attributes:
        rows: success by setting, the nominal cell first.
        gate: verdict and reason of the gate, or "".
    """

    rows: tuple[ResultRow, ...] = ()
    gate: str = ""


def results_of(run: Path, identities: Collection[str], base: str) -> Results:
    """Return what the files in a run folder say of its policy.

    Args:
        run: the run folder; evaluations of the policy and of its base may lie in it.
        identities: ids of the policy: of the adapter and of its merged twin.
        base: id of the policy that it was adapted from, or "".
    """
    found: dict[tuple[str, str, str], dict[str, Rate]] = {}
    for value in _values(run, EVALUATION):
        if value.get("schema") != SCHEMA:
            continue
        policy = str(value.get("policy"))
        who = "after" if policy in identities else "before" if policy == base else ""
        if not who:
            continue
        for condition, rate in value["by_condition"].items():
            rates = found.setdefault(_setting(value, condition), {})
            measured = _rate(rate)
            if who not in rates or rates[who].trials < measured.trials:
                rates[who] = measured
    order = sorted(found, key=lambda key: (bool(key[0]), key[1] != NOMINAL, key))
    rows = tuple(
        ResultRow(*key, found[key].get("before"), found[key].get("after")) for key in order
    )
    gates = [value for value in _values(run, GATE) if _is_about(value, identities)]
    rows += tuple(row for value in gates for row in _gate_rows(value))
    return Results(rows, _gate(gates[0]) if gates else "")


def _setting(value: Mapping[str, Any], condition: str) -> tuple[str, str, str]:
    gaps = {name: severity for name, severity in value.get("gaps", {}).items() if severity}
    words = [f"{name} {severity:g}" for name, severity in gaps.items()]
    words = [f"{', '.join(words)} (gap_seed {value.get('gap_seed', 0)})"] if words else []
    words += [condition] if condition != NOMINAL or not words else []
    dimensions = ", ".join(sorted({name.partition(".")[0] for name in gaps}))
    return dimensions, "; ".join(words), evidence(Domain(value["domain"]))


def _is_about(gate: Mapping[str, Any], identities: Collection[str]) -> bool:
    contest = gate.get("contest")
    return isinstance(contest, Mapping) and contest.get("candidate") in identities


def _gate(value: Mapping[str, Any]) -> str:
    """Return a gate's verdict in words."""
    words = f"{value['verdict']} against `{value['contest']['baseline']}`: {value.get('says', '')}"
    return f"{words} (evidence: {value['evidence']})" if value.get("evidence") else words


def _gate_rows(value: Mapping[str, Any]) -> Iterator[ResultRow]:
    """Yield what a gate's stages counted of both sides, task by task."""
    for stage in value.get("stages", ()):
        rates = {name: _rate(said) for name, said in stage.get("rates", {}).items()}
        for name, after in rates.items():
            task, _, side = name.rpartition(": ")
            if side == "candidate":
                before = rates.get(f"{task}: baseline" if task else "baseline")
                where = f"gate, {stage['stage']}, until it was decided"
                setting = f"{where}: {task}" if task else where
                yield ResultRow("", setting, str(value.get("evidence", "")), before, after)


def _rate(said: Mapping[str, Any]) -> Rate:
    low, high = said["interval"]
    return Rate(said["successes"], said["trials"], said["rate"], (low, high))


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
