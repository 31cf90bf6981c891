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
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect import lerobot_factory
from gaploop.collect.campaign import CampaignProgress, Quota, counts, held
from gaploop.collect.devices import ArmDevices, CellDevices, SessionDevices, SharedDriver
from gaploop.collect.operator.console import ConsoleOperator, OperatorConsole
from gaploop.collect.operator.keys import DEFAULTS, DRIVE, ROLLOUT, Command, KeyMap
from gaploop.collect.operator.machine import SessionStage, StageTiming
from gaploop.collect.operator.session_labels import LabelSuggester, SessionLabels, known_takes
from gaploop.collect.operator.terminal import Turn, nowhere, terminal
from gaploop.collect.operator.view import QuotaBar, Quotas, SetUp
from gaploop.collect.publisher import STOPPING, Publisher
from gaploop.collect.recording import (
    FAULTS_IN_A_ROW,
    MakeLeader,
    MakeRig,
    SessionEnd,
    SetUpNext,
    record_takes,
)
from gaploop.collect.rig import Rig, scripted_leader
from gaploop.collect.scene_setup import change_words, words
from gaploop.collect.session_options import check_targets
from gaploop.collect.take import Operator, TakeResult
from gaploop.core.errors import DeviceError, LostError, TrippedError
from gaploop.core.progress import progress
from gaploop.core.protocols import Leader, Suggest
from gaploop.core.station import Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import TakeKind
from gaploop.teleop.checks.cameras import MORE_PICTURES
from gaploop.teleop.loop import Rates
from gaploop.teleop.stopping import CleanupStep, Stopped, one_line, stoppable

if TYPE_CHECKING:
    from gaploop.collect.rollout import RolloutDriver
    from gaploop.datasets.lerobot_publish import PublishReport

log = logging.getLogger(__name__)

FPS: Final = 30.0
"""Frames a second of a real arm, as in lerobot-record [Hz]."""
REMEMBERED: Final = 5
"""Takes of earlier sessions that can be labelled anew."""
TAKEN: Final = {
    lerobot_factory.KEYBOARD: {
        "space": "hold to move",
        "tab": "frame",
        "-": "slower",
        "=": "faster",
    },
    lerobot_factory.GAMEPAD: {
        "pad:rightshoulder": "hold to move",
        "pad:b": "emergency stop",
        "pad:start": "clear a trip",
        "pad:back": "frame",
    },
}
"""Leader to the keys that it needs whether or not its dead-man button is held."""
HELD: Final = {lerobot_factory.KEYBOARD: "Space", lerobot_factory.GAMEPAD: "R1"}


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
    if leads in TAKEN or any(map(os.environ.get, names)) or sys.platform == "darwin":
        return "window"
    return "terminal" if sys.stdin.isatty() and sys.stderr.isatty() else "none"


def runs_by_itself(config: Any, leads: str) -> bool:
    """Whether nobody is needed, and simulated time may go as fast as it can.

    Args:
        config: the session's options.
        leads: the type of leader by which a person drives; "" where nobody does.
    """
    is_shown = config.display in ("window", "terminal")
    is_alone = leads in ("", lerobot_factory.EXPERT)
    return config.robot.type == lerobot_factory.EMBEDDED and is_alone and not is_shown


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
                    f"A device was lost {in_a_row} times and no take finished in between; the "
                    f"last time: {lost}"
                ) from error
        except TrippedError as error:  # it ends, but not without its summary
            return reconnected, str(error)


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

    def drive(
        self,
        max_s: float = math.inf,
        title: str = "gaploop teleoperate",
    ) -> SessionEnd:
        """Drive until somebody ends it, the leader is done or `max_s` [s] have passed.

        Where nobody watches, a trip or a lost device ends it, too. Torque is off and everything
        disconnected afterwards; `devices` says what happened.
        """
        is_watched = self.interface != "none"
        rates = self._rates or Rates.near(FPS)
        why = lost = failed = ""
        keys = KeyMap.of({}, TAKEN.get(self._leads, {}), DRIVE)

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
                self._config, self._station, rates, records=False
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
                hand_held=HELD.get(self._leads, ""),
                attended=is_watched,
            )
            console.safety = devices.safety
            turn = self._shown(cleanup, title)
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
        suggest: Suggest | None = None,
    ) -> SessionEnd:
        """Record until everything is, somebody ends it, or a device doesn't come back.

        Args:
            about: what all takes share.
            root: the dataset that they are published to.
            resume: takes that the journal holds already count.
            progress: says how far the campaign has come that is followed, if one is.
            suggest: what failure analysis says of a take, as if it had failed.

        Raises:
            DeviceError: a device failed; what was sealed is published.
            UnusableInputError: options that can't be used.
        """
        self._about, self._quotas, self.root, self.journal = about, tuple(quotas), root, journal
        self._resume, self._progress = resume, progress
        self._suggest = suggest
        self._wanted = sum(quota.takes for quota in quotas)
        self._results: list[TakeResult] = []
        self._recovered = self._lacking = 0
        config = self._config
        self._publisher = Publisher(journal, root, config.dataset.repo_id)
        if runs_by_itself(config, self._leads):
            end = self._alone()
        else:
            with self._publisher, contextlib.ExitStack() as cleanup:
                end = self._with_operator(cleanup)
        return replace(end, signals=tuple(self._stopped))

    @property
    def reports(self) -> list[PublishReport]:
        """Every publication so far."""
        return self._publisher.reports

    def _make_rig(self, conditions: Mapping[str, object]) -> Any:
        fps = None if self._rates is None else self._rates.fps
        return lerobot_factory.simulated_rig(self._config.robot, fps, conditions)

    def _take(
        self,
        quotas: Sequence[Quota],
        make_rig: MakeRig,
        make_leader: MakeLeader,
        set_up: SetUpNext,
        operator: Operator,
        stop: Callable[[], bool],
        on_take: Callable[[TakeResult, bool], None] = lambda _take, _counts: None,
    ) -> SessionEnd:
        config = self._config
        return record_takes(
            self.journal,
            self._about,
            quotas,
            make_rig,
            make_leader,
            max_s=config.dataset.episode_time_s,
            seed=getattr(config.robot, "seed", 0),
            resume=self._resume,
            set_up=set_up,
            stop=stop,
            on_take=on_take,
            publish=self._publisher.behind,
            operator=operator,
        )

    # -- by itself --------------------------------------------------------------------------

    def _alone(self) -> SessionEnd:
        """Record in the embedded cell as fast as it goes."""
        check_targets(self._make_rig, self._quotas, self.root, self.journal)
        is_rollout = self._about.kind is TakeKind.ROLLOUT

        def make_leader(rig: Rig, seed: int) -> Leader:
            expert = scripted_leader(rig, seed)
            if self._shared is None:
                return expert
            return self._shared(rig.follower, rig.rates, lambda: rig.safety.sent_rad, expert)

        with (
            stoppable(STOPPING) as self._stopped,
            self._publisher,
            progress("Rolling out" if is_rollout else "Recording", self._wanted) as advance,
        ):
            return self._take(
                self._quotas,
                self._make_rig,
                make_leader,
                (lambda *_: True) if is_rollout and len(self._quotas) == 1 else self._announce,
                Operator(attempts=self._attempts),
                stop=lambda: bool(self._stopped),
                on_take=lambda _take, counts: advance(int(counts)),
            )

    def _announce(self, quota: Quota, before: Quota | None) -> bool:
        """Say which set-up comes next, where the embedded cell sets itself up."""
        had = None if before is None else before.conditions
        change = change_words(had, quota.conditions, self._station.grid)
        if before is None or change != "nothing to change":
            log.info("Set up: %s (%d take%s).", change, quota.takes, "s" * (quota.takes != 1))
        return True

    # -- with an operator -------------------------------------------------------------------

    def _with_operator(self, cleanup: contextlib.ExitStack) -> SessionEnd:
        config, driver, is_watched = self._config, self._driver, self.interface != "none"
        keys = KeyMap.of(
            config.keys, TAKEN.get(self._leads, {}), DEFAULTS if driver is None else ROLLOUT
        )
        self._stopped = cleanup.enter_context(stoppable(STOPPING))
        self.devices = self._connected(cleanup, keys)
        cleanup.callback(self.devices.close)
        self._stopped.again = self.devices.leave
        check_targets(self.devices.rig, self._quotas, self.root, self.journal)
        sounds: dict[str, Any] = {}
        if is_watched:
            from gaploop.collect.operator.window import SoundPlayer

            sounds["play"] = cleanup.enter_context(SoundPlayer()).play
        self._book = SessionLabels(self.journal, config.operator)
        cleanup.callback(self._book.close)
        times_s = config.dataset.episode_time_s, config.dataset.reset_time_s
        self._console = console = OperatorConsole(
            StageTiming(*times_s, config.auto_start or not is_watched),
            keys,
            self._book,
            task=self._about.task,
            **sounds,
            hand_held=HELD.get(self._leads, ""),
            attended=is_watched,
        )
        console.safety, console.driver = self.devices.safety, driver
        self._publisher.before = self._book.flush
        suggester = None
        if self._suggest is not None:
            suggester = LabelSuggester(self._suggest, console.suggested)
            cleanup.callback(suggester.close)
        if self._progress is None:  # a campaign is counted from the journal, which takes a while
            console.on_label = self._count
        self._operator = ConsoleOperator(
            console,
            self.devices,
            suggester,
            self._recount,
            self._results.append,
            self._attempts,
        )
        for uid, outcome, message in known_takes(self.journal, REMEMBERED):
            console.remember(uid, outcome, message)
        have = held(self.journal, self._about.kind, self._quotas, resume=self._resume)
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
        if config.robot.type == lerobot_factory.EMBEDDED:
            is_led = self._leads not in ("", lerobot_factory.EXPERT)
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
            self._set_up,
            self._operator,
            self._is_over,
        )
        self._recovered += end.recovered
        is_filled = self._count()
        if self._console.left:
            return False
        return not is_filled or self._console.finish(lambda: not self._count())

    def _set_up(self, quota: Quota, before: Quota | None) -> bool:
        grid = self._station.grid
        had = {} if before is None else before.conditions
        change = change_words(None if before is None else had, quota.conditions, grid)
        conditions = {**getattr(self._config.robot, "conditions", {}), **quota.conditions}
        is_by_hand = (
            self._config.robot.type != lerobot_factory.EMBEDDED and not self._config.auto_start
        )
        ask = is_by_hand and change != "nothing to change" and bool(conditions or had)
        there = SetUp(words(conditions, grid), conditions, grid)
        change = change[:1].upper() + change[1:]
        asked = SetUp(change, conditions, grid) if ask else there
        going = self._console.await_set_up(asked, ask=ask)
        self._console.show(there if conditions else SetUp())
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
                counts(
                    self._about.kind,
                    self._console.outcome(r.uid, r.outcome),
                    self._console.retracted(r.uid),
                )
                for r in self._results
            )
            self._lacking = max(0, self._wanted - counted)
            self._console.tell(Quotas(counted, self._wanted))
            return not self._lacking
        self._book.flush()
        now = self._progress()
        self._lacking = now.wanted - now.have
        # A bar for every dimension, and one for each of its set-ups where it has several.
        bars: list[QuotaBar] = []
        for dimension, setups in now.by_dimension().items():
            have, wanted = sum(min(s.have, s.wanted) for s in setups), sum(s.wanted for s in setups)
            bars.append(QuotaBar((dimension or "takes").replace("_", " "), have, wanted))
            for setup in setups if len(setups) > 1 else ():
                name = f"· {words(setup.conditions, self._station.grid)}"
                bars.append(QuotaBar(name, setup.have, setup.wanted))
        self._console.tell(Quotas(now.have, now.wanted, tuple(bars), now.left_s))
        return not self._lacking


def _clear_hint(keys: KeyMap) -> str:
    """Return how the operator clears a trip."""
    return f"press {keys.name(Command.CLEAR) or 'Enter'} twice"


def video_figures(takes: Iterable[TakeResult]) -> dict[str, Any]:
    """Return, and warn of, what cameras and the encoder couldn't do in time.

    Returns:
        `dropped`: pictures; `most_behind_s`: the longest time whose pictures waited [s];
        `doubts`: lines about cameras that were slow or frozen.
    """
    takes = tuple(takes)
    doubts = [words for take in takes for words in take.doubts]
    if doubts:
        log.warning(
            "In %d of %d takes a camera was slow or frozen: rows repeat the picture before. %s",
            sum(bool(take.doubts) for take in takes),
            len(takes),
            MORE_PICTURES,
        )
    dropped = sum(take.dropped for take in takes)
    behind_s = max((take.behind_s for take in takes), default=0.0)
    if dropped:
        log.warning(
            "The encoder couldn't keep up: %d pictures were dropped; those rows repeat the "
            "picture before. Close other programs, or use fewer or smaller pictures.",
            dropped,
        )
    elif behind_s:
        log.warning(
            "The encoder was up to %.1f s behind and encoded coarsely; nothing was dropped. Close "
            "other programs, or use fewer or smaller pictures.",
            behind_s,
        )
    doubts = list(dict.fromkeys(doubts))
    return {"dropped": dropped, "most_behind_s": round(behind_s, 2), "doubts": doubts}
