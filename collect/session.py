"""A session: a robot, who leads it, what watches, and where it is shown.

`Session` connects what the options name, and either drives it without a record, or records takes:
begun and judged through an operator's console (window, terminal) or by itself, published beside it
all. What was lost is connected anew. In the embedded cell with nobody watching it records as fast
as simulated time goes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect import campaign, lerobot_factory, lerobot_types
from gaploop.collect.campaign import CampaignProgress, Quota
from gaploop.collect.devices import ArmDevices, CellDevices, SessionDevices, SharedDriver
from gaploop.collect.operator.console import ConsoleOperator, OperatorConsole, SessionLabels
from gaploop.collect.operator.keys import DEFAULTS, DRIVE, ROLLOUT, Command, KeyMap
from gaploop.collect.operator.machine import SessionStage, StageTiming
from gaploop.collect.operator.terminal import Turn, nowhere, terminal
from gaploop.collect.operator.view import Hint, QuotaBar, Quotas
from gaploop.collect.rig import Rig, scripted_leader
from gaploop.collect.session_options import check_targets
from gaploop.collect.take import (
    FAULTS_IN_A_ROW,
    MakeLeader,
    MakeRig,
    Operator,
    SessionEnd,
    TakeResult,
    record_takes,
)
from gaploop.core.errors import (
    DeviceError,
    GaploopError,
    LostError,
    TrippedError,
    UnusableInputError,
    file_words,
)
from gaploop.core.journal_format import END
from gaploop.core.progress import progress
from gaploop.core.protocols import Leader
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import TakeKind
from gaploop.datasets.lerobot_publish import PublishReport, publish_takes
from gaploop.teleop.checks.cameras import MORE_PICTURES
from gaploop.teleop.loop import Rates
from gaploop.teleop.stopping import CleanupStep, Stopped, one_line, stoppable

if TYPE_CHECKING:
    from gaploop.collect.rollout import RolloutDriver

log = logging.getLogger(__name__)

FPS: Final = 30.0
"""Frames a second of a real arm, as in lerobot-record [Hz]."""
STOPPING: Final = (
    "Stopping: the open episode is left out, sealed ones are published. Ctrl-C again leaves that "
    "for later."
)
"""Told as soon as a session is interrupted."""
TAKEN: Final = {lerobot_types.KEYBOARD: ("space",)}
"""Leader to the operator's keys that it needs for itself."""
MOVES: Final = "hold to move the arm"
HELD: Final = {
    lerobot_types.KEYBOARD: Hint("Space", MOVES),
    lerobot_types.GAMEPAD: Hint("R1", MOVES),
}
"""Leader with a window of its own to its dead-man button."""
DRIVES: Final = Hint("Shift", "hold to drive: W S A D, Z X")
"""The same of a base's keys."""


def about_takes(config: Any, kind: TakeKind, policy: str = "") -> TakeInfo:
    """Return what the takes of a session share, by its options; `policy` is an id, or ""."""
    task = config.dataset.single_task or getattr(config.robot, "task", kind.value)
    return TakeInfo(
        "",
        task.replace("_", " ") if not config.dataset.single_task else task,
        kind=kind,
        operator=config.operator,
        policy=policy,
        consent=config.consent,
    )


def chosen_interface(display: str, leads: str) -> str:
    """Return where a session is shown: the window if there is a display, else the terminal if any.

    A leader `leads` that has a window of its own tells that there is a display.
    """
    if display != "auto":
        return display
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    if leads in HELD or any(map(os.environ.get, names)) or sys.platform == "darwin":
        return "window"
    return "terminal" if sys.stdin.isatty() and sys.stderr.isatty() else "none"


def runs_by_itself(config: Any, leads: str) -> bool:
    """Whether nobody is needed, and simulated time may go as fast as it can; as of `Session`."""
    is_shown = config.display in ("window", "terminal")
    is_alone = leads in ("", lerobot_types.EXPERT)
    return config.robot.type == lerobot_types.EMBEDDED and is_alone and not is_shown


def drive_on(
    devices: SessionDevices,
    drive: Callable[[], bool],
    stop: Callable[[], bool],
    *,
    lost: str = "",
    finished: Callable[[], int] | None = None,
) -> tuple[int, str]:
    """Drive until it is over: what is lost meanwhile is connected anew, and it goes on.

    Args:
        devices: started already, unless something is `lost`.
        drive: drives with the devices as they are connected now, such as by recording takes; True
            where there is more to do. It raises LostError where a device is gone.
        finished: how many takes are finished by now, where nobody watches.

    Returns:
        How often devices were connected anew, and the safety trip that ended it, where nobody was
        there to clear it.

    Raises:
        DeviceError: nobody watches, and a device doesn't answer in time or is lost again and again.
    """
    reconnected, in_a_row, finished_before = 0, 0, 0
    while True:
        try:
            if lost:
                if not devices.reconnect(lost, stop):
                    return reconnected, ""
                reconnected, lost = reconnected + 1, ""
            if not drive():
                return reconnected, ""
        except LostError as error:
            lost = str(error)
            if finished is None:
                continue
            # The arm takes torque again without being asked: a servo that browns out ends this.
            finished_now = finished()
            in_a_row = in_a_row + 1 if finished_now == finished_before else 1
            finished_before = finished_now
            if in_a_row >= FAULTS_IN_A_ROW:
                raise DeviceError(
                    f"A device was lost {in_a_row} times and no episode finished in between; the "
                    f"last time: {lost}"
                ) from error
        except TrippedError as error:  # it ends, but not without its summary
            return reconnected, str(error)


@contextlib.contextmanager
def publishing_at_the_end(journal: Path, root: Path, repo_id: str) -> Iterator[list[PublishReport]]:
    """Publish the journal when the block ends, however it does; yield where the report will be.

    Whoever interrupts that is told the command for later.

    Raises:
        UnusableInputError: the dataset can't take it; the journal has it still.
    """
    words = ["publish", f"--journal={journal}", f"--dataset.root={root}"]
    command = shlex.join(["gaploop", *words, f"--dataset.repo_id={repo_id}"])
    reports: list[PublishReport] = []

    def publish() -> None:
        if next(journal.glob(f"*/{END}"), None) is None:
            return

        log.info("Publishing to %s …", root)
        try:
            reports.append(publish_takes(journal, root, repo_id))
        except (GaploopError, OSError) as error:
            why = f"{file_words(error)}." if isinstance(error, OSError) else one_line(error)
            raise UnusableInputError(
                f"{why} Every sealed episode is safe in {journal}; once that is fixed: {command}"
            ) from error

    try:
        try:
            yield reports
        except Exception:
            try:
                publish()
            except GaploopError as failed:
                log.error("%s", one_line(failed))  # its user is told what ended the session
            raise
        publish()
    except (KeyboardInterrupt, SystemExit):  # nobody wants to wait any more
        if next(journal.glob(f"*/{END}"), None) is not None:
            log.warning("Not everything is published. The episodes are in the journal; later:")
            log.warning("%s", command)
        raise


class Session:
    """Drives, or records the quotas of one session and publishes them; run it once.

    Args:
        config: options, as of `DriveOptions`; to record as of `SessionOptions`, with `dataset`.
        leads: the type of leader by which a person drives; "" where nobody does.
        rates: turns and frames a second that are asked for; None: the robot's own.
        interface: window, terminal or none.
        driver: the policy that drives and is taken over from, if any.
    """

    def __init__(
        self,
        config: Any,
        station: Station,
        *,
        leads: str,
        rates: Rates | None = None,
        interface: str = "none",
        driver: RolloutDriver | None = None,
    ) -> None:
        self._config, self._station, self._leads = config, station, leads
        self._rates, self.interface, self._driver = rates, interface, driver
        self.published: list[PublishReport] = []
        """What was published of the episodes, once they are recorded; empty where nothing was."""
        self._shared: SharedDriver | None = None if driver is None else driver.leader
        self._attempts = None if driver is None else driver.attempts
        self.devices: SessionDevices
        self.arms: ArmDevices
        """The devices, where nothing is recorded."""
        self.title = ""
        """Follower and leader, by type and id, where nothing is recorded."""
        self._console: OperatorConsole
        self._stopped: Stopped

    def _is_over(self) -> bool:
        return bool(self._stopped) or self._console.left

    # -- without a record -------------------------------------------------------------------

    def drive(self, max_s: float = math.inf) -> SessionEnd:
        """Drive until somebody ends it, the leader is done or `max_s` [s] have passed.

        Where nobody watches, a trip or a lost device ends it, too. Torque is off and everything
        disconnected afterwards; `devices` says what happened.
        """
        is_watched = self.interface != "none"
        rates = self._rates or Rates.near(FPS)
        why = lost = failed = ""
        keys = KeyMap.of(DRIVE, TAKEN.get(self._leads, ()))

        def work() -> bool:
            nonlocal why, failed
            try:
                why = devices.drive(self._is_over) or "quit"
            except TrippedError:
                why = "trip"
                raise
            except LostError as error:
                if is_watched:
                    raise
                why, failed = "trip" if devices.trip else "lost", str(error)
            return False

        with contextlib.ExitStack() as cleanup:
            self._stopped = cleanup.enter_context(stoppable())
            connection = lerobot_factory.ArmConnection(
                self._config, self._station, rates, records=False, is_watched=is_watched
            )
            self.title = connection.title
            devices = self.devices = self.arms = ArmDevices(
                cleanup.enter_context(connection).connect,
                is_watched=is_watched,
                clear_hint=_clear_hint(keys),
                max_s=max_s,
            )
            cleanup.callback(devices.close)
            self._stopped.again = devices.leave
            console = self._console = OperatorConsole(
                StageTiming(math.inf, math.inf),
                keys,
                task=self.title,
                stage=SessionStage.DRIVING,
                hand_held=self._hand_held,
                attended=is_watched,
            )
            console.safety = devices.safety
            turn = self._shown(cleanup, "gaploop teleoperate")
            try:
                devices.start()
            except DeviceError as error:
                if not is_watched:
                    raise
                lost = str(error)
            reconnected, trip = self._attend(turn, work, lost=lost)
            is_tripped = bool(devices.control.snapshot().tripped)
            try:
                devices.finish()
            except (DeviceError, OSError) as error:
                failed = one_line(error)
        trip = trip or (devices.trip if is_tripped else "")
        signals = tuple(self._stopped)
        return SessionEnd(
            reconnected=reconnected,
            trip=trip,
            signals=signals,
            why="signal" if signals else why or "quit",
            failed=failed,
        )

    # -- whatever is done -------------------------------------------------------------------

    @property
    def _hand_held(self) -> Hint | None:
        """The dead-man button of what leads the arm, or drives its base; None without one."""
        drives = DRIVES if hasattr(self.devices.window, "speeds") else None
        return HELD.get(self._leads, drives)

    def _shown(self, cleanup: contextlib.ExitStack, title: str) -> Turn:
        """Open the interface; return what hears keys and shows how things stand, for some 10 ms."""
        console, devices = self._console, self.devices
        if self.interface == "window":
            from gaploop.collect.operator.window import window

            screen = window(console, devices, title)
        elif self.interface == "terminal":
            details = devices if isinstance(devices, ArmDevices) else None
            screen = terminal(console, devices.window, details)
        else:
            screen = nowhere(console)
        return cleanup.enter_context(screen)

    def _attend(
        self,
        turn: Turn,
        drive: Callable[[], bool],
        *,
        lost: str = "",
        finished: Callable[[], int] | None = None,
    ) -> tuple[int, str]:
        """Call `drive_on` in a thread of its own, and show how things stand until the arm is down.

        `turn` hears keys; it returns after some 10 ms.
        """
        attempt, ends, devices = CleanupStep(), list[tuple[int, str]](), self.devices

        def work() -> None:
            with attempt:
                ends.append(drive_on(devices, drive, self._is_over, lost=lost, finished=finished))

        thread = threading.Thread(target=work, name="session")
        thread.start()
        try:
            # To its end, which takes a while where takes are still sealed: until then the
            # operator sees that, and can stop the arm.
            while thread.is_alive():
                turn()
                if self._stopped and not self._console.left:
                    self._console.leave()
                if self._console.left:
                    devices.end()
            devices.end()
            while devices.moves:  # on its way down, which the operator sees and can stop
                turn()
        finally:
            self._console.leave()
            devices.end()
            thread.join()
        if attempt.error is not None:
            raise attempt.error
        return ends[0]

    # -- with a record ----------------------------------------------------------------------

    def record(
        self,
        about: TakeInfo,
        quotas: Sequence[Quota],
        root: Path,
        journal: Path,
        *,
        resume: bool = False,
        progress: Callable[[], CampaignProgress] | None = None,
    ) -> SessionEnd:
        """Record until everything is, somebody ends it, or a device doesn't come back.

        Args:
            root: the dataset that takes are published to.
            resume: takes that the journal holds already count.
            progress: says how far the campaign has come that is followed, if one is.

        Raises:
            DeviceError: a device failed; what was sealed is published.
            UnusableInputError: options that can't be used.
        """
        self._about, self._quotas, self.root, self.journal = about, tuple(quotas), root, journal
        self._resume, self._progress = resume, progress
        self._wanted = sum(quota.takes for quota in quotas)
        self._results: list[TakeResult] = []
        self._recovered = self._lacking = 0
        config = self._config
        with publishing_at_the_end(journal, root, config.dataset.repo_id) as self.published:
            if runs_by_itself(config, self._leads):
                end = self._alone()
            else:
                with contextlib.ExitStack() as cleanup:
                    end = self._with_operator(cleanup)
        return replace(end, signals=tuple(self._stopped))

    def _make_rig(self, conditions: Mapping[str, object]) -> Any:
        fps = None if self._rates is None else self._rates.fps
        return lerobot_factory.simulated_rig(
            self._config.robot, fps, conditions, self._config.sensors
        )

    def _take(
        self,
        quotas: Sequence[Quota],
        make_rig: MakeRig,
        make_leader: MakeLeader,
        **more: Any,
    ) -> SessionEnd:
        config = self._config
        return record_takes(
            self.journal,
            self._about,
            quotas,
            make_rig,
            make_leader,
            max_s=config.dataset.episode_time_s,
            seed=getattr(config.robot, "seed", 0) + getattr(config, "reset_seed", 0),
            resume=self._resume,
            **more,
        )

    # -- by itself --------------------------------------------------------------------------

    def _alone(self) -> SessionEnd:
        """Record in the embedded cell as fast as it goes."""
        check_targets(self._make_rig, self._quotas, self.root, self.journal)
        is_rollout = self._about.kind is TakeKind.ROLLOUT
        announces = not is_rollout or len(self._quotas) > 1

        def make_leader(rig: Rig, seed: int) -> Leader:
            expert = scripted_leader(rig, seed)
            if self._shared is None:
                return expert
            return self._shared(rig.follower, rig.rates, lambda: rig.safety.sent_rad, expert)

        with (
            stoppable(STOPPING) as self._stopped,
            progress("Rolling out" if is_rollout else "Recording", self._wanted) as advance,
        ):
            return self._take(
                self._quotas,
                self._make_rig,
                make_leader,
                set_up=self._announce if announces else lambda *_: True,
                operator=Operator(attempts=self._attempts),
                stop=lambda: bool(self._stopped),
                on_take=lambda _take, counts: advance(int(counts)),
            )

    def _announce(self, quota: Quota, before: Quota | None) -> bool:
        """Say which set-up comes next, where the embedded cell sets itself up."""
        had = None if before is None else before.conditions
        change = campaign.change_words(had, quota.conditions, self._station.grid)
        if change not in ("nothing to change", campaign.AS_IT_STANDS):
            log.info("Set up: %s (%d episode%s).", change, quota.takes, "s" * (quota.takes != 1))
        return True

    # -- with an operator -------------------------------------------------------------------

    def _with_operator(self, cleanup: contextlib.ExitStack) -> SessionEnd:
        config, driver, is_watched = self._config, self._driver, self.interface != "none"
        keys = KeyMap.of(DEFAULTS if driver is None else ROLLOUT, TAKEN.get(self._leads, ()))
        self._stopped = cleanup.enter_context(stoppable(STOPPING))
        self.devices = self._connected(cleanup, keys)
        cleanup.callback(self.devices.close)
        self._stopped.again = self.devices.leave
        check_targets(self.devices.rig, self._quotas, self.root, self.journal)
        self._book = SessionLabels(self.journal, config.operator)
        cleanup.callback(self._book.close)
        resets = self._attempts is not None and self._attempts.resetter is not None
        times_s = config.dataset.episode_time_s, 0.0 if resets else config.dataset.reset_time_s
        self._console = console = OperatorConsole(
            StageTiming(*times_s, config.auto_start or resets or not is_watched),
            keys,
            self._book,
            task=self._about.task,
            bell=_ring if is_watched else lambda: None,
            hand_held=self._hand_held,
            attended=is_watched,
        )
        console.safety, console.driver = self.devices.safety, driver
        if self._progress is None:  # a campaign is counted from the journal, which takes a while
            console.on_label = self._count
        self._operator = ConsoleOperator(
            console,
            self.devices,
            self._recount,
            self._results.append,
            self._attempts,
        )
        have = campaign.held(self.journal, self._about.kind, self._quotas, resume=self._resume)
        self._held = have.total()
        self._count()
        turn = self._shown(cleanup, f"gaploop {'record' if driver is None else 'rollout'}")
        self.devices.start()
        finished = None if is_watched else lambda: len(self._results)
        reconnected, trip = self._attend(turn, self._record_what_lacks, finished=finished)
        self._recount()
        try:
            self.devices.finish()
        except DeviceError as error:
            if not trip:
                raise
            trip = f"{trip} {error}"
        return SessionEnd(
            tuple(replace(r, outcome=self._operator.outcome(r)) for r in self._results),
            counted=self._wanted - self._lacking,
            wanted=self._wanted,
            recovered=self._recovered,
            interrupted=bool(self._stopped) or self._lacking > 0,
            reconnected=reconnected,
            trip=trip,
        )

    def _connected(self, cleanup: contextlib.ExitStack, keys: KeyMap) -> SessionDevices:
        """Return the devices that the options name, not driven yet."""
        config = self._config
        if config.robot.type == lerobot_types.EMBEDDED:
            is_led = self._leads not in ("", lerobot_types.EXPERT)
            leader_of = functools.partial(lerobot_factory.leader_of, config)
            return CellDevices(
                self._make_rig, shared=self._shared, leader_of=leader_of if is_led else None
            )
        connection = lerobot_factory.ArmConnection(
            config,
            self._station,
            self._rates or Rates.near(FPS),
            leads=bool(self._leads),
            driver=self._driver,
            is_watched=self.interface != "none",
        )
        return ArmDevices(
            cleanup.enter_context(connection).connect,
            shared=self._shared,
            is_watched=self.interface != "none",
            clear_hint=_clear_hint(keys),
        )

    def _record_what_lacks(self) -> bool:
        """Record with the devices as they are connected now; return whether more is to be."""
        quotas = self._quotas
        if self._results and self._progress is None and not self._resume:
            quotas = (replace(quotas[0], takes=self._lacking),)
        end = self._take(
            quotas,
            self.devices.rig,
            self.devices.leader,
            set_up=self._set_up,
            operator=self._operator,
            stop=self._is_over,
        )
        self._recovered += end.recovered
        return not self._count() and not self._console.left

    def _set_up(self, quota: Quota, before: Quota | None) -> bool:
        grid = self._station.grid
        had = {} if before is None else before.conditions
        change = campaign.change_words(None if before is None else had, quota.conditions, grid)
        conditions = {**getattr(self._config.robot, "conditions", {}), **quota.conditions}
        is_by_hand = (
            self._config.robot.type != lerobot_types.EMBEDDED and not self._config.auto_start
        )
        ask = is_by_hand and change != "nothing to change" and bool(conditions or had)
        there = campaign.words(conditions, grid)
        change = change[:1].upper() + change[1:]
        going = self._console.await_set_up(change if ask else there, ask=ask)
        self._console.setup = there if conditions else ""
        return going

    def _recount(self) -> None:
        """Count anew what labels say, of quotas and of a policy's successes; may take time."""
        self._count()
        if self._attempts is not None:
            outcomes = {r.uid: self._console.outcome(r.uid, r.outcome) for r in self._results}
            self._attempts.judged(outcomes)

    def _count(self) -> bool:
        """Tell the console how far the quotas are filled; return whether they are."""
        if self._progress is None:
            counted = self._held + sum(
                campaign.counts(self._about.kind, self._console.outcome(r.uid, r.outcome))
                for r in self._results
            )
            self._lacking = max(0, self._wanted - counted)
            self._console.quotas = Quotas(counted, self._wanted)
            return not self._lacking
        self._book.flush()
        now = self._progress()
        self._lacking = now.wanted - now.have
        # A bar for every dimension, and one for each of its set-ups where it has several.
        bars: list[QuotaBar] = []
        for dimension, setups in now.by_dimension().items():
            have, wanted = sum(min(s.have, s.wanted) for s in setups), sum(s.wanted for s in setups)
            bars.append(QuotaBar((dimension or "episodes").replace("_", " "), have, wanted))
            for setup in setups if len(setups) > 1 else ():
                name = f"· {campaign.words(setup.conditions, self._station.grid)}"
                bars.append(QuotaBar(name, setup.have, setup.wanted))
        self._console.quotas = Quotas(now.have, now.wanted, tuple(bars), now.left_s)
        return not self._lacking


def _ring() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\a")
        sys.stderr.flush()


def _clear_hint(keys: KeyMap) -> str:
    """Return how the operator clears a trip."""
    return f"press {keys.name(Command.CLEAR) or 'Enter'} twice"


def video_figures(takes: Iterable[TakeResult]) -> dict[str, Any]:
    """Return, and warn of, what cameras and the encoder couldn't do in time.

    Returns:
        `dropped`: pictures; `doubts`: lines about cameras that were slow or frozen.
    """
    takes = tuple(takes)
    doubts = [words for take in takes for words in take.doubts]
    if doubts:
        log.warning(
            "In %d of %d episodes a camera was slow or frozen: rows repeat the picture before. %s",
            sum(bool(take.doubts) for take in takes),
            len(takes),
            MORE_PICTURES,
        )
    dropped = sum(take.dropped for take in takes)
    if dropped:
        log.warning(
            "The encoder couldn't keep up: %d pictures were dropped; those rows repeat the "
            "picture before. Close other programs, or use fewer or smaller pictures.",
            dropped,
        )
    doubts = list(dict.fromkeys(doubts))
    return {"dropped": dropped, "doubts": doubts}
