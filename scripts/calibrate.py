"""The command `gaploop calibrate`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from gaploop.scripts import options

RARE = ("lens",)
EXAMPLE: Final = """\
gaploop calibrate board board.pdf
gaploop calibrate intrinsics wrist_board --camera_name=wrist --camera.type=opencv \\
    --camera.index_or_path=0
gaploop calibrate hand_eye wrist_poses --camera_name=wrist --setup=eye_in_hand --arm_model=so101
gaploop calibrate from_twin station_twin.yaml --policy.path=base --output_dir=recalibrated
gaploop calibrate show
"""

POSITIONAL: Final = ("what", "path")
DEVICES: Final = {"camera": None, "robot": None}


@dataclass
class CalibrateConfig:
    """Calibrate cameras, print boards.

    Results go into one versioned file beside the station file; its id is part of every
    episode. A result that is too poor to use is refused: 0.5 px for intrinsics, 5 mm for
    hand-eye. Arms themselves are calibrated by lerobot-calibrate. from_twin trains nothing and
    touches no arm. Exit code 0 done, 2 refused.
    """

    what: Literal["show", "board", "intrinsics", "hand_eye", "from_twin"] = "show"
    """board: print one; intrinsics: the lens; hand_eye: where the camera is; from_twin: a
    policy corrected for the camera, table, zeros and delay in a station_twin.yaml; show: what is
    calibrated, how long ago."""
    path: Path | None = None
    """Folder of pictures (taken into it if a camera is given), sheet or twin."""
    policy: options.PolicyFolder = field(default_factory=options.PolicyFolder)
    camera_name: str = ""
    """The camera's name in the calibration file, such as wrist."""
    board: str = "8x6:28"
    """The printed ChArUco board: columns x rows of squares (not inner corners), the side of a
    square as measured on the print [mm], then side of a marker [mm] (three quarters of that) and
    dictionary (4X4_50), as in 8x6:28:21:5X5_100."""
    lens: Literal["standard", "wide"] = "standard"
    """wide: lenses over about 90°."""
    setup: Literal["eye_in_hand", "eye_to_hand"] = "eye_in_hand"
    """eye_in_hand: camera on the gripper, board on the table; eye_to_hand: the reverse."""
    arm_model: str = ""
    """so101, koch, openmanipulator or an MJCF file; follows from --robot.type where given."""
    station: Path | None = None
    """Station file; the calibration lies beside it."""
    output_dir: Path | None = None
    """Where figures of the result go; <path>/report unless given."""
    json: bool = False
    """Print one JSON object."""
    camera: Any = None
    """The camera to take pictures with; read the folder as it is unless given."""
    robot: Any = None
    """The arm to read, limp (hand_eye)."""


def run(config: CalibrateConfig) -> int:
    """Do what was asked for."""
    from gaploop.scripts import _calibrate

    return int(getattr(_calibrate, config.what)(config))
