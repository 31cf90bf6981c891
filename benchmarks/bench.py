"""`python -m benchmarks`: the benchmarks, each printing its figures and how to repeat them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.scripts import options

EXAMPLE: Final = """\
python -m benchmarks absolute --data=FOLDER_WITH_DATASETS --output_dir=outputs/absolute
python -m benchmarks base_vision --n=600 --output_dir=outputs/base_vision
python -m benchmarks cell
python -m benchmarks checkpoint --output_dir=outputs/checkpoint
python -m benchmarks bus --json
python -m benchmarks loop --json
python -m benchmarks link --seconds=20
python -m benchmarks loader --json
python -m benchmarks faults --schedules=1000 --output_dir=outputs/faults
python -m benchmarks supervised_ends --n=3 --output_dir=outputs/supervised_ends
python -m benchmarks closed_loop --workers=2 --output_dir=outputs/closed_loop
python -m benchmarks closed_loop --data=docs/figures/closed_loop.parquet
python -m benchmarks finetune --seeds=5 --output_dir=outputs/finetune
python -m benchmarks factors --data=trials.csv --json
python -m benchmarks gaps --n=30 --output_dir=outputs/gaps
python -m benchmarks gate --json
python -m benchmarks sim_predicts --trials=trials.csv --json
python -m benchmarks fleet --json
python -m benchmarks gate --retrains=20 --n=500 --output_dir=outputs/gate_bench
python -m benchmarks attribution --output_dir=outputs/attribution
python -m benchmarks attribution --output_dir=outputs/attribution --predictions=theirs.jsonl --json
python -m benchmarks diagnosis_tiers --output_dir=outputs/diagnosis_tiers
python -m benchmarks hypotheses --seed=1 --output_dir=outputs/hypotheses
python -m benchmarks detection --n=60 --output_dir=outputs/detection
python -m benchmarks signals --json
python -m benchmarks attribution --real --data=FOLDER_WITH_THE_RECORDINGS --json
python -m benchmarks journal --kills=1000 --output_dir=outputs/journal
python -m benchmarks modes --n=2 --output_dir=outputs/modes
python -m benchmarks memory --n=200
python -m benchmarks noise --data=FOLDER_WITH_DATASETS --output_dir=outputs/noise
python -m benchmarks record --seconds=300 --output_dir=outputs/record
python -m benchmarks record --cameras=4 --seconds=1800 --output_dir=outputs/record4
python -m benchmarks record --seconds=30 --load=8 --n=3 --output_dir=outputs/record
python -m benchmarks power_cuts --kills=1000 --output_dir=outputs/power_cuts
python -m benchmarks probe --n=2 --output_dir=outputs/probe
python -m benchmarks publish --json
python -m benchmarks review --json
python -m benchmarks servo --data=logs.parquet --json
python -m benchmarks startup --n=5
python -m benchmarks simulate --workers=2 --output_dir=outputs/simulate
python -m benchmarks slow_policies --output_dir=outputs/slow_policies
python -m benchmarks identify --n=8 --json
python -m benchmarks seeing_remedies --output_dir=outputs/seeing_remedies
python -m benchmarks reinforcement --seeds=5 --output_dir=outputs/reinforcement
python -m benchmarks transfer --budget_s=3000 --output_dir=outputs/transfer
python -m benchmarks vla_gpu --output_dir=outputs/vla_gpu
python -m benchmarks libero --tasks='[libero_object/6, libero_object/9]' --n=10 \\
    --output_dir=outputs/libero
python -m benchmarks worlds --n=3
python -m benchmarks worlds --tasks='[costs]'
python -m benchmarks world_stations --n=6 --output_dir=outputs/world_stations
python -m benchmarks house --root=../another_checkout
python -m benchmarks handled --n=50 --output_dir=outputs/handled
python -m benchmarks real_pictures --data=FOLDER_WITH_DATASETS --n=3
python -m benchmarks real_input --data=FOLDER_WITH_THE_RECORDINGS --output_dir=outputs/real_input
"""

POSITIONAL: Final = "name"

BENCHES: Final = {
    "absolute": "faults that commands and readings show by themselves: sizes named, false alarms",
    "attribution": "causes of failures on tasks, severities and mechanisms left out of training",
    "checkpoint": "deployment mistakes between a policy and a dataset: which check names",
    "diagnosis_tiers": "find_out_why.md typed at 66 blind stations: named, and which link lost it",
    "base_vision": "makes the base policy that sees again, or one for another task",
    "bus": "a turn on two servo buses: LeRobot's, the SDKs' and ours, side by side",
    "closed_loop": "targeted demonstrations against uniform ones: takes saved, by kind of gap",
    "cell": "rendering rate and the scripted expert's success in the nominal cell",
    "link": "leader and policy on another machine: age, jitter, loss, disorder put in between",
    "loader": "training samples per second, beside LeRobot's loaders; disk, memory, building",
    "loop": "teleoperation on emulated arms: jitter, latency, processor time, beside LeRobot's",
    "journal": "takes and datasets that a SIGKILL costs, beside LeRobot's; hand-over, sealing",
    "modes": "failure modes and phases against what really happened, with channels removed",
    "noise": "learned noise of readings against white noise, on held-out logs of real arms",
    "memory": "what the recorder's processes hold after each of 200 takes",
    "power_cuts": "takes, labels and datasets that a power cut costs, writes lost and out of order",
    "probe": "hidden stations: contact by feel; camera, light, table and object by pictures",
    "publish": "takes to a dataset, beside LeRobot's save_episode; each row's picture is checked",
    "review": "the review page in a browser: first paint, key to saved label, 50 takes by keyboard",
    "record": "pictures dropped, frame periods, hand-over, memory, processor time",
    "startup": "from a command entered to its answer: help, check, review, record",
    "supervised_ends": "killed, crashed, stopped, hung: what becomes of the arm; drop, speed",
    "faults": "how sessions end: random faults and presses on emulated arms that have weight",
    "factors": "statistics across takes: a study's lessons from its counts; coverage, false alarms",
    "finetune": "what ten takes bring: LoRA or all weights; shares; forgetting; step time",
    "detection": "failures of three policy classes told at equal elapsed time, live",
    "signals": "what watching a rollout costs a turn; writes the page of signals",
    "gaps": "what every gap mechanism costs the base policy",
    "fleet": "who the gate's canary promotes or rolls back in made-up fleets, and how late",
    "gate": "false promotion of retrains, power, attempts, beside fixed size and Barnard's test",
    "reference": "what is usual in the nominal cell; rebuilds the reference that ships",
    "libero": "a policy in LIBERO: success by task, failure and camera; few-shot LoRA on the worst",
    "hypotheses": "the station's verdict where no probe measured the gap; bad policies",
    "house": "how large the product is, and how far one take travels through it",
    "any_arm": "planted drives of arms by their MJCF files: named, intervals, error",
    "identify": "hidden stations' drives from three takes: named, parameters, intervals, error",
    "simulate": "simulated takes and rollouts a minute, beside plain physics",
    "sim_predicts": "what ranks training conditions as their success on a real robot does",
    "randomisation": "what a randomised simulation brings at hidden stations, by kind and strength",
    "ladder": "randomised, identified, with demonstrations: success rung by rung, published beside",
    "reinforcement": "GRPO in a station's twin beside demonstrations there and in the twin",
    "seeing_remedies": "what takes, randomised pictures and simulation bring a policy that sees",
    "slow_policies": "jerk and success against inference time 0-800 ms: wait, jump, blend",
    "world_stations": "causes named at blind stations in simulations of others",
    "worlds": "what ends in a figure, by command, in six simulations of others",
    "vla_gpu": "ACT, SmolVLA, pi0.5 trained and adapted on the GPU here: step time, memory",
    "servo": "logs of a real servo: a model of it, intervals, what one log tells apart",
    "transfer": "remedies at hidden stations: success, operator's hours, what the plan chose",
    "real_logs": "logs of real robots: what outcomes at random name; planted causes that are named",
    "handled": "modes of failure by what a fixed camera shows, in simulations of others",
    "real_pictures": "the camera check on real pictures: unaltered takes accused, changes found",
    "real_input": "foreign recordings: modes against labels; LoRA on real teleoperation",
}


@dataclass
class RayOptions:
    """Rollouts on many machines."""

    address: str = ""
    """Address of a Ray cluster, such as auto or ray://head:10001; local starts one here. Unless
    given, --workers processes here."""


@dataclass
class BenchConfig:
    """Run one of the benchmarks, each printing its figures."""

    name: str = ""
    """Which one."""
    policy: options.PolicyOptions = field(default_factory=lambda: options.PolicyOptions("base"))
    data: Path | None = None
    """factors: the study's counts, a CSV file. real_input: the folder of the recordings.
    gate: a folder of evaluations of baseline and candidates, a folder each.
    vla_gpu: a dataset to train on.
    base_vision: a folder of photos that pictures are trained before; made-up ones unless given.
    libero: a LeRobot dataset of demonstrations; scripted ones unless given.
    any_arm: a folder of MJCF files, instead of those that come with packages.
    absolute, noise, real_logs, real_pictures: a folder with LeRobot datasets of real arms.
    attribution --real: the folder of lp*.data, or of ur3_cobotops and other folders of them.
    servo: a parquet file of logs.
    sim_predicts: a folder of evaluations in simulation, one folder for each training condition.
    closed_loop, ladder, randomisation, reinforcement, seeing_remedies, transfer: rows that were
    stored, to make figures of without running anything."""
    trials: Path | None = None
    """sim_predicts: counts of trials on a robot, a CSV file."""
    root: Path | None = None
    """house: the checkout to count; this one unless given."""
    n: int = 0
    """Rollouts or takes per cell of the benchmark; its own default unless given. diagnosis_tiers:
    how many of its stations."""
    first: int = 0
    """diagnosis_tiers: the station to begin with. Each beginning has a folder of its own."""
    policies: list[str] = field(default_factory=list)
    """vla_gpu: folders or names on the Hub; with random weights unless given."""
    predictions: Path | None = None
    """attribution: a file of predictions to score by the same code; see its documentation."""
    blind: bool = False
    """attribution: score the model that ships on mechanisms that nobody has looked at."""
    real: bool = False
    """attribution: real recordings with labels, named by --data, instead of simulated takes."""
    workers: int = 1
    """attribution, base_vision, closed_loop, finetune, gate, ladder, libero, randomisation,
    simulate: processes."""
    ray: RayOptions = field(default_factory=RayOptions)
    seconds: float = 60.0
    """link, loop, record: how long each is measured [s]."""
    cameras: int = 2
    """record: how many; two film at 50 Hz, more at 30."""
    load: int = 0
    """record: so many busy processes beside."""
    seeds: int = 0
    """closed_loop, finetune, reinforcement, seeing_remedies, transfer: how many seeds, from --seed
    on; 5 unless given, of transfer 1. ladder, randomisation: how many stations; 5 unless given."""
    budget_s: float = 0.0
    """ladder, randomisation, reinforcement, seeing_remedies, transfer: begin nothing later than
    this [s]; the same command goes on."""
    quick: bool = False
    """base_vision, closed_loop, finetune, ladder, randomisation: few steps and rollouts, one seed:
    whether it runs, no figures.
    libero: a seventh of the training steps."""
    tasks: list[str] = field(default_factory=list)
    """base_vision, closed_loop, reference: which tasks; pick_place unless given. libero: suites and
    numbers, such as libero_object/6. worlds: which columns; costs and active: what gaps cost.
    diagnosis_tiers: remedies, to measure what they bring, too."""
    gaps: list[str] = field(default_factory=list)
    """closed_loop, reinforcement, seeing_remedies, transfer: which gaps; the six single dimensions,
    of seeing_remedies four, of transfer all nine and a pair, of reinforcement three mechanisms,
    unless given."""
    budgets: list[int] = field(default_factory=list)
    """closed_loop: how many takes; 5, 20 and 50 unless given. libero: one; 10 unless given."""
    arms: list[str] = field(default_factory=list)
    """closed_loop, reinforcement, seeing_remedies, transfer: which arms; targeted, uniform and
    oracle, of the others all, unless given. base_vision: rooms, or smooth, the control."""
    robot: str = ""
    """base_vision, closed_loop: the cells' robot arm; so101 unless given."""
    schedules: int = 100
    """faults: how many runs with random faults."""
    retrains: int = 0
    """gate: make this many trainings on identical data; those kept in --output_dir count too."""
    kills: int = 60
    """journal, power_cuts: how many."""
    seed: int = 0
    """Draws gaps and scenes."""
    output_dir: Path | None = None
    """Where files go; outputs/bench/<name> unless given."""
    json: bool = False
    """Print one JSON object."""


BenchConfig.__doc__ = "\n\n    ".join(
    [str(BenchConfig.__doc__), *(f"{name}: {what}." for name, what in BENCHES.items())]
)


def run(config: BenchConfig) -> int:
    """Run the benchmark called `config.name`."""
    from gaploop.core.files import writable_folder, write_json

    if not config.name:
        raise UnusableInputError(f"Which benchmark? One of: {', '.join(BENCHES)}.")
    if config.name not in BENCHES:
        raise unknown_choice("benchmark", config.name, BENCHES)
    folder = writable_folder(config.output_dir or Path("outputs") / "bench" / config.name)
    module = importlib.import_module(f"benchmarks.{config.name}")
    result: Mapping[str, Any] = module.measure(config, folder)
    result = {"bench": config.name, "seed": config.seed, "machine": options.machine(), **result}
    write_json(folder / f"{config.name}.json", options.jsonable(result))
    options.emit(config.json, result, module.table(result))
    return 0
