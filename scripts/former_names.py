"""Commands and options that have another name now: what they run, with one line that says so.

They answer for one release; `python -m benchmarks house` counts none of them as a command.
"""

from collections.abc import Mapping
from typing import Final

FORMER: Final[Mapping[str, tuple[str, ...]]] = {
    "export": ("convert",),
    "factors": ("diagnose", "--factors"),
    "harmonise": ("edit", "harmonise"),
    "import": ("convert",),
    "latency": ("doctor", "--policy.path=base"),
    "merge": ("edit", "merge"),
    "mix": ("finetune", "--dry_run"),
    "preflight": ("doctor", "--robot.type=so101_sim"),
    "pretrain": ("finetune", "--policy.type=act"),
    "probe": ("identify", "--measure"),
    "reinforce": ("finetune", "--method=reinforce"),
    "repair": ("check", "--fix", "--dry_run"),
    "ros2": ("rollout", "--robot.type=ros2", "--take_over=never"),
    "survey": ("check",),
    "train": ("finetune", "--method=lerobot"),
}
"""Former command → the words that run it now, before the arguments that were given."""
FORMER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "diagnose": {"--images": "--pictures"},
    "doctor": {"--device": "--policy.device"},
    "edit": {"--by": "--splits"},
    "emulate": {"--factory_new": "--servos=factory_new"},
    "export": {"--format": "--to", "--output": "--output_dir"},
    "finetune": {"--held_out_share": "--held_out"},
    "label": {
        "--episode": "--episodes",
        "--uid": "--episodes",
        "--agreement": "--history",
        "--discard_reason": "--note",
        "--dataset.root": "--root",
        "--roots": "--root",
    },
    "pretrain": {"--takes": "--sim_takes", "--dataset.root": "--sim"},
    "record": {"--seed": "--robot.seed"},
    "rollout": {"--seed": "--robot.seed", "--smoothing.exponential_s": "--smoothing_s"},
    "serve": {"--device": "--policy.device"},
    "reinforce": {"--rounds": "--steps", "--workers": "--num_workers"},
    "probe": {"--journal": "--roots"},
    "repair": {"--yes": "--dry_run=false"},
    "ros2": {"--topics": "--robot.topics", "--dry_run": "--robot.dry_run"},
}
"""Former or present command → its options that are written otherwise now."""

GONE: Final[Mapping[tuple[str, str], str]] = {
    ("calibrate", "drift"): "doctor --robot.type=… --station=FILE says each day what moved",
    ("check", "--people"): "see docs/teleoperate/consent.md#people-in-pictures",
    ("demo", "--seed"): "type the commands of commands.txt, which the demo writes, with other gaps",
    ("evaluate", "--env.robot=vx300s"): "--env.scene=FILE takes any arm as MJCF",
    ("finetune", "--env.robot=vx300s"): "--sim=FOLDER takes episodes of any arm's scene file",
    ("publish", "--blur_people"): "see docs/teleoperate/consent.md#people-in-pictures",
    ("push", "--blur_people"): "see docs/teleoperate/consent.md#people-in-pictures",
    ("record", "--robot.model=vx300s"): "--robot.scene=FILE takes any arm as MJCF",
}
"""Present command, and its option or action that is gone → what is there instead."""


def refusal(arguments: list[str]) -> str | None:
    """Return the line for an option or action that is gone, with what does the same now."""
    for argument in arguments[1:]:
        for word in (argument, argument.partition("=")[0]):
            if instead := GONE.get((arguments[0], word)):
                return f"{word} is gone: {instead}"
    return None


def current(arguments: list[str]) -> tuple[list[str], str | None]:
    """Return the arguments as they are typed now, and the line to say if that is a change."""
    if not arguments:
        return arguments, None
    command, renamed = arguments[0], FORMER_OPTIONS.get(arguments[0], {})
    names = {argument.partition("=")[0] for argument in arguments}
    given, now = [], []
    for argument in arguments[1:]:
        name, equals, value = argument.partition("=")
        if name in renamed and renamed[name] not in names:  # else the parser refuses it
            names.add(renamed[name])
            now.append(f"{name} is now {renamed[name]}")
            value = value if "=" not in renamed[name] else ""
            name, equals = renamed[name], equals if value else ""
        given.append(f"{name}{equals}{value}")
    words = FORMER.get(command, (command,))
    if command in FORMER:
        now = [f"is now: gaploop {' '.join(words)}"]
    says = f"{'; '.join(now)}. The former name ends with 0.2." if now else None
    return [*words, *given], says
