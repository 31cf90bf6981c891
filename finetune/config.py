"""What `gaploop finetune` can be asked for: the options, as Python callers give them, too."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from gaploop.core.errors import UnusableInputError, unknown_choice
from gaploop.core.plan import Plan, load_plan
from gaploop.core.twin import load_twin
from gaploop.core.vocabulary import check_selection
from gaploop.datasets.cache.folder import CacheOptions
from gaploop.finetune.tuning import presets

STATS: Final = ("base", "new")
"""By whose statistics a tuned policy normalises: its base's or the new data's; why, in
`lerobot_bundle`."""
NEW: Final = "act"
"""The kind of policy that is trained from nothing here."""
LEAST, MOST = 0.25, 4.0
"""No dimension that is collected for is left out or drowns the others."""
COLLECT: Final = "collect"
SPEC: Final = ("steps", "batch_size", "lr", "accumulation", "gradient_checkpointing")
"""Options that change what a preset says of the training."""
_ALWAYS: Final = ("method", "resume", "output_dir", "json", "dry_run")
_FROM_SCRATCH: Final = (
    *("policy", "sim", "sim_takes", "env", "select", "where", "held_out"),
    *("steps", "batch_size", "lr", "seed"),
)
_REINFORCE: Final = ("policy", "env", "steps", "batch_size", "lr", "num_workers", "seed")
_LEROBOT: Final = ("mixture", "cache")


@dataclass
class StartPolicy:
    """What a training begins with."""

    path: str = ""
    """Folder of the policy to start from; base names the one that ships with gaploop."""
    type: str = ""
    """Train a new policy in simulation instead: act, which sees joints and tracked poses."""

    def __post_init__(self) -> None:
        self.path = str(self.path)
        if self.type and self.type != NEW:
            raise UnusableInputError(
                f"--policy.type={self.type}: only {NEW} is trained from nothing here. Others: "
                "gaploop finetune --method=lerobot -- --policy.type=…; a base that sees, from a "
                "clone: python -m benchmarks base_vision."
            )


@dataclass
class MixOptions:
    """How sources are mixed."""

    real: float = 0.5
    """Share of real samples in a batch, where there are simulated ones."""

    def __post_init__(self) -> None:
        if not 0 < self.real <= 1:
            raise UnusableInputError(
                f"--mix.real={self.real:g} must be above 0 and at most 1; 0.5 is usual."
            )


@dataclass
class TrainingCell:
    """The simulation that a policy is trained or reinforced in: the embedded cell, or a twin's."""

    task: str = "pick_place"
    """pick_place, pick_lift or stack_cube."""
    robot: str = "so101"
    """The cell's arm, so101, or bi_so101 (a pair)."""
    twin: Path | None = None
    """station_twin.yaml of gaploop identify: the cell is as that station was measured; of a
    simulation of yours, that one (reinforce)."""
    randomise: str = ""
    """Draw every episode's cell anew: visual, dynamics, all, looks, twin (what the twin leaves
    open), or a file of ranges; help prints a file to edit."""

    def cell(self) -> dict[str, Any]:
        """Return it as arguments of what makes a cell, such as `CellSpec`."""
        from gaploop.sim.randomise import known_and_drawn

        option = "--env.robot"
        if self.twin and load_twin(self.twin).world:
            raise UnusableInputError(
                f"{self.twin} is of a simulation of yours: there policies are trained on attempts "
                "that succeed. gaploop evaluate --policy.path=demonstrator --env.scene=FILE "
                "--dataset.root=demos, then gaploop finetune --method=lerobot, and with what came "
                "of it --method=reinforce."
            )
        known, drawn = known_and_drawn(self.twin, self.randomise, self.robot, option)
        return {"task": self.task, "robot": self.robot, "parameters": known, "randomise": drawn}


@dataclass
class FinetuneConfig:
    """Adapt any LeRobot policy to real episodes, mixed with simulated ones so that it forgets
    little.

    Writes OUT/adapter (with the base inside: it loads from anywhere), OUT/merged (a plain LeRobot
    policy), metrics.jsonl and run.json with the lineage. Ctrl-C keeps a checkpoint; the same
    command with --resume continues from it. --dry_run shows what would be trained on.

    With --policy.type a new base is trained in simulation instead, and with --method=reinforce a
    policy learns from its own attempts in a station's twin. With --method=lerobot LeRobot's own
    training runs, all of it, on cached pictures and mixtures: what stands after `--` are options
    of lerobot-train. docs/train/finetuning.md explains the choices.
    """

    policy: StartPolicy = field(default_factory=StartPolicy)
    method: str = presets.LORA
    """lora (an adapter), full (all weights), reinforce, lerobot, or the name of a preset such as
    act_lora where it isn't chosen by the kind of policy; help lists them."""
    mixture: Path | None = None
    """In the place of --real, --sim and --mix: a mixture.yaml with shares or stages and weights."""
    real: tuple[Path, ...] = ()
    """Datasets of real episodes, or of a simulated target cell."""
    sim: tuple[Path, ...] = ()
    """Datasets of simulated episodes."""
    sim_takes: int = 0
    """Without --sim: scripted episodes of the embedded cell to record first."""
    mix: MixOptions = field(default_factory=MixOptions)
    plan: Path | None = None
    """A plan.yaml: episodes of a gap dimension are drawn as often as it expects them to help."""
    select: str = "demonstrations"
    """Which episodes: demonstrations, successful or all."""
    where: str = ""
    """Only episodes of which this is true, such as 'station=left' or 'episode=0,3', as of gaploop
    label; what is mixed in with --sim is taken whole."""
    held_out: float | tuple[int | str, ...] = ()
    """What to keep aside of the real episodes and measure the error on: a share such as 0.2, chosen
    by session and dimension; or episodes as '[3, 7]', or uids."""
    lora: presets.LoraOptions = field(default_factory=presets.LoraOptions)
    stats: str = "base"
    """Normalise by the statistics of the base, or of the new data (new)."""
    rename_map: dict[str, str] = field(default_factory=dict)
    """The dataset's name of a feature to the policy's, where they differ."""
    cache: CacheOptions = field(default_factory=CacheOptions)
    randomise: presets.Randomise = field(default_factory=presets.Randomise)
    env: TrainingCell = field(default_factory=TrainingCell)
    steps: int = 0
    """Training steps; rounds of attempts for reinforce; the preset's unless given."""
    batch_size: int = 0
    """Samples per step; attempts in a round for reinforce; the preset's unless given."""
    lr: float = 0.0
    """Peak learning rate; the preset's unless given."""
    accumulation: int = 0
    """Parts in which a batch is worked through, one after another: less memory, the same step."""
    gradient_checkpointing: bool = False
    """Work activations out again on the way back, where LeRobot can (pi0, pi0.5): less memory."""
    device: str = "cpu"
    """Torch device; auto for a GPU where there is one."""
    num_workers: int = 0
    """Processes that fetch pictures ahead, record episodes or roll out."""
    seed: int = 0
    """Draws first weights, scenes and batches."""
    resume: bool = False
    """Go on from the checkpoint in --output_dir."""
    dry_run: bool = False
    """Show which takes would be drawn how often, and train nothing."""
    output_dir: Path | None = None
    """Run folder to write."""
    json: bool = False
    """Print one JSON object."""
    lerobot: list[str] = field(default_factory=list, init=False)
    """Options of lerobot-train, as they stand after `--`."""

    def __post_init__(self) -> None:
        if self.method not in (*presets.METHODS, "help"):
            raise unknown_choice("method", self.method, presets.METHODS, "--method")
        check_selection(self.select)
        if self.stats not in STATS:
            raise unknown_choice("statistics", self.stats, STATS, "--stats")
        if self.plan and self.mixture:
            raise UnusableInputError(
                f"--plan={self.plan} weighs --real by dimension; {self.mixture} has weights of its "
                "own. Give one of the two."
            )

    @property
    def folder(self) -> Path:
        """The run folder; UnusableInputError without."""
        if self.output_dir is None:
            raise UnusableInputError("Where to? Name a run folder with --output_dir=OUT.")
        return self.output_dir

    def weights(self) -> dict[str, float]:
        """Return gap dimension to how often its takes are drawn, relative to 1."""
        return weights_of(load_plan(self.plan, None)) if self.plan else {}

    def spec(self, preset: presets.TrainSpec) -> presets.TrainSpec:
        """Return how to train: as a preset says, but for what was given.

        It warms up for half of the run at most.
        """
        given = {name: value for name in SPEC if (value := getattr(self, name))}
        spec = replace(preset, **given, seed=self.seed)
        return replace(spec, warmup_steps=min(spec.warmup_steps, max(1, spec.steps // 2)))

    def recipe(self, kind: str) -> presets.Preset:
        """Return how a kind of policy is tuned; see `adapt.kind_of`."""
        preset = presets.preset_for(kind, self.method)
        lora = presets.LoraOptions(
            self.lora.r or preset.lora.r, self.lora.target_modules or preset.lora.target_modules
        )
        return replace(preset, spec=self.spec(preset.spec), lora=lora)

    def require_sense(self) -> None:
        """Refuse options that would be ignored.

        Raises:
            UnusableInputError: there is one; which.
        """
        used: tuple[str, ...] = tuple(f.name for f in fields(self) if f.name != "env")
        way = f"--method={self.method}"
        if self.method == presets.LEROBOT:
            used = _LEROBOT
        elif self.method == presets.REINFORCE:
            used = _REINFORCE
        elif self.policy.type:
            used, way = _FROM_SCRATCH, f"--policy.type={self.policy.type}"
        usual = FinetuneConfig()
        for name in (f.name for f in fields(self) if f.name not in (*used, *_ALWAYS, "lerobot")):
            if getattr(self, name) == getattr(usual, name):
                continue
            fix = "Leave it out."
            if self.method == presets.LEROBOT:
                fix = "It is lerobot-train that trains: give its options after --."
            if name == "mixture" and self.policy.type:
                fix = "Name datasets with --sim='[DIR]', or give --sim_takes=400."
            what = (
                f"{self.mixture}, as a mixture of datasets," if name == "mixture" else f"--{name}"
            )
            raise UnusableInputError(f"{what} does nothing with {way}. {fix}")
        if self.lerobot and self.method != presets.LEROBOT:
            raise UnusableInputError(
                "What stands after -- is for LeRobot's own training: add --method=lerobot."
            )
        if self.policy.type and self.method != presets.LORA:
            raise UnusableInputError(f"--policy.type trains a new policy, {way} doesn't. Choose.")

    def record(self) -> Mapping[str, Any]:
        """Return it as `run.json` holds it."""
        value: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return value


def weights_of(plan: Plan) -> dict[str, float]:
    """Return gap dimension to weight, 1 on average over what the plan collects.

    A dimension's weight goes by the points of success that the plan expects of its takes; by
    its share of the failures where the plan doesn't say. What isn't collected counts 1.

    Raises:
        UnusableInputError: the plan collects nothing.
    """
    items = [i for i in plan.items if i.remedy == COLLECT and i.takes]
    if not items:
        raise UnusableInputError(
            f"Plan {plan.id} collects no episodes, so it gives no weights for them. Leave --plan "
            "out."
        )
    has_gains = all(i.gain_points is not None for i in items)
    values: dict[str, float] = {}
    for item in items:
        gain = item.gain_points.value if has_gains and item.gain_points else item.share
        name = item.dimension.value
        values[name] = values.get(name, 0.0) + max(0.0, gain)
    mean = sum(values.values()) / len(values)
    if mean <= 0:
        return dict.fromkeys(values, 1.0)
    return {name: min(MOST, max(LEAST, value / mean)) for name, value in values.items()}
