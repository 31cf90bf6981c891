"""A session with an operator, on arms or in the embedded cell: its devices, display and keys."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gaploop.collect import lerobot_factory
from gaploop.collect.devices import (
    ArmDevices,
    Arms,
    CellDevices,
    SessionDevices,
    Standing,
)
from gaploop.collect.operator import display
from gaploop.collect.operator.attended import AttendedSession
from gaploop.collect.operator.commands import DEFAULTS, ROLLOUT, Command, KeyMap
from gaploop.collect.operator.console import OperatorConsole
from gaploop.collect.operator.machine import StageTiming
from gaploop.collect.operator.session_labels import SessionLabels
from gaploop.collect.operator.sounds import SoundPlayer
from gaploop.collect.publisher import STOPPING, Publisher
from gaploop.core.clock import Clock
from gaploop.core.errors import DeviceError
from gaploop.core.protocols import Follower, Leader
from gaploop.core.take import Take
from gaploop.core.vocabulary import Outcome
from gaploop.scripts._campaign import require_person
from gaploop.scripts._sessions import Recorded, SessionJob, check_targets, embedded
from gaploop.teleop.loop import Rates
from gaploop.teleop.sensors import connect_sensors
from gaploop.teleop.stopping import disconnect, stoppable

log = logging.getLogger(__name__)

FPS: Final = 30.0
"""Frames a second of a real arm, as in lerobot-record [Hz]."""
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


def record_attended(job: SessionJob) -> Recorded:
    """Record with an operator.

    Raises:
        DeviceError: a device failed; what was sealed is published.
        UnusableInputError: options that can't be used.
    """
    config, driver, leads = job.config, job.driver, job.leads
    keys = KeyMap.of(config.keys, TAKEN.get(leads, {}), DEFAULTS if driver is None else ROLLOUT)
    shown = display.chosen_display(config.display, leads in TAKEN)
    if shown == "none" and job.campaign is not None:
        require_person(job.station, config.yes, stdin_is_terminal=False)
    publisher = Publisher(job.journal, job.root, config.dataset.repo_id, config.consents)
    with publisher, contextlib.ExitStack() as cleanup:
        stopped = cleanup.enter_context(stoppable(STOPPING))
        devices: SessionDevices
        if config.robot.type == lerobot_factory.EMBEDDED:
            is_led = leads not in ("", lerobot_factory.EXPERT)
            leader_of = functools.partial(
                lerobot_factory.leader_of, config.teleop, inputs=job.leader_inputs
            )
            make_rig = functools.partial(embedded, config.robot, job.fps)
            devices = CellDevices(
                make_rig, shared=job.shared, leader_of=leader_of if is_led else None
            )
        else:
            devices = ArmDevices(
                cleanup.enter_context(ArmConnector(job)).connect,
                job.station,
                Rates.near(job.fps or FPS),
                shared=job.shared,
                is_watched=shown != "none",
                patience_s=config.reconnect_s,
                clear_hint=f"press {keys.name(Command.CLEAR) or 'Enter'} twice",
            )
        cleanup.callback(devices.close)
        stopped.again = devices.leave
        check_targets(devices.rig, job.quotas, job.root, job.journal)
        player = cleanup.enter_context(SoundPlayer(config.play_sounds and shown != "none"))
        book = SessionLabels(job.journal, config.operator)
        cleanup.callback(book.close)
        times_s = config.dataset.episode_time_s, config.dataset.reset_time_s
        timing = StageTiming(*times_s, config.auto_start or shown == "none")
        console = OperatorConsole(
            timing,
            keys,
            book,
            task=job.spec.task,
            play=player.play,
            hand_held=HELD.get(leads, ""),
            attended=shown != "none",
        )
        console.safety = devices.safety
        console.driver = driver
        # Imported now: later it would hold up the control loop.
        from gaploop.failure_analysis.diagnosis import diagnose, suggested_labels

        def suggest(take: Take) -> Mapping[str, object]:
            """Return what failure analysis says of a take, as if it had failed."""
            found = diagnose([replace(take, outcome=Outcome.FAILURE)]).takes
            return (
                {event.field: event.value for event in suggested_labels(found[0])} if found else {}
            )

        publisher.before = book.flush
        session = AttendedSession(
            devices,
            job.spec,
            job.quotas,
            console,
            book,
            suggest=suggest,
            station=job.station,
            stopped=stopped,
            publish=publisher.behind,
            attempts=None if driver is None else driver.attempts,
            progress=None if job.campaign is None else job.campaign.progress,
            always=getattr(config.robot, "conditions", {}),
            by_hand=config.robot.type != lerobot_factory.EMBEDDED
            and not getattr(config, "yes", False),
            patience_s=config.reconnect_s,
        )
        cleanup.callback(session.close)
        if shown == "window":
            title = f"gaploop {'record' if driver is None else 'rollout'}"
            screen = display.window(console, lambda: devices.monitor, devices.window, title)
        elif shown == "terminal":
            screen = display.terminal(console, devices.window)
        else:
            screen = display.nowhere(console, lambda line: log.info("%s", line))
        turn = cleanup.enter_context(screen)
        devices.start()
        end = session.run(turn)
        try:
            devices.finish()
        except DeviceError as error:
            if not end.trip:
                raise
            end = replace(end, trip=f"{end.trip} {error}")
    return end, publisher.reports, stopped


class ArmConnector(contextlib.ExitStack):
    """Connects a session's arms, cameras and sensors, as often as they are lost.

    A leader with a window, which belongs to a thread, outlives the arms: it ends with the block.
    """

    def __init__(self, job: SessionJob) -> None:
        super().__init__()
        self._job = job
        self._kept: tuple[Leader, Standing] | None = None
        from gaploop.teleop.lerobot_devices.identity import Identities

        self._identities = Identities()

    def connect(self) -> Arms:
        """Connect everything, torque off; all or nothing.

        Raises:
            DeviceError: a device doesn't answer.
            UnusableInputError: options or a calibration that can't be used.
        """
        config, station, driver = self._job.config, self._job.station, self._job.driver
        with contextlib.ExitStack() as undo:
            follower, clock = lerobot_factory.follower_of(
                config.robot, station, identities=self._identities
            )
            undo.callback(disconnect, follower)
            leader = self._leader(follower, clock) if self._job.leads else None
            undo.callback(disconnect, leader)
            cameras = lerobot_factory.cameras_of(config.robot, clock, station, self._identities)
            undo.callback(disconnect, *cameras)
            sensors = connect_sensors(config.sensors)
            undo.callback(disconnect, *sensors)
            tracker = None if driver is None else driver.tracker(cameras, station)
            calibration = lerobot_factory.calibration_of(config.station, follower)
            undo.pop_all()
        window = None if self._kept is None else self._kept[0]
        return Arms(follower, leader, cameras, clock, "", sensors, tracker, calibration, window)

    def _leader(self, follower: Follower, clock: Clock) -> Any:
        """Connect who leads the arm by hand."""
        job, teleop = self._job, self._job.config.teleop
        if job.leads in lerobot_factory.TOOL:
            if self._kept is None:
                standing: Any = Standing(follower)
                kept = lerobot_factory.leader_of(
                    teleop, standing, job.station, clock, inputs=job.leader_inputs
                )
                if callable(close := getattr(kept, "close", None)):
                    self.callback(close)
                self._kept = kept, standing
            self._kept[1].now = follower
            return _KeptOpen(self._kept[0])
        leader = lerobot_factory.leader_of(
            teleop,
            follower,
            job.station,
            clock,
            inputs=job.leader_inputs,
            identities=self._identities,
        )
        if job.driver is None:
            return leader
        from gaploop.teleop.lerobot_devices.aligning import aligning

        return aligning(leader) or leader  # a leader arm comes to the arm's pose first


class _KeptOpen:
    """A leader that isn't closed with the arms that it drives."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leader, name)

    def close(self) -> None:
        """Do nothing; `ArmConnector` closes it."""
