"""How to train, and named starting points, one for each kind of policy and way of tuning it.

Learning rates. An adapter starts as an exact zero update and has few weights; LeRobot's guide
to PEFT trains them near 1e-3, ten times its rates for whole policies. All weights at once
start from a policy that works: a tenth of the rate it was pretrained with moves it to the new
data without throwing it out of what it knows. Pretraining rates are LeRobot 0.6.1's own
(`optimizer_lr` of ACT 1e-5, Diffusion and SmolVLA 1e-4, pi0 and pi0.5 2.5e-5).

Rank and scale. Rank 16, LeRobot's default. Where LeRobot leaves the scale open PEFT takes
alpha 8, so that a larger rank means a smaller step; alpha is twice the rank here, whatever the
rank, so that one learning rate fits all ranks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gaploop.core.errors import UnusableInputError, unknown_choice

PRECISIONS: Final = ("no", "bf16")
RANDOMISED: Final = ("light", "camera", "background")
"""What of a training picture is randomised; light stands for noise, too."""
TRACKED: Final = "tracked"
"""The kind of ACT that sees joints and tracked poses, no pictures: minutes on a CPU."""
OTHER: Final = "other"
ACT_TARGETS: Final = (
    "linear1",
    "linear2",
    "action_head",
    "encoder_robot_state_input_proj",
    "encoder_env_state_input_proj",
)
"""ACT's Linear layers. Attention's `in_proj` is a bare parameter, which PEFT can't wrap."""
DIFFUSION_TARGETS: Final = (
    r"diffusion\.(unet\..*(cond_encoder\.1|conv[12]\.block\.0|diffusion_step_encoder\.[13])"
    r"|rgb_encoder.*\.out)",
)
"""The U-Net's convolutions and conditioning, and what the picture encoder's features go through."""

KEYPOINT_TARGETS: Final = (
    *("stem", "conv1", "conv2", "conv3", "heat", "far1", "far2", "overview"),
    *("aim", "near1", "near2", "close"),
    *("first_poses.0", "first_poses.2", "now_poses.0", "now_poses.2"),
    *("join", "up", "down", "head"),
)
"""All of it: what pictures go through, and what actions are worked out by."""


@dataclass(frozen=True)
class TrainSpec:
    """How to train.

    Attributes:
        final_lr: learning rate at the last step, as a fraction of `lr`.
        weight_decay: AdamW's, on matrices only.
        eval_every: steps between held-out evaluations, 0 for none.
        keep_best: end with the weights that were best on the held-out takes.
        precision: `no`, or `bf16` to compute losses in bfloat16; weights stay as they are.
        accumulation: parts in which a batch is worked through, one after another: less memory.
        gradient_checkpointing: work activations out again on the way back: less memory, more time.
    """

    steps: int
    batch_size: int = 64
    lr: float = 1e-3
    final_lr: float = 0.01
    warmup_steps: int = 200
    weight_decay: float = 1e-4
    grad_clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 500
    log_every: int = 50
    eval_every: int = 0
    keep_best: bool = False
    precision: str = "no"
    accumulation: int = 1
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown_choice("precision", self.precision, PRECISIONS)
        if min(self.steps, self.batch_size, self.accumulation) < 1:
            raise UnusableInputError(
                f"--steps={self.steps}, --batch_size={self.batch_size} and "
                f"--accumulation={self.accumulation} must be at least 1."
            )
        if not 0 < self.lr < math.inf:
            raise UnusableInputError(f"--lr={self.lr:g} must be above 0.")


TRACKED_SPECS: Final[Mapping[str, TrainSpec]] = {
    "pretrain": TrainSpec(steps=6_000, lr=1e-3, warmup_steps=200),
    "lora": TrainSpec(steps=400, lr=2e-3, warmup_steps=20, final_lr=0.1, weight_decay=0.0),
    "full": TrainSpec(steps=300, lr=3e-4, warmup_steps=20, final_lr=0.1),
}
"""Named starting points, each held by a test that trains two steps and resumes."""
REINFORCE_SPEC: Final = TrainSpec(
    steps=10, batch_size=80, lr=5e-5, final_lr=1.0, warmup_steps=1, weight_decay=0.0
)
"""How a policy is reinforced: `steps` rounds of `batch_size` attempts."""


@dataclass(frozen=True)
class Randomise:
    """Visual randomisation of training pictures."""

    strength: float = 0.0
    """0 for none to 1 for strong; it rises over the first third of the run."""
    every: str = "frame"
    """frame draws every picture anew; episode gives all of an episode the same changes."""
    kinds: tuple[str, ...] = field(default=RANDOMISED, metadata={"option": False})
    """What of a picture: light (and noise), camera (moved), background (replaced)."""

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in RANDOMISED:
                raise unknown_choice("kind of randomisation", kind, RANDOMISED)
        if self.every not in ("frame", "episode"):
            raise unknown_choice("--randomise.every", self.every, ("frame", "episode"))
        if not 0 <= self.strength <= 1:
            raise UnusableInputError(f"--randomise.strength={self.strength:g} must be from 0 to 1.")


@dataclass(frozen=True)
class LoraOptions:
    """Size of the adapter; its scale (alpha) is twice the rank."""

    r: int = 0
    """Rank; the preset's (16) unless given."""
    target_modules: tuple[str, ...] = ()
    """What gets an adapter: names of modules, or one regular expression; the preset's unless
    given."""


@dataclass(frozen=True)
class Preset:
    """A named starting point.

    Attributes:
        policy: LeRobot's name of the policy class, `tracked`, or `other`.
        lora: size of the adapter; LeRobot's own modules where it names none.
    """

    name: str
    policy: str
    full: bool
    spec: TrainSpec
    lora: LoraOptions = LoraOptions(16)
    why: str = ""


def _both(
    policy: str, batch_size: int, steps: int, pretraining_lr: float, targets: tuple[str, ...] = ()
) -> tuple[Preset, Preset]:
    """Return how a kind of policy gets an adapter, and how all of its weights are trained."""
    full = TrainSpec(
        steps,
        batch_size,
        lr=pretraining_lr / 10,
        final_lr=0.1,
        # A twentieth of the run to warm up, at most LeRobot's 1000 steps.
        warmup_steps=min(1000, steps // 20),
        precision="bf16" if policy.startswith(("pi", "smol")) else "no",
    )
    lora = replace(full, lr=1e-3, weight_decay=0.0)
    why = "LeRobot's guide to PEFT: about ten times the rate for whole policies"
    tenth = f"a tenth of LeRobot's {pretraining_lr:g} for training it"
    return (
        Preset(f"{policy}_lora", policy, False, lora, LoraOptions(16, targets), why),
        Preset(f"{policy}_full", policy, True, full, why=tenth),
    )


PRESETS: Final[Mapping[str, Preset]] = {
    p.name: p
    for p in (
        Preset(
            "tracked_lora",
            TRACKED,
            False,
            TRACKED_SPECS["lora"],
            LoraOptions(16, ACT_TARGETS),
            why="twice LeRobot's 1e-3: an adapter of 43,000 weights, 400 steps",
        ),
        Preset(
            "tracked_full",
            TRACKED,
            True,
            TRACKED_SPECS["full"],
            why="a third of the 1e-3 it was pretrained with, since it runs 300 steps only",
        ),
        Preset(
            "keypoint_lora",
            "keypoint",
            False,
            TrainSpec(
                600, 32, lr=1e-3, final_lr=0.1, warmup_steps=30, weight_decay=0.0, precision="bf16"
            ),
            LoraOptions(16, KEYPOINT_TARGETS),
            why="LeRobot's guide to PEFT; the rate it was pretrained with",
        ),
        _both("keypoint", 32, 600, 1e-3)[1],
        *_both("act", 8, 3_000, 1e-5, ACT_TARGETS),
        *_both("diffusion", 32, 3_000, 1e-4, DIFFUSION_TARGETS),
        *_both("smolvla", 32, 5_000, 1e-4),
        *_both("pi0", 16, 5_000, 2.5e-5),
        *_both("pi05", 16, 5_000, 2.5e-5),
        *_both(OTHER, 8, 3_000, 1e-4),
    )
}
"""Each held by a test that trains two steps and resumes."""
LORA, FULL, REINFORCE, LEROBOT = "lora", "full", "reinforce", "lerobot"
METHODS: Final = (LORA, FULL, REINFORCE, LEROBOT, *PRESETS)


def preset_for(policy: str, method: str = LORA) -> Preset:
    """Return how a kind of policy is tuned by a method: `lora`, `full` or the name of a preset.

    Raises:
        UnusableInputError: no such preset, or one for another kind of policy.
    """
    if method in (LORA, FULL):
        return PRESETS.get(f"{policy}_{method}", PRESETS[f"{OTHER}_{method}"])
    if method not in PRESETS:
        raise unknown_choice("method", method, METHODS, "--method")
    named = PRESETS[method].policy
    has_own = any(p.policy == policy for p in PRESETS.values())
    if has_own and named not in (policy, OTHER) and {named, policy} != {"act", TRACKED}:
        fits = ", ".join(n for n, p in PRESETS.items() if p.policy == policy)
        raise UnusableInputError(
            f"--method={method} is for {named} policies, and this one is {policy}. Take one of "
            f"{fits}."
        )
    return PRESETS[method]


def table() -> str:
    """Return the presets as text, one in each line."""
    lines = ["method            steps  batch  learning rate  why"]
    for p in PRESETS.values():
        spec = p.spec
        lines.append(f"{p.name:<16} {spec.steps:>6} {spec.batch_size:>6} {spec.lr:>14g}  {p.why}")
    return "\n".join(lines)
