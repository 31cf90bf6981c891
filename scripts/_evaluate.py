"""What `gaploop evaluate` does: roll out or count, tell, write down."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaploop.core.errors import UnusableInputError
from gaploop.scripts import options

if TYPE_CHECKING:
    from gaploop.finetune.evaluation import Drop, Evaluation, Rollout

log = logging.getLogger(__name__)


def in_the_cell(config: Any, folder: Path | None) -> Evaluation:
    """Roll out in the embedded cell."""
    from gaploop.finetune.evaluate import condition_name, evaluate
    from gaploop.finetune.factors import settings

    _warn_of_another_cell(config.policy.required(), config.env)
    base = config.env.conditions
    varied = [*settings(config.factors, base), *config.conditions]
    count = len({condition_name(c) for c in varied})
    with running(config.n * count, folder) as seen:
        return evaluate(
            config.policy.required(),
            config.n,
            gaps=config.env.gaps,
            gap_seed=config.env.gap_seed,
            conditions=varied,
            seed=config.seed,
            workers=config.workers,
            task=config.env.task,
            max_s=config.max_s,
            base=base,
            folder=folder,
            on_rollouts=seen,
            ray=config.ray.address,
            robot=config.env.robot,
        )


def _warn_of_another_cell(path: str, env: Any) -> None:
    """Say so where a policy is tried on another task or arm than it was trained for."""
    from gaploop.finetune.lerobot_policy import cell_of

    trained = cell_of(path)
    if trained not in (None, (env.task, env.robot)):
        log.warning(
            "%s was trained for %s with %s, and is tried on %s with %s: see --env.task and "
            "--env.robot.", path, *trained, env.task, env.robot,
        )  # fmt: skip


def counted(config: Any) -> tuple[Evaluation, str]:
    """Count recorded rollouts; return them and what didn't count, in words."""
    from gaploop.finetune.evaluation import SETTINGS
    from gaploop.finetune.lerobot_policy import policy_id
    from gaploop.finetune.recorded import recorded

    if config.factors or config.conditions or config.env.conditions or config.env.gaps:
        raise UnusableInputError(
            "--rollouts counts takes by what they were recorded with: leave --factors, "
            "--conditions, --env.gaps and --env.conditions out."
        )
    if config.output_dir is not None and (config.output_dir / SETTINGS).exists():
        raise UnusableInputError(
            f"{config.output_dir} holds rollouts that were evaluated, not recorded. Name another "
            "--output_dir."
        )
    policy = policy_id(config.policy.path) if config.policy.path else ""
    with options.progress("Reading takes") as advance:
        found = recorded(config.rollouts, policy, advance)
    left = ", ".join(f"{n} {words}" for words, n in found.left_out.items())
    return found.evaluation, f"Left out: {left}." if left else ""


@contextlib.contextmanager
def running(total: int, folder: Path | None) -> Iterator[Callable[[Sequence[Rollout]], None]]:
    """Show a progress bar with the success so far; say what is kept where it is stopped."""
    won = tried = 0
    with options.progress("Rolling out", total) as advance:

        def seen(rollouts: Sequence[Rollout]) -> None:
            nonlocal won, tried
            won, tried = won + sum(r.success for r in rollouts), tried + len(rollouts)
            advance(len(rollouts), f"Rolling out, {won / tried:.0%} succeed" if tried else "")

        try:
            yield seen
        except (KeyboardInterrupt, SystemExit):
            if folder is not None:
                options.print_error(
                    f"{tried} of {total} rollouts are in {folder}; the same command goes on.",
                    "evaluate",
                )
            raise


def tell(config: Any, result: Evaluation, folder: Path | None, notes: str) -> int:
    """Print an evaluation and write it to `folder`; return the exit code."""
    from gaploop.finetune.evaluation import drops

    against = drops(result)
    said = {**result.to_json(), "drops": [{**vars(d), "verdict": d.verdict} for d in against]}
    if folder is not None:
        _write(config, result, against, said, folder)
    lines = [*_lines(result, against), *([notes] if notes else [])]
    if folder is not None:
        lines.append(str(folder / "evaluation.json"))
    options.emit(config.json, said, "\n".join(lines))
    return 0


def _write(
    config: Any,
    result: Evaluation,
    against: Sequence[Drop],
    said: dict[str, Any],
    folder: Path,
) -> None:
    from gaploop.core.files import write_atomically, write_json
    from gaploop.core.run_record import write_run
    from gaploop.finetune.evaluation import ROLLOUTS
    from gaploop.finetune.evaluation_figure import positions_png, success_png

    if not result.paired:  # recorded ones; others were written as they came
        write_atomically(folder / ROLLOUTS, result.to_csv())
    write_json(folder / "evaluation.json", options.jsonable(said))
    title = f"{config.policy.path or 'recorded rollouts'}; {result.evidence}"
    write_atomically(folder / "evaluation.png", success_png(result, against, title))
    if (positions := positions_png(result)) is not None:
        write_atomically(folder / "positions.png", positions)
    summary = {"successes": result.successes, "trials": result.trials, "rate": result.rate}
    policy = {"root": config.policy.path, "id": result.policy}
    write_run(folder, "evaluate", options.jsonable(config), [policy], summary)


def _lines(result: Evaluation, against: Sequence[Drop]) -> list[str]:
    """Return what people read: each setting, what it costs, what went wrong."""
    from gaploop.core.statistics import points
    from gaploop.finetune.factors import order, words

    drop = {d.condition: d for d in against}
    names = sorted(result.by_condition, key=lambda n: order(n, result.base))
    width = max(len(words(n, result.base)) for n in names)
    lines = [_place(result)]
    for name in names:
        line = f"  {words(name, result.base):<{width}}  {result.by_condition[name]!s:<26}"
        if (d := drop.get(name)) is not None:
            line += f"  {points(d.difference):<26}  {d.verdict}"
        lines.append(line.rstrip())
    modes = Counter(r.category for r in result.outcomes if not r.success)
    if modes:
        each = ", ".join(f"{words_of(name)} {n}" for name, n in modes.most_common(6))
        lines.append(f"Failures: {each}.")
    if against:
        lines.append(_verdict(against, result.paired))
    return [*lines, f"Evidence: {result.evidence}."]


def words_of(category: str) -> str:
    """Return a failure category as people read it."""
    return category.replace("_", " ") or "unknown"


def _place(result: Evaluation) -> str:
    from gaploop.finetune.evaluation import NOMINAL

    gaps = ", ".join(f"{name} {severity:g}" for name, severity in result.gaps.items())
    cell = f"cell with {gaps} (gap_seed {result.gap_seed})" if gaps else "nominal cell"
    place = result.where or cell
    return place if result.base == NOMINAL else f"{place}, {result.base}"


def _verdict(against: Sequence[Drop], paired: bool) -> str:
    sure = [d for d in against if d.verdict != "not shown"]
    scenes = "on equal scenes" if paired else "scenes not equal"
    return (
        f"{len(sure)} of {len(against)} settings differ from the base beyond chance "
        f"({scenes}, 5 % for all together)."
    )
