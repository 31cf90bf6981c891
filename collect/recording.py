"""A session that records: a robot, who leads it, what watches, and where it is shown.

`RecordingSession` connects what the options name, begins and judges takes through an operator's
console (window, terminal) or by itself, has what was lost connected anew, and publishes beside it
all. In the embedded cell with nobody watching it records as fast as simulated time goes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gaploop.collect import lerobot_factory
from gaploop.collect.campaign import CampaignProgress, Quota, counts, held
from gaploop.collect.devices import ArmDevices, CellDevices, SessionDevices, SharedDriver
from gaploop.collect.lerobot_factory import LeaderInputs
from gaploop.collect.operator import display
from gaploop.collect.operator.attended import ConsoleOperator
from gaploop.collect.operator.commands import DEFAULTS, ROLLOUT, Command, KeyMap
from gaploop.collect.operator.console import OperatorConsole
from gaploop.collect.operator.machine import StageTiming
from gaploop.collect.operator.session_labels import LabelSuggester, SessionLabels, known_takes
from gaploop.collect.operator.sounds import SoundPlayer
from gaploop.collect.operator.view import QuotaBar, Quotas, SetUp
from gaploop.collect.publisher import STOPPING, Publisher
from gaploop.collect.rig import Rig, scripted_leader
from gaploop.collect.scene_setup import change_words, words
from gaploop.collect.session import SessionEnd, SessionSpec, drive_on, record_takes
from gaploop.collect.session_target import check_targets
from gaploop.collect.take import Operator, TakeResult
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Leader, Suggest
from gaploop.core.station import Station
from gaploop.core.vocabulary import TakeKind
from gaploop.teleop.checks.cameras import MORE_PICTURES
from gaploop.teleop.loop import Rates
from gaploop.teleop.stopping import CleanupStep, stoppable

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
        "x": "clutch",
        "-": "slower",
        "=": "faster",
    },
    lerobot_factory.GAMEPAD: {
        "pad:rightshoulder": "hold to move",
        "pad:b": "emergency stop",
        "pad:start": "clear a trip",
        "pad:leftshoulder": "clutch",
        "pad:back": "frame",
    },
}
"""Leader to the keys that it needs whether or not its dead-man button is held."""
HELD: Final = {lerobot_factory.KEYBOARD: "Space", lerobot_factory.GAMEPAD: "R1"}


def spec_of(
    config: Any, journal: Path, kind: TakeKind, policy: str, *, resume: bool
) -> SessionSpec:
    """Return what the takes of a session share, by its options; `policy` is an id, or ""."""
    return SessionSpec(
        journal,
        config.dataset.single_task or getattr(config.robot, "task", kind.value).replace("_", " "),
        kind,
        max_s=config.dataset.episode_time_s,
        seed=getattr(config.robot, "seed", 0),
        operator=config.operator,
        policy=policy,
        resume=resume,
        consent=config.consent,
    )


def runs_by_itself(config: Any, leads: str) -> bool:
    """Whether nobody is needed, and simulated time may go as fast as it can.

    Args:
        config: the session's options.
        leads: the type of leader by which a person drives; "" where nobody does.
    """
    is_shown = config.display in ("window", "terminal")
    is_alone = leads in ("", lerobot_factory.EXPERT)
    return config.robot.type == lerobot_factory.EMBEDDED and is_alone and not is_shown


class RecordingSession:
    """Records the quotas of one session and publishes them; `run` it once.

    Args:
        config: options, as of `SessionOptions`, with `dataset`.
        leads: the type of leader by which a person drives; "" where nobody does.
        fps: frames a second that are asked for; None: the robot's own rate [Hz].
        driver: the policy that drives and is taken over from, if any.
        progress: says how far the campaign has come that is followed, if one is.
        suggest: what failure analysis says of a take, as if it had failed.
        set_up: told of each set-up that the embedded cell makes by itself.
        on_take: called with each take that is sealed by itself, and whether it counts.
    """

    def __init__(
        self,
        config: Any,
        station: Station,
        spec: SessionSpec,
        quotas: Sequence[Quota],
        root: Path,
        *,
        leads: str = "",
        fps: float | None = None,
        driver: RolloutDriver | None = None,
        progress: Callable[[], CampaignProgress] | None = None,
        suggest: Suggest | None = None,
        set_up: Callable[[Quota, Quota | None], bool] = lambda _quota, _before: True,
        on_take: Callable[[TakeResult, bool], None] = lambda _take, _counts: None,
    ) -> None:
        self._config, self._station, self._spec = config, station, spec
        self._quotas, self.root, self._leads = tuple(quotas), root, leads
        self._fps, self._driver, self._progress = fps, driver, progress
        self._suggest, self._told_set_up, self._on_take = suggest, set_up, on_take
        self._shared: SharedDriver | None = None if driver is None else driver.leader
        self._attempts = None if driver is None else driver.attempts
        self.journal = spec.journal
        self._wanted = sum(quota.takes for quota in quotas)
        self._results: list[TakeResult] = []
        self._recovered = self._lacking = 0
        self._publisher = Publisher(spec.journal, root, config.dataset.repo_id)

    @property
    def shown(self) -> str:
        """Where it is shown: window, terminal or none."""
        return display.chosen_display(self._config.display, self._leads in TAKEN)

    @property
    def reports(self) -> list[PublishReport]:
        """Every publication so far."""
        return self._publisher.reports

    def run(self) -> SessionEnd:
        """Record until everything is, somebody ends it, or a device doesn't come back.

        Raises:
            DeviceError: a device failed; what was sealed is published.
            UnusableInputError: options that can't be used.
        """
        if runs_by_itself(self._config, self._leads):
            end = self._alone()
        else:
            with self._publisher, contextlib.ExitStack() as cleanup:
                end = self._with_operator(cleanup)
        return replace(end, signals=tuple(self._stopped))

    def _make_rig(self, conditions: Mapping[str, object]) -> Any:
        return lerobot_factory.simulated_rig(self._config.robot, self._fps, conditions)

    def _check(self, make_rig: Callable[[Mapping[str, object]], Rig]) -> None:
        check_targets(make_rig, self._quotas, self.root, self._spec.journal)

    # -- by itself --------------------------------------------------------------------------

    def _alone(self) -> SessionEnd:
        """Record in the embedded cell as fast as it goes."""
        self._check(self._make_rig)

        def make_leader(rig: Rig, seed: int) -> Leader:
            expert = scripted_leader(rig, seed)
            if self._shared is None:
                return expert
            return self._shared(rig.follower, rig.rates, lambda: rig.safety.sent_rad, expert)

        with stoppable(STOPPING) as self._stopped, self._publisher:
            return record_takes(
                self._spec,
                self._quotas,
                self._make_rig,
                make_leader,
                set_up=self._told_set_up,
                stop=lambda: bool(self._stopped),
                on_take=self._on_take,
                publish=self._publisher.behind,
                operator=Operator(attempts=self._attempts),
            )

    # -- with an operator -------------------------------------------------------------------

    def _with_operator(self, cleanup: contextlib.ExitStack) -> SessionEnd:
        config, shown, driver = self._config, self.shown, self._driver
        defaults = DEFAULTS if driver is None else ROLLOUT
        keys = KeyMap.of(config.keys, TAKEN.get(self._leads, {}), defaults)
        self._stopped = cleanup.enter_context(stoppable(STOPPING))
        self._devices = self._connected(cleanup, keys, is_watched=shown != "none")
        cleanup.callback(self._devices.close)
        self._stopped.again = self._devices.leave
        self._check(self._devices.rig)
        player = cleanup.enter_context(SoundPlayer(shown != "none"))
        self._book = SessionLabels(self._spec.journal, config.operator)
        cleanup.callback(self._book.close)
        times_s = config.dataset.episode_time_s, config.dataset.reset_time_s
        self._console = console = OperatorConsole(
            StageTiming(*times_s, config.auto_start or shown == "none"),
            keys,
            self._book,
            task=self._spec.task,
            play=player.play,
            hand_held=HELD.get(self._leads, ""),
            attended=shown != "none",
        )
        console.safety = self._devices.safety
        console.driver = driver
        self._publisher.before = self._book.flush
        suggester = None
        if self._suggest is not None:
            suggester = LabelSuggester(self._suggest, console.suggested)
            cleanup.callback(suggester.close)
        if self._progress is None:  # a campaign is counted from the journal, which takes a while
            console.on_label = self._count
        self._operator = ConsoleOperator(
            console,
            lambda: self._devices.monitor,
            suggester,
            self._recount,
            self._results.append,
            self._attempts,
        )
        for uid, outcome, message in known_takes(self._spec.journal, REMEMBERED):
            console.remember(uid, outcome, message)
        spec = self._spec
        self._held = held(spec.journal, spec.kind, self._quotas, resume=spec.resume).total()
        self._count()
        if shown == "window":
            title = f"gaploop {'record' if driver is None else 'rollout'}"
            screen = display.window(
                console, lambda: self._devices.monitor, self._devices.window, title
            )
        elif shown == "terminal":
            screen = display.terminal(console, self._devices.window)
        else:
            screen = display.nowhere(console, lambda line: log.info("%s", line))
        turn = cleanup.enter_context(screen)
        self._devices.start()
        end = self._drive(turn)
        try:
            self._devices.finish()
        except DeviceError as error:
            if not end.trip:
                raise
            end = replace(end, trip=f"{end.trip} {error}")
        return end

    def _connected(
        self, cleanup: contextlib.ExitStack, keys: KeyMap, *, is_watched: bool
    ) -> SessionDevices:
        """Return the devices that the options name, not driven yet."""
        config = self._config
        inputs = LeaderInputs(config.cartesian, config.force)
        if config.robot.type == lerobot_factory.EMBEDDED:
            is_led = self._leads not in ("", lerobot_factory.EXPERT)
            leader_of = functools.partial(lerobot_factory.leader_of, config.teleop, inputs=inputs)
            return CellDevices(
                self._make_rig, shared=self._shared, leader_of=leader_of if is_led else None
            )
        connection = lerobot_factory.ArmConnection(
            config.robot,
            config.teleop if self._leads else None,
            self._station,
            station_file=config.station,
            inputs=inputs,
            sensors=config.sensors,
            driver=self._driver,
        )
        return ArmDevices(
            cleanup.enter_context(connection).connect,
            self._station,
            Rates.near(self._fps or FPS),
            shared=self._shared,
            is_watched=is_watched,
            clear_hint=f"press {keys.name(Command.CLEAR) or 'Enter'} twice",
        )

    def _drive(self, turn: Callable[[], None]) -> SessionEnd:
        """Record in a thread of its own, which connects anew what was lost.

        `turn` hears keys and shows how things stand; it returns after some 10 ms.
        """
        attempt, ends = CleanupStep(), list[SessionEnd]()

        def record() -> None:
            with attempt:
                reconnected, trip = drive_on(
                    self._devices,
                    self._record_what_lacks,
                    self._is_over,
                    finished=None if self._console.attended else lambda: len(self._results),
                )
                self._recount()
                takes = tuple(replace(r, outcome=self._operator.outcome(r)) for r in self._results)
                ends.append(
                    SessionEnd(
                        takes,
                        counted=self._wanted - self._lacking,
                        wanted=self._wanted,
                        recovered=self._recovered,
                        interrupted=bool(self._stopped) or self._lacking > 0,
                        reconnected=reconnected,
                        trip=trip,
                    )
                )

        thread = threading.Thread(target=record, name="session")
        thread.start()
        try:
            # To its end, which takes a while where takes are still sealed: until then the
            # operator sees that, and can stop the arm.
            while thread.is_alive():
                turn()
                if self._stopped and not self._console.left:
                    self._console.leave()
                if self._console.left:
                    self._devices.end()
            self._devices.end()
            while self._devices.moves:  # on its way down, which the operator sees and can stop
                turn()
        finally:
            self._console.leave()
            self._devices.end()
            thread.join()
        if attempt.error is not None:
            raise attempt.error
        return ends[0]

    def _record_what_lacks(self) -> bool:
        """Record with the devices as they are connected now; return whether more is to be."""
        quotas = self._quotas
        if self._results and self._progress is None and not self._spec.resume:
            quotas = (replace(quotas[0], takes=self._lacking),)
        end = record_takes(
            self._spec,
            quotas,
            self._devices.rig,
            self._devices.leader,
            set_up=self._set_up,
            stop=self._is_over,
            publish=self._publisher.behind,
            operator=self._operator,
        )
        self._recovered += end.recovered
        is_filled = self._count()
        if self._console.left:
            return False
        return not is_filled or self._console.finish(lambda: not self._count())

    def _is_over(self) -> bool:
        return bool(self._stopped) or self._console.left

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
                    self._spec.kind,
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
