"""`gaploop evaluate`: how often a policy succeeds, with intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.scripts import options

if TYPE_CHECKING:
    from gaploop.finetune.evaluation import Evaluation

EXAMPLE: Final = """\
gaploop evaluate --policy.path=base --n=100
gaploop evaluate --policy.path=adapted/adapter --env.gaps='{"object_property": 0.6}' --n=50 --json
gaploop evaluate --policy.path=base --conditions='[{"distractors": 2}, {"lighting": "dim"}]'
"""


@dataclass
class EvaluateConfig:
    """Roll a policy out on the embedded cell and give its success with Wilson intervals.

    Equal --seed gives equal scenes, so that the results of two policies pair up. With injected
    gaps or conditions the result is sim-to-sim evidence and says so.
    """

    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    env: options.EnvOptions = field(default_factory=options.EnvOptions)
    conditions: list[dict[str, Any]] = field(default_factory=list)
    """Settings to try one at a time, each over --n rollouts, besides --env.conditions."""
    n: int = 100
    """Rollouts under each condition."""
    seed: int = 0
    """First scene."""
    workers: int = 2
    """Processes."""
    max_s: float = 8.0
    """Longest rollout [simulated s]."""
    output_dir: Path | None = None
    """Also write evaluation.json and rollouts.csv here."""
    json: bool = False
    """Print one JSON object."""


POSITIONAL: Final = "policy.path"


def run(config: EvaluateConfig) -> int:
    """Evaluate and print."""
    from gaploop.core.files import writable_folder, write_atomically, write_json
    from gaploop.finetune.evaluate import evaluate

    folder = writable_folder(config.output_dir) if config.output_dir else None
    path = config.policy.required()
    settings = [config.env.conditions, *config.conditions]
    with options.progress("Rolling out", total=config.n * len(settings)) as advance:
        result = evaluate(
            path,
            config.n,
            gaps=config.env.gaps,
            gap_seed=config.env.gap_seed,
            conditions=settings,
            seed=config.seed,
            workers=config.workers,
            task=config.env.task,
            max_s=config.max_s,
            progress=advance,
        )
    if folder:
        write_json(folder / "evaluation.json", options.jsonable(result.to_json()))
        write_atomically(folder / "rollouts.csv", result.to_csv())
    options.emit(config.json, result.to_json(), _text(result))
    return 0


def _text(result: Evaluation) -> str:
    from gaploop.finetune.evaluation import NOMINAL, evidence

    gaps = ", ".join(f"{name} {severity:g}" for name, severity in result.gaps.items())
    cell = f"cell with {gaps} (gap_seed {result.gap_seed})" if gaps else "nominal cell"
    lines = [
        f"{cell if name == NOMINAL else f'{cell}, {name}'}: {rate}"
        for name, rate in result.by_condition.items()
    ]
    return "\n".join([*lines, f"Evidence: {evidence(result.domain)}."])
