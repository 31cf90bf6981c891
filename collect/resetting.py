"""The robot puts the scene back by itself: by a script that sees, or by a policy.

The script looks with the arm at home, picks the object up as the demonstrator does and puts it at
the next drawn start; it looks again, and only what the picture shows counts. Three tries, then a
person is called.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from gaploop.collect.devices import subscribers
from gaploop.collect.intervention import Driver, SharedLeader
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, Rig
from gaploop.collect.take import CALLS, HELP, follow_turns
from gaploop.core.arm import CellArm
from gaploop.core.arms import ARMS, CELL_ARMS
from gaploop.core.errors import DeviceError, UnusableInputError
from gaploop.core.messages import FloatArray, FollowerState, LeaderSample, Observation, Tick
from gaploop.core.protocols import Follower, Leader
from gaploop.core.station import Station
from gaploop.core.vocabulary import Domain
from gaploop.sim import expert, scene
from gaploop.sim.cell import SimCell
from gaploop.sim.kinematics import fold_square, from_polar, polar
from gaploop.sim.tracker import OBJECT_PLANE_M, Tracker, TrackerCalibration
from gaploop.teleop.calibration.store import calibration_path, load_calibration
from gaploop.teleop.loop import OnFrame
from gaploop.teleop.stopping import CleanupStep, one_line
from gaploop.teleop.trips import say_reasons

log = logging.getLogger(__name__)

PERSON: Final = "person"
SCRIPT: Final = "script"
TRIES: Final = 3
"""A scene is given up, and a person called, after so many."""
LONGEST_S: Final = 40.0
LOOK_S: Final = 0.6
"""The arm rests this long before a picture counts: one may be on its way [s]."""
SPEED: Final = 0.4
"""Share of the demonstrator's speed: nobody is in a hurry."""
HOME_RAD_S: Final = 0.5
MOVE_S: Final = 5.0
"""A motion that isn't done by then is taken to be as far as it goes [s]."""
HOLDS_RAD: Final = 0.25
"""A gripper closed by this much may hold something [rad]."""
POINTS_DOWN: Final = -0.7
"""A tool whose axis has a vertical part below this points down."""
PLACED_S: Final = 1.0
"""A policy has reset the scene once the object lies free for so long [s]."""
SEEN: Final = 0.5
"""Share of its area from which an object counts as seen: the arm, at home, hides none of it, and on
the target a compressed picture's colours run into each other (0.79 to 0.91 of it is left)."""
STILL_S: Final = 10.0
"""A person who was called has done it, and is gone, once the picture is still for so long [s]."""
MOVED_M: Final = 0.02
"""An object that was in sight when a person was called has to be moved by this [m]."""
CHANGED: Final = 40, 0.002
"""A picture isn't still where more than this share of its values changes by more than so much."""


type MakeTracker = Callable[[int, CellArm], Tracker]
"""Makes the tracker for pictures of some width and height [px], and an arm."""


def cell_arm_of(robot_type: str) -> CellArm:
    """Return what the script knows of an arm by its LeRobot type.

    Raises:
        UnusableInputError: nothing.
    """
    for name, arm in CELL_ARMS.items():
        if robot_type in (arm.robot_type, *ARMS[name].robot_types) and not arm.mounted:
            return arm
    raise UnusableInputError(
        f"--reset=script doesn't know the reach of {robot_type}. Use one of "
        f"{', '.join(n for n, a in CELL_ARMS.items() if not a.mounted)}, the folder of a policy "
        "that resets, or person."
    )


def tracker_for(station: Station, file: Path | None) -> MakeTracker:
    """Return what makes a station's tracker.

    An emulated or embedded cell has the cell's overhead camera; a real station's is calibrated,
    beside the station's `file`, and looks down on the table that the arm stands on.

    Raises:
        UnusableInputError: it isn't calibrated; with the command that does it.
    """
    if station.domain is not Domain.REAL:
        return lambda size, arm: Tracker.nominal(size, arm=arm, scene=station.scene)

    calibration, name = load_calibration(calibration_path(file)), station.scene.camera
    if not name:
        raise UnusableInputError(
            f"{station.where}: scene: camera must name the camera that looks down on the table, "
            "for --reset=script."
        )
    lens, mounted = calibration.intrinsics(name), calibration.hand_eye(name)
    if mounted.setup == "eye_in_hand":
        raise UnusableInputError(
            f"Camera {name} is on the hand; --reset needs one that stands still. Name another in "
            f"{station.where}: scene: camera."
        )
    camera_from_base: FloatArray = np.asarray(
        np.linalg.inv(mounted.T_mount_camera), dtype=np.float64
    )

    def made(size: int, arm: CellArm) -> Tracker:
        if size != max(lens.width, lens.height):
            raise UnusableInputError(
                f"Camera {name} gives pictures {size} px long and is calibrated for "
                f"{max(lens.width, lens.height)}. Set it to {lens.width}x{lens.height}."
            )
        middle_m = np.asarray(arm.spawn_centre_m)
        corners_m = middle_m + scene.SPAWN_RADIUS_M[1] * np.array(
            [[1, 1], [1, -1], [-1, -1], [-1, 1]]
        )

        def shown(xy_m: FloatArray, height_m: float) -> NDArray[np.float32]:
            points_m = np.array([[x, y, height_m] for x, y in xy_m], dtype=np.float64)
            return lens.project(camera_from_base, points_m).astype(np.float32)

        def plane(height_m: float) -> FloatArray:
            px = shown(corners_m, height_m)
            return np.asarray(cv2.getPerspectiveTransform(px, corners_m.astype(np.float32)))

        def area_px(height_m: float) -> float:  # of a square metre there
            square = middle_m + 0.005 * np.sign(corners_m - middle_m)
            return 1e4 * float(cv2.contourArea(shown(square, height_m)))

        half_m = scene.CUBE_HALF_SIZE_M
        return Tracker(
            TrackerCalibration(
                size,
                plane(0.0),
                plane(OBJECT_PLANE_M),
                4.0 * half_m**2 * area_px(2.0 * half_m),
                np.pi * scene.DISC_RADIUS_M**2 * area_px(0.0),
                arm.spawn_centre_m,
            ),
            scene=station.scene,
        )

    return made


def drawn_start(
    seed: int, conditions: Any, arm: CellArm, target_m: FloatArray
) -> tuple[FloatArray, float]:
    """Return where the object starts [m], shape (2,), and its direction [rad].

    It is the start that the embedded cell draws for the seed; another one where that lies on the
    target, `target_m`, shape (2,), which stays where it is.
    """
    rng = np.random.default_rng([seed, 11])
    rng.normal(0.0, 0.01, len(arm.joint_names))  # the cell draws the arm's pose first
    cell, placement = conditions.get("grid_cell"), conditions.get("placement", "nominal")
    centre_m = np.array(arm.spawn_centre_m)
    place_m = scene.spawn_point(rng, cell, placement, centre_m)
    yaw_rad = float(rng.uniform(-np.pi, np.pi))
    for _ in range(scene.ATTEMPTS):
        if np.linalg.norm(place_m - target_m) >= scene.OBJECT_TARGET_GAP_M:
            break
        place_m = scene.spawn_point(rng, cell, placement, centre_m)
    return place_m, yaw_rad


@dataclass(frozen=True)
class Sighted:
    """What a picture shows with the arm out of the way, on the table [m], shape (2,).

    Attributes:
        is_seen: the object is in the picture, half of it or more.
        yaw_rad: direction of its faces, modulo a quarter turn.
    """

    is_seen: bool
    object_m: FloatArray
    yaw_rad: float
    target_m: FloatArray

    @property
    def is_free(self) -> bool:
        """Whether the object lies beside the target."""
        away_m = float(np.linalg.norm(self.object_m - self.target_m))
        return self.is_seen and away_m >= scene.OBJECT_TARGET_GAP_M


class Eye:
    """Sees object and target in pictures of a rig's first camera."""

    def __init__(self, rig: Rig, arm: CellArm, make: MakeTracker) -> None:
        self.camera, self.arm = rig.cameras[0], arm
        self._tracker = make(max(self.camera.frame().image.shape[:2]), arm)
        self._tracker.object_fraction = SEEN

    def look(self) -> Sighted:
        """Return what the newest picture shows."""
        picture = self.camera.frame()
        height, width = picture.image.shape[:2]
        below, beside = max(width - height, 0), max(height - width, 0)  # where nothing is
        image = np.pad(picture.image, ((0, below), (0, beside), (0, 0)))
        seen = self._tracker.observe(image, picture.t_capture_s)
        object_m = from_polar(float(seen[0]), float(seen[1]))
        target_m = from_polar(float(seen[3]), float(seen[4]))
        return Sighted(bool(seen[5]), object_m, float(seen[2] + seen[0]), target_m)


class ResetScript:
    """Puts the object somewhere; implements core's `Leader`, and watches the loop that it leads.

    Args:
        sent_rad: where the arm was sent last [rad], shape (n_joints,).
        where: from what is seen to where the object shall be [m], shape (2,), and its direction
            [rad]; None: the arm only lets go, goes home and looks.
        seed: draws the habits of the motion.
    """

    def __init__(
        self,
        eye: Eye,
        sent_rad: Callable[[], FloatArray],
        period_s: float,
        where: Callable[[Sighted], tuple[FloatArray, float]] | None,
        seed: int = 0,
    ) -> None:
        self._eye, self._sent_rad, self._period_s = eye, sent_rad, period_s
        self._where, self._seed, self._arm = where, seed, eye.arm
        self.goal_m: FloatArray | None = None
        """Where it is to be, once that is drawn."""
        self.seen: Sighted | None = None
        """What the last picture showed."""
        self._state: FollowerState | None = None
        self._t_s, self._done, self._turns = 0.0, False, self._script()

    def reset(self) -> None:
        """Nothing to forget: it is made for one try."""

    def done(self) -> bool:
        """Say whether it is over."""
        return self._done

    def tick(self, tick: Tick) -> None:
        """Take note of where the arm is."""
        self._state = tick.state

    def read(self, t_s: float) -> LeaderSample:
        """Return the joint command for loop time `t_s` [s]."""
        self._t_s = t_s
        if self._state is None:
            self._q = self._sent_rad()
        else:
            following = next(self._turns, None)
            self._done = following is None
            self._q = self._q if following is None else following
        return LeaderSample(t_s, self._q.copy())

    def _arm_state(self) -> FollowerState:
        assert self._state is not None, "the motion begins with the first turn"
        return self._state

    def _script(self) -> Iterator[FloatArray]:
        hand = _Hand(self._arm, 1.0 / self._period_s, self._arm_state)
        motion = expert.ToolMotion(np.random.default_rng(self._seed), self._arm, hand.play_rad())
        grip = self._arm.grip
        motion.reset(self._q, SPEED)
        tool_m, turned = motion.ik.tcp(self._q)
        if turned[2, 2] < POINTS_DOWN:  # else it is folded: home is away from the table
            jaw_rad = float(self._arm_state().position_rad[-1])
            low_m = scene.CUBE_HALF_SIZE_M + expert.RELEASE_M
            here = expert.ToolGoal(tool_m[:2], low_m, motion.turn_rad, float(self._q[-1]))
            if grip.empty_rad < jaw_rad < grip.open_rad - HOLDS_RAD:  # it may hold the object
                yield from self._move(motion, here)
            height_m = float(motion.position_m[2])
            here = replace(here, height_m=height_m, gripper_rad=grip.open_rad)
            yield from self._move(motion, here)
            high_m = max(height_m, scene.CUBE_HALF_SIZE_M + expert.CARRY_M)
            yield from self._move(motion, replace(here, height_m=high_m))
        yield from self._look_from_home()
        seen = self.seen
        if self._where is None or seen is None or not seen.is_seen:
            return
        self.goal_m, yaw_rad = self._where(seen)
        azimuth, radius = polar(seen.object_m)
        features = np.array(
            [azimuth, radius, fold_square(seen.yaw_rad - azimuth), *polar(self.goal_m), 1.0, 0.0]
        )
        sight = expert.TrackedSight(
            self._arm, self._arm_state, lambda: features, goal_yaw_rad=yaw_rad
        )
        leader = expert.ScriptedLeader(
            cast(SimCell, hand), self._seed, sight=sight, retries=0, speed=SPEED
        )
        while not leader.done():
            yield leader.read(self._t_s).q_rad
        yield from self._look_from_home()

    def _move(self, motion: expert.ToolMotion, goal: expert.ToolGoal) -> Iterator[FloatArray]:
        for _ in range(round(MOVE_S / self._period_s)):
            yield motion.step(goal, self._period_s)
            if max(motion.left(goal)) < 0.01:
                break

    def _look_from_home(self) -> Iterator[FloatArray]:
        home, step = np.asarray(self._arm.home_q_rad), HOME_RAD_S * self._period_s
        while np.abs(left := home - self._q).max() > 1e-6:
            yield self._q + np.clip(left, -step, step)
        for _ in range(round(LOOK_S / self._period_s)):
            yield home
        self.seen = self._eye.look()


@dataclass(frozen=True)
class _Hand:
    """What the demonstrator's motion needs of a cell."""

    arm: CellArm
    fps: float
    read: Callable[[], FollowerState]
    task: str = "pick_place"

    def play_rad(self) -> FloatArray:
        """No play of the joints is known [rad], shape (n_joints,)."""
        return np.zeros(len(self.arm.joint_names))


@dataclass(frozen=True)
class SceneReset:
    """How a scene was put back.

    Attributes:
        by: script, policy or person.
        off_m: from where it was to be to where the picture shows it [m]; None where nothing was
            drawn, or a person did it.
    """

    by: str
    tries: int
    off_m: float | None = None


class Resetter:
    """Has the robot put scenes back, before each attempt of a session.

    Args:
        make_tracker: of pictures, which are padded to a square.
        policy: leads an arm by a policy that resets, in the script's place, given the arm, its
            frame and control rate [Hz].
        longest_s: one try takes no longer [s].
    """

    def __init__(
        self,
        make_tracker: MakeTracker,
        policy: Callable[[Follower, float, float], PolicyLeader] | None = None,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._make_tracker, self._policy, self._longest_s = make_tracker, policy, longest_s
        self._eyes: Eye | None = None
        self.resets: list[SceneReset] = []
        """Of this session, oldest first."""

    def prepare(
        self,
        rig: Rig,
        shared: Leader,
        seed: int,
        ready: Callable[[], bool],
        stop: Callable[[], bool],
        call_person: Callable[[str, Callable[[], bool]], bool],
    ) -> Rig | None:
        """Put the scene back for a seed; return the rig for a take, None where the session ends.

        In the embedded cell setting it up anew stands for the person who is called.

        Args:
            ready: waits until the arm may be driven; False where the session ends.
            call_person: asks for help, in words, and may ask whether that is done, as pictures
                show it; False where the session ends.
        """
        if not isinstance(shared, SharedLeader):
            raise TypeError(f"scenes are put back by a SharedLeader, got {type(shared).__name__}")
        cell, is_called, tries = rig if isinstance(rig, EmbeddedRig) else None, False, 0
        while True:
            why, tried = "the arm is limp after a safety trip", None
            if cell is None or not cell.safety.tripped:
                why, tried = self._reset(rig, shared, seed, ready, stop)
            if stop():
                return None
            tries += TRIES if tried is None else tried.tries
            if tried is not None:
                by = PERSON if is_called else tried.by
                self.resets.append(replace(tried, by=by, tries=tries))
                break
            is_called = True
            log.warning("%s: %s.", CALLS, why)
            if cell is not None:
                cell.reset(seed)
                self.resets.append(SceneReset(PERSON, tries))
                break
            if not call_person(
                f"The robot can't put the scene back: {why}. {HELP}",
                self._is_done(rig, ready),
            ):
                return None
        if cell is not None:
            cell.cell.begin()
        return replace(rig, reset=lambda _seed: None)

    def look_after(
        self, rig: Rig, shared: SharedLeader, stop: Callable[[], bool]
    ) -> tuple[str, bytes] | None:
        """Have the arm let go and go home after an attempt; return a camera and its picture, PNG.

        None where it can't: the filter has tripped, a person drives, or something is in the way.
        """
        if rig.safety.tripped or rig.blocker():
            return None
        eye = self._eye(rig)
        script = ResetScript(eye, lambda: rig.safety.sent_rad, rig.rates.period_s, None)
        try:
            if self._drive(rig, shared, script, stop) or stop():
                return None
        except DeviceError as error:  # the attempt is sealed; whoever drives next finds out
            log.warning("The arm didn't go home after the attempt: %s", one_line(error))
            return None
        picture = cv2.cvtColor(rig.cameras[0].frame().image, cv2.COLOR_RGB2BGR)
        return rig.cameras[0].name, cv2.imencode(".png", picture)[1].tobytes()

    def _is_done(self, rig: Rig, ready: Callable[[], bool]) -> Callable[[], bool]:
        """Return what says whether a person has put the object in sight and is gone."""
        eye = self._eye(rig)
        lay, before, since_s = eye.look(), eye.camera.frame().image, time.monotonic()

        def is_done() -> bool:
            nonlocal before, since_s
            seen, image, now_s = eye.look(), eye.camera.frame().image, time.monotonic()
            change = np.mean(cv2.absdiff(image, before) > CHANGED[0])
            away_m = np.linalg.norm(seen.object_m - lay.object_m)
            lies_there = seen.is_seen and (not lay.is_seen or away_m >= MOVED_M)
            if not lies_there or change > CHANGED[1] or not ready():
                since_s = now_s
            before = image
            return now_s - since_s >= STILL_S

        return is_done

    def _eye(self, rig: Rig) -> Eye:
        if self._eyes is None or self._eyes.camera is not rig.cameras[0]:
            self._eyes = Eye(rig, cell_arm_of(rig.follower.robot_type), self._make_tracker)
        return self._eyes

    def _reset(
        self,
        rig: Rig,
        shared: SharedLeader,
        seed: int,
        ready: Callable[[], bool],
        stop: Callable[[], bool],
    ) -> tuple[str, SceneReset | None]:
        """Try; return why that failed, or how it went."""
        eye = self._eye(rig)

        def where(seen: Sighted) -> tuple[FloatArray, float]:
            return drawn_start(seed, rig.conditions, eye.arm, seen.target_m)

        why = ""
        for tries in range(1, TRIES + 1):
            if not ready() or stop():
                return "", None
            if self._policy is not None:
                why = self._drive_policy(rig, shared, eye, stop)
                if why:
                    log.info("Putting the scene back: %s.", why)
            draw = where if self._policy is None else None
            script = ResetScript(
                eye, lambda: rig.safety.sent_rad, rig.rates.period_s, draw, 100 * seed + tries
            )
            ends = self._drive(rig, shared, script, stop)
            if stop():
                return "", None
            seen, off_m = script.seen, None
            if script.goal_m is not None and seen is not None:
                off_m = float(np.linalg.norm(seen.object_m - script.goal_m))
            if ends:
                why = ends
                if shared.driver is Driver.PERSON or (rig.running is None and rig.safety.tripped):
                    break
            elif seen is None or not seen.is_seen:
                why = "the camera doesn't show the object"
            elif off_m is None and not seen.is_free:
                why = "the object lies on the target still"
            elif off_m is not None and off_m > expert.GOAL_TOLERANCE_M:
                why = f"the object lies {1000 * off_m:.0f} mm from where it was to start"
            else:
                by = SCRIPT if self._policy is None else "policy"
                return "", SceneReset(by, tries, off_m)
            log.info("Putting the scene back, try %d of %d: %s.", tries, TRIES, why)
        return why, None

    def _drive(
        self,
        rig: Rig,
        shared: SharedLeader,
        leader: Leader,
        stop: Callable[[], bool],
        on_frame: Sequence[OnFrame] = (),
        over: Callable[[], bool] = lambda: False,
    ) -> str:
        """Let a leader drive until it is done; return what ended it else."""
        shared.lend(leader)

        def is_over() -> bool:
            is_cut = shared.driver is Driver.PERSON or bool(rig.safety.tripped) or stop()
            return leader.done() or over() or is_cut

        turns = rig.turns(shared, self._longest_s, on_frame)
        follow_turns(turns, subscribers(leader), is_over)
        if shared.driver is Driver.PERSON:
            return "a person has taken over"
        shared.rest()
        if rig.safety.tripped:
            return f"the safety filter tripped ({say_reasons(rig.safety.tripped)})"
        return "" if leader.done() or over() else f"it isn't done after {self._longest_s:g} s"

    def _drive_policy(
        self, rig: Rig, shared: SharedLeader, eye: Eye, stop: Callable[[], bool]
    ) -> str:
        """Let the policy drive until the object lies free, or its time is up."""
        assert self._policy is not None, "a policy resets"
        leader = self._policy(rig.follower, rig.fps, rig.control_hz)
        leader.start_from(rig.safety.sent_rad)  # in the cell known with the first turn only
        attempt, free, started = CleanupStep(), 0, False

        def show(observation: Observation) -> None:
            nonlocal free, started
            free = free + 1 if eye.look().is_free else 0
            with attempt:
                if not started:
                    leader.start_from(rig.safety.sent_rad)
                    started = True
                leader.observe(observation)

        def over() -> bool:
            return attempt.error is not None or free > PLACED_S * rig.fps

        try:
            why = self._drive(rig, shared, leader, stop, (show,), over)
        finally:
            leader.close()
        return why if attempt.error is None else f"the policy failed: {one_line(attempt.error)}"
