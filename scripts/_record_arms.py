"""`gaploop record` with LeRobot's arms and hand-held leaders: their options."""

# Annotations are not postponed: the config's dataclass is made inside a function (see cli.py).

from dataclasses import dataclass, field

from gaploop.scripts import record
from gaploop.teleop.leaders.options import CartesianOptions, ForceOptions


@dataclass
class ArmDataset(record.RecordDataset):
    """Where takes are published; times as in lerobot-record."""

    episode_time_s: float = 60.0
    """Longest time of one take [s]."""
    reset_time_s: float = 60.0
    """Time for putting things back between two takes [s]; a key ends it early."""


def config_class(names_only: bool = False) -> type:
    """Return the options of `gaploop record` for arms and leaders that LeRobot knows here."""
    from gaploop.scripts._devices import registries

    RobotConfig, TeleoperatorConfig, _ = registries(names_only)
    cell = RobotConfig.get_choice_class("so101_sim")
    scripted = TeleoperatorConfig.get_choice_class("scripted")

    @dataclass
    class RecordArmConfig(record.RecordConfig):
        robot: RobotConfig = field(default_factory=cell)  # type: ignore[valid-type]
        teleop: TeleoperatorConfig = field(default_factory=scripted)  # type: ignore[valid-type]
        dataset: ArmDataset = field(default_factory=ArmDataset)
        cartesian: CartesianOptions = field(default_factory=CartesianOptions)
        force: ForceOptions = field(default_factory=ForceOptions)

    RecordArmConfig.__doc__ = record.RecordConfig.__doc__
    return RecordArmConfig
