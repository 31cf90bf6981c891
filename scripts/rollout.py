"""The command `gaploop rollout`."""

from dataclasses import dataclass, field
from typing import Final, Literal

from gaploop.collect.lerobot_types import EMBEDDED, EXPERT
from gaploop.collect.session_options import SessionOptions
from gaploop.scripts import options

RARE = (
    "dataset.push_to_hub", "dataset.private", "dataset.reset_time_s", "smoothing_s",
    "journal", "sensors", "auto_start", "display",
    "operator", "consent", "dataset.new_task", "dataset.fps", "dataset.repo_id",
    "factors", "assignment", "watch", "reset_seed", "policy.fps", "policy.threads", "policy.format",
    "dataset.episode_time_s",
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
DEVICES: Final = {"robot": EMBEDDED, "teleop": EXPERT}


@dataclass
class RolloutDataset(options.DatasetOptions):
    """Where episodes are published."""

    num_episodes: int = 10
    """Attempts to record; failed ones count too."""
    episode_time_s: float = 15.0
    """Longest time of one attempt at full speed [s]; longer where the policy drives slowly."""
    reset_time_s: float = 30.0
    """Time for putting things back between two attempts [s]; a key ends it early. Nobody waits
    where the embedded cell rolls out by itself."""


@dataclass
class RolloutConfig(SessionOptions):
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

    policy: options.DrivingPolicy = field(default_factory=options.DrivingPolicy)
    dataset: RolloutDataset = field(default_factory=RolloutDataset)
    take_over: Literal["key", "auto", "never"] = "key"
    """key: t takes over and hands back. auto: also when the arm has stood still for 1.5 s
    or the attempt is late (6 s; both longer where the policy drives slowly), for runs that nobody
    watches. never: no leader is used."""
    watch: str = "auto"
    """Episodes that went well, as the reference: an attempt that looks like failing is reported
    while it runs; 5 % of those that go well may be. A folder with 20 or more of this policy on
    this station, auto (what ships, for the packaged base in the embedded cell; else this session's
    own, once there are 20), or never."""
    speed_scale: float | None = None
    """Share of its speed at which the policy drives, above 0 and up to 1: its targets are
    passed through in the same order, more slowly. Unless given: 1 in the embedded cell; on an
    arm 0.1 for a policy that is new to this journal, rising to 1 over 20 successes without
    help."""
    smoothing_s: float | None = None
    """Follow the policy's targets with a lag of this time constant [s]; 0.1 is gentle."""
    assignment: str = ""
    """File or address of a fleet's assignment.json (docs/train/gate.md#a-robots-side): before each
    attempt it says whether --policy.path, the baseline, or the candidate drives; this robot is
    --robot.id there."""
    reset: str = "person"
    """Who puts the scene back before each attempt: person, script (the robot finds the object by
    the station's colours, puts it at the next drawn start and looks whether it lies there), or the
    folder of a policy that resets. After three tries a person is called
    (docs/teleoperate/unattended.md)."""
    reset_seed: int = 0
    """Draws the first start; each attempt takes the next one."""
    factors: list[str] = field(default_factory=list)
    """What to vary, one factor at a time, to see what costs success: --dataset.num_episodes
    attempts with the station as usual, and as many at each level that the station defines, in
    blocks. Attempts that the journal holds count. gaploop evaluate --rollouts counts them."""
