"""What `gaploop finetune` does: trains, reinforces, or shows what a mixture draws."""

import contextlib
import dataclasses
import io
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accelerate import PartialState
from draccus.utils import DraccusException
from rich.table import Table

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json
from gaploop.core.progress import loading
from gaploop.core.vocabulary import Domain
from gaploop.datasets.absolute.examine import OTHERS_SIMULATIONS
from gaploop.datasets.columns import ACTION, ENVIRONMENT, STATE
from gaploop.datasets.mixing.sources import REPORT, OpenMixture, load_mixture, open_mixture, report
from gaploop.finetune.adapt import adapt, base_of, kind_of, require_free
from gaploop.finetune.batches import check_all_finite, check_signature, sources_in_memory
from gaploop.finetune.config import FinetuneConfig
from gaploop.finetune.lerobot_policy import ActPolicy, cameras_of, cell_of, load_policy, resolve
from gaploop.finetune.lerobot_trust import SIDECAR
from gaploop.finetune.pretrain import TrainedPolicy, pretrain
from gaploop.finetune.reinforce import reinforce
from gaploop.finetune.tuning.lerobot_image_policy import fitting_config
from gaploop.finetune.tuning.presets import (
    LEROBOT,
    PRESETS,
    REINFORCE,
    REINFORCE_SPEC,
    TRACKED_SPECS,
    table,
)
from gaploop.finetune.tuning.takes import disagreement, mixture_of, standing_out
from gaploop.scripts import options
from gaploop.scripts.cli import command
from gaploop.sim.views import OVERHEAD

ENDED: Final = ("steps", "best_step", "weights_sha256", "loss")
"""What `--json` says of a training's end, in the words of its result."""


@dataclass(frozen=True)
class FinetuneResult:
    """What came of `finetune`.

    Attributes:
        share_real: share of real samples in a batch; None where a mixture says.
        rounds: lines of rounds.jsonl that were added, where it was reinforced.
    """

    policy: TrainedPolicy
    share_real: float | None = None
    rounds: tuple[Mapping[str, float], ...] = ()


def run(config: FinetuneConfig) -> int:
    """Train and print where the policy is."""
    if config.method == "help":
        known = [dataclasses.asdict(p) for p in PRESETS.values()]
        options.emit(config.json, {"presets": known}, table())
        return 0
    if options.show_file(config.env):
        return 0
    if config.dry_run:
        return _show_mixture(config)
    if config.method == LEROBOT:
        return _train_with_lerobot(config)
    result = finetune(config)
    made, ended = result.policy, result.policy.result
    answer = {
        "policy": made.folder,
        "merged": made.merged,
        "id": made.id,
        "run": made.run,
        "takes": {i["root"]: i["takes"] for i in made.inputs},
        **{name: getattr(ended, name) for name in ENDED},
        "held_out_error": ended.held_out,
        "share_real": result.share_real,
        "rounds": result.rounds,
    }
    cell = (config.env.task, config.env.robot) if config.policy.type else cell_of(made.folder)
    where = options.cell_words(*cell) if cell else ""
    is_adapted = not config.policy.type and config.method != REINFORCE
    mixed = config.sim or config.sim_takes or config.mixture or not is_adapted
    warning = "" if mixed else " No simulated episodes were mixed in: check what it forgot."
    is_best = ended.held_out and is_adapted
    best = f" Best on held-out episodes: step {ended.best_step}, kept." if is_best else ""
    lines = list[str]()
    if result.rounds:
        where += " with the same --env.*, and once without"
        lines.append(attempts_words(result.rounds))
    try_it = f"gaploop evaluate --policy.path={made.folder} --n=100{where}"
    if str(read_json(made.folder / SIDECAR).get("robot_type")) in OTHERS_SIMULATIONS:
        try_it += " --env.scene=FILE  # or --env.gym=ID: the simulation that it was trained in"
    elif config.real and not cameras_of(made.folder) <= {OVERHEAD}:  # the cell has no others
        data = " ".join(shlex.quote(str(root)) for root in config.real)
        try_it = f"gaploop check {data} --policy.path={made.folder}"
    lines.append(
        f"{made.folder} ({made.id}): {ended.steps} steps, loss {ended.loss:.4f}.{best}"
        f"{warning} Try it: {try_it}"
    )
    options.emit(config.json, answer, "\n".join(lines))
    return 0


def attempts_words(rounds: Sequence[Mapping[str, float]]) -> str:
    """Return in words what came of attempts, and whether any of them taught something."""
    first, last = (rounds[place]["success"] for place in (0, -1))
    taught = (
        f"{first:.0%} at first, {last:.0%} at last (sim-to-sim)."
        if any(line["decisions"] for line in rounds)
        else f"{sum(line['success'] for line in rounds) / len(rounds):.0%} (sim-to-sim). Nothing "
        "was learned from them: on each scene nearly all succeeded, or nearly none."
    )
    return f"Attempts with changed plans succeeded in {taught}"


@command
def finetune(config: FinetuneConfig) -> FinetuneResult:
    """Train a policy once and write its run folder.

    Raises:
        UnusableInputError: options or data don't go together; why, and how to fix it.
    """
    config.require_sense()
    if config.method == LEROBOT:
        raise UnusableInputError(
            "LeRobot's own training is called as gaploop.finetune.lerobot_train.train from Python."
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # each would train alone, into the same files
        raise UnusableInputError(
            "gaploop trains in one process; on several GPUs LeRobot's own training does: "
            "accelerate launch --num_processes=4 -m gaploop.scripts.cli finetune "
            "--method=lerobot -- …"
        )
    folder = config.folder
    if config.policy.type:
        return FinetuneResult(_trained_from_scratch(config))
    if not config.policy.path:
        raise UnusableInputError("Which policy? Name its folder with --policy.path=DIR.")
    if config.method == REINFORCE:
        return _reinforced(config)
    spec = config.recipe(kind_of(base_of(config.policy.path))).spec
    if not config.resume:
        require_free(folder)
    first = (
        f"Recording {config.sim_takes} simulated episodes"
        if config.sim_takes
        else "Reading episodes"
    )
    with options.progress(f"{first}, then training", total=spec.steps) as advance:
        done = adapt(config, lambda *_: advance(1, "Training"))
    share = config.mix.real if config.sim or config.sim_takes else 1.0
    return FinetuneResult(done, None if config.mixture else share)


def _trained_from_scratch(config: FinetuneConfig) -> TrainedPolicy:
    """Record scripted episodes, if none are named, and train a base on them."""
    if config.policy.path:
        raise UnusableInputError(
            "--policy.type trains a new policy from nothing. Leave it out to adapt --policy.path."
        )
    steps = config.spec(TRACKED_SPECS["pretrain"]).steps
    takes = 0 if config.sim else config.sim_takes
    with (
        options.progress("Recording", total=takes) as recorded,
        options.progress("Training", total=steps) as trained,
    ):
        return pretrain(config, lambda *_: trained(), recorded)


def _reinforced(config: FinetuneConfig) -> FinetuneResult:
    """Reinforce a policy in simulation."""
    rounds: list[Mapping[str, float]] = []
    with options.progress("Rounds", total=config.spec(REINFORCE_SPEC).steps) as step:

        def told(line: Mapping[str, float]) -> None:
            rounds.append(line)
            step()

        return FinetuneResult(reinforce(config, told=told), rounds=tuple(rounds))


def _show_mixture(config: FinetuneConfig) -> int:
    """Print what a training would draw from which source."""
    if config.sim_takes:
        raise UnusableInputError(
            "--dry_run shows episodes that exist, and --sim_takes are recorded in a training. "
            "Leave one of the two out."
        )
    steps, batch_size, kind = config.steps or 10_000, config.batch_size or 64, ""
    if config.policy.path:
        kind = kind_of(base_of(config.policy.path))
        spec = config.recipe(kind).spec
        steps, batch_size = spec.steps, spec.batch_size
    if steps < 1 or batch_size < 1:
        raise UnusableInputError(
            f"--steps={steps} and --batch_size={batch_size} must be at least 1."
        )
    with options.progress("Reading datasets"):
        opened = mixture_of(config)
        if config.policy.path and kind != "tracked":
            fitting_config(base_of(config.policy.path), opened, config)
        else:
            check_all_finite(opened, {ACTION, STATE, ENVIRONMENT})
    mixture = opened.mixture(batch_size)
    answer = report(opened, mixture, steps)
    stages: list[dict[str, Any]] = []
    first = 0
    for number, planned in enumerate(opened.spec.stages, 1):
        last = number == len(opened.spec.stages)
        stop = steps if last or planned.steps is None else min(steps, first + planned.steps)
        if stop <= first:
            break  # the run doesn't get there
        drawn = mixture.counts(stop) - mixture.counts(first)
        samples = dict(zip(mixture.names, drawn.tolist(), strict=True))
        name = planned.name or f"stage {number}"
        stages.append(
            {"name": name, "first_step": first, "steps": stop - first, "samples": samples}
        )
        first = stop
    answer["stages"] = stages
    disagreeing = _disagreeing(config.policy.path, opened) if kind == "tracked" else []
    answer["disagreeing"] = disagreeing
    options.keep(config.output_dir, REPORT, answer)
    options.emit(config.json, answer)
    if config.json:
        return 0
    shown = Table("source", "domain", title="What a run draws", title_justify="left")
    for column in ("episodes", "frames", "samples", "share", "times each frame"):
        shown.add_column(column, justify="right")
    for s in answer["sources"]:
        counts = [f"{s[name]:,}" for name in ("takes", "frames", "samples")]
        shares = f"{s['share']:.1%}", f"{s['epochs']:.1f}"
        shown.add_row(s["name"], ", ".join(s["domains"]), *counts, *shares)
    console = options.console()
    console.print(shown)
    if any("sim_target" in s["domains"] for s in answer["sources"]):
        console.print("sim_target: episodes of a simulated target cell; all of it is sim-to-sim.")
    for stage in stages:
        total = max(1, sum(stage["samples"].values()))
        parts = ", ".join(f"{n} {k / total:.1%}" for n, k in stage["samples"].items() if k)
        end = stage["first_step"] + stage["steps"] - 1
        console.print(f"{stage['name']}, steps {stage['first_step']} to {end}: {parts}")
    if disagreeing:
        by = "episode" if len(config.real) == 1 else "uid"
        each = ", ".join(f"{d[by]} ({d['times']:.1f} times)" for d in disagreeing)
        console.print(
            f"Far from what {config.policy.path} would do, beside the others: {by} {each}.",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
        if config.real:
            out = ",".join(str(d[by]) for d in disagreeing)
            console.print(f"  → Look at them, or train without: --where='{by}!={out}'")
    return 0


def _disagreeing(policy: str, opened: OpenMixture) -> list[dict[str, Any]]:
    """Return what is adapted to and disagrees much more than the others, the worst first."""
    sources = [s for s in sources_in_memory(opened)[0] if s.domain is not Domain.SIM]
    episodes = [(s.root, e) for s in sources for e in s.episodes]
    driver = load_policy(policy)
    if not isinstance(driver, ActPolicy) or not episodes:
        return []
    for source in sources:
        check_signature(source.signature, driver.bundle.signature, source.root, f"policy {policy}")
    times = disagreement(driver, [e for _, e in episodes])
    found = [(*episodes[k], float(times[k])) for k in standing_out(times)]
    return [{"root": r, "episode": e.index, "uid": e.uid, "times": t} for r, e, t in found]


def _with_policy_in(word: str) -> str:
    """Return one of LeRobot's options; a run's folder becomes the policy in it, as elsewhere."""
    name, _, value = word.partition("=")
    is_folder = name == "--policy.path" and Path(value).is_dir()
    return f"{name}={resolve(value)}" if is_folder else word


def _train_with_lerobot(config: FinetuneConfig) -> int:
    """Train with LeRobot's own loop; what stands behind `--` are its options."""
    with loading("gaploop finetune"):
        from gaploop.finetune.lerobot_train import read_options, train

    config.require_sense()
    mixture, given = config.mixture, [_with_policy_in(word) for word in config.lerobot]
    opened = open_mixture(load_mixture(mixture)) if mixture else None
    names = {word.removeprefix("--").partition("=")[0] for word in given if word.startswith("--")}
    for name in ("dataset.root", "dataset.repo_id") if mixture else ():
        if name in names:
            raise UnusableInputError(
                f"--{name} doesn't go with a mixture: name datasets in {mixture}."
            )
    if config.output_dir is not None:
        given.append(f"--output_dir={config.output_dir}")
    if config.resume and "resume" not in names:
        given.append("--resume=true")
    if mixture is not None and "config_path" not in names:
        given.append(f"--dataset.repo_id=local/{mixture.stem}")
    if mixture is None and not names & {"dataset.repo_id", "config_path"}:
        raise UnusableInputError(
            "Train on what? Name a dataset: gaploop finetune --method=lerobot -- "
            "--dataset.repo_id=me/takes --dataset.root=DIR --policy.type=…; or a mixture: gaploop "
            "finetune FILE.yaml --method=lerobot -- …"
        )
    before, sys.argv = sys.argv, ["lerobot-train", *given]  # where LeRobot looks for its options
    usage = io.StringIO()  # hundreds of lines, of which the last says what is wrong
    try:
        try:
            with contextlib.redirect_stderr(usage):
                chosen = read_options()
        except (DraccusException, ValueError, NotImplementedError, FileExistsError) as error:
            keep = "push the model to the hub" in str(error)
            hint = " Or keep it on this machine: --policy.push_to_hub=false" if keep else ""
            raise UnusableInputError(f"lerobot-train's options: {error}{hint}") from None
        except SystemExit as stop:
            if not stop.code:
                raise
            said = usage.getvalue().strip().rpartition("error: ")[2] or "not understood"
            raise UnusableInputError(
                f"lerobot-train's options: {said}. All of them: lerobot-train --help"
            ) from None
        train(chosen, config.cache, opened, options.progress)
        if PartialState().is_main_process:
            answer = {"output_dir": chosen.output_dir, "steps": chosen.steps}
            text = f"{chosen.output_dir}: {chosen.steps} steps."
            if opened:
                answer["sources"] = read_json(chosen.output_dir / REPORT)["sources"]
                parts = ", ".join(f"{s['name']} {s['samples']:,}" for s in answer["sources"])
                text += f" Samples drawn: {parts}."
            options.emit(config.json, answer, text)
    finally:
        sys.argv = before
    return 0
