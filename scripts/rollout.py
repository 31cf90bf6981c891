"""The command `gaploop rollout`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from gaploop.scripts import options
from gaploop.teleop.leaders.options import CartesianOptions

RARE = (
    "dataset.push_to_hub", "dataset.private", "dataset.tags", "dataset.reset_time_s",
    "take_over_*", "hand_back_s", "smoothing.*", "watch_false_alarms", "journal", "sensors",
    "keys", "auto_start", "play_sounds", "cartesian.*", "consents", "reconnect_s", "seed",
    "publish_every",
)  # fmt: skip
EXAMPLE: Final = """\
gaploop rollout --policy.path=base --robot.type=so101_sim --teleop.type=scripted \\
    --take_over=auto --dataset.root=runs --dataset.num_episodes=10
gaploop rollout --policy.path=base --robot.type=so101_follower --robot.port=./follower \\
    --robot.id=f --robot.cameras='{top: {type: zmq, server_address: 127.0.0.1, port: 5555, \\
    camera_name: top, width: 192, height: 192, fps: 25}}' --take_over=never --dataset.root=runs
gaploop rollout --policy.path=remote://192.168.1.20:8440 --robot.type=so101_sim \\
    --take_over=never --dataset.root=runs
"""

POSITIONAL: Final = ()
DEVICES: Final = {"robot": "so101_sim", "teleop": "scripted"}


@dataclass
class SmoothingOptions:
    """How a policy's targets are smoothed."""

    exponential_s: float | None = None
    """Follow targets with a first-order lag of this time constant [s]; 0.1 is gentle."""
    temporal_ensemble_coeff: float | None = None
    """ACT's temporal ensembling, with LeRobot's coefficient; its authors use 0.01. The policy then
    predicts on every frame."""


@dataclass
class RolloutPolicyOptions(options.PolicyOptions):
    """Which policy, here or on another machine."""

    path: str = ""
    """Folder of a policy or an adapter; base names the one that ships with gaploop;
    remote://host:port one that gaploop serve policy lends there."""
    token: str = ""
    """With remote://: what gaploop serve printed; unless given, GAPLOOP_LINK_TOKEN in the
    environment."""


@dataclass
class RolloutDataset(options.DatasetOptions):
    """Where takes are published."""

    num_episodes: int = 10
    """Attempts to record; failed ones count too."""
    episode_time_s: float = 15.0
    """Longest time of one attempt at full speed [s]; longer where the policy drives slowly."""
    reset_time_s: float = 30.0
    """Time for putting things back between two attempts [s]; a key ends it early. Nobody waits
    where the embedded cell rolls out by itself."""


@dataclass
class RolloutConfig:
    """Let a policy drive, take over where it fails, and record whole attempts.

    Attempts go into a journal and are published, with gap.intervention true on the frames
    in which the person drove; gaploop finetune trains on those. A leader arm is moved to the
    follower's pose before it takes over; any other leader takes over from where it is, and
    its motion counts from there. Handing back, the policy plans anew.

    With an arm, or where a person drives, the operator sees in a window or terminal what
    gaploop record shows, and says there when an attempt begins and how it went. t takes over
    and hands back, between attempts too, to put things back. What fails in an attempt (the
    policy, a camera, a cable) ends that attempt only. The embedded cell with its expert, or
    with --take_over=never, rolls out by itself on simulated time.
    """

    robot: Any = None
    """The arm, as in lerobot-record, or so101_sim, the embedded cell."""
    teleop: Any = None
    """Who takes over: a leader arm, keyboard, gamepad; scripted in the embedded cell."""
    policy: RolloutPolicyOptions = field(default_factory=RolloutPolicyOptions)
    dataset: RolloutDataset = field(default_factory=RolloutDataset)
    take_over: Literal["key", "motion", "auto", "never"] = "key"
    """key: t takes over and hands back. motion: also when the leader is moved. auto: also when
    the arm has stood still or the attempt is late, for runs that nobody watches. never: no
    leader is used."""
    take_over_motion_deg: float = 5.0
    """With motion: moved further than this within half a second [°]."""
    take_over_stall_s: float = 1.5
    """With auto: after the arm has stood still this long [s]; longer where it drives slowly."""
    take_over_late_s: float = 6.0
    """With auto: after the policy has driven this long [s]; longer where it drives slowly."""
    hand_back_s: float | None = None
    """Hand back by itself: with motion after the leader has rested this long, with auto after
    the person has driven this long [s]. Unless given, only t hands back."""
    smoothing: SmoothingOptions = field(default_factory=SmoothingOptions)
    watch: str = "auto"
    """Takes that went well, as the reference: an attempt that looks like failing is reported
    while it runs. A folder with 20 or more of this policy on this station, auto
    (what ships, for the packaged base in the embedded cell; else nothing), or never."""
    watch_false_alarms: float = 0.05
    """Share of the attempts that go well that may alarm."""
    speed_scale: float | None = None
    """Share of its speed at which the policy drives, above 0 and up to 1: its targets are
    passed through in the same order, more slowly. Unless given: 1 in the embedded cell; on an
    arm 0.1 for a policy that is new to this journal, rising to 1 over 20 successes without
    help."""
    factors: list[str] = field(default_factory=list)
    """What to vary, one factor at a time, to see what costs success: --dataset.num_episodes
    attempts with the station as usual, and as many at each level that the station defines, in
    blocks. Attempts that the journal holds count. gaploop evaluate --rollouts counts them."""
    journal: Path | None = None
    """Folder of the takes; beside the dataset, as <dataset.root>_journal, unless given."""
    station: Path | None = None
    """station.yaml with the cell's limits; conservative ones unless given."""
    sensors: dict[str, Any] = field(default_factory=dict)
    """What else is recorded with an arm, at the control rate: name to
    '{port: /dev/ttyACM2, baud: 115200, channels: {fx_n: N, fy_n: N, fz_n: N}}', where lines of
    numbers arrive, or '{driver: "my_lab.tactile:Pad", options: {}}'."""
    display: str = "auto"
    """window, terminal or none; auto: a window if there is a display and a person is needed."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Other keys, pedals or gamepad buttons, such as '{"take_over": "f9", "next": "pad:a"}'."""
    auto_start: bool = False
    """Begin each attempt when the reset is over, not on a key."""
    play_sounds: bool = True
    """Tones when an attempt begins and ends, and when the arm trips."""
    cartesian: CartesianOptions = field(default_factory=CartesianOptions)
    consent: str = ""
    """Consent ids of the people who take part."""
    consents: Path | None = None
    """The consent register; see gaploop consent --help."""
    reconnect_s: float = 60.0
    """How long to wait for an arm that was lost, a camera or room on the disk, where nobody is
    there to end the session [s]."""
    seed: int = 0
    """Draws the scenes."""
    operator: str = ""
    """Who takes over."""
    publish_every: int = 10
    """Publish after this many takes, and at the end."""
    json: bool = False
    """Print one JSON object."""


def run(config: RolloutConfig) -> int:
    """Roll out and publish; 128 + the signal where one came."""
    if options.show_ranges(config.robot):
        return 0
    from gaploop.scripts._rollout_session import roll_out

    return roll_out(config)
