"""The command `gaploop calibrate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from gaploop.scripts import options

RARE = (
    "board.kind", "board.marker_mm", "board.dictionary", "lens", "images", "store", "calibration",
)  # fmt: skip
EXAMPLE: Final = """\
gaploop calibrate board board.pdf
gaploop calibrate intrinsics wrist_board --camera_name=wrist --camera.type=opencv \\
    --camera.index_or_path=0
gaploop calibrate hand_eye wrist_poses --camera_name=wrist --setup=eye_in_hand --arm_model=so101
gaploop calibrate latency recordings_journal
gaploop calibrate from_twin station_twin.yaml --policy.path=base --output_dir=recalibrated
gaploop calibrate show
"""

POSITIONAL: Final = ("what", "path")
DEVICES: Final = {"camera": None, "robot": None}


@dataclass
class BoardOptions:
    """The printed board."""

    kind: Literal["charuco", "chessboard"] = "charuco"
    """charuco may be partly outside the picture, chessboard must be wholly in it."""
    columns: int = 8
    """Squares along the long side (squares, not inner corners)."""
    rows: int = 6
    """Squares along the other side."""
    square_mm: float = 28.0
    """Side of a square, measured on the print [mm]."""
    marker_mm: float | None = None
    """Side of a ChArUco marker [mm]; three quarters of a square unless given."""
    dictionary: str = "4X4_50"
    """The markers' dictionary."""


@dataclass
class CalibrateConfig:
    """Calibrate cameras and arms, print boards, see whether anything has drifted.

    Results go into one versioned file beside the station file; its id is part of every
    take. A result that is too poor to use is refused: 0.5 px for intrinsics, 5 mm for
    hand-eye. Arms themselves are calibrated by lerobot-calibrate. from_twin trains nothing and
    touches no arm. Exit code 0 done, 1 drift found, 2 refused.
    """

    what: Literal["show", "board", "intrinsics", "hand_eye", "latency", "drift", "from_twin"] = (
        "show"
    )
    """board: print one; intrinsics: the lens; hand_eye: where the camera is; latency: from
    command to motion; drift: has anything moved since; from_twin: a policy corrected for the
    camera, table, zeros and delay in a station_twin.yaml; show: what is calibrated, how long
    ago."""
    path: Path | None = None
    """Folder of pictures (taken into it if a camera is given), take or journal, sheet or twin."""
    policy: options.PolicyOptions = field(default_factory=options.PolicyOptions)
    camera_name: str = ""
    """The camera's name in the calibration file, such as wrist."""
    arm_name: str = ""
    """The arm's name in the telemetry; the only one unless given."""
    board: BoardOptions = field(default_factory=BoardOptions)
    lens: Literal["standard", "wide"] = "standard"
    """wide: lenses over about 90°."""
    setup: Literal["eye_in_hand", "eye_to_hand"] = "eye_in_hand"
    """eye_in_hand: camera on the gripper, board on the table; eye_to_hand: the reverse."""
    arm_model: str = ""
    """so101, koch, openmanipulator or an MJCF file; follows from --robot.type where given."""
    images: int = 20
    """How many pictures to take, with a camera."""
    store: bool = False
    """drift: keep what is seen now as the reference."""
    station: Path | None = None
    """Station file; the calibration lies beside it."""
    calibration: Path | None = None
    """Calibration file, if not <station>.calibration.json."""
    output_dir: Path | None = None
    """Where pictures and figures of the result go; <path>/report unless given."""
    json: bool = False
    """Print one JSON object."""
    camera: Any = None
    """The camera to take pictures with; read the folder as it is unless given."""
    robot: Any = None
    """The arm to read (hand_eye, drift) or to move (latency)."""


def run(config: CalibrateConfig) -> int:
    """Do what was asked for; 1 where drift was found."""
    from gaploop.scripts import _calibrate

    return int(getattr(_calibrate, config.what)(config))
