"""Record with a leader of your own: any LeRobot teleoperator, through the safety filter.

    python examples/03_record_with_your_own_leader.py

The follower here is the simulated SO-101; name yours with
`robot={"type": "so101_follower", "port": "/dev/ttyACM0", "id": "white"}`. From the shell, with this
class in a package `my_leader`: `gaploop record --teleop.discover_packages_path=my_leader
--teleop.type=my_leader …`.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot.teleoperators import Teleoperator, TeleoperatorConfig

import gaploop

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")


@TeleoperatorConfig.register_subclass("my_leader")
@dataclass
class MyLeaderConfig(TeleoperatorConfig):
    """Options of the leader."""

    swing_deg: float = 15.0


class MyLeader(Teleoperator):
    """Swings the shoulder. Yours reads its encoders in `get_action`."""

    config_class = MyLeaderConfig
    name = "my_leader"

    def __init__(self, config: MyLeaderConfig) -> None:
        super().__init__(config)
        self._swing_deg, self._connected = config.swing_deg, False

    @property
    def action_features(self) -> dict[str, type]:
        return {f"{joint}.pos": float for joint in JOINTS}  # deg; the gripper from 0 to 100

    @property
    def feedback_features(self) -> dict[str, type]:
        return {}

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def is_calibrated(self) -> bool:
        return True

    def connect(self, calibrate: bool = True) -> None:
        self._connected = True

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def get_action(self) -> dict[str, Any]:
        action = dict.fromkeys(self.action_features, 0.0)
        action["shoulder_pan.pos"] = self._swing_deg * math.sin(time.monotonic())
        return action

    def send_feedback(self, feedback: dict[str, Any]) -> None: ...

    def disconnect(self) -> None:
        self._connected = False


def main(out: Path, takes: int = 2) -> None:
    """Record takes of three seconds each; nobody presses a key."""
    recorded = gaploop.record(
        teleop={"type": "my_leader", "swing_deg": 10.0},
        robot={"type": "so101_sim"},
        dataset={
            "root": out / "swings",
            "num_episodes": takes,
            "episode_time_s": 3.0,
            "reset_time_s": 1.0,
            "single_task": "Swing",
        },
        auto_start=True,
        display="none",
        resume=True,
    )
    print(f"{recorded.end.counted} of {recorded.end.wanted} episodes are in {out / 'swings'}.")


if __name__ == "__main__":
    main(Path("outputs/own_leader"))
