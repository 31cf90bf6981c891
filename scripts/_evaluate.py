"""What `gaploop evaluate` does: rolls a policy out, or counts what was recorded."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import writable_folder, write_atomically, write_json
from gaploop.core.labels import check_dimensions
from gaploop.core.run_record import write_run
from gaploop.core.statistics import points
from gaploop.core.twin import load_twin
from gaploop.core.vocabulary import INSTRUCTION
from gaploop.finetune.evaluate import condition_name, recorded
from gaploop.finetune.evaluate import evaluate as in_the_cell
from gaploop.finetune.evaluation import NOMINAL, ROLLOUTS, SETTINGS, Evaluation, Rollout, drops
from gaploop.finetune.factors import order, positions_png, settings, success_png, unread, words
from gaploop.finetune.lerobot_gym import Demonstrations, evaluate_gym
from gaploop.finetune.lerobot_policy import (
    cell_of,
    device_named,
    policy_id,
    reads_instruction,
    warn_withdrawn,
)
from gaploop.scripts import options
from gaploop.scripts.cli import command
from gaploop.scripts.evaluate import RolloutsOptions
from gaploop.sim.lerobot_worlds import GymEnvConfig, named_world
from gaploop.sim.randomise import known_and_drawn
from gaploop.sim.world import WorldSpec

log = logging.getLogger(__name__)


def run(config: Any) -> int:
    """Evaluate and print."""
    if options.show_file(config.env):
        return 0
    result, notes = _evaluated(config)
    # Whose rollouts, each setting, what it costs, what went wrong.
    gaps = ", ".join(f"{name} {severity:g}" for name, severity in result.gaps.items())
    has_gaps = f"with {gaps} (gap_seed {result.gap_seed})"
    cell = f"{'' if result.where else 'cell '}{has_gaps}" if gaps else "nominal cell"
    place = ", ".join(filter(None, (result.where, cell if gaps or not result.where else "")))
    head = f"{config.policy.path or 'recorded rollouts'}: {place}"
    lines = [head if result.base == NOMINAL else f"{head}, {result.base}"]
    against = drops(result)
    drop = {d.condition: d for d in against}
    names = sorted(result.by_condition, key=lambda n: order(n, result.base))
    width = max(len(words(n, result.base)) for n in names)
    for name in names:
        line = f"  {words(name, result.base):<{width}}  {result.by_condition[name]!s:<26}"
        if (d := drop.get(name)) is not None:
            line += f"  {points(d.difference):<26}  {d.verdict}"
        lines.append(line.rstrip())
    modes = Counter(r.category for r in result.outcomes if not r.success).most_common(6)
    if modes:
        each = (f"{(name.replace('_', ' ') or 'unknown')} {n}" for name, n in modes)
        lines.append(f"Failures: {', '.join(each)}.")
    if against:
        sure = [d for d in against if d.verdict != "not shown"]
        scenes = "on equal scenes" if result.paired else "scenes not equal"
        lines.append(
            f"{len(sure)} of {len(against)} settings differ from the scene as it is beyond chance "
            f"({scenes}, 5 % for all together)."
        )
    lines.append(f"Evidence: {result.evidence}.")
    lines += [notes] if notes else []
    if config.output_dir is not None:
        lines.append(str(config.output_dir / "evaluation.json"))
    options.emit(config.json, _answer(result), "\n".join(lines))
    return 0


@command
def evaluate(config: Any) -> Evaluation:
    """Roll a policy out, or count what was recorded, and write what was asked for.

    Args:
        config: an `EvaluateConfig`, or the options of one of LeRobot's environments.

    Raises:
        UnusableInputError: no policy, no such setting, or a folder with other rollouts.
    """
    return _evaluated(config)[0]


def _evaluated(config: Any) -> tuple[Evaluation, str]:
    """Return the evaluation, written to --output_dir, and what didn't count, in words."""
    kept: Any = getattr(config, "dataset", None)
    if config.output_dir and kept and kept.root:  # before what takes seconds
        raise UnusableInputError(
            "--output_dir goes on with rollouts that are there, --dataset.root begins a new "
            "dataset: give one of them."
        )
    folder = writable_folder(config.output_dir) if config.output_dir else None
    notes = ""
    if getattr(config, "rollouts", None) is not None:
        if config.factors or config.env.conditions or config.env.gaps:
            raise UnusableInputError(
                "--rollouts counts episodes by what they were recorded with: leave --factors, "
                "--env.gaps and --env.conditions out."
            )
        if config.output_dir is not None and (config.output_dir / SETTINGS).exists():
            raise UnusableInputError(
                f"{config.output_dir} holds rollouts that were evaluated, not recorded. Name "
                "another --output_dir."
            )
        only = policy_id(config.policy.path) if config.policy.path else ""
        with options.progress("Reading episodes") as advance:
            result, left_out = recorded(config.rollouts, only, advance)
        if left_out:
            notes = f"Left out: {', '.join(f'{n} {why}' for why, n in left_out.items())}."
    else:
        policy = config.policy.required()
        if not options.is_script(policy):
            warn_withdrawn(policy)
        if isinstance(config.env, options.EnvOptions):
            result = _in_the_cell(config, folder)
        else:
            # A script may; named alone, it is tried.
            reads = INSTRUCTION in config.factors
            if not options.is_script(policy):
                reads = reads_instruction(policy)
            varied = settings(config.factors, config.conditions, reads=reads)
            check_dimensions({k.partition(".")[0]: v for k, v in config.gaps.items()}, "--gaps")
            made_like = known_and_drawn(config.twin, config.randomise)
            _warn_of_another_world(config)
            spec = WorldSpec(config.gaps, config.gap_seed, {}, config.roles, *made_like)
            keep: Any = contextlib.nullcontext()
            if kept.root is not None:
                keep = Demonstrations(kept.root, kept.single_task, failures=kept.failures)
            with _running(config.n * len(varied), folder) as told, keep as demonstrations:
                result = evaluate_gym(
                    policy, config.env, config.n, seed=config.seed, **_workers(config),
                    folder=folder, **told, spec=spec, conditions=varied,
                    demonstrations=demonstrations, loading=config.policy.loading(),
                    speed_scale=config.speed_scale,
                )  # fmt: skip
    if folder is not None:
        if not result.paired:  # recorded ones; others were written as they came
            write_atomically(folder / ROLLOUTS, result.to_csv())
        write_json(folder / "evaluation.json", options.jsonable(_answer(result)))
        title = f"{config.policy.path or 'recorded rollouts'}; {result.evidence}"
        write_atomically(folder / "evaluation.png", success_png(result, drops(result), title))
        if (positions := positions_png(result)) is not None:
            write_atomically(folder / "positions.png", positions)
        summary = {"successes": result.successes, "trials": result.trials, "rate": result.rate}
        tried = {"root": config.policy.path, "id": result.policy}
        write_run(folder, "evaluate", options.jsonable(config), [tried], summary)
    return result, notes


def _warn_of_another_world(config: Any) -> None:
    """Say that a twin was identified in another simulation than it is evaluated in."""
    was = load_twin(config.twin).world if config.twin else {}
    here = named_world(config.env, None) if isinstance(config.env, GymEnvConfig) else {}
    for key in was.keys() & {"gym", "scene"}:
        if here and here.get(key) != was[key]:
            asked = here.get("scene") or here.get("gym")
            told = "%s is a twin of %s; its values are put into %s."
            log.warning(told, config.twin, was[key], asked)


def _workers(config: RolloutsOptions) -> dict[str, Any]:
    """Return processes here, or the address of a Ray cluster."""
    ray = config.workers if isinstance(config.workers, str) else ""
    known = {"ray": "auto", "ray:local": "local"}
    return {"batch": 1 if ray else config.workers, "ray": known.get(ray, ray)}


def _in_the_cell(config: Any, folder: Path | None) -> Evaluation:
    """Roll out in the embedded cell."""
    trained, here = cell_of(config.policy.required()), (config.env.task, config.env.robot)
    if trained not in (None, here):
        log.warning(
            "%s was trained for %s with %s, and is tried on %s with %s: see --env.task and "
            "--env.robot.", config.policy.path, *trained, *here,
        )  # fmt: skip
    base = config.env.conditions
    reads = reads_instruction(config.policy.required())
    varied = settings(config.factors, base, reads=reads)
    if not reads and INSTRUCTION in base:
        raise unread()
    count = len({condition_name(c) for c in varied})
    # What the cell is made like, in words.
    twin = f"twin {config.env.twin}" if config.env.twin else ""
    drawn = f"drawn anew each time ({config.env.randomise})" if config.env.randomise else ""
    workers = _workers(config)
    device = device_named(config.policy.device)
    log.info("The policy runs on %s, %s.", device, config.policy.format or "fp32")
    with _running(config.n * count, folder) as told:
        return in_the_cell(
            config.policy.required(),
            config.n,
            **config.env.cell(),
            conditions=varied,
            seed=config.seed,
            workers=workers["batch"],
            max_s=config.max_s,
            speed_scale=config.speed_scale,
            base=base,
            folder=folder,
            **told,
            ray=workers["ray"],
            where=", ".join(filter(None, (twin, drawn))),
            policy_fps=config.policy.fps,
            policy_format=config.policy.format,
            device=device,
            threads=config.policy.threads,
        )


@contextlib.contextmanager
def _running(total: int, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Show a progress bar with the success so far; say how fast it went, and what a stop keeps."""
    won = tried = 0
    goes_on, cores, start_s = bool(folder and (folder / ROLLOUTS).exists()), 1, time.monotonic()
    with options.progress("Rolling out", total) as advance:

        def seen(rollouts: Sequence[Rollout]) -> None:
            nonlocal won, tried
            won, tried = won + sum(r.success for r in rollouts), tried + len(rollouts)
            advance(len(rollouts), f"Rolling out, {won / tried:.0%} succeed" if tried else "")

        def worked(processes: int) -> None:
            nonlocal cores
            cores = max(cores, processes)

        try:
            yield {"on_rollouts": seen, "on_cores": worked}
            if tried and not goes_on:
                rate_hz = tried / (time.monotonic() - start_s)
                log.info(
                    "%s on %s: %.2g a second, %.2g for each core, with the start.",
                    options.counted(tried, "rollout"), options.counted(cores, "core"),
                    rate_hz, rate_hz / cores,
                )  # fmt: skip
        except (KeyboardInterrupt, SystemExit):
            if folder is not None:
                options.print_error(
                    f"{tried} of {total} rollouts are in {folder}; the same command continues.",
                    "gaploop evaluate",
                )
            raise


def _answer(result: Evaluation) -> dict[str, Any]:
    found = [{**vars(d), "verdict": d.verdict} for d in drops(result)]
    return {**result.to_json(), "drops": found}
