"""A session with an operator: a thread records, the main thread shows and hears keys."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gaploop.collect.operator.book import LabelBook
from gaploop.collect.operator.commands import DEFAULTS, ROLLOUT, Command, KeyMap
from gaploop.collect.operator.console import OperatorConsole
from gaploop.collect.operator.sounds import SoundPlayer
from gaploop.collect.operator.state import StageTiming
from gaploop.collect.session import SessionEnd
from gaploop.core.errors import DeviceError
from gaploop.scripts import _arms, _operator_screen, record
from gaploop.scripts._arm_connection import ArmOptions, arm_cast
from gaploop.scripts._arms import EMBEDDED
from gaploop.scripts._attended_session import AttendedJob, AttendedSession
from gaploop.scripts._campaign import require_person
from gaploop.scripts._record_checks import check_targets
from gaploop.scripts._record_publish import STOPPING, Publisher
from gaploop.scripts._session_devices import SessionDevices, embedded_cast
from gaploop.scripts._signals import stoppable
from gaploop.teleop.leaders.options import ForceOptions

if TYPE_CHECKING:
    from gaploop.datasets.lerobot_publish import PublishReport

log = logging.getLogger(__name__)

TAKEN = {
    _arms.KEYBOARD: {
        "space": "hold to move",
        "escape": "emergency stop",
        "tab": "frame",
        "x": "clutch",
        "-": "slower",
        "=": "faster",
    },
    _arms.GAMEPAD: {
        "pad:rightshoulder": "hold to move",
        "pad:b": "emergency stop",
        "pad:start": "clear a trip",
        "pad:leftshoulder": "clutch",
        "pad:back": "frame",
    },
}
"""Leader to the keys that it needs whether or not its dead-man button is held."""
HELD = {_arms.KEYBOARD: "Space", _arms.GAMEPAD: "R1"}


def attend(job: AttendedJob) -> tuple[SessionEnd, list[PublishReport], list[int]]:
    """Record with an operator.

    Returns:
        How the session went, every publication, and the signals that came.

    Raises:
        DeviceError: a device failed; what was sealed is published.
        UnusableInputError: options that can't be used.
    """
    config, rolling = job.config, job.rolling
    leads = _leads(job)
    keys = KeyMap.of(config.keys, TAKEN.get(leads, {}), DEFAULTS if rolling is None else ROLLOUT)
    display = _operator_screen.chosen_display(config.display, leads in TAKEN)
    if display == "none" and job.campaign is not None:
        require_person(job.station, config.yes, stdin_is_terminal=False)
    publisher = Publisher(job.journal, job.root, config.dataset.repo_id, config.consents)
    with publisher, contextlib.ExitStack() as cleanup:
        stopped = cleanup.enter_context(stoppable(STOPPING))
        cast = cleanup.enter_context(_cast(job, keys, display != "none"))
        check_targets(cast.make_rig, job.quotas, job.root, job.journal)
        player = cleanup.enter_context(SoundPlayer(config.play_sounds and display != "none"))
        book = LabelBook(job.journal, config.operator)
        cleanup.callback(book.close)
        console = OperatorConsole(
            _timing(job, display),
            keys,
            book,
            task=job.spec.task,
            play=player.play,
            hand_held=HELD.get(leads, ""),
            asks=display != "none",
        )
        console.safety = cast.safety
        if rolling is not None:
            console.driving = rolling.driving()
        _warm_up()
        publisher.before = book.flush
        session = AttendedSession(job, cast, console, book, stopped, publisher)
        cleanup.callback(session.close)
        turn = cleanup.enter_context(_screen(display, console, cast, rolling is not None))
        session.remember()
        cast.start()
        end = session.run(turn)
        try:
            cast.finish()
        except DeviceError as error:
            if not end.trip:
                raise
            end = replace(end, trip=f"{end.trip} {error}")
    return end, publisher.reports, stopped


def _leads(job: AttendedJob) -> str:
    """Return the type of leader by which a person drives; "" where nobody does."""
    teleop = job.config.teleop
    by_nobody = job.rolling is not None and not job.rolling.has_person
    return "" if by_nobody or not hasattr(teleop, "get_known_choices") else _arms.kind(teleop)


def _timing(job: AttendedJob, display: str) -> StageTiming:
    config = job.config
    return StageTiming(
        config.dataset.episode_time_s,
        config.dataset.reset_time_s,
        config.auto_start or display == "none",
    )


@contextlib.contextmanager
def _cast(job: AttendedJob, keys: KeyMap, is_watched: bool) -> Iterator[SessionDevices]:
    config, rolling = job.config, job.rolling
    hands = None
    if hasattr(config, "cartesian"):
        hands = _arms.Hands(config.cartesian, getattr(config, "force", ForceOptions()))
    if config.robot.type == EMBEDDED:
        teleop = config.teleop if _leads(job) else None
        make = functools.partial(record.embedded, config)
        with embedded_cast(make, teleop, hands, rolling) as cast:
            yield cast
        return
    from gaploop.scripts._record_arms import FPS

    options = ArmOptions(
        config.robot,
        config.teleop,
        job.station,
        config.station,
        config.dataset.fps or (FPS if rolling is None else rolling.policy.fps),
        hands,
        is_watched,
        config.reconnect_s,
        keys.name(Command.CLEAR) or "Enter",
        rolling,
        config.sensors,
    )
    with arm_cast(options) as cast:
        yield cast


def _screen(
    display: str, console: OperatorConsole, cast: SessionDevices, rolls: bool
) -> contextlib.AbstractContextManager[_operator_screen.Turn]:
    if display == "window":
        title = f"gaploop {'rollout' if rolls else 'record'}"
        return _operator_screen.window(console, cast.eyes, cast.leader, title)
    if display == "terminal":
        return _operator_screen.terminal(console, cast.leader)
    return _operator_screen.nowhere(console, lambda line: log.info("%s", line))


def _warm_up() -> None:
    """Import now what suggesting needs: later it would hold up the control loop."""
    import gaploop.failure_analysis.diagnosis  # noqa: F401
