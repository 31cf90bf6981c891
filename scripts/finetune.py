"""Adapt any LeRobot policy to real episodes; or train, reinforce and mix, by --method."""

from typing import Final

from gaploop.finetune.config import FinetuneConfig as FinetuneConfig

POSITIONAL: Final = "mixture"
PASSED_ON: Final = "lerobot"
RARE = (
    "select", "where", "held_out", "lora.*", "rename_map", "cache.*",
    "randomise.*", "accumulation", "gradient_checkpointing",
    "num_workers", "lr", "batch_size", "env.task", "env.robot", "env.randomise",
    "seed", "plan",
)  # fmt: skip
EXAMPLE: Final = """\
gaploop finetune --policy.path=base --real='[real_takes]' --sim='[sim_takes]' --held_out=0.2 \\
    --output_dir=adapted
gaploop finetune --policy.path=lerobot/smolvla_base --stats=new --real='[real_takes]' \\
    --device=auto --output_dir=adapted
gaploop finetune mixture.yaml --dry_run --steps=20000
gaploop finetune --policy.type=act --sim_takes=400 --output_dir=base    # a new base
gaploop finetune --method=reinforce --policy.path=base --env.twin=station_twin.yaml \\
    --output_dir=reinforced
gaploop finetune mixture.yaml --method=lerobot --output_dir=run -- \\
    --policy.type=act --policy.push_to_hub=false --batch_size=64 --steps=20000
"""
