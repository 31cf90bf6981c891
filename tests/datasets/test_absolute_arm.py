"""Laws of the arm's tests: what is put in is named, with its joint and size, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_arms import (
    NAMES,
    QUANTUM_DEG,
    Change,
    as_is,
    follower,
    hand,
    recording,
    reordered,
    report,
)

from gaploop.core.messages import FloatArray
from gaploop.core.telemetry import lost_goals
from gaploop.datasets.absolute import joint_fits
from gaploop.datasets.absolute.findings import AbsoluteReport
from gaploop.datasets.absolute.recording import Episode, MotionRecording, _pairs
from gaploop.datasets.columns import ACTION, STATE
from gaploop.datasets.layout import DatasetInfo


def changed(joint: int, change: object) -> Change:
    def apply(values: FloatArray, episode: int) -> FloatArray:
        out = values.copy()
        out[:, joint] = change(values[:, joint], episode)  # type: ignore[operator]
        return out

    return apply


def late(joint: int, rows: float) -> Change:
    k = np.arange(240)
    return changed(joint, lambda x, _: np.interp(k - rows, k, x))


def repeats(values: FloatArray, episode: int) -> FloatArray:
    out = values.copy()
    for k in np.flatnonzero(np.random.default_rng(episode).random(len(out)) < 0.02)[1:]:
        out[k] = out[k - 1]
    return out


def now_and_then(values: FloatArray, episode: int) -> FloatArray:
    """News every 2 to 6 rows, four on average: 75 % of rows repeat."""
    ends = np.cumsum(np.random.default_rng(episode).integers(2, 7, len(values)))
    return values[np.r_[0, ends][np.searchsorted(ends, np.arange(len(values)), "right")]]


def loose(joint: int, share: float, mean_s: float) -> Change:
    """What reaches a joint with a loose plug, at 30 rows a second."""

    def heard(values: FloatArray, episode: int) -> FloatArray:
        rng, out, lost = np.random.default_rng(episode), values.copy(), False
        until_s = rng.exponential(mean_s * (1.0 / share - 1.0))
        for k in range(1, len(out)):
            while k / 30.0 >= until_s:
                lost = not lost
                until_s += rng.exponential(mean_s * (1.0 if lost else 1.0 / share - 1.0))
            out[k] = out[k - 1] if lost else out[k]
        return out

    return changed(joint, heard)


def swapped(values: FloatArray, _episode: int) -> FloatArray:
    return values[:, [0, 2, 1, 3, 4, 5]]


@pytest.mark.members(2)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_said_of_a_clean_arm(seed: int) -> None:
    found = report(recording(seed))
    assert [f.kind for f in found.findings] == []
    assert {"wiring", "offset", "dead_band", "joint_delay", "gain"} <= set(found.good)
    assert "a wrong homing offset" in found.untested


def test_a_slow_bus_is_told_with_its_rate() -> None:
    """Rows with news were looked at less often than others: 95 % were said to repeat of 77 %."""
    first = report(recording(1, read=now_and_then)).findings[0]
    assert first.kind == "repeats"
    assert first.estimate.value == pytest.approx(75.0, abs=4.0)


@pytest.mark.parametrize("every", [2, 3])
def test_rows_written_twice_are_no_slow_bus(every: int) -> None:
    made = recording()
    kept = [np.arange(len(e.command)) // every * every for e in made.episodes]
    doubled = tuple(
        replace(e, command=e.command[k], reading=e.reading[k])
        for e, k in zip(made.episodes, kept, strict=True)
    )
    [found] = [f for f in report(replace(made, episodes=doubled)).findings if f.kind == "repeats"]
    assert found.sentence.startswith("Commands and readings repeat")
    assert "slow bus" not in found.not_told_apart
    assert "doctor" not in found.command


@pytest.mark.parametrize("rows", [8, 15])
def test_rows_that_are_left_out_are_told_by_a_jump_of_command_and_reading(rows: int) -> None:
    """Neither a leader's jump, which an arm answers later, nor a bus that repeats a row is one."""
    made = recording()
    cut = []
    for e in made.episodes:
        speed = np.sort(np.abs(np.diff(e.command, axis=0)), axis=1)[:, -2]
        at = 20 + int(speed[20:-40].argmax())
        kept = np.r_[:at, at + rows : len(e.command)] if e.index in (2, 5, 6) else slice(None)
        cut.append(replace(e, command=e.command[kept], reading=e.reading[kept]))
    [found] = report(replace(made, episodes=tuple(cut))).findings
    assert (found.kind, found.episodes) == ("missing", (2, 5, 6))
    leaps = tuple(
        replace(e, command=e.command + 15.0 * (np.arange(len(e.command)) > 100)[:, None])
        for e in made.episodes
    )
    assert "missing" not in {f.kind for f in report(replace(made, episodes=leaps)).findings}


def test_a_joint_that_turns_round_repeats_its_readings_rightly() -> None:
    """Incident: one joint swinging after the other, in encoder steps, was called a slow bus."""

    def swinging(values: FloatArray, episode: int) -> FloatArray:
        still = np.zeros_like(values)
        swing = 5.0 * np.sin(np.arange(len(values)) * 0.19)
        still[:, episode % values.shape[1]] = np.round(swing / 0.088) * 0.088
        return still

    found = report(recording(0, sent=swinging, read=swinging))
    assert "repeats" not in [f.kind for f in found.findings]


def test_a_joint_that_pauses_repeats_its_readings_rightly() -> None:
    """Incidents: policies that plan anew every ten rows, whose command or whose arm waits a row."""
    rows, late_by = np.arange(240), 2
    in_plan = rows % 10
    waits = (
        rows - in_plan + np.maximum(in_plan - 1, 0) * 10 / 9
    )  # and makes up for it little by little
    clean = recording(0)

    def seen(sent_at: FloatArray, read_at: FloatArray, through: Change) -> MotionRecording:
        made = list[Episode]()
        for e in clean.episodes:
            sent, read = (
                np.stack([np.interp(at, rows, joint) for joint in e.command.T], axis=1)
                for at in (sent_at, np.maximum(read_at - late_by, 0))
            )
            made.append(Episode(e.index, sent, through(np.round(read / 0.088) * 0.088, e.index)))
        return replace(clean, episodes=tuple(made))

    for sent_at, read_at in ((rows - rows // 10, rows - rows // 10), (rows, waits)):
        told = [f.kind for f in report(seen(sent_at, read_at, as_is)).findings]
        assert "repeats" not in told
        told = [f.kind for f in report(seen(sent_at, read_at, repeats)).findings]
        assert "repeats" in told


@pytest.mark.members(2)
@pytest.mark.parametrize("lag", [2.5, 6.0, 12.0])
@pytest.mark.parametrize("hangs", [False, True])
def test_what_is_commanded_last_a_resting_arm_has_yet_to_answer(lag: float, hangs: bool) -> None:
    """Incident: ten of a real pair's hundred episodes were to be deleted.

    In each the arms rested for a second, then the leader set off, and the readings followed as soon
    after as anywhere. A bus that hangs a second longer is told.
    """
    rng, episodes = np.random.default_rng(1), list[Episode]()
    for n in range(8):
        u = hand(rng, 8.0)
        ramp = np.clip(np.arange(len(u)) - 40, 0, None)[:, None] * [2.0, 1.5, 0, 0, 0, 0]
        u = np.concatenate([np.repeat(u[:1], 40, axis=0), u[:1] + np.clip(ramp[40:60], 0, 40), u])
        y = follower(u, lag=lag)
        y = np.round(y / QUANTUM_DEG) * QUANTUM_DEG
        if hangs and n == 3:
            y[:71] = y[0]
        episodes.append(Episode(n, u, y))
    made = replace(recording(), episodes=tuple(episodes))
    found = [f for f in report(made).findings if f.kind == "frozen_state"]
    assert [f.episodes for f in found] == [(3,)] * hangs


def test_a_straight_way_isnt_taken_for_steps() -> None:
    """Incident: an arm that came to its leader's pose at one speed "reads in steps of 0.967"."""

    def straight(values: FloatArray, _episode: int) -> FloatArray:
        ramp = 0.967 * np.arange(len(values))[:, None] - 60.0
        return np.minimum(np.tile(ramp, (1, values.shape[1])), 5.0)

    found = report(recording(0, episodes=1, sent=straight, read=straight))
    assert "quantum" not in [f.kind for f in found.findings]


@pytest.mark.parametrize("rows", [1, 4])
def test_a_single_command_that_leaps_is_named_where_no_reading_does(rows: int) -> None:
    """A leader's garbled packet was in the commands of a set that was called good."""
    of = recording(2)
    leap = changed(2, lambda x, _: x + 60.0 * ((np.arange(len(x)) // rows) == 100 // rows))
    odd = replace(of.episodes[3], command=leap(of.episodes[3].command, 3))
    found = report(replace(of, episodes=(*of.episodes[:3], odd, *of.episodes[4:])))
    jumps = [f for f in found.findings if f.kind == "jumps"]
    assert [f.about for f in jumps] == [NAMES[2]] * (rows == 1)  # a hand may go far and back
    assert all("Single commands" in f.sentence and "'[3]'" in f.command for f in jumps)


@pytest.mark.members(5)
@pytest.mark.parametrize(
    ("kind", "joint", "sent", "read", "size"),
    [
        ("offset", 1, changed(1, lambda x, _: x + 17.0), as_is, 17.0),
        ("offset", 4, changed(4, lambda x, _: x - 3.0), as_is, -3.0),
        ("joint_delay", 3, late(3, 1.8), as_is, 60.0),
        ("dead_band", 2,
         changed(2, lambda x, _: joint_fits.play(x[:, None], np.array([2.5]))[0, :, 0]),
         as_is, 2.5),
        ("gain", 0, changed(0, lambda x, _: 0.85 * x), as_is, 0.85),
        ("drift", 1, changed(1, lambda x, n: x + 4.0 * n / 9), as_is, 4.0),
        ("zero_change", 2, changed(2, lambda x, n: x + 6.0 * (n > 4)), as_is, 6.0),
        ("reversed_joint", 4, changed(4, lambda x, _: -x), as_is, None),
        ("swapped_joints", 1, swapped, as_is, None),
        ("swapped_joints", 2, swapped, changed(1, lambda x, _: np.minimum(x, -20.0)), None),
        ("dead_joint", 3, changed(3, lambda x, _: np.full(len(x), 5.0)), as_is, None),
        ("clipped_joint", 1, changed(1, lambda x, _: np.minimum(x, 20.0)), as_is, None),
        ("lost_goals", 0, loose(0, 0.3, 0.6), as_is, None),
        ("lost_goals", 3, loose(3, 0.6, 1.2), as_is, None),
        ("repeats", None, as_is, repeats, 2.0),
        ("quantum", 0, as_is, changed(0, lambda x, _: np.round(x / 0.35) * 0.35), 0.35),
        ("noise", 4, as_is,
         changed(4, lambda x, n: x + np.random.default_rng(n).normal(0, 0.3, len(x))), 0.3),
        ("jumps", 0, as_is, changed(0, lambda x, _: np.where(np.arange(len(x)) == 99, 150, x)),
         None),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_joint_and_size(
    kind: str, joint: int | None, sent: Change, read: Change, size: float | None
) -> None:
    found = report(recording(1, sent=sent, read=read))
    first = found.findings[0]
    assert first.kind == kind
    if joint is not None:
        assert NAMES[joint] in first.about
        assert NAMES[joint] in first.sentence
    if size is not None:
        assert first.estimate.value == pytest.approx(size, rel=0.3)
        assert first.estimate.low <= first.estimate.value <= first.estimate.high
    assert len(first.sentence.split()) <= 30
    assert first.command
    assert kind not in found.good
    assert first.to_mend == (kind != "dead_band")
    beside = {f.kind for f in found.findings if joint is None or NAMES[joint] not in f.about}
    assert beside <= {kind}


@pytest.mark.parametrize("joints", [(1, 2, 3), (2,)])
def test_what_sticks_and_jumps_by_little_or_by_one_size_loses_no_goals(
    joints: Sequence[int],
) -> None:
    """Three real sets' shoulders and elbows stick for a second, then jump by up to 4 degrees."""

    def sticks(values: FloatArray, episode: int) -> FloatArray:
        rng, out = np.random.default_rng(episode), values.copy()
        for joint in joints:
            band, at = rng.uniform(1.0, 4.0), out[0, joint]
            for k, goal in enumerate(values[:, joint]):
                if abs(goal - at) > band:
                    at, band = goal, rng.uniform(1.0, 4.0)
                out[k, joint] = at
        return out

    told = [f.kind for f in report(recording(2, sent=sticks)).findings]
    assert "lost_goals" not in told


@pytest.mark.parametrize(("rows", "is_lost"), [(4, False), (9, True)])
def test_what_stands_only_as_briefly_as_can_be_told_loses_no_goals(
    rows: int, is_lost: bool
) -> None:
    """A late arm that swung stood for 60 ms where it turned: "press in the plugs of its cable"."""
    drawn, records = np.random.default_rng(0), []
    for _ in range(12):
        t_s = np.arange(200) / 50.0
        step_deg = np.zeros(200)
        for row in (30, 80, 130):  # it goes for 0.4 s at a time
            step_deg[row : row + 20] = drawn.uniform(2.0, 8.0)
        due = np.cumsum(step_deg)
        read = np.stack([due, 0.1 * due], axis=1)
        for row in (35, 85, 135):
            read[row : row + rows, 0] = due[row]
        records.append((t_s, read, np.stack([due, 0.1 * due], axis=1)))
    assert (lost_goals(records, 0.1, 5.0) is not None) == is_lost


def test_weight_and_friction_of_small_servos_stop_no_collecting() -> None:
    """Of three real sets each plan was to wait for a shoulder to be "mended" of 3.3 units."""
    for joint in (1, 2, 3):
        sag = changed(joint, lambda x, _: x + 4.0 + 2.0 * np.sin(np.radians(2.0 * x)))
        (found,) = report(recording(3, sent=sag)).findings
        assert (found.kind, found.to_mend) == ("offset", False)
        assert "from pose to pose" in found.sentence


@pytest.mark.parametrize("constant", [False, True])
def test_a_command_that_is_no_position_is_left_out(constant: bool) -> None:
    """A humanoid's hands, told ±1.5 or ±3 to open, close, stood "172° off their command".

    A thumb that was told 3 throughout moved though "its command never changes".
    """
    plain = recording(1)
    for e in plain.episodes:
        e.command[:, 3] = np.max(e.reading[:, 3]) + 88.0 if constant else e.reading[:, 3] + 88.0
    found = report(plain)
    assert not found.findings
    assert "another quantity" in found.untested["wrist_tilt"]


@pytest.mark.parametrize("gain", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("rows", [1, 3])
def test_what_a_controller_pulls_by_doesnt_answer_it(gain: float, rows: int) -> None:
    """A hand's pull is so many times its distance to the goal: that was told as other units."""
    goal = np.cumsum(np.random.default_rng(0).normal(size=400))
    hand = np.zeros(400)
    for k in range(399):
        hand[k + 1] = hand[k] + 0.1 * (goal[k] - hand[k])
    features = {
        name: {"dtype": "float32", "shape": (len(names),), "names": names}
        for name, names in ((ACTION, ["pull"]), (STATE, ["off", "hand"]))
    }
    info = DatasetInfo(Path(), 20.0, features, "", 1, 400)
    seen = np.stack([goal - hand, hand], axis=1)
    assert _pairs(info, gain * (goal - hand)[:, None], seen) == []
    assert _pairs(info, gain * np.r_[hand[rows:], hand[-rows:]][:, None], seen) == [(0, 1)]


def test_an_arm_later_than_is_looked_for_is_late_at_least_and_not_off_its_command() -> None:
    """A public set's arm follows by 0.9 s: 0.6 s was said, and offsets of what was on its way."""

    def by_27_rows(values: FloatArray, _episode: int) -> FloatArray:
        arm_s = np.vstack([np.repeat(values[:1, :-1], 27, axis=0), values[:-27, :-1]])
        return np.column_stack([arm_s, values[:, -1]])

    found = report(recording(1, sent=by_27_rows))
    assert [f.kind for f in found.findings][:1] == ["action_lag"]
    assert "at least" in found.findings[0].sentence
    assert "offset" not in {f.kind for f in found.findings}
    assert "too late" in found.untested["offsets at rest"]


def test_a_late_arms_stop_is_no_jitter() -> None:
    """270 ms late and stopped at once, four joints of a scene's arm "jittered" by 0.3°."""
    still = recording(1)
    for e in still.episodes:
        way = np.clip(np.arange(len(e.command)) - 60, 0, 40) * 0.8
        e.command[:] = way[:, None]
        e.reading[:] = np.concatenate([np.zeros(9), way[:-9]])[:, None]
    assert max(r.noise for r in joint_fits.rests_of(still, 2)) < 0.01


def test_an_arm_that_trembles_as_told_has_no_noisy_encoder() -> None:
    """A policy that plans anew in small steps made every joint of the cell "jitter at rest"."""

    told = recording(1)
    for e in told.episodes:
        e.command[:] += np.random.default_rng(e.index).normal(0, 0.07, e.command.shape)
        late = np.vstack([np.repeat(e.command[:1], 2, axis=0), e.command[:-2]])
        e.reading[:] = late + np.diff(late, axis=0, prepend=late[:1])  # and rings
    assert max(r.noise for r in joint_fits.rests_of(told, 1)) > 0.1
    found = report(told)
    assert "noise" not in {f.kind for f in found.findings}
    assert "noise" not in found.good
    assert any(why == "its commands tremble there, too" for why in found.untested.values())


def test_episodes_of_which_nothing_is_known_are_not_called_good() -> None:
    """Three episodes of two frames were "new in each row, and fine"."""
    plain = recording(1, episodes=3)
    short = tuple(replace(e, command=e.command[:2], reading=e.reading[:2]) for e in plain.episodes)
    assert report(replace(plain, episodes=short)).good == {}


@pytest.mark.parametrize("named", [True, False])
def test_a_joint_without_a_name_that_stops_short_may_be_a_gripper(named: bool) -> None:
    made = recording(read=changed(1, lambda x, _: np.minimum(x, 20.0)))
    if not named:
        features = {k: {**v, "names": None} for k, v in made.info.features.items()}
        made = replace(made, info=replace(made.info, features=features))
    (found,) = (f for f in report(made).findings if f.kind == "clipped_joint")
    assert ("a gripper holds" in found.not_told_apart) != named


@pytest.mark.parametrize("named", [True, False])
def test_what_an_unnamed_gripper_holds_isnt_to_be_subtracted(named: bool) -> None:
    """Incident: in a real SO-101's set without names every grasp was to be moved by 5 units."""
    made = recording(read=changed(5, lambda x, _: x + 6.0))
    if not named:
        features = {k: {**v, "names": None} for k, v in made.info.features.items()}
        made = replace(made, info=replace(made.info, features=features))
    joints = tuple(replace(j, name=f"state_{j.state}", is_grip=False) for j in made.joints)
    (found,) = report(replace(made, joints=joints)).findings
    assert found.kind == "offset"
    assert ("a gripper holds" in found.not_told_apart) != named
    assert ("edit correct" in found.command) == named


@pytest.mark.members(3)
@pytest.mark.parametrize("names", [None, {"motors": [f"m{k}" for k in range(6)]}])
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("holds", [[-25.0], [-25.0, -5.0, 12.0]])
def test_what_a_gripper_without_a_name_holds_is_no_fault(
    names: object, pair: bool, holds: list[float]
) -> None:
    """Sets without names are common: "at reversals state_5 answers only after 8 units"."""
    made = recording(read=changed(5, lambda x, episode: np.maximum(x, holds[episode % len(holds)])))
    if pair:
        made = twice(made)
        names = {"left": [*range(6)], "right": [*range(6)]} if names else None
    features = {k: {**v, "names": names} for k, v in made.info.features.items()}
    made = replace(made, info=replace(made.info, features=features))
    numbered = tuple(
        replace(j, name=n, is_grip=False)
        for j, n in zip(made.joints, made.info.names(STATE), strict=True)
    )
    found = report(replace(made, joints=numbered))
    assert not found.findings
    assert any("gripper: name the joints" in why for why in found.untested.values())


def twice(made: MotionRecording) -> MotionRecording:
    """Return a pair of arms that do the same, joint after joint."""
    features = {k: {**v, "shape": (12,)} for k, v in made.info.features.items()}
    return replace(
        made,
        info=replace(made.info, features=features),
        joints=made.joints * 2,
        episodes=tuple(
            Episode(e.index, np.tile(e.command, 2), np.tile(e.reading, 2)) for e in made.episodes
        ),
    )


STANDS = slice(100, 190)
"""Rows in which `standing` commands nothing."""


def standing(
    bump: FloatArray, joint: int, episodes: Collection[int], leans: float = 0.0
) -> MotionRecording:
    """Return a recording with three seconds of rest; in some a joint's reading moves meanwhile.

    `leans`: how far another joint is sent and back at the same time [deg].
    """
    made, changed = recording(4), []
    for e in made.episodes:
        u, y = e.command.copy(), e.reading.copy()
        u[STANDS], y[STANDS] = u[STANDS.start], y[STANDS.start]
        if e.index in episodes:
            y[130 : 130 + len(bump), joint] += bump
            way = leans * np.sin(np.linspace(0.0, np.pi, len(bump)))
            u[130 : 130 + len(bump), 2] += way
            y[133 : 133 + len(bump), 2] += way
        after = slice(STANDS.stop, None)
        u[after] += u[STANDS.start] - u[after][0]
        y[after] += y[STANDS.start] - y[after][0]
        changed.append(replace(e, command=u, reading=y))
    return replace(made, episodes=tuple(changed))


def swell(size_deg: float) -> FloatArray:
    return np.asarray(size_deg * np.sin(np.linspace(0.0, np.pi, 30)))


@pytest.mark.parametrize("size_deg", [12.0, -40.0])
@pytest.mark.parametrize("joint", [0, 3])
def test_a_joint_that_stands_and_is_moved_was_pushed(size_deg: float, joint: int) -> None:
    """A person's bumps: "a dead leader joint, an entry that drives nothing"."""
    (found,) = report(standing(swell(size_deg), joint, (2, 5))).findings
    assert (found.kind, found.about, found.episodes) == ("pushed", NAMES[joint], (2, 5))
    assert found.estimate.value == pytest.approx(abs(size_deg), rel=0.1)


@pytest.mark.parametrize(
    ("bump", "leans"),
    [
        (swell(12.0), 10.0),
        (np.r_[30.0, 30.0], 0.0),
        (np.r_[np.full(20, 30.0)], 0.0),
        (12.0 * np.sin(np.linspace(0.0, 6.0 * np.pi, 50)), 0.0),
        (12.0 * np.linspace(0.0, 1.0, 60), 0.0),
        (swell(4.0), 0.0),
    ],
    ids=[
        "leans against something",
        "a glitch",
        "an encoder that leaps",
        "swings",
        "sinks",
        "gives",
    ],
)
def test_what_moves_a_joint_that_stands_by_itself_pushed_nothing(
    bump: FloatArray, leans: float
) -> None:
    found = report(standing(bump, 3, (2, 5), leans)).findings
    assert "pushed" not in {f.kind for f in found}


@pytest.mark.members(1)
@pytest.mark.parametrize("rows", [2, 3, 4])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_pushed_arm_that_its_policy_follows_has_no_shifted_columns(
    rows: int, share: float
) -> None:
    """Twelve episodes with a person's bumps: "readings run ahead of commands", in all of them."""

    def follows(values: FloatArray, episode: int) -> FloatArray:
        pushed = np.vstack([np.repeat(values[:1], rows, axis=0), values[:-rows]])
        wander = np.cumsum(np.random.default_rng(episode).normal(size=values.shape), axis=0)
        goal = wander / wander.std(axis=0) * values.std(axis=0)
        return np.asarray((1.0 - share) * pushed + share * goal)

    made = recording(2)
    pushed = replace(
        made,
        episodes=tuple(replace(e, command=follows(e.reading, e.index)) for e in made.episodes),
    )
    assert "action_lag" not in {f.kind for f in report(pushed).findings}


@pytest.mark.members(1)
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_commands_that_are_readings_of_a_later_row_answer_nothing(rows: int) -> None:
    """An arm "followed after 0 ms", and its offsets, play and gain were good."""
    made = recording(read=changed(1, lambda x, _: x + 6.0))
    copied = replace(
        made,
        episodes=tuple(
            replace(e, command=np.r_[e.reading[rows:], np.repeat(e.reading[-1:], rows, axis=0)])
            for e in made.episodes
        ),
    )
    found = report(copied)
    assert [f.kind for f in found.findings] == ["action_lag"] * (rows == 0)
    assert set(found.good) == {"readings", "noise"}
    assert "copy of" in found.untested["how the arm answers"]


@pytest.mark.members(3)
@pytest.mark.parametrize("odd", [(4,), (1, 5, 6), (5, 6, 7, 8, 9)])
@pytest.mark.parametrize("rows", [-3, 2, 3])
def test_episodes_whose_columns_are_shifted_are_named(odd: tuple[int, ...], rows: int) -> None:
    made = recording()
    episodes = [
        replace(e, command=np.roll(e.command, -rows, axis=0)[4:-4], reading=e.reading[4:-4])
        if e.index in odd
        else e
        for e in made.episodes
    ]
    (found,) = report(replace(made, episodes=tuple(episodes))).findings
    assert (found.kind, found.episodes) == ("action_lag", odd)
    assert ("later" in found.sentence) == (rows > 0)
    assert found.estimate.value == pytest.approx(1e3 * abs(rows) / 30, rel=0.05)


@pytest.mark.parametrize("of_all", [False, True])
def test_a_blocked_arm_isnt_late(of_all: bool) -> None:
    """In one of twelve episodes it pressed against the table: "follows later, by 42.9 ms"."""
    made = recording(2)

    def blocked(e: Episode) -> Episode:
        reading, part = e.reading.copy(), len(e.reading) // 4
        for row in range(part, len(reading)):  # it gives way slowly, and then follows again
            gives = 0.02 if row < 2 * part else 0.3
            was, joints = reading[row - 1], slice(None if of_all else 3)
            reading[row, joints] = (was + gives * (e.command[row] - was))[joints]
        return replace(e, reading=reading)

    episodes = tuple(blocked(e) if e.index == 4 else e for e in made.episodes)
    assert "action_lag" not in {f.kind for f in report(replace(made, episodes=episodes)).findings}


def test_a_state_that_was_never_recorded_is_no_other_unit_and_not_good() -> None:
    """Zeros for readings: "readings change by 0 for each unit commanded", "ran ahead by 133 ms"."""
    found = report(recording(read=lambda values, _: np.zeros_like(values)))
    assert {f.kind for f in found.findings} == {"dead_joint"}
    assert not found.good


@pytest.mark.parametrize(("growing", "kind"), [(True, "drift"), (False, "zero_change")])
def test_play_hides_no_drift(growing: bool, kind: str) -> None:
    """Incident: 6 degrees over a real pair's hundred episodes, and "joints stay there" was good."""
    sent = changed(1, lambda x, _: joint_fits.play(x[:, None], np.array([3.0]))[0, :, 0])
    off = [0.6 * n if growing else 5.0 * (n >= 5) for n in range(10)]
    assert {f.kind for f in report(recording(2, sent=sent)).findings} == {"dead_band"}
    found = report(recording(2, sent=sent, read=changed(1, lambda x, n: x + off[n])))
    assert {(f.kind, f.about) for f in found.findings} == {("dead_band", "lift"), (kind, "lift")}
    assert "offset" not in found.good


def test_play_isnt_called_a_clipped_joint() -> None:
    """2.4 degrees of play were called a limit, and "calibrate again" was said ten times."""
    sent = changed(1, lambda x, _: joint_fits.play(x[:, None], np.array([2.4]))[0, :, 0])
    assert {f.kind for f in report(recording(2, sent=sent)).findings} == {"dead_band"}


def test_a_joint_that_is_not_moved_is_open_and_not_dead() -> None:
    """A constant joint with a tenth of a degree of jitter was called dead."""
    plain = recording(3)
    for e in plain.episodes:
        e.command[:, 3] = 5.0
        e.reading[:, 3] = 5.0 + np.random.default_rng(0).normal(0, 0.06, len(e.reading))
    found = report(plain)
    assert not found.findings
    assert "wrist_tilt" in found.untested


@pytest.mark.parametrize("order", [(5, 4, 3, 2, 1, 0), (2, 0, 1, 5, 3, 4)])
def test_the_order_of_joints_changes_nothing(order: tuple[int, ...]) -> None:
    plain = recording(4, sent=changed(2, lambda x, _: x + 5.0))
    kinds = [
        [(f.kind, f.about, round(f.estimate.value, 6)) for f in report(r).findings]
        for r in (plain, reordered(plain, order))
    ]
    assert kinds[0] == kinds[1] != []


def test_what_chance_allows_is_no_slow_bus() -> None:
    """Incident: of six rows of a one-episode dataset "readings of wrist_roll repeat"."""

    def again(values: FloatArray, _episode: int) -> FloatArray:
        rows = np.arange(len(values))
        rows[20::35] -= 1
        return values[rows]

    few, many = (
        report(recording(0, n, read=changed(4, lambda x, e: again(x, e)))) for n in (1, 20)
    )
    assert "repeats" not in [f.kind for f in few.findings]
    assert "repeats" in [f.kind for f in many.findings]


@pytest.mark.members(4)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("bend", [0.0, 0.5])
@pytest.mark.parametrize("share_s", [((1.0, 0.3),), ((1.0, 0.6),), ((0.6, 0.05), (0.4, 1.0))])
def test_a_slow_joint_has_no_play(
    share_s: Sequence[tuple[float, float]], bend: float, seed: int
) -> None:
    """Incident: a humanoid's wrists, slow and less far than told, "answer only after 5.8°"."""

    def slow(x: FloatArray, _episode: int) -> FloatArray:
        told = x - bend * np.sign(x) * np.maximum(np.abs(x) - 25.0, 0.0)
        return sum(
            (
                share * joint_fits.lagged(told[None], seconds * 30.0)[0]
                for share, seconds in share_s
            ),
            np.zeros_like(x),
        )

    found = report(recording(seed, sent=changed(2, slow)))
    assert "dead_band" not in [f.kind for f in found.findings]


@pytest.mark.parametrize("per_unit", [180.0 / np.pi, 30.0])
def test_commands_in_another_unit_are_no_commands_that_never_change(per_unit: float) -> None:
    """Incident: actions in radians beside readings in degrees were seven "dead leader joints"."""
    plain = recording(1)
    for e in plain.episodes:
        e.command[:] /= per_unit
    (found,) = report(plain).findings
    assert found.kind == "mixed_units"
    assert found.estimate.value == pytest.approx(per_unit, rel=0.05)


@pytest.mark.members(2)
@pytest.mark.parametrize("joint", [0, 4, 5])
@pytest.mark.parametrize("per_unit", [180.0 / np.pi, 100.0])
def test_one_joint_read_in_another_unit_isnt_dead(joint: int, per_unit: float) -> None:
    """Incident: a real SO-101's gripper, read as 0 to 1, "doesn't move when told to"."""
    made = grips()
    for e in made.episodes:
        e.reading[:, joint] /= per_unit
    (found,) = report(made).findings
    assert (found.kind, len(found.episodes)) == ("mixed_units", 10)
    assert found.estimate is not None
    assert 0.5 < found.estimate.value * per_unit < 1.1
    for e in made.episodes[:7]:  # most stand, the others go as told
        e.reading[:, joint] = 0.1
    assert {f.kind for f in report(made).findings} == {"dead_joint"}


PAIR = ("left_pan", "left_lift", "left_elbow", "right_pan", "right_lift", "right_elbow")


@pytest.mark.members(2)
@pytest.mark.parametrize("names", [PAIR, [n.replace("eft", "").replace("ight", "") for n in PAIR]])
@pytest.mark.parametrize("side", ["l", "r"])
def test_one_arm_of_a_pair_that_is_later_than_the_other(names: Sequence[str], side: str) -> None:
    """Incident: the left arm's readings came 100 ms late, and "no joint is later" was good."""
    of = [k for k, name in enumerate(names) if name.startswith(side)]
    k = np.arange(240)

    def behind(values: FloatArray, _episode: int) -> FloatArray:
        out = values.copy()
        for joint in of:
            out[:, joint] = np.interp(k - 3, k, values[:, joint])
        return out

    clean = report(recording(names=names))
    assert not clean.findings
    assert "joint_delay" in clean.good
    found = report(recording(names=names, sent=behind))
    (late,) = found.findings
    assert (late.kind, late.about) == ("joint_delay", ", ".join(names[j] for j in of))
    assert late.estimate is not None
    assert late.estimate.value == pytest.approx(100.0, abs=15.0)
    assert "joint_delay" not in found.good


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_exchanged_arms_are_told_joint_by_joint(way: float) -> None:
    """Incident: left_shoulder_lift answered right_shoulder_lift, and right_elbow_flex, too."""
    made = recording(1, names=PAIR)
    for e in made.episodes:  # an elbow goes along with its shoulder
        e.command[:, [2, 5]] = way * 0.9 * e.command[:, [1, 4]] + 0.1 * e.command[:, [2, 5]]
        e.reading[:] = follower(e.command)[:, [3, 4, 5, 0, 1, 2]]
    found = [f for f in report(made).findings if f.kind == "swapped_joints"]
    assert {f.about for f in found} == {
        f"{a}, {b}" for a, b in zip(PAIR[:3], PAIR[3:], strict=True)
    }


def test_a_joint_that_moves_without_its_command_is_named() -> None:
    plain = recording(1)
    for e in plain.episodes:
        e.command[:, 3] = 5.0 + np.random.default_rng(e.index).normal(0, 0.05, len(e.command))
    assert [(f.kind, f.about) for f in report(plain).findings] == [("dead_joint", NAMES[3])]


def test_what_is_told_in_an_episodes_last_moments_may_be_answered_after_it() -> None:
    """A hand that is let go as an episode ends was "stands still while its command moves"."""
    plain = recording(1)
    for e in plain.episodes:
        e.command[:, 5] = e.reading[:, 5] = 5.0
        e.command[-12:, 5] = 45.0
    assert "dead_joint" not in {f.kind for f in report(plain).findings}
    for e in plain.episodes:
        e.command[100:, 5] = 45.0
    assert ("dead_joint", NAMES[5]) in {(f.kind, f.about) for f in report(plain).findings}


@pytest.mark.members(2)
@pytest.mark.parametrize("rows", [2, 3, 6, 12, 18])
def test_an_episode_that_was_over_before_the_arm_could_answer_has_no_dead_joint(rows: int) -> None:
    """Three frames were three joints without torque."""
    made = recording()
    first = made.episodes[0]
    told = first.command[0] + np.linspace(0, 1, rows)[:, None] * np.array([20, 9, 0, 7, -30, 40])
    short = replace(first, command=told, reading=np.repeat(first.reading[:1], rows, axis=0))
    found = report(replace(made, episodes=(short, *made.episodes[1:])))
    assert "dead_joint" not in {f.kind for f in found.findings}


@pytest.mark.members(1)
@pytest.mark.parametrize("noise_deg", [0.5, 2.0, 6.0])
def test_noise_is_no_motion_without_a_command(noise_deg: float) -> None:
    """At 2 degrees of noise four joints "move though their commands never change", by 10.9°."""
    plain, rng = recording(1), np.random.default_rng(0)
    for e in plain.episodes:
        e.command[:, 3] = 5.0
        e.reading[:, 3] = 5.0 + rng.normal(0, noise_deg, len(e.reading))
    told = {(f.kind, f.about) for f in report(plain).findings}
    assert ("dead_joint", NAMES[3]) not in told
    assert ("noise", NAMES[3]) in told


@pytest.mark.parametrize("beyond_deg", [2.5])
@pytest.mark.parametrize("joint", [1, 3])
def test_an_end_stop_is_no_play(joint: int, beyond_deg: float) -> None:
    """Incident: a joint whose stop gives way "at reversals answers only after 4.1°"."""
    rng, plain = np.random.default_rng(0), recording(2)
    for e in plain.episodes:
        n = len(e.command)
        told = -40.0 + 35.0 * np.clip(2.2 * np.sin(np.arange(n) / 18.0 + e.index), -1, 1)
        k = np.arange(n)
        moved = np.interp(k - 3.0, k, told)
        depth = -75.0 + beyond_deg + 0.35 * rng.standard_normal() ** 2
        e.command[:, joint] = told
        e.reading[:, joint] = np.maximum(moved, depth) + rng.normal(0, 0.05, n)
    assert "dead_band" not in [f.kind for f in report(plain).findings]


def test_play_is_a_play() -> None:
    """The output stays within half the width of the input, and moves only where it must."""
    u = np.cumsum(np.random.default_rng(0).normal(0, 1, (300, 2)), axis=0)
    out = joint_fits.play(u, np.array([0.0, 3.0]))
    assert np.allclose(out[0], u)
    assert (np.abs(out[1] - u) <= 1.5 + 1e-9).all()
    moved = np.abs(np.diff(out[1], axis=0)) > 1e-9
    assert np.allclose(np.abs(out[1][1:] - u[1:])[moved], 1.5)


def grips(stalled: Collection[int] = (), empty: Collection[int] = ()) -> MotionRecording:
    """Return episodes in which a gripper closes on something at 30 % and opens again."""
    made = recording(0)
    k = np.arange(len(made.episodes[0].command))
    asked = np.interp(k, [0, 60, 75, 150, 165, 239], [100.0, 100, 0, 0, 100, 100])
    episodes = []
    for e in made.episodes:
        command, reading = e.command.copy(), e.reading.copy()
        command[:, 5] = asked
        reading[:, 5] = np.maximum(np.interp(k - 3, k, asked), 0.0 if e.index in empty else 30.0)
        if e.index in stalled:
            reading[150:200, 5] = 30.0
        episodes.append(replace(e, command=command, reading=reading))
    return replace(made, episodes=tuple(episodes))


def test_a_gripper_that_holds_is_no_fault() -> None:
    assert not report(grips()).findings


@pytest.mark.parametrize("told", [15.0, 22.0])
def test_a_loose_grasp_is_none_on_nothing(told: float) -> None:
    """Incident: eleven of a real pair's hundred grasps were to be deleted, each closed halfway.

    The jaws are quite closed only before and after them, on nothing; a gripper that never opens,
    and so is only ever closed on nothing, grasped nothing that it missed.
    """
    k = np.arange(240)
    asked = np.interp(k, [0, 30, 45, 60, 75, 150, 165, 200, 215], [0, 0, 100, 100, 0, 0, 99, 99, 0])
    loose = np.where((k > 60) & (k < 160), np.maximum(asked, told), asked)
    for empty in ((), (6,)):
        made, episodes = grips(), list[Episode]()
        for e in made.episodes:
            command, reading = e.command.copy(), e.reading.copy()
            command[:, 5] = loose if e.index in (2, 3) else asked * (e.index != 5)
            holds = (k > 60) & (k < 160) & (e.index not in (5, *empty))
            late = np.interp(k - 3, k, command[:, 5])
            reading[:, 5] = np.where(holds, np.maximum(late, 30.0), late)
            episodes.append(replace(e, command=command, reading=reading))
        found = report(replace(made, episodes=tuple(episodes))).findings
        assert [(f.kind, f.episodes) for f in found] == [("empty_grasp", empty)] * bool(empty)


def test_what_is_held_for_a_second_and_lost_was_no_grasp_of_nothing() -> None:
    """However noisy the readings: single ones differed by more than jaws at rest may move."""
    made, noise, episodes = grips(empty=(6,)), np.random.default_rng(0), list[Episode]()
    for e in made.episodes:
        reading = e.reading.copy()
        reading[:, 5] += noise.normal(0.0, 0.3, len(reading))
        if e.index in (2, 3):
            reading[110:150, 5] -= 30.0
        episodes.append(replace(e, reading=reading))
    found = report(replace(made, episodes=tuple(episodes))).findings
    assert [f.episodes for f in found if f.kind == "empty_grasp"] == [(6,)]


def test_a_gripper_that_is_told_to_open_and_does_not() -> None:
    [found] = report(grips(stalled=(2, 6))).findings
    assert (found.kind, found.episodes) == ("stalled_gripper", (2, 6))
    assert found.estimate.value == pytest.approx(1.3, abs=0.4)


def test_episodes_that_teach_nothing_are_listed_for_an_edit_tool() -> None:
    found = report(grips(empty=(4,)))
    assert found.to_delete() == found.to_json()["delete"] == [4]
    (line,) = (line for line in found.lines() if line.startswith("Without the episodes"))
    assert "gaploop edit delete made --episodes='[4]'" in line  # LeRobot's tool drops labels
    found.failed = frozenset({4})  # how a policy failed is what its rollouts are there to show
    assert not found.to_delete()
    assert "edit" not in found.without([4], 8)
    assert "'[3]'" in found.without([3, 4], 8)


def test_what_no_episode_shows_is_no_finding() -> None:
    """`identify --robot.model` ended in "max() iterable argument is empty" at three episodes."""
    made = AbsoluteReport(Path())
    made.add("offset", "elbow", "At rest elbow stands off its command, by", {}, 3, "")
    assert not made.findings


def test_what_several_joints_show_is_one_sentence() -> None:
    """Five sentences of a noisy arm said "At rest, … jitters by" and "gaploop doctor" each."""
    made = AbsoluteReport(Path())
    for joint, value in (("lift", 0.3), ("elbow", 0.5)):
        made.add(
            "noise",
            joint,
            f"At rest, {joint} jitters by",
            {0: value, 1: value},
            2,
            "gaploop doctor",
        )
    made.add("offset", "lift", "At rest lift stands off by", {0: 1.0, 1: 1.0}, 2, "gaploop edit")
    made.rank()
    lines = made.lines()
    assert sum(line.startswith(("1. ", "2. ", "3. ")) for line in lines) == 2
    assert sum("gaploop doctor" in line for line in lines) == 1
    (line,) = (line for line in lines if line.startswith("   Likewise "))
    assert "lift" in line
    assert "elbow" not in line
