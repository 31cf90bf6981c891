"""Attempts: on a station with a person, who isn't told which policy drives; in the embedded cell.

Success checks and resets are functions that a suite names as `module:function`.
"""

import contextlib
import logging
import math
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final

from gaploop.collect.journal import Recorder
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rig import EmbeddedRig, embedded_rig
from gaploop.collect.take import CALLS, HELP, PERSON_S, run_take
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import HEADER
from gaploop.core.messages import Observation
from gaploop.core.schema import named_function
from gaploop.core.suite import FUNCTION_FORM, SuiteTask
from gaploop.core.vocabulary import Outcome, Phase
from gaploop.finetune.evaluate import MemoryTake, category
from gaploop.finetune.gate.folder import AttemptResult, GateAttempt
from gaploop.finetune.lerobot_policy import ActPolicy, load_policy
from gaploop.sim.world import WorldSpec

log = logging.getLogger(__name__)

NOW: Final = "now"
"""Link in the gate's folder to the policy whose turn it is, under the same name for both."""
ATTEMPTS: Final = "attempts"
PLACEHOLDERS: Final = ("policy", "out", "instruction", "timeout_s", "scene", "speed_scale")
START_S: Final = 120.0
"""A command may take this much longer than its task's time limit: large policies load slowly."""
RESET_S: Final = 180.0
"""And this much longer where the robot puts the scene back first: up to three tries."""
MORE: Final = 2
"""So often more a command is run that failed before the policy drove, such as by a busy port."""
LOOK_S: Final = 5.0
"""Whether the command calls a person is looked for this often [s]."""
GRACE_S: Final = 15.0
"""So long a command that is to stop has to let go of the robot, before it is made to."""
ANSWERS: Final = {
    "y": "it succeeded",
    "n": "it failed",
    "again": "it didn't count; the same attempt once more",
    "safety": "it failed and was unsafe: a safety stop, a collision, a person in the way",
}
PHASES: Final = {phase.value: phase.value for phase in Phase} | {"?": "can't be told"}
UNDO: Final = "undo"
"""Answer to any question: what was said of the attempt before was wrong."""


@dataclass(frozen=True)
class StageEvidence:
    """What a success check is shown of an attempt.

    Attributes:
        observations: every policy frame, in the embedded cell.
        folder: what the command wrote, on a station; None in the embedded cell.
    """

    instruction: str
    observations: Sequence[Observation] = ()
    folder: Path | None = None


class CheckError(UnusableInputError):
    """A check or reset failed, or said what can't be understood."""


def check_of(task: SuiteTask) -> Callable[[StageEvidence], bool] | None:
    """Return a task's own success check; None where the operator or the cell says.

    It raises CheckError where the function fails, or returns neither yes or no (a script) nor a
    number (a reward model): the word "no" would count as a success, NaN as a failure.

    Raises:
        UnusableInputError: there is no such function.
    """
    if not task.check:
        return None
    where = f"check of task '{task.name}'"
    function = named_function(task.check, where, FUNCTION_FORM)

    def judged(shown: StageEvidence) -> bool:
        said = called(function, shown, f"{where}: {task.check}")
        scored = task.success_check == "reward_model"
        try:
            score = float(said) if scored or said in (0, 1) else math.nan
        except (TypeError, ValueError):
            score = math.nan
        if math.isnan(score):
            wanted = "a number" if scored else "True or False"
            raise CheckError(f"{where}: {task.check} returned {said!r}, not {wanted}.")
        return score >= (task.threshold if scored else 0.5)

    return judged


def called(function: Callable[..., Any], shown: object, where: str) -> Any:
    """Call what a suite names; what it prints goes to stderr.

    Raises:
        CheckError: it failed.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is the verdict's
            return function(shown)
    except Exception as error:  # anything may be wrong in a function that isn't ours
        raise CheckError(f"{where} failed ({type(error).__name__}: {error}).") from error


def _told(told: Callable[[Path], bool], shown: StageEvidence) -> bool:
    return bool(called(told, shown.folder, "Telling success by the last pictures"))


type Ask = Callable[[str], str]


class StationAttempts:
    """Leads an operator through attempts.

    Before each one the link `now/policy` points to the policy whose turn it is, and the command,
    if any, is run with it. Neither the question nor the folder names the policy. An answer can be
    taken back until the next one is given.

    Args:
        command: runs one attempt; may hold {policy}, {out}, {instruction}, {timeout_s}, {scene}.
            "" where something else drives whatever `now/policy` points to.
        reset: who puts the scene back: person, who is asked, or what the command is told, with the
            number of the scene.
        start_s: what the command may take beyond the task's time limit, to start and to end [s].
        told: says whether the episode that the command left in a folder succeeded, for tasks with
            a script and no check; None where nothing does.
        asks_phase: the operator, who says that an attempt failed, is asked in which phase.

    Raises:
        UnusableInputError: an unknown placeholder, or a check that doesn't exist.
    """

    def __init__(
        self, folder: Path, policies: Mapping[str, Path], tasks: Sequence[SuiteTask],
        command: str, ask: Ask, start_s: float = START_S, reset: str = "person",
        told: Callable[[Path], bool] | None = None, asks_phase: bool = False,
    ) -> None:  # fmt: skip
        self._folder, self._policies, self._tasks = folder, dict(policies), tuple(tasks)
        self._command, self._ask, self._start_s = command, ask, start_s
        self._said_later, self._asks_phase = "", asks_phase
        self._by_robot = reset if reset != "person" else ""
        self._checks = [
            partial(_told, told) if told and task.is_told else check_of(task) for task in tasks
        ]
        self._resets = list[Callable[[int], object] | None]()
        for task, check in zip(tasks, self._checks, strict=True):
            is_function = task.reset.count(":") == 1 and not any(c.isspace() for c in task.reset)
            where = f"reset of task '{task.name}'"
            self._resets.append(
                named_function(task.reset, where, FUNCTION_FORM) if is_function else None
            )
            if task.gaps:
                raise UnusableInputError(
                    f"Task '{task.name}' has gaps, which only the embedded cell can inject. For a "
                    "station name what is set up in conditions or reset; for the embedded cell "
                    "give every task success_check: script, and leave --command out."
                )
            if task.success_check != "operator" and check is None:
                raise UnusableInputError(
                    f"Task '{task.name}' has no check, and nothing here tells success by itself. "
                    "Give it check: module:function or success_check: operator, or have a detector "
                    "measured for --station=FILE: gaploop label DATASET --success_detector=FILE"
                )
            if task.candidate_speed < 1 and "{speed_scale}" not in command:
                raise UnusableInputError(
                    f"Task '{task.name}' has a candidate_speed, and nobody tells it the robot. Add "
                    "--speed_scale={speed_scale} to the gaploop rollout of --command."
                )
        _words(command, dict.fromkeys(PLACEHOLDERS, ""))

    def __call__(self, stage: str, attempt: GateAttempt) -> AttemptResult:
        """Make one attempt, as often as the operator says that it didn't count."""
        task = self._tasks[attempt.task]
        policy = self._folder / NOW / "policy"
        policy.parent.mkdir(exist_ok=True)
        fresh = policy.with_name(".policy")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self._policies[attempt.side].absolute(), target_is_directory=True)
        fresh.replace(policy)
        for repeats in count():
            # A new folder for each try: what was left of one that didn't count isn't judged again.
            name = f"{stage}_{attempt.number:05d}"
            names = (name if n == 1 else f"{name}_{n}" for n in count(1))
            out = next(p for p in (self._folder / ATTEMPTS / n for n in names) if not p.exists())
            out.mkdir(parents=True)
            reset = self._resets[attempt.task]
            if self._by_robot:
                pass  # the command does it, before the attempt
            elif reset is not None:
                called(reset, attempt.scene, f"reset of task '{task.name}'")
            else:
                place = f"Attempt {attempt.number + 1}, {task.name}."
                told = task.reset or "Set the scene up as for every attempt."
                half = "first" if attempt.number % 2 == 0 else "second"
                pair = f"Scene {attempt.number // 2 + 1}, {half} of two: both must begin alike."
                self._ask_or_undo(attempt, f"{place} {told} {pair} Press Enter when it is ready.")
            began_s = time.monotonic()
            trouble = self._run(task, attempt, policy, out)
            lasted_s = round(time.monotonic() - began_s, 3)
            has_driven = next(out.rglob(HEADER), None) is not None
            if trouble and self._by_robot and not has_driven and repeats < MORE:
                log.warning("%s The policy hasn't driven: the same attempt again.", trouble)
                continue
            check, answer, phase = self._checks[attempt.task], "", ""
            if check is not None and not trouble:
                try:
                    answer = "y" if check(StageEvidence(task.instruction, folder=out)) else "n"
                except CheckError as error:  # the robot has driven: a person may save the attempt
                    trouble = str(error)
            if not answer:
                undo = f" ({UNDO}: the answer before)" if attempt.number else ""
                question = f"{trouble} Did it succeed? {', '.join(ANSWERS)}{undo}:".strip()
                answer = _one_of(ANSWERS, question, partial(self._ask_or_undo, attempt))
                if self._asks_phase and answer in ("n", "safety"):
                    phase = _one_of(PHASES, f"In which phase? {', '.join(PHASES)}:", self._ask)
            if answer != "again":
                won, unsafe = answer == "y", answer == "safety"
                reason, later, self._said_later = ANSWERS[answer], self._said_later, ""
                return AttemptResult(
                    stage, attempt.number, won, unsafe, lasted_s, reason, repeats, later,
                    phase.replace("?", ""),
                )  # fmt: skip
        raise AssertionError("counting doesn't end")

    def _run(self, task: SuiteTask, attempt: GateAttempt, policy: Path, out: Path) -> str:
        """Run the command, if any; return what went wrong, or ""."""
        if not self._command:
            if task.success_check != "operator":
                self._ask_or_undo(attempt, f"Let the policy in {policy} run, then press Enter.")
            return ""
        values = {
            "policy": str(policy),
            "out": str(out),
            "instruction": task.instruction,
            "timeout_s": f"{task.timeout_s:g}",
            "scene": str(attempt.scene),
            "speed_scale": f"{task.speed(attempt.side):g}",
        }
        file = out / "log.txt"  # not on the terminal: it may name the policy
        limit_s = task.timeout_s + self._start_s + (RESET_S if self._by_robot else 0.0)
        try:
            with file.open("ab") as stream:
                words = _words(self._command, values)
                if self._by_robot:
                    words += [f"--reset={self._by_robot}", f"--reset_seed={attempt.scene}"]
                code = _finished(words, file, stream, limit_s)
        except OSError as error:
            raise UnusableInputError(
                f"--command can't be run ({error.strerror}: {error.filename}). Fix it; outcomes "
                "so far are kept."
            ) from None
        if code is None:
            return f"The command didn't end within {limit_s:g} s and was stopped."
        return f"The command ended with code {code}." if code else ""

    def _ask_or_undo(self, attempt: GateAttempt, question: str) -> str:
        """Ask, as often as the operator takes back what was said of the attempt before."""
        note = ""
        while (answer := self._ask(f"{note} {question}".strip()).strip().lower()) == UNDO:
            if not attempt.number:
                note = "There is no attempt before this one."
                continue
            known = {answer: words for answer, words in ANSWERS.items() if answer != "again"}
            before = f"Attempt {attempt.number}"
            told = f"{before}, did it succeed? {', '.join(known)}:"
            self._said_later = _one_of(known, told, self._ask)
            note = f"{before}: {known[self._said_later]}."
        return answer


def _finished(words: Sequence[str], file: Path, log_to: BinaryIO, limit_s: float) -> int | None:
    """Run a program; return its exit code, or None where it had to be stopped.

    Where it calls a person, as its log says, it has longer by the time that a person has.

    It is never killed at once: it holds a robot's torque. Ctrl-C reaches it as well as us, so it
    is given the time to end by itself.
    """
    program = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log_to, stderr=subprocess.STDOUT
    )
    until_s, is_called = time.monotonic() + limit_s, False
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return program.wait(min(left_s, LOOK_S))
            if not is_called and CALLS.encode() in file.read_bytes():
                is_called, until_s = True, until_s + PERSON_S
                log.warning("The robot can't put the scene back and waits: %s", HELP)
        program.send_signal(signal.SIGINT)
        return None
    except KeyboardInterrupt:
        raise
    except BaseException:
        program.send_signal(signal.SIGINT)
        raise
    finally:
        for end in (program.terminate, program.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(GRACE_S)
                break
            end()


def _one_of(known: Mapping[str, str], question: str, ask: Ask) -> str:
    while (answer := ask(question).strip().lower()) not in known:
        meant = "; ".join(f"{key} = {words}" for key, words in known.items())
        question = f"Please answer one of these. {meant}:"
    return answer


def _words(command: str, values: Mapping[str, str]) -> list[str]:
    try:
        return [word.format(**values) for word in shlex.split(command)]
    except (KeyError, ValueError, IndexError) as error:
        raise UnusableInputError(
            f"--command={command!r}: {error} isn't a placeholder. One of: "
            f"{', '.join('{' + name + '}' for name in PLACEHOLDERS)}."
        ) from None


SAFETY_TRIP: Final = "safety trip"


@contextmanager
def cell_attempts(
    policies: Mapping[str, Path], tasks: Sequence[SuiteTask], policy_format: str = "",
    tells_phase: bool = False,
) -> Iterator[Callable[[str, GateAttempt], AttemptResult]]:  # fmt: skip
    """Yield what tries policies on tasks in simulation, one attempt at a time.

    Args:
        policy_format: how both compute, as of `load_policy`, on the best device there is.
        tells_phase: the embedded cell says in which phase an attempt failed, as `evaluate` does.

    Raises:
        UnusableInputError: no such policy, format, task, gap or check; said before the first.
    """
    with ExitStack() as stack:
        loaded, tries = dict[str, ActPolicy](), list[Try]()
        if not all(task.env for task in tasks):
            loaded = {
                side: load_policy(path, device="auto", format=policy_format)
                for side, path in policies.items()
            }
        for task in tasks:
            make = (
                _world_tries(task, policies, policy_format)
                if task.env
                else _cell_tries(task, loaded, tells_phase)
            )
            tries.append(stack.enter_context(make))
        yield lambda stage, attempt: replace(tries[attempt.task](attempt), stage=stage)


type Try = Callable[[GateAttempt], AttemptResult]


@contextmanager
def _cell_tries(
    task: SuiteTask, loaded: Mapping[str, ActPolicy], tells_phase: bool
) -> Iterator[Try]:
    """Yield what makes an attempt at a task of the embedded cell."""
    check = check_of(task)
    with contextlib.closing(_built(task, loaded["baseline"].fps)) as rig:

        def attempted(attempt: GateAttempt) -> AttemptResult:
            loaded[attempt.side].task = task.instruction or rig.cell.instruction
            leader = PolicyLeader(loaded[attempt.side], rig.follower, rig.fps, rig.control_hz)
            leader.speed_scale = task.speed(attempt.side)
            seen = list[Observation]()
            look = (seen.append,) if check else ()
            sees = rig.seen_by(loaded[attempt.side])
            memory = MemoryTake(sees)
            take = run_take(
                sees, leader, seed=attempt.scene, max_s=task.timeout_s, on_frame=look,
                sinks=(Recorder(memory, rig.follower),) if tells_phase else (),
            )  # fmt: skip
            won = take.outcome is Outcome.SUCCESS
            if check is not None:
                won = check(StageEvidence(task.instruction, seen))
            failed = tells_phase and not won
            _, phase = category(memory.take(Outcome.FAILURE)) if failed else ("", "")
            unsafe, lasted_s = take.reason == SAFETY_TRIP, round(take.duration_s, 3)
            return AttemptResult(
                "", attempt.number, won, unsafe, lasted_s, take.reason, phase=phase
            )

        yield attempted


@contextmanager
def _world_tries(
    task: SuiteTask, policies: Mapping[str, Path], policy_format: str = ""
) -> Iterator[Try]:
    """Yield what makes an attempt at a task of anybody's simulation, which judges it itself."""
    from gaploop.finetune.lerobot_gym import GymDriver
    from gaploop.sim.lerobot_worlds import config_of

    if task.check:
        raise UnusableInputError(
            f"Task '{task.name}': its env says what success is. Leave check out."
        )
    said = dict(task.env)
    roles = said.pop("roles", None)
    config = config_of(said, f"env of task '{task.name}'")
    spec = WorldSpec(task.gaps, task.gap_seed, task.conditions, Path(roles) if roles else None)
    how = {"device": "auto", "format": policy_format}
    drivers = {side: GymDriver(path, how, task.speed(side)) for side, path in policies.items()}
    with ExitStack() as stack:
        made = dict[str, Any]()
        for side, driver in drivers.items() or {"": GymDriver("demonstrator")}.items():
            worlds = stack.enter_context(driver.worlds(config, spec))
            if len(worlds) != 1:
                names = ", ".join(worlds)
                raise UnusableInputError(f"Task '{task.name}': give env one task, not {names}.")
            (made[side],) = worlds.values()

        def attempted(attempt: GateAttempt) -> AttemptResult:
            scene, side = attempt.scene, attempt.side
            found = drivers[side].attempts(config, made[side], [scene], scene + 1)
            won, lasted_s, reason = found[0]
            won = won and lasted_s <= task.timeout_s
            return AttemptResult("", attempt.number, won, False, round(lasted_s, 3), reason)

        yield attempted


def _built(task: SuiteTask, fps: float | None = None) -> EmbeddedRig:
    return embedded_rig(
        task=task.task, gaps=task.gaps, gap_seed=task.gap_seed, conditions=task.conditions, fps=fps
    )


def check_tasks(tasks: Sequence[SuiteTask]) -> None:
    """Check that the simulation can be set up for all tasks, before hours are spent on some.

    Raises:
        UnusableInputError: no such task, gap or check.
    """
    for task in tasks:
        check_of(task)
        if task.env:
            with _world_tries(task, {}):
                continue
        _built(task).close()
