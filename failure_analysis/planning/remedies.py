"""What fixes each dimension: demonstrations, a command, or a hand; with the cheapest test of it.

How to record demonstrations against it, and under which conditions; remedies that commands carry
out without an operator, what each is expected to fix, what it costs, how it is called; or what to
do instead, in words. The share of a dimension's failures that a command fixes is drawn from a Beta
distribution about the mean of the sites where it was tried (`remedy_sites.json`), and of what is
believed before any.
"""

import itertools
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.files import read_json
from gaploop.core.messages import FloatArray
from gaploop.core.plan import every_value
from gaploop.core.station import NAMED_CONDITIONS, Station
from gaploop.core.statistics import Estimate
from gaploop.core.twin import Twin
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.planning.gains import CAUSES, DRAWS, Failures
from gaploop.failure_analysis.planning.ledger import LedgerEntry, brought_here

D = GapDimension
NOBODY: Final = "none"
"""The `human` condition in which nobody is there: nothing to record against people."""


@dataclass(frozen=True)
class Remedy:
    """What to do about a dimension, in words.

    Attributes:
        instead: one of core.plan's REMEDIES where demonstrations don't fix it; `steps` say how.
        protocol: how to record demonstrations.
        vary: conditions that the takes are spread over, all values of each.
        split_by: the condition by whose values takes are shared out, where failures differ in it.
        test: the cheapest test that tells whether this is the cause.
    """

    instead: str
    steps: str
    protocol: str
    sensors: tuple[str, ...]
    vary: tuple[str, ...]
    split_by: str
    test: str


REMEDIES: Final[Mapping[GapDimension, Remedy]] = {
    D.SPATIAL_GEOMETRY: Remedy(
        "recalibrate",
        "Recalibrate camera and joint zeros (gaploop calibrate hand_eye, lerobot-calibrate), "
        "measure the table's height; then evaluate again.",
        "First recalibrate camera and joint zeros. If the station has to stay as it is, record "
        "successful demonstrations on it as it stands, the object in every cell of the grid.",
        ("every camera that the policy uses", "joint positions"),
        ("grid_cell",),
        "table_height",
        "gaploop doctor --station=station.yaml, with your robot, compares camera and rests with "
        "the day before; or lay the object on a measured mark and compare it with what the "
        "tracker reports.",
    ),
    D.OBJECT_PROPERTY: Remedy(
        "change_scene",
        "Use objects that the policy was made for, or set grip width and height by hand; then "
        "evaluate again.",
        "Record successful demonstrations with the real objects, sizes and weights in turn, each "
        "in every cell of the grid.",
        ("every camera that the policy uses", "gripper width and current"),
        ("grid_cell",),
        "object",
        "Put an object that the policy was made for into the cell and roll out ten times: it "
        "should succeed.",
    ),
    D.CONTACT_DYNAMICS: Remedy(
        "change_scene",
        "Clean or change the finger pads, raise the gripping force, slow the lift down; then "
        "evaluate again.",
        "First clean or change the finger pads and grip harder. Then record slow, firm grasps on "
        "the real surfaces; pause half a second after closing, before lifting.",
        ("gripper current or force telemetry", "gripper width", "every camera"),
        ("grid_cell",),
        "object",
        "Clean pads and object with alcohol, grip by hand command and lift ten times: does it "
        "still slip?",
    ),
    D.HUMAN_BEHAVIOR: Remedy(
        "change_scene",
        "Agree on when people may reach in, let the arm wait while somebody is in view; then "
        "evaluate again.",
        "Agree on when people may reach in. Record episodes with consenting participants (gaploop "
        "consent) in which the arm waits, then goes on from where the object lies.",
        ("every camera that the policy uses", "a camera that sees the people"),
        ("grid_cell",),
        "human",
        "Roll out ten times with nobody near the cell: do the failures stop?",
    ),
    D.ACTUATOR_RESPONSE: Remedy(
        "change_scene",
        "Let the policy drive slower (gaploop rollout --speed_scale=0.5). Log fast and reversing "
        "motions, identify delay, play and gain, compensate them in the controller or service the "
        "drive; then evaluate again.",
        "First service the drive, or identify delay, play and gain and compensate them. If the arm "
        "has to stay as it is, record successful demonstrations on it, the object in every cell "
        "of the grid.",
        ("joint positions, velocities and currents at control rate",),
        ("grid_cell",),
        "",
        "gaploop diagnose DATASET measures delay and play from episodes that are there already.",
    ),
    D.SENSOR_NOISE: Remedy(
        "recalibrate",
        "Check cables, bus and camera link, recalibrate zeros, filter what remains; log scripted "
        "motions to characterise it; then evaluate again.",
        "Record scripted motions with every sensor on.",
        ("joint positions at control rate", "status of every servo"),
        (),
        "",
        "gaploop doctor queries every servo; log one minute at rest: do readings jitter, repeat or "
        "drop out?",
    ),
    D.VISUAL_DOMAIN: Remedy(
        "change_scene",
        "Fix exposure and white balance, focus the lens, add light, set the colour segmentation "
        "anew; then evaluate again.",
        "Fix exposure, white balance and focus. Then record successful demonstrations with the "
        "deployment cameras under every light of the site, spread over the day.",
        ("the deployment cameras, settings locked",),
        ("lighting", "grid_cell"),
        "lighting",
        "Lock exposure and white balance, switch the usual lamp on and roll out ten times.",
    ),
    D.ENVIRONMENTAL_COMPLEXITY: Remedy(
        "change_scene",
        "Clear the cell, or make perception tell the object from what looks like it; keep "
        "obstacles out of the arm's way; then evaluate again.",
        "Record successful demonstrations with systematic clutter: 0, 2, 4 and 8 objects, in new "
        "places every episode.",
        ("every camera that the policy uses",),
        ("grid_cell",),
        "distractors",
        "Clear the cell of everything but the object and roll out ten times.",
    ),
    D.TASK_SPECIFICATION: Remedy(
        "change_task",
        "Look at these episodes together with whoever judges them, agree on criterion and "
        "tolerance, write them down, and evaluate again.",
        "Nothing to record.",
        (),
        (),
        "",
        "Let two people judge the same ten episodes without talking: do they agree?",
    ),
}


@dataclass(frozen=True)
class SetupTakes:
    """Takes that share their conditions, and go through the values of others in turn.

    Attributes:
        mass: share of the dimension's failures that they are recorded against.
        suffix: what tells the part's item from others of its dimension; "" for an only one.
    """

    conditions: Mapping[str, Any]
    vary: Mapping[str, tuple[Any, ...]]
    mass: float = 1.0
    suffix: str = ""

    def every(self) -> list[dict[str, Any]]:
        """Return all set-ups."""
        combinations = itertools.product(*self.vary.values())
        return [{**self.conditions, **dict(zip(self.vary, c, strict=True))} for c in combinations]


def setups_for(
    dimension: GapDimension,
    failures: Failures,
    conditions: Mapping[str, Mapping[str, Any]],
    station: Station,
) -> tuple[SetupTakes, ...]:
    """Return how a dimension's takes are shared out among conditions; masses sum to 1.

    Takes are recorded under what all failures, by uid, had in common: the gap is in the station as
    it stands. Where failures differ in the condition that matters for the dimension, takes follow
    them; where nothing is known of it, they are spread over what the station can set up.
    """
    remedy, name = REMEDIES[dimension], REMEDIES[dimension].split_by
    known = [conditions[t.uid] for t in failures.takes if t.uid in conditions]
    shared = {
        n: value
        for n, value in sorted(known[0].items() if known else ())
        if all(n in other and other[n] == value for other in known)
    }
    # How much of the dimension's failures fell under each value of the condition, as far as known.
    mass, values = Counter[str](), dict[str, Any]()
    for take, row in zip(failures.takes, failures.posteriors, strict=True):
        if name in conditions.get(take.uid, {}):
            value = conditions[take.uid][name]
            values[repr(value)] = value
            mass[repr(value)] += row[CAUSES.index(dimension)]
    total = sum(mass.values())
    ranked = sorted(mass.items(), key=lambda pair: (-pair[1], pair[0])) if total > 0 else []
    names = [*remedy.vary]
    if not ranked and name in NAMED_CONDITIONS and name not in names:
        names.insert(0, name)
    if len(ranked) > 1:
        names = [n for n in names if n != name]
    every = {
        n: tuple(v for v in every_value(n, station) if (n, v) != ("human", NOBODY)) for n in names
    }
    vary = {n: found for n, found in every.items() if n not in shared and found}
    if len(ranked) < 2:
        return (SetupTakes(shared, vary),)
    return tuple(
        SetupTakes({**shared, name: values[key]}, vary, m / total, f":{name}={values[key]}")
        for key, m in ranked
    )


SITES: Final = Path(__file__).with_name("remedy_sites.json")
CONCENTRATION: Final = 4.0
"""Of what a next site may give about the mean: about 50 % two draws in three lie within 22 points.
Assumed."""
HERE: Final = 8
"""Failures at the station itself that count in full; more of one training tell no more of the next.
Assumed."""
OPERATOR_H: Final = Estimate(0.1, 0.05, 0.2)
"""To start three commands and to look at what comes of them [h]. Assumed."""
TAKES: Final = 24
"""Scripted episodes that are recorded in a twin: what docs/diagnose/remedies.md was measured
with."""
MIXED: Final = 40
"""Nominal ones that are mixed in, so that little is forgotten."""
RANDOMISED_TAKES: Final = 100
ROLLOUTS: Final = 40
"""Of the evaluation that ends each remedy."""
MACHINE_S: Final = {"take": 6.0, "rollout": 3.0, "training": 240.0, "training of pictures": 14400.0}
"""On one core, as measured with the small policy on tracked poses; of pictures assumed [s]."""
READ: Final = (
    "spatial_geometry.camera_pose", "spatial_geometry.field_of_view",
    "spatial_geometry.zero_offset", "spatial_geometry.base_pose",
)  # fmt: skip
"""What recalibrating takes out; of a base's tilt and the table's height it only corrects what is
seen."""
LIGHT: Final = (
    "visual_domain.exposure", "visual_domain.colour_cast", "visual_domain.flicker",
)  # fmt: skip
"""What it takes out of pictures."""
DELAY: Final = "actuator_response.latency"
"""What the policy's plans are shifted by."""
NOISE: Final = ("sensor_noise.encoder_drift.noise_rad", "sensor_noise.readings.noise_rad")
"""Noise of readings, which is filtered out of what the policy reads while it drives."""
SLUGGISH: Final = ("actuator_response.slow", "actuator_response.weak")
"""Drives that get where they are told to, but later: a policy that drives slower loses nothing."""
DEMONSTRATOR: Final = "demonstrator"
"""Who shows the task in a scene file; elsewhere --record_with names a script."""
SHOWN_FROM, MORE_FROM = "--seed=1000", "--seed=5000"
"""Its first scene: of others than those that the remedy is evaluated on, and of more of them."""
SPEED_SCALE: Final = 0.5
"""Of the policy's speed, where it is to drive slower."""
RANGES: Final[Mapping[GapDimension, str]] = {
    D.SPATIAL_GEOMETRY: "CP+TH",
    D.OBJECT_PROPERTY: "dynamics",
    D.ACTUATOR_RESPONSE: "dynamics",
    D.CONTACT_DYNAMICS: "dynamics",
    D.VISUAL_DOMAIN: "BG+LT",
    D.ENVIRONMENTAL_COMPLEXITY: "TD",
}
"""What is randomised against a dimension that wasn't measured."""
STEPS: Final[Mapping[str, str]] = {
    "recalibrate": "Write a policy that allows for camera, joint zeros and light as the twin has "
    "them; nothing is trained. Try it in the twin, then at the station; what moves later shows in "
    "gaploop doctor --station=station.yaml, with your robot.",
    "compensate": "Write a policy that plans for when its commands arrive, and by readings without "
    "their noise; nothing is trained. Try it in the twin, then at the station.",
    "drive_slower": f"Let the policy drive at {SPEED_SCALE:g} of its speed, with as much more time "
    "for an attempt; nothing is trained. Try it in the twin, then at the station: gaploop rollout "
    f"--speed_scale={SPEED_SCALE:g}. The gate judges it by the suite's candidate_speed: "
    f"{SPEED_SCALE:g}.",
    "resimulate": "Record scripted demonstrations in the station's twin, fine-tune on them with "
    "nominal ones mixed in, and try it in the twin, then at the station.",
    "randomise": "Record scripted demonstrations in cells that are drawn anew for every episode, "
    "fine-tune on them with nominal ones mixed in, and try it at the station.",
}
"""How each remedy is carried out, in words."""
MEASURED: Final = (
    D.SPATIAL_GEOMETRY, D.OBJECT_PROPERTY, D.ACTUATOR_RESPONSE, D.VISUAL_DOMAIN,
)  # fmt: skip
"""Dimensions of which the station check measures something on any arm."""
PICTURES: Final[Mapping[str, Any]] = {"input_features": {"camera": {"type": "VISUAL"}}}
QUICK: Final = "keypoint"
"""A kind of policy that learns from pictures in minutes."""
SHIPPED: Final[Mapping[str, Mapping[str, Any]]] = {
    "base": {},
    "base_vision": {**PICTURES, "type": QUICK},
}
"""What must be known of the policies that ship."""


@dataclass(frozen=True)
class RemedyTrial:
    """A remedy that was carried out in the station's twin, on the same scenes before and after.

    Attributes:
        before: rollouts that went well, and all of them, with the policy as it was.
        after: the same with what the remedy made of it.
        failed: why it can't be carried out in the twin; it isn't offered then.
    """

    before: tuple[int, int]
    after: tuple[int, int]
    failed: str = ""

    def fixed(self) -> FloatArray:
        """Return draws of the share of the twin's failures that it fixes, (DRAWS,), from -1 to 1.

        Rates by Jeffreys' posterior (Brown, Cai and DasGupta 2001).
        """
        rng = np.random.default_rng(6)
        left, failed = (
            rng.beta(n - won + 0.5, won + 0.5, DRAWS) for won, n in (self.after, self.before)
        )
        return np.asarray(np.clip(1.0 - left / failed, -1.0, 1.0))

    @property
    def message(self) -> str:
        """What came of it, in words."""
        if self.failed:
            return f"tried in the twin, and couldn't be carried out ({self.failed})"
        (won, n), (won_after, n_after) = self.before, self.after
        return f"tried in the twin: {won} of {n} rollouts before, {won_after} of {n_after} after"


@dataclass(frozen=True)
class PlanContext:
    """What commands are filled in with.

    Attributes:
        folder: where the plan is written; what its commands make goes there.
        twin: the station's; None where it wasn't measured.
        record_with: options by which takes are recorded at the station, as they are typed.
        tried: what came of remedies in the twin, by `trial_name`.
        ledger: what came of plans at the station.
        other_arm: `takes` are of an arm that the cell hasn't got: no twin comes of them.
    """

    folder: Path = Path("plan")
    policy: str = "base"
    twin: Twin | None = None
    twin_file: Path | None = None
    task: str = "pick_place"
    record_with: str = ""
    takes: tuple[Path, ...] = ()
    tried: Mapping[str, RemedyTrial] = field(default_factory=dict)
    ledger: tuple[LedgerEntry, ...] = ()
    other_arm: bool = False

    @property
    def config(self) -> Mapping[str, Any]:
        """The policy's config.json; of one that isn't here, that it is fed pictures."""
        last = "checkpoints/last/pretrained_model"
        for part in ("", "adapter", "policy", "merged", last):  # a policy, or the run that made it
            path = Path(self.policy, part, "config.json")
            if path.exists():
                found: dict[str, Any] = read_json(path)
                return found
        return SHIPPED.get(self.policy, PICTURES)

    @property
    def sees_pictures(self) -> bool:
        """Whether the policy is fed pictures."""
        features = self.config.get("input_features") or {}
        return any(f.get("type") == "VISUAL" for f in features.values())

    @property
    def arm(self) -> str:
        """The cell's arm."""
        return self.twin.arm if self.twin else "so101"

    @property
    def world(self) -> Mapping[str, Any]:
        """The simulation that the twin changes, as `Twin.world`; {} for the embedded cell."""
        return self.twin.world if self.twin else {}

    @property
    def can_train(self) -> bool:
        """Whether demonstrations can be recorded in the twin, and the policy learns from them."""
        shown = "scene" in self.world or "--policy.path=" in self.record_with
        return not self.world or (shown and not self.is_script)

    @property
    def is_script(self) -> bool:
        """Whether the policy is a function, a class or waypoints, which nothing trains."""
        named = ":" in self.policy and not Path(self.policy).exists()
        return named or self.policy == DEMONSTRATOR


@dataclass(frozen=True)
class RemedyOffer:
    """A remedy for one dimension, with draws of the share of its failures that it fixes, (DRAWS,).

    An operator's hours and those of one core; what the share rests on, in words. One that was
    tried fixes that share of all failures in the twin, whatever their dimension.
    """

    remedy: str
    fixed: FloatArray
    hours: Estimate
    machine_hours: float
    basis: str
    tried: bool = False


@cache
def _known() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SITES.read_text())
    return found


def fixed_by(
    remedy: str, dimension: GapDimension, images: bool, here: Sequence[tuple[float, int]] = ()
) -> tuple[FloatArray, int] | None:
    """Return draws of the share that a remedy fixes, and from how many sites; None: not offered.

    For a policy that sees pictures only sites of one that does count. `here` are shares that it
    fixed at this station, each of so many failures.
    """
    known = _known()
    assumed = known["assumed"].get(remedy, {})
    if images:
        assumed = assumed | known["assumed_of_image_policies"].get(remedy, {})
    if dimension.value not in assumed:
        return None
    shares = [float(assumed[dimension.value])]
    for site in known["sites"]:
        of = (site["remedy"], site["dimension"], site.get("sees") == "pictures")
        if of == (remedy, dimension.value, images):
            (won, n), (won_after, n_after) = site["before"], site["after"]
            failed = 1.0 - (won + 0.5) / (n + 1.0)
            left = 1.0 - (won_after + 0.5) / (n_after + 1.0)
            shares.append(min(max(1.0 - left / failed, 0.01), 0.99))
    mean = sum(shares) / len(shares)
    rng = np.random.default_rng([5, list(GapDimension).index(dimension)])
    gone = CONCENTRATION * mean + sum(share * min(n, HERE) for share, n in here)
    left = CONCENTRATION + sum(min(n, HERE) for _, n in here) - gone
    drawn = rng.beta(gone, max(left, 1e-3), DRAWS)
    return np.asarray(drawn), len(shares) - 1


def identify_first(dimension: GapDimension) -> str:
    """Return in words why to measure a station comes first; "" where nothing tells that it does.

    By the ladder (docs/figures/ladder.md), where measuring clearly brought something at stations
    that a policy was tried at, and more than to randomise without it.
    """
    told = _known().get("ladder", {})
    if dimension not in MEASURED or not {"randomise", "identify", "demonstrate"} <= told.keys():
        return ""
    blind, known, shown = (told[r]["points"] for r in ("randomise", "identify", "demonstrate"))
    if known[1] <= 0.0 or known[0] <= blind[0]:
        return ""
    span = "{:+.0f} points [{:.0f}, {:.0f}]".format
    return (
        f"Identify first: over no remedy, randomised simulation brought {span(*blind)}, around "
        f"the measured twin {span(*known)}, with 100 episodes of the station on top "
        f"{span(*shown)} (sim-to-sim, {told['identify']['stations']} made-up stations, policies "
        "on tracked poses; 95 % intervals)."
    )


def offers(dimension: GapDimension, about: PlanContext, images: bool) -> tuple[RemedyOffer, ...]:
    """Return the remedies that commands can carry out against a dimension.

    Without a twin nobody knows what to put into the simulation. Randomised takes are recorded
    around one, too: they stand for the station. In somebody else's simulation nothing is
    recalibrated or compensated: what does that is made for the cell's camera and rollouts.
    """
    recorded = {"resimulate": TAKES, "randomise": RANDOMISED_TAKES}
    differs, fit = (about.twin.mechanisms, about.twin.fit) if about.twin is not None else ((), {})
    here = [m for m in differs if m.startswith(f"{dimension.value}.")]
    noisy = dimension is D.SENSOR_NOISE and any(
        p.differs and p.name in NOISE for p in (about.twin.parameters if about.twin else ())
    )
    possible = ["compensate"] if (here == [DELAY] or noisy) and not about.world else []
    # A simulation whose actions pull has no targets that could be passed more slowly.
    if any(m in SLUGGISH for m in here) and fit.get("takes_targets", True):
        possible.append("drive_slower")
    geometry = any(m in READ for m in differs) and dimension is D.SPATIAL_GEOMETRY and not images
    # Of pictures that are also blurred it would take out a part, of which no site tells.
    light = bool(here) and set(here) <= set(LIGHT)
    if not about.world and (geometry or light):
        possible.append("recalibrate")
    if here and about.can_train:
        possible.append("resimulate")
    elif dimension in RANGES and differs and about.can_train:
        possible.append("randomise")
    found = []
    for remedy in possible:
        machine_h = machine_hours(about, images, recorded.get(remedy))
        brought = brought_here(about.ledger, remedy, dimension)
        trial = about.tried.get(trial_name(remedy, dimension))
        if trial is not None and trial.failed:
            continue
        if trial is not None:
            fixed, basis = trial.fixed(), trial.message
        elif (known := fixed_by(remedy, dimension, images, brought)) is not None:
            fixed, basis = known[0], f"from {known[1]} made-up stations" if known[1] else "assumed"
            basis += f", and from {len(brought)} plans carried out here" if brought else ""
        else:
            continue
        tried = trial is not None
        found.append(RemedyOffer(remedy, fixed, OPERATOR_H, machine_h, basis, tried))
    return tuple(found)


def _takes_something_out(twin: Twin | None) -> bool:
    """Say whether `gaploop calibrate from_twin` allows for anything that was measured."""
    known = {*READ, *LIGHT, DELAY, "spatial_geometry.table_height", "sensor_noise.camera_delay"}
    parameters = twin.parameters if twin is not None else ()
    return any(p.differs and (p.mechanism in known or p.name in NOISE) for p in parameters)


def trial_name(remedy: str, dimension: GapDimension) -> str:
    """Return what tells a remedy's trial from others: most are the same for every dimension."""
    if remedy == "compensate":  # the commands that recalibrate, too
        return "recalibrate"
    return f"{remedy}_{dimension.value}" if remedy == "randomise" else remedy


def measuring(about: PlanContext, source: str) -> tuple[str, ...]:
    """Return the commands, as typed, that measure the station and reproduce a folder's failures."""
    lines, twin, roots = list[list[str]](), about.twin_file, list(about.takes)
    if twin is None and about.other_arm:
        return ()
    if twin is None:
        arm = [o for o in shlex.split(about.record_with) if o.startswith(("--robot.", "--station"))]
        if arm:
            roots, arm = [about.folder / "station_check"], ["--measure", *arm]
        if roots:
            twin = about.folder / "station" / "station_twin.yaml"
            lines.append(["identify", *map(str, roots), *arm, f"--output_dir={twin.parent}"])
    again = next((root for root in about.takes if root.resolve().name == source), None)
    if twin is not None and again is not None:
        with_twin = [f"--twin={twin}", f"--policy.path={about.policy}"]
        found = about.folder / "reproduced"
        takes = f"--takes=[{', '.join(map(str, about.takes))}]"
        recorded = [f"--record_with={about.record_with}"] if about.record_with else []
        lines.append(["diagnose", str(again), *with_twin, f"--output_dir={found}"])
        lines.append(["plan", str(found), *with_twin, takes, *recorded])
    return tuple(shlex.join(["gaploop", *line]) for line in lines)


def better_policy(about: PlanContext | None) -> tuple[str, str]:
    """Return how a policy that fails of itself gets better, and a command for it, or ""."""
    if about is None or not about.world:
        return "Train it longer or on more simulated episodes", "gaploop finetune --policy.type=act"
    if about.is_script:
        return f"Mend {about.policy}", ""
    who = shlex.split(about.record_with) or [f"--policy.path={DEMONSTRATOR}"] * (
        "scene" in about.world
    )
    # Other scenes than the page's own demonstrations, which would only be had twice.
    line = ["gaploop", "evaluate", *who, *_world_options(about), MORE_FROM, "--n=100"]
    typed = shlex.join([*line, "--dataset.root=more"]) if who else ""
    return "Train it longer (--steps) or on more demonstrations", typed


def mended_script(about: PlanContext) -> str:
    """Return what to do about a script, which no episodes teach."""
    typed = ["gaploop", "evaluate", "--policy.path=my_module:mended", *_world_options(about)]
    return (
        f"{about.policy} is a script, which no episodes teach: mend it by hand, try it in the "
        "twin, and let the gate compare both (docs/start/my_simulation.md). → "
        + shlex.join([*typed, f"--twin={about.twin_file}", f"--n={ROLLOUTS}"])
    )


def _world_options(about: PlanContext) -> list[str]:
    """Return the options that name somebody's own simulation."""
    return [
        f"--{'' if name == 'roles' else 'env.'}{name}="
        f"{json.dumps(value) if isinstance(value, Mapping) else value}"
        for name, value in about.world.items() if value != {}
    ]  # fmt: skip


def machine_hours(about: PlanContext, images: bool, takes: int | None) -> float:
    """Return what training on `takes`, if any, and evaluating take of one core [h]."""
    seconds = ROLLOUTS * MACHINE_S["rollout"]
    if takes is not None:
        slow = images and about.config.get("type") != QUICK
        seconds += (MIXED + takes) * MACHINE_S["take"]
        seconds += MACHINE_S["training of pictures" if slow else "training"]
    return round(seconds / 3600.0, 2)


def commands(
    remedy: str, dimension: GapDimension, about: PlanContext, images: bool = False
) -> tuple[str, ...]:
    """Return the commands that carry a remedy out, each as it is typed; none where none can."""
    twin = [] if about.twin_file is None else [f"--env.twin={about.twin_file}"]
    if about.twin is not None and about.twin.drawn_together:
        twin.append("--env.randomise=twin")
    here = [] if about.arm == "so101" else [f"--env.robot={about.arm}"]
    if about.task != "pick_place":
        here.append(f"--env.task={about.task}")
    policy, env = f"--policy.path={about.policy}", "env."
    if about.world:
        twin, env = [f"--twin={about.twin_file}"], ""
        here = _world_options(about)

    def record(name: str, takes: int, *options: str) -> list[str]:
        where = [f"--dataset.root={about.folder / name}", f"--dataset.num_episodes={takes}"]
        if about.world:  # attempts of who demonstrates; those that succeed are kept
            who = shlex.split(about.record_with) or [f"--policy.path={DEMONSTRATOR}"]
            return ["evaluate", *who, *here, *options, where[0], f"--n={takes}", SHOWN_FROM]
        cell = [option.replace("--env.robot", "--robot.model").replace("--env.", "--robot.")
                for option in (*here, *options)]  # fmt: skip
        return ["record", "--robot.type=so101_sim", "--teleop.type=scripted", *cell, *where]

    def train(name: str, out: str, *options: str) -> Iterator[list[str]]:
        mixed = f"--sim_takes={MIXED}"
        if images or about.world:  # its pictures, or its simulation, as it is
            yield record("nominal", MIXED)
            mixed = f"--sim=[{about.folder / 'nominal'}]"
        yield ["finetune", policy, f"--real=[{about.folder / name}]", mixed, *options,
               f"--output_dir={about.folder / out}"]  # fmt: skip
        yield ["evaluate", f"--policy.path={about.folder / out}", *here, *twin, f"--n={ROLLOUTS}"]

    lines: list[list[str]] = []
    match remedy:
        case "recalibrate" | "compensate" if twin and _takes_something_out(about.twin):
            out = about.folder / "recalibrated"
            lines = [
                ["calibrate", "from_twin", str(about.twin_file), policy, f"--output_dir={out}"],
                ["evaluate", f"--policy.path={out}", *here, *twin, f"--n={ROLLOUTS}"],
            ]
        case "drive_slower" if twin:
            slower = f"--speed_scale={SPEED_SCALE:g}"
            lines = [["evaluate", policy, *here, *twin, slower, f"--n={ROLLOUTS}"]]
        case "resimulate" if twin:
            lines = [
                record("resimulated", TAKES, *twin),
                *train("resimulated", "resimulated_policy"),
            ]
        case "randomise" if dimension in RANGES:
            name = f"randomised_{dimension.value}"
            ranges = f"--{env}randomise={RANGES[dimension]}"
            lines = [record(name, RANDOMISED_TAKES, *twin, ranges), *train(name, f"{name}_policy")]
        case "collect" if about.record_with and not about.world:
            plan = f"--plan={about.folder / 'plan.yaml'}"
            root = f"--dataset.root={about.folder / 'demonstrations'}"
            lines = [
                ["record", plan, *shlex.split(about.record_with), root],
                *train("demonstrations", "adapted", plan),
            ]
    return tuple(shlex.join(["gaploop", *line]) for line in lines)
