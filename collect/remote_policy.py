"""A policy on another machine: `serve_policy` where it is, `RemotePolicy` where the robot is.

An observation goes out, a plan comes back: as many joint targets as the policy plans at once. On a
real arm `AsyncPolicyDriver` asks ahead of time, in a thread of its own.
"""

import io
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Final, Literal
from urllib.parse import parse_qs

import msgspec
import numpy as np
from PIL import Image as PillowImage
from websockets.sync.connection import Connection

from gaploop.collect.policy_leader import Planner
from gaploop.core.errors import DAMAGE, DeviceError, GaploopError, LostError, UnusableInputError
from gaploop.core.messages import FloatArray, Image, Observation
from gaploop.core.protocols import Policy
from gaploop.teleop import link
from gaploop.teleop.stopping import one_line

KIND: Final = "gaploop.policy.3"
SCHEME: Final = "remote://"
MOST_BYTES: Final = 64 << 20
"""Four raw pictures of 2560 x 1440 and what else an observation holds."""
PLAN_BYTES: Final = 1 << 20
PLAN_S: Final = 20.0
"""A plan that takes longer has failed [s]; the first one after a start takes longest."""
AGAIN_S: Final = 1.0
"""A lost link is tried again this often [s]."""
JPEG_QUALITY: Final = 95
type Readings = Annotated[list[Annotated[float, link.Small]], msgspec.Meta(max_length=4096)]
type Side = Annotated[int, msgspec.Meta(ge=1, le=4096)]


type NoiseRad = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class PolicyCard(link.Message, frozen=True):
    """What a policy says of itself, first; names as in `Policy` and `Planner`.

    Attributes:
        runs: where and how it computes, in words.
    """

    id: link.Word
    fps: Annotated[float, msgspec.Meta(gt=0.0, le=1000.0)]
    execute: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    robot_type: link.Word
    needs_scene: bool
    delay_s: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)]
    runs: link.Word = ""
    camera_delay_s: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] = 0.0
    noise_rad: Annotated[tuple[NoiseRad, ...], msgspec.Meta(max_length=64)] = ()


class Picture(link.Message, frozen=True):
    """A picture: RGB bytes row by row, or a JPEG of that size."""

    form: Literal["raw", "jpeg"]
    height: Side
    width: Side
    data: bytes


class PolicyQuestion(link.Message, frozen=True):
    """What the robot sees, as in `Observation`; the first of a take; the instruction."""

    number: link.Count
    is_first: bool
    task: Annotated[str, msgspec.Meta(max_length=1000)]
    state: link.Numbers
    scene: link.Numbers | None
    pictures: Annotated[dict[link.Word, Picture], msgspec.Meta(max_length=16)]
    forces: Annotated[dict[link.Word, Readings], msgspec.Meta(max_length=16)] = msgspec.field(
        default_factory=dict
    )


class PolicyAnswer(link.Message, frozen=True):
    """The plan, a row for each step, and how long it took to make [s]; or why there is none.

    Attributes:
        gpu_left_mb: memory that the policy's GPU has left [MB]; None without one.
    """

    number: link.Count
    took_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
    plan: Annotated[list[link.Numbers], msgspec.Meta(max_length=1000)]
    failed: Annotated[str, msgspec.Meta(max_length=1000)]
    gpu_left_mb: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)] | None = None


def packed(image: Image, quality: int | None) -> Picture:
    """Return a picture as it is sent: as a JPEG of that quality, or exactly as it is with None."""
    height, width = image.shape[:2]
    if quality is None:
        return Picture("raw", height, width, np.ascontiguousarray(image).tobytes())
    file = io.BytesIO()
    PillowImage.fromarray(image).save(file, "JPEG", quality=quality, subsampling=0)
    return Picture("jpeg", height, width, file.getvalue())


def unpacked(picture: Picture) -> Image:
    """Return a picture that came, shape (height, width, 3).

    Raises DeviceError where it isn't one, or has another size than it says: not decoded then.
    """
    size = (picture.width, picture.height)
    if picture.form == "raw":
        if len(picture.data) != 3 * picture.width * picture.height:
            raise DeviceError(f"It sends {len(picture.data)} bytes for a picture of {size} pixels.")
        shape = (picture.height, picture.width, 3)
        return np.frombuffer(picture.data, dtype=np.uint8).reshape(shape)
    try:
        with PillowImage.open(io.BytesIO(picture.data), formats=["JPEG"]) as found:
            if found.size != size:
                raise DeviceError(f"It sends a picture of {found.size} for one of {size} pixels.")
            return np.asarray(found.convert("RGB"))
    except (*DAMAGE, PillowImage.DecompressionBombError) as error:
        raise DeviceError(f"It sends a picture that isn't a JPEG ({one_line(error)}).") from error


def card_of(policy: Policy, id_: str) -> PolicyCard:
    """Return what is said of a policy with that id."""
    return PolicyCard(
        id_,
        policy.fps,
        policy.execute if isinstance(policy, Planner) else 1,
        str(getattr(policy, "robot_type", "")),
        bool(getattr(policy, "needs_scene", False)),
        float(getattr(policy, "delay_s", 0.0)),
        str(getattr(policy, "runs", "")),
        float(getattr(policy, "camera_delay_s", 0.0)),
        tuple(getattr(policy, "noise_rad", ())),
    )


def serve_policy(policy: Policy, card: PolicyCard) -> Callable[[Connection], None]:
    """Return what answers one robot after the other; a policy remembers the take that it is in."""
    busy = threading.Lock()

    def talk(connection: Connection) -> None:
        if not busy.acquire(blocking=False):
            raise DeviceError("It drives another robot. Serve the policy once more for this one.")
        try:
            link.say(connection, card)
            while True:
                question = link.hear(connection, PolicyQuestion)
                assert question is not None
                link.say(connection, answer(policy, question))
        finally:
            busy.release()

    return talk


def answer(policy: Policy, question: PolicyQuestion) -> PolicyAnswer:
    """Return what a policy plans."""
    start_s, plan, failed = time.perf_counter(), [], ""
    seen = Observation(
        np.array(question.state),
        None if question.scene is None else np.array(question.scene),
        {name: unpacked(picture) for name, picture in question.pictures.items()},
        {name: np.array(values) for name, values in question.forces.items()},
    )
    try:
        if question.is_first:
            policy.reset()
        if hasattr(policy, "task"):
            policy.task = question.task
        if isinstance(policy, Planner):
            made = np.asarray(policy.plan(seen), dtype=np.float64)
        else:
            made = np.asarray(policy.act(seen), dtype=np.float64)[None]
        if made.size and np.abs(made).max() <= 1e6:  # NaN isn't
            plan = made.tolist()
        else:
            failed = "The policy's plan is empty, or a value in it isn't a number."
    except (GaploopError, *DAMAGE) as error:
        failed = one_line(error)[:1000]
    left_mb = getattr(policy, "gpu_left_mb", None)
    return PolicyAnswer(question.number, time.perf_counter() - start_s, plan, failed, left_mb)


class AskedPolicy:
    """A `Planner` whose plans another process makes, which `where` says in words.

    Pictures are sent to it as JPEG of that quality, or as they are with None.
    """

    def __init__(self, card: PolicyCard, where: str, task: str, quality: int | None) -> None:
        self.card, self.where, self._task, self._quality = card, where, task[:1000], quality
        self._number, self._is_first = 0, True
        self._queue: deque[FloatArray] = deque()
        self.chunk: FloatArray | None = None
        self.fps, self.execute, self.delay_s = card.fps, card.execute, card.delay_s
        self.robot_type, self.needs_scene = card.robot_type, card.needs_scene
        self.runs, self.camera_delay_s = card.runs, card.camera_delay_s
        self.noise_rad = card.noise_rad
        self.gpu_left_mb: float | None = None

    def ask(self, question: PolicyQuestion) -> PolicyAnswer:
        """Return the answer to a question; DeviceError where none comes."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the episode before; the policy is told with the next observation."""
        self._is_first, self.chunk = True, None
        self._queue.clear()

    def act(self, observation: Observation) -> FloatArray:
        """Return the next joint target, shape (n_joints,), in the policy's LeRobot units."""
        if not self._queue:
            self._queue.extend(self.plan(observation)[: self.execute])
        return self._queue.popleft()

    def plan(self, observation: Observation) -> FloatArray:
        """Return the next joint targets, shape (n_steps, n_joints), in LeRobot units.

        Raises LostError where no plan comes that can be used, DeviceError where the policy fails.
        """
        scene = observation.environment_state
        self._number += 1
        question = PolicyQuestion(
            self._number,
            self._is_first,
            self._task,
            np.asarray(observation.state).tolist(),
            None if scene is None else np.asarray(scene).tolist(),
            {name: packed(image, self._quality) for name, image in observation.images.items()},
            {name: np.asarray(values).tolist() for name, values in observation.forces.items()},
        )
        answer = self.ask(question)
        if answer.failed:
            raise DeviceError(f"{self.where}: {answer.failed}")
        self._is_first, self.gpu_left_mb = False, answer.gpu_left_mb
        self.chunk = np.array(answer.plan, dtype=np.float64)
        return self.chunk


def require_plan(answer: PolicyAnswer, question: PolicyQuestion) -> None:
    """Raise DeviceError unless a plan has the arm's joints in each step."""
    if answer.failed:
        return
    if len({len(row) for row in answer.plan}) != 1:
        raise DeviceError("It sends a plan whose steps differ in their joints.")
    if len(answer.plan[0]) != len(question.state):
        planned, own = len(answer.plan[0]), len(question.state)
        raise DeviceError(f"It plans for {planned} joints; this robot has {own}.")


class RemotePolicy(AskedPolicy):
    """The robot's end of a link; connects when it is made, and anew when it was lost.

    Args:
        address: `remote://host:port`; `?pictures=raw` sends pictures as they are, `?pictures=80` as
            JPEG of that quality; of 95 unless given.
        token: what `gaploop serve policy` printed.

    Raises:
        UnusableInputError: an address or a token that can't be used.
        DeviceError: nobody answers there, or the token is another.
    """

    def __init__(self, address: str, token: str, task: str = "") -> None:
        where, _, query = address.removeprefix(SCHEME).partition("?")
        self._host, self._port = link.parse_address(where, f"--policy.path={SCHEME}…")
        self._token = link.require_token(token, link.TOKEN_VARIABLE)
        given = parse_qs(query).get("pictures", [str(JPEG_QUALITY)])[-1]
        if given != "raw" and not (given.isdecimal() and 1 <= int(given) <= 100):
            raise UnusableInputError(
                f"{address}: pictures must be raw or a JPEG quality of 1 to 100, got '{given}'."
            )
        quality = None if given == "raw" else int(given)
        self._connection: Connection | None = None
        self._why, self._again_s = "", -math.inf
        self.on_the_way_s: list[float] = []
        """For each plan, how long it took without what the policy itself took [s]."""
        where = f"The policy at {self._host}:{self._port}"
        super().__init__(self._connect(), where, task, quality)
        self.runs = f"{self._host}:{self._port} ({self.card.runs})"

    def ask(self, question: PolicyQuestion) -> PolicyAnswer:
        """Return the answer to a question; connects anew where the link was lost."""
        asked_s = time.monotonic()
        try:
            if self._connection is None:
                self._connect()
            answer = self._ask(question)
        except DeviceError as error:
            self.close()
            raise LostError(f"{self.where}: {error}") from error
        self.on_the_way_s.append(time.monotonic() - asked_s - answer.took_s)
        return answer

    def blocker(self) -> str:
        """Connect anew where the link is lost, every `AGAIN_S`; return why that can't be, or ""."""
        if self._connection is not None and self._connection.close_code is not None:
            self.close()
        if self._connection is None and time.monotonic() >= self._again_s:
            self._why = ""
            try:
                self._connect()
            except DeviceError as error:
                self.close()
                self._why = f"{self.where}: {error}"
            self._again_s = time.monotonic() + AGAIN_S
        return self._why if self._connection is None else ""

    def close(self) -> None:
        """Close the link; safe to call twice."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> PolicyCard:
        self._connection = link.connect(KIND, self._host, self._port, self._token, PLAN_BYTES)
        card = link.hear(self._connection, PolicyCard, link.OPEN_S)
        if card is None:
            raise DeviceError("It doesn't identify itself.")
        if getattr(self, "card", card) != card:
            raise DeviceError("It serves another policy than before. Run this command again.")
        return card

    def _ask(self, question: PolicyQuestion) -> PolicyAnswer:
        assert self._connection is not None
        link.say(self._connection, question)
        until_s = time.monotonic() + PLAN_S
        while (left_s := until_s - time.monotonic()) > 0:
            answer = link.hear(self._connection, PolicyAnswer, left_s)
            if answer is None:
                break
            if answer.number == question.number:  # else one that was given up
                require_plan(answer, question)
                return answer
        raise DeviceError(f"no plan within {PLAN_S:g} s.")
