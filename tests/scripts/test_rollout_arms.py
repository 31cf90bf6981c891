"""Rollouts on emulated arms: attempts are recorded, a lost cable ends one, torque is off after."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gaploop.collect.intervention import SharedLeader
from gaploop.collect.policy_leader import PolicyLeader
from gaploop.collect.rollout import Rollouts, Verdict, spans
from gaploop.collect.session import Quota, SessionSpec, record_takes
from gaploop.collect.speed_ramp import SpeedRamp
from gaploop.core.errors import DeviceError, LostError
from gaploop.core.journal_format import read_end, read_journal, take_folders
from gaploop.core.types import FloatArray, Observation
from gaploop.core.vocabulary import Domain, Outcome, TakeKind
from gaploop.scripts import _rollout_session
from gaploop.scripts._find_again import Headway
from gaploop.scripts._keys import Keys
from gaploop.scripts._rollout_cast import Cast, arm_cast, embedded_cast
from gaploop.scripts._rollout_keys import RolloutKeys
from gaploop.scripts.cli import main
from gaploop.teleop.emulator import EmulatedBus, Fault, arm_plan


class Still:
    """A policy that stands still."""

    fps = 30.0

    def reset(self) -> None: ...

    def act(self, observation: Observation) -> FloatArray:
        return observation.state


@pytest.fixture
def arms(tmp_path: Path) -> Iterator[tuple[EmulatedBus, EmulatedBus, Any]]:
    """Both buses and the options that name them."""
    from gaploop.scripts._devices import registries

    RobotConfig: Any
    TeleoperatorConfig: Any
    RobotConfig, TeleoperatorConfig = registries()
    with ExitStack() as stack:
        buses = []
        for role in ("follower", "leader"):
            plan = arm_plan("so101", role).calibrated()
            (tmp_path / f"{role}.json").write_text(json.dumps(plan.calibration()))
            bus = EmulatedBus.start(plan=plan, hand="still", link=tmp_path / role)
            buses.append(stack.enter_context(bus))
        shared: dict[str, Any] = {"calibration_dir": tmp_path}
        config = SimpleNamespace(
            robot=RobotConfig.get_choice_class("so101_follower")(
                port=str(tmp_path / "follower"), id="follower", **shared
            ),
            teleop=TeleoperatorConfig.get_choice_class("so101_leader")(
                port=str(tmp_path / "leader"), id="leader", **shared
            ),
            station=None,
            take_over="key",
            cartesian=None,
            dataset=SimpleNamespace(fps=None, reset_time_s=0.0),
        )
        yield buses[0], buses[1], config


def limp(bus: EmulatedBus) -> bool:
    with bus.lock:
        return not any(servo.torque for servo in bus.servos.values())


def until(is_so: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < give_up_s, "waited in vain"
        time.sleep(0.01)


def lead(follower: Any, rates: Any, sent_rad: Any, person: Any) -> SharedLeader:
    return SharedLeader(
        PolicyLeader(Still(), follower, rates.fps, rates.control_hz), person, sent_rad
    )


def roll(cast: Cast, journal: Path, poll: Any, takes: int = 1) -> None:
    spec = SessionSpec(journal, "t", TakeKind.ROLLOUT, max_s=6.0, policy="p")
    attendant = Rollouts(SpeedRamp(journal, "p", 1.0), poll, ready=lambda: cast.ready([]))
    record_takes(spec, [Quota(takes)], cast.make_rig, cast.make_leader, attendant=attendant)


def test_the_leader_comes_the_person_drives_and_all_is_limp_afterwards(
    arms: tuple[EmulatedBus, EmulatedBus, Any], tmp_path: Path
) -> None:
    follower, leader, config = arms
    seen: list[bool] = []

    def poll(shared: SharedLeader, verdict: Verdict) -> None:
        if shared.driver.value == "policy" and not shared.interventions and not seen:
            seen.append(True)
            shared.take_over()
        elif shared.interventions:
            seen.append(limp(leader))
            if len(seen) > 20:
                verdict.say(Outcome.SUCCESS)

    with arm_cast(config, Still(), lead, RolloutKeys(Keys(None), [])) as cast:
        cast.start()
        assert not limp(follower)
        roll(cast, tmp_path / "journal", poll)
    assert limp(follower)
    assert limp(leader)
    (take,) = read_journal(tmp_path / "journal")
    assert (take.outcome, take.info.domain) == (Outcome.SUCCESS, Domain.SIM_TARGET)
    ((first, last),) = spans(list(take.frames.intervention))
    assert 0 < first < last == len(take.frames)
    assert all(seen[1:]), "whoever has taken over holds a limp leader"


class Pressed(Keys):
    """A terminal in which keys are pressed one after another."""

    def __init__(self, keys: str) -> None:
        super().__init__(None)
        self._keys = list(keys)

    works = True

    def wait(self, _timeout_s: float) -> str:
        return self._keys.pop(0) if self._keys else ""


def test_keys_are_heeded_while_something_is_in_the_way(
    arms: tuple[EmulatedBus, EmulatedBus, Any],
) -> None:
    """A camera was stale, the arm tripped meanwhile, and nothing but Ctrl-C was heard."""
    follower, _, config = arms
    pressed = RolloutKeys(Pressed(" "), [])
    with arm_cast(config, Still(), lead, pressed) as cast:
        cast.start()
        pressed.drives(cast)
        pressed.pause(0.0)
        until(lambda: limp(follower))
        pressed._keys = Pressed("cc")
        pressed.pause(0.0)
        assert limp(follower), "one press is none"
        pressed.pause(0.0)
        until(lambda: not limp(follower))
        pressed._keys = Pressed("q")
        pressed.pause(0.0)
        assert pressed.stops()
        pressed.drives(None)
        pressed._keys = Pressed(" cc")
        for _ in range(3):
            pressed.pause(0.0)  # nothing is connected: nothing to stop, nothing to clear


def test_where_nobody_is_a_trip_waits_for_no_operator(
    arms: tuple[EmulatedBus, EmulatedBus, Any],
) -> None:
    """An arm that refused torque once hung an unattended run for good."""
    follower, _, config = arms
    pressed = RolloutKeys(Keys(None), [])
    with arm_cast(config, Still(), lead, pressed) as cast:
        cast.start()
        cast.estop()
        until(lambda: limp(follower))
        assert cast.ready([])
        hurdle = cast.make_rig({}).hurdle
        assert "limp after a safety trip" in hurdle()
        until(lambda: not hurdle())


def test_an_arm_that_is_lost_again_and_again_ends_a_session_that_nobody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A servo that browned out took torque again without limit, with a take for each."""
    starts: list[int] = []

    @contextlib.contextmanager
    def browning_out(*given: Any) -> Iterator[Cast]:
        def start() -> None:
            starts.append(1)
            raise LostError("Lost contact: servo 3.")

        with embedded_cast(*given) as cast:
            yield replace(cast, start=start)

    monkeypatch.setattr(_rollout_session, "embedded_cast", browning_out)
    command = ["rollout", "--policy.path=base", "--robot.type=so101_sim", "--take_over=never"]
    assert main([*command, f"--dataset.root={tmp_path / 'd'}"]) == 2
    assert "lost 3 times and no take finished in between" in capsys.readouterr().err
    assert len(starts) == 3


def test_what_is_finished_between_losses_counts_as_headway() -> None:
    headway = Headway()
    for finished in (0, 0, 1, 1, 2, 2):
        headway.lost("a cable", finished)
    with pytest.raises(DeviceError, match="a cable"):
        headway.lost("a cable", 2)


def test_a_lost_cable_ends_the_attempt_and_asks_for_a_new_connection(
    arms: tuple[EmulatedBus, EmulatedBus, Any], tmp_path: Path
) -> None:
    follower, _, config = arms
    polls: list[int] = []

    def poll(_shared: SharedLeader, _verdict: Verdict) -> None:
        polls.append(1)
        if len(polls) == 20:
            follower.faults.add(Fault("unplug", at_s=follower.age_s()))

    pressed = RolloutKeys(Keys(None), [])
    with arm_cast(config, Still(), lead, pressed) as cast:
        cast.start()
        with pytest.raises(LostError):
            roll(cast, tmp_path / "journal", poll, takes=2)
    (take,) = read_journal(tmp_path / "journal")
    assert take.outcome is Outcome.INTERRUPTED
    (end,) = map(read_end, take_folders(tmp_path / "journal"))
    assert end is not None
    assert "cable" in end.reason
