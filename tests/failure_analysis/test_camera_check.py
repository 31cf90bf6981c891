"""What has changed about a camera: yes, no or can't tell, in units of the reference takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import cv2
import numpy as np
import pytest
from failure_analysis_makers import take

from benchmarks.real_pictures import ALTERATIONS
from gaploop.core.messages import Image
from gaploop.core.take import Take
from gaploop.core.vocabulary import Domain, Outcome
from gaploop.failure_analysis.cameras.camera_check import (
    BY_PLACE,
    LIES_BETTER,
    QUESTIONS,
    UNLIKE,
    CameraAnswer,
    CameraCheck,
    CameraReport,
    YesNo,
    _shown_before,
    check_takes,
    judge,
)
from gaploop.failure_analysis.cameras.known_camera import Kind, KnownCamera
from gaploop.failure_analysis.diagnosis import diagnose
from gaploop.failure_analysis.views.camera_samples import CameraSamples, TakeLook, sample
from gaploop.failure_analysis.views.registration import TIMES, refine

N = 24
type Change = Callable[[Image], Image]


@cache
def place(seed: int) -> Image:
    """Return a textured place, twice as wide and high as a picture of 192 by 144."""
    rng = np.random.default_rng(seed)
    whole = np.full((288, 384, 3), 110.0)
    for size in (9, 18, 40, 90):
        grey = rng.uniform(-28, 28, (size, size * 4 // 3, 1)) + rng.uniform(-8, 8, (1, 1, 3))
        whole += cv2.resize(grey, (384, 288), interpolation=cv2.INTER_CUBIC)
    return np.clip(whole, 0, 255).astype(np.uint8)


@cache
def unaltered(seed: int, wrist: bool) -> list[Image]:
    """Return a take's pictures: a fixed camera sees an arm, one on a wrist its own gripper."""
    rng, pictures = np.random.default_rng(seed), []
    for k in range(N):
        along = 0.5 - 0.5 * np.cos(2 * np.pi * k / N)
        if wrist:
            x, y = 20 + int(150 * along), 20 + int(90 * along) + seed % 3
            picture = place(2)[y : y + 144, x : x + 192].copy()
            cv2.fillPoly(picture, [np.array([[60, 144], [95, 80], [130, 144]])], (120, 60, 170))
        else:
            picture = place(1)[72:216, 96:288].copy()
            x = 20 + int(120 * along)
            picture[:70, x : x + 14] = (35, 38, 42)
        noisy = picture + rng.normal(0, 1.2, picture.shape)
        pictures.append(np.clip(noisy, 0, 255).astype(np.uint8))
        pictures[-1].flags.writeable = False
    return pictures


def seen(seed: int, wrist: bool, change: Change | None) -> Iterator[Image]:
    return (change(picture) if change else picture for picture in unaltered(seed, wrist))


def attempt(
    seed: int,
    change: Change | None = None,
    outcome: Outcome = Outcome.SUCCESS,
    swap: bool = False,
    wrist: bool = True,
) -> Take:
    made = take(uid=f"take-{seed:03d}", seed=0, outcome=outcome)
    rows = np.arange(N)
    state = np.zeros((N, 6))
    state[:, 1] = 50 - 50 * np.cos(2 * np.pi * rows / N)
    frames = replace(
        made.frames, t_s=rows / 20.0, state=state, action=state, sent=state,
        environment_state=np.empty((N, 0)), environment_names=(),
        intervention=np.zeros(N, bool), safety=np.zeros(N, np.int64), camera_age_s={},
    )  # fmt: skip
    return replace(
        made,
        info=replace(made.info, domain=Domain.REAL, fps=20.0, robot_type="someone's"),
        frames=frames,
        cameras={"top": lambda: seen(seed, swap, change)}
        | ({"wrist": lambda: seen(seed + 100, not swap, None)} if wrist else {}),
    )  # fmt: skip


def looked(
    seed: int, change: Change | None = None, swap: bool = False, wrist: bool = True
) -> dict[str, CameraSamples]:
    made = attempt(seed, change, swap=swap, wrist=wrist)
    found = {name: sample(made, name) for name in made.cameras}
    return {name: samples for name, samples in found.items() if samples is not None}


@pytest.fixture(scope="module")
def check() -> CameraCheck:
    return CameraCheck([looked(seed) for seed in range(8)])


def yes(check: CameraCheck, shown: dict[str, CameraSamples]) -> set[tuple[str, str]]:
    return {(a.camera, a.question) for a in check.judge(shown) if a.answer is YesNo.YES}


def marked(picture: Image) -> Image:
    """Return a picture with something colourful in it, behind which nothing moves."""
    out = picture.copy()
    out[84:140, 8:48] = (200, 50, 40)
    out[84:140:8, 8:48] = (40, 60, 190)
    return out


def quarter(picture: Image, *, squeezed: bool = False) -> Image:
    turned = np.ascontiguousarray(np.rot90(picture))
    return np.asarray(cv2.resize(turned, (192, 144)), np.uint8) if squeezed else turned


def grey(picture: Image) -> Image:
    return np.asarray(cv2.cvtColor(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB))


def one_picture(wrist: bool) -> Change:
    still = marked(next(seen(90, wrist, None)))
    return lambda _: still


def held(seed: int, wrist: bool, change: Change = marked) -> CameraSamples:
    cameras = {"one": lambda: seen(seed + 100 * wrist, wrist, change)}
    samples = sample(replace(attempt(seed), cameras=cameras), "one")
    assert samples is not None
    return samples


@pytest.fixture(scope="module", params=[False, True], ids=["fixed", "wrist"])
def usual(request: pytest.FixtureRequest) -> tuple[bool, CameraCheck]:
    return request.param, CameraCheck([{"one": held(k, request.param)} for k in range(6)])


@pytest.mark.members(6)
@pytest.mark.parametrize(
    ("change", "question", "said"),
    [
        (lambda p: p, "", ""),
        (lambda p: p[:, ::-1], "turned", "mirrored left to right"),
        (lambda p: p[::-1], "turned", "mirrored top to bottom"),
        (lambda p: p[::-1, ::-1], "turned", "turned by 180°"),
        (quarter, "turned", "turned by 90° to the left"),
        (partial(quarter, squeezed=True), "turned", "turned by 90° to the left"),
        (lambda p: p[..., ::-1], "colour_order", "red and blue are swapped"),
        (grey, "colourless", "without colour"),
        (np.zeros_like, "black", "black"),
        (None, "frozen", "one picture while the arm moves"),
    ],
)
def test_what_was_done_to_whole_pictures_is_told_and_nothing_else(
    change: Change | None, question: str, said: str, usual: tuple[bool, CameraCheck]
) -> None:
    """They were silent, or told as a cover, light from a side, swapped cameras."""
    wrist, check = usual
    done = change and (lambda p: np.ascontiguousarray(change(marked(p))))
    shown = {"one": held(20, wrist, done or one_picture(wrist))}
    found = [a for a in check.judge(shown) if a.answer is YesNo.YES]
    assert [a.question for a in found] == [question] * bool(question)
    assert all(said in a.line for a in found)


def test_a_scene_that_looks_alike_turned_isnt_told_to_be(check: CameraCheck) -> None:
    def table(picture: Image) -> Image:
        half = picture[:, :96]
        return np.ascontiguousarray(np.hstack([half, half[:, ::-1]]))

    known = CameraCheck([looked(k, table, wrist=False) for k in range(6)])
    for change in (table, lambda p: table(p)[:, ::-1]):
        assert ("top", "turned") not in yes(known, looked(20, change, wrist=False))
    assert ("top", "turned") not in yes(check, looked(20, lambda p: p[:, 40:], wrist=False))


def test_joints_that_werent_read_or_are_others_leave_the_pictures() -> None:
    """Poses of one column beside those of six: a traceback."""
    good = [attempt(k, wrist=False) for k in range(5)]
    bad = attempt(20, lambda p: p[::-1], wrist=False)
    for odd in (np.full((N, 6), np.nan), np.zeros((N, 3))):
        info = replace(bad.info, joint_names=bad.info.joint_names[: odd.shape[1]])
        judged = replace(bad, info=info, frames=replace(bad.frames, state=odd))
        found = check_takes(good, [judged], "others")
        assert found is not None
        assert ("top", "turned") in found.found


def test_whatever_is_found_has_its_picture() -> None:
    """The report of a lens cap that was left on ended with a traceback."""
    good = [attempt(k, wrist=False) for k in range(5)]
    changes = (np.zeros_like, lambda p: p[::-1], lambda p: p[..., ::-1])
    bad = [attempt(20 + k, change, wrist=False) for k, change in enumerate(changes)]
    found = check_takes(good, bad, "others")
    assert found is not None
    assert {question for _, question in found.found} >= {"black", "turned", "colour_order"}
    assert found.shown.keys() == set(found.found)


def test_what_follows_from_how_it_went_is_no_change_of_a_camera() -> None:
    """A block that nobody took "covered" 3 % of the picture, and to a camera on a wrist that held
    none the white balance was another: where a grasp failed, it shows in pictures, too."""
    rows, shut = np.arange(N), 18

    def handled(seed: int, taken: bool) -> Take:
        x, y = np.random.default_rng(seed).integers((10, 75), (160, 115))

        def top() -> Iterator[Image]:
            for k, picture in enumerate(seen(seed, False, None)):
                shown = picture.copy()
                if k <= shut or not taken:
                    shown[y : y + 26, x : x + 26] = (210, 40, 30)
                yield shown

        def wrist() -> Iterator[Image]:
            for k, picture in enumerate(seen(seed, True, None)):
                shown = picture.copy()
                if k > shut and taken:
                    shown[60:, 40:150] = (210, 40, 30)
                yield shown

        made = attempt(seed)
        state = made.frames.state.copy()
        state[:, 5] = np.where(rows > shut, 0.0, 100.0)
        frames = replace(made.frames, state=state, action=state, sent=state)
        return replace(made, frames=frames, cameras={"top": top, "wrist": wrist})

    good = [handled(seed, True) for seed in range(12)]
    report = check_takes(good, [handled(20 + k, False) for k in range(8)], "these")
    assert report is not None
    assert not report.found


@pytest.mark.parametrize(("why", "stays"), [("", False), (UNLIKE, True)])
def test_an_arm_that_stands_before_the_place_has_moved_no_camera(why: str, stays: bool) -> None:
    """Failures ran on for 10 s with the arm in the middle, successes for 3.5 s: the camera "doesn't
    lie on its usual pictures", in 8 of 8 episodes."""
    whole = CameraAnswer("top", "moved", YesNo.UNKNOWN, "shift_x", 9.0, 1.0, why=UNLIKE)
    early = replace(whole, answer=YesNo.UNKNOWN if why else YesNo.NO, why=why)
    kinds = {"top": Kind.FIXED}
    report = CameraReport("these", 4, kinds, {"a": _shown_before(kinds, [whole], [early])}, {})
    assert ("doesn't lie on" in " ".join(report.lines())) == stays


@pytest.mark.members(1)
@pytest.mark.parametrize("turn_deg", [0.0, 10.0, 30.0])
def test_a_camera_that_was_knocked_far_isnt_called_unchanged(turn_deg: float) -> None:
    """One knocked by 10° in all three angles: "nothing has changed", since nothing fitted."""

    def knocked(picture: Image) -> Image:
        flat = cv2.getRotationMatrix2D((96.0, 72.0), turn_deg, 1.0 + turn_deg / 60)
        tilt = np.vstack([flat, [turn_deg / 2e4, turn_deg / 1e4, 1.0]])
        tilt[0, 2] -= 2.5 * turn_deg
        shown = cv2.warpPerspective(picture, tilt, (192, 144), borderMode=cv2.BORDER_REFLECT)
        return np.asarray(shown, dtype=np.uint8)

    good = [attempt(k, wrist=False) for k in range(8)]
    report = check_takes(good, [attempt(20 + k, knocked, wrist=False) for k in range(4)], "these")
    assert report is not None
    said = " ".join(report.lines())
    assert ("nothing has changed" in said) == (not turn_deg)
    assert ("has moved" in said or "doesn't lie on" in said) == bool(turn_deg)


def test_a_camera_on_the_wrist_moves_with_the_joints(check: CameraCheck) -> None:
    assert check.cameras["top"].kind is Kind.FIXED
    assert check.cameras["wrist"].kind is Kind.WRIST


def test_an_arm_before_black_and_white_leaves_a_fixed_camera_fixed() -> None:
    """A Franka at a black table before a white wall: with the median grey all of it "moved"."""

    def half_black(seed: int) -> Iterator[Image]:
        for k, picture in enumerate(seen(seed, False, None)):
            out = (picture // 8 + 10).astype(np.uint8)
            out[:, 104:] = picture[:, 104:] // 2 + 120
            out[40:110, 104 - 10 * (k % 5) : 104] = 200
            yield out

    takes = [
        replace(attempt(seed), cameras={"top": lambda s=seed: half_black(s)}) for seed in range(5)
    ]
    camera = KnownCamera("top", [sample(made, "top") for made in takes])
    assert camera.kind is Kind.FIXED
    assert min(look.still.mean() for look in camera.looks) > 0.7


def test_light_that_changes_with_the_arm_leaves_a_fixed_camera_fixed() -> None:
    """An arm shaded its table and shone in it: brightness varied in half of the picture."""
    x = np.arange(192)

    def shaded(seed: int) -> Iterator[Image]:
        for k, picture in enumerate(seen(seed, False, None)):
            arm = 20 + 60 * (1 - np.cos(2 * np.pi * k / N))
            gain = 1 - 0.45 * np.exp(-(((x - arm) / 60) ** 2))
            yield np.clip(picture * gain[None, :, None], 0, 255).astype(np.uint8)

    takes = [replace(attempt(seed), cameras={"top": lambda s=seed: shaded(s)}) for seed in range(5)]
    camera = KnownCamera("top", [sample(made, "top") for made in takes])
    assert np.median([look.still.mean() for look in camera.looks]) < 0.5
    assert camera.kind is Kind.FIXED


@pytest.mark.members(2)
@pytest.mark.parametrize("leaves_at", [4, 7, 10])
@pytest.mark.parametrize(("at", "wide", "high"), [(110, 40, 100), (150, 30, 70)])
def test_an_arm_that_stays_where_it_never_was_covers_no_camera(
    leaves_at: int, at: int, wide: int, high: int
) -> None:
    """Failures that went elsewhere were "covered in part": the arm stood there in most pictures."""
    rows = np.arange(N)

    def driven(seed: int, leaves: int) -> CameraSamples:
        rng = np.random.default_rng(seed)
        usual = 10 + 30 * (1 - np.cos(2 * np.pi * rows / N)) + 3 * rng.normal()
        x = np.where(rows >= leaves, at + 8 * np.sin(rows), usual).astype(int)

        def pictures() -> Iterator[Image]:
            for k in range(N):
                picture = place(1)[72:216, 96:288].copy()
                picture[:high, max(x[k], 0) : x[k] + wide] = (35, 38, 42)
                yield np.clip(picture + rng.normal(0, 1.2, picture.shape), 0, 255).astype(np.uint8)

        made = attempt(seed)
        state = made.frames.state.copy()
        state[:, 0], state[:, 1] = 40 * np.sin(2.1 * rows), x
        frames = replace(made.frames, state=state)
        samples = sample(replace(made, cameras={"top": pictures}, frames=frames), "top")
        assert samples is not None
        return samples

    check = CameraCheck([{"top": driven(seed, N)} for seed in range(8)])
    assert not yes(check, {"top": driven(20, leaves_at)})


def test_a_gripper_over_a_table_without_marks_leaves_its_camera_on_the_wrist() -> None:
    """All that has structure stands still there: the gripper; of the table only light changes."""

    def smooth(seed: int) -> Iterator[Image]:
        for k, _ in enumerate(seen(seed, True, None)):
            along = 0.5 - 0.5 * np.cos(2 * np.pi * k / N)
            light = np.exp(-(((np.arange(192) - 200 * along) / 70) ** 2))
            picture = np.broadcast_to(60 + 120 * light[None, :, None], (144, 192, 3))
            picture = np.ascontiguousarray(picture, np.uint8)
            cv2.fillPoly(picture, [np.array([[40, 144], [95, 50], [150, 144]])], (120, 60, 170))
            yield picture

    takes = [
        replace(attempt(seed), cameras={"wrist": lambda s=seed: smooth(s)}) for seed in range(5)
    ]
    assert KnownCamera("wrist", [sample(made, "wrist") for made in takes]).kind is not Kind.FIXED


def test_joints_that_never_move_say_nothing_about_which_pictures_to_compare() -> None:
    """All were compared with the start of the first episode, here of a camera that warms up."""

    def warming(seed: int) -> Iterator[Image]:
        for k, picture in enumerate(seen(seed, False, None)):
            yield (picture * (0.4 + 0.1 * seed) if k < 5 else picture).astype(np.uint8)

    takes = [
        replace(
            t, cameras={"top": lambda s=seed: warming(s)}, frames=replace(t.frames, state=still)
        )
        for seed in range(6)
        for t, still in [(attempt(seed), np.full((N, 6), 3.0))]
    ]
    *known, judged = [{"top": s} for t in takes if (s := sample(t, "top")) is not None]
    told = {a.question: a.answer for a in CameraCheck(known).judge(judged)}
    assert told["exposure"] is YesNo.NO


@pytest.mark.members(1)
@pytest.mark.parametrize("seed", [20, 21, 22])
def test_nothing_is_said_of_an_unaltered_take(check: CameraCheck, seed: int) -> None:
    assert not yes(check, looked(seed))


def blurred(picture: Image) -> Image:
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), 1.5))


def shifted(picture: Image) -> Image:
    matrix = np.array([[1.0, 0.0, 12.0], [0.0, 1.0, 0.0]])
    return np.asarray(cv2.warpAffine(picture, matrix, (192, 144), borderMode=cv2.BORDER_REFLECT))


def covered(picture: Image) -> Image:
    done = picture.copy()
    done[80:130, 20:80] = (60, 55, 50)
    return done


def lit_from_the_side(picture: Image) -> Image:
    gain = np.linspace(0.7, 1.4, 192)[None, :, None]
    return np.clip(picture * gain, 0, 255).astype(np.uint8)


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("change", "question"),
    [
        (lambda p: (p * 0.7).astype(np.uint8), "exposure"),
        (lambda p: (p * np.array([1.0, 0.9, 0.8])).astype(np.uint8), "white_balance"),
        (blurred, "sharpness"),
        (shifted, "moved"),
        (covered, "cover"),
        (lit_from_the_side, "local_light"),
    ],
)
def test_a_change_is_named_of_its_camera_alone(
    check: CameraCheck, change: Change, question: str
) -> None:
    found = yes(check, looked(30, change))
    assert ("top", question) in found
    assert {camera for camera, _ in found} == {"top"}
    if question != "cover":  # a shadow or a move is no cover
        assert not {("top", "cover"), ("top", "dirt")} & found


@pytest.mark.members(4)
@pytest.mark.parametrize(
    ("camera", "about"),
    [
        *(("top", about) for about in ALTERATIONS),
        *(("wrist", a) for a, (q, *_) in ALTERATIONS.items() if q in (*BY_PLACE, "haze")),
    ],
)
def test_one_change_names_no_second_one(check: CameraCheck, camera: str, about: str) -> None:
    """Haze was told as light from a side, noise as flicker, clipping as a cover and a colour."""
    question, strengths, change = ALTERATIONS[about]
    shown = sample(attempt(30), camera, alter=lambda p, row: change(p, row, strengths[-1]))
    assert shown is not None
    told = {a.question: a for a in judge(check.cameras[camera], shown)}
    assert told[question].answer is not YesNo.NO
    also = {"exposure"} if question == "local_light" else set()  # half of it is brighter
    assert {q for q, a in told.items() if a.answer is YesNo.YES} <= {question, *also}


def test_haze_is_less_contrast_in_the_shadows(check: CameraCheck) -> None:
    shown = looked(30, lambda p: (p * 0.6 + 80).astype(np.uint8), wrist=False)
    lines = [a.line for a in check.judge(shown) if a.question == "haze"]
    assert any("top has less contrast in the shadows" in line for line in lines)


def test_a_blur_is_no_haze() -> None:
    """Of a place with small dark things a camera out of focus "had less contrast in the shadows".

    What is dark by itself stays as dark in a haze only.
    """

    def dotted(picture: Image, sigma_px: float) -> Image:
        shown = picture.copy()
        for x, y in ((x, y) for x in range(60, 190, 14) for y in range(78, 140, 14)):
            shown[y : y + 5, x : x + 5] = 12
        return np.asarray(cv2.GaussianBlur(shown, (0, 0), sigma_px)) if sigma_px else shown

    cameras = [looked(k, lambda p: dotted(p, 0.0), wrist=False) for k in range(8)]
    told = CameraCheck(cameras).judge(looked(30, lambda p: dotted(p, 5.0), wrist=False))
    answers = {a.question: a for a in told}
    assert answers["sharpness"].answer is YesNo.YES
    assert answers["haze"].answer is YesNo.UNKNOWN
    assert answers["haze"].value > answers["haze"].reach


def test_a_cover_that_would_not_show_is_not_denied() -> None:
    """Of two real wrist cameras 6 of 6 covers of 3 % were answered by no."""

    def dull(seed: int, change: Change | None = None) -> Iterator[Image]:
        for picture in seen(seed, True, None):
            flat = (110 + 0.03 * (picture - 110.0)).astype(np.uint8)
            yield change(flat) if change else flat

    takes = [replace(attempt(k), cameras={"wrist": lambda k=k: dull(k)}) for k in range(6)]
    takes.append(replace(takes[0], cameras={"wrist": lambda: dull(31, covered)}))
    *known, judged = [{"wrist": s} for t in takes if (s := sample(t, "wrist")) is not None]
    told = {a.question: a.answer for a in CameraCheck(known).judge(judged)}
    assert told["cover"] is not YesNo.NO


@pytest.mark.members(1)
@pytest.mark.parametrize(("row", "cover"), [(4, YesNo.UNKNOWN), (8, YesNo.NO)])
def test_an_arm_that_stands_before_the_scene_is_no_cover(
    check: CameraCheck, row: int, cover: YesNo
) -> None:
    """A failed attempt that ran out of time, its arm somewhere in the picture.

    Where the arm came late, all places had been seen before.
    """
    made = attempt(30)
    rows = np.minimum(np.arange(N), row)
    frames = replace(made.frames, state=made.frames.state[rows])
    shown = [list(made.cameras["top"]())[k] for k in rows]
    samples = sample(replace(made, frames=frames, cameras={"top": lambda: iter(shown)}), "top")
    assert samples is not None
    told = {a.question: a for a in judge(check.cameras["top"], samples)}
    assert {q for q, a in told.items() if a.answer is YesNo.YES} == set()
    assert told["cover"].answer is cover


@pytest.mark.members(1)
@pytest.mark.parametrize("bend", [0.03, 0.08])
def test_another_lens_is_named_where_corners_show_it_and_else_not_denied(
    check: CameraCheck, bend: float
) -> None:
    """A barrel lens was answered by no: by size alone pictures hardly differ."""
    _, _, through = ALTERATIONS["lens [barrel]"]
    told = check.judge(looked(30, lambda p: through(p, 0, bend), wrist=False))
    assert [a.answer for a in told if (a.camera, a.question) == ("top", "crop")] == [YesNo.YES]

    def middle(seed: int, change: Change | None = None) -> Iterator[Image]:
        for picture in seen(seed, False, None):
            out = np.full_like(picture, 110)
            out[54:90, 72:120] = picture[54:90, 72:120]
            yield change(out) if change else out

    takes = [replace(attempt(k), cameras={"top": lambda k=k: middle(k)}) for k in range(6)]
    bent = replace(takes[0], cameras={"top": lambda: middle(31, lambda p: through(p, 0, bend))})
    *known, judged = [{"top": s} for t in [*takes, bent] if (s := sample(t, "top")) is not None]
    (crop,) = (a for a in CameraCheck(known).judge(judged) if a.question == "crop")
    assert crop.answer is not YesNo.NO


@pytest.mark.members(3)
@pytest.mark.parametrize(("better", "answer"), [(0.05, YesNo.UNKNOWN), (0.3, YesNo.YES)])
@pytest.mark.parametrize(("number", "away"), [("bend", -6.0), ("scale", 23.0), ("down", 7.6)])
def test_place_counts_only_where_pictures_lie_clearly_better(
    check: CameraCheck, monkeypatch: pytest.MonkeyPatch, number: str, away: float,
    better: float, answer: YesNo,
) -> None:  # fmt: skip
    """At a desk under other lamps 10 of 504 pictures "showed another cut": shadows pull edges.

    A camera "had moved by 7.6 %", its cut "was 23 % larger", where an arm stood over a table's
    grain: so laid, its pictures matched no better than as they lay.
    """
    camera, shown = check.cameras["top"], looked(30, wrist=False)["top"]
    numbers, maps = camera.compared(shown, TakeLook.of(shown))
    numbers |= {number: away, LIES_BETTER[number]: better}
    assert camera.units  # of the episodes as they are
    monkeypatch.setattr(camera, "compared", lambda *_: (numbers, maps))
    asked = "moved" if number == "down" else "crop"
    assert {a.answer for a in judge(camera, shown) if a.question == asked} == {answer}


def test_swapped_cameras_are_told_by_what_stays_and_what_moves(check: CameraCheck) -> None:
    assert ("top", "swapped") in yes(check, looked(40, swap=True))


def test_with_few_takes_to_compare_with_nothing_can_be_told() -> None:
    known = KnownCamera("top", [looked(seed, wrist=False)["top"] for seed in range(2)])
    answers = judge(known, looked(50, blurred, wrist=False)["top"])
    assert {a.question for a in answers} == set(QUESTIONS)
    assert {a.answer for a in answers} == {YesNo.UNKNOWN}


def test_what_shows_a_change_is_marked_in_a_picture() -> None:
    good = [attempt(k, wrist=False) for k in range(5)]
    report = check_takes(good, [attempt(60, covered, wrist=False)], "these")
    assert report is not None
    assert any("top is covered" in line and "lower left" in line for line in report.lines())
    _, picture = report.shown["top", "cover"]
    usual, now, marked = np.split(picture.astype(int), 3, axis=1)
    assert np.abs(marked - now)[60:80, 20:45].mean() > 20 > np.abs(marked - now)[:30, 90:].mean()
    assert np.abs(usual - now)[60:80, 20:45].mean() > 20


def test_without_images_no_picture_is_decoded() -> None:
    def never() -> Iterator[Image]:
        raise AssertionError("decoded")

    takes = [
        replace(attempt(k, outcome=how), cameras={"top": never})
        for k, how in enumerate([Outcome.SUCCESS] * 3 + [Outcome.FAILURE] * 2)
    ]
    found = diagnose(takes, images=False)
    assert found.camera_check is None


def test_nothing_is_laid_on_a_nearly_plain_picture_at_any_size() -> None:
    """An arm hid most of a bare table: its camera was told to look through another lens, +870 %."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        pictures = []
        for _ in range(2):  # a spot, wherever it lies
            picture = np.zeros((48, 64), np.float32)
            cv2.circle(picture, rng.integers(8, 40, 2).tolist(), 6, 1.0, -1)
            pictures.append(np.asarray(cv2.GaussianBlur(picture, (0, 0), 1.5), np.float32))
        counts = cv2.dilate((pictures[0] > 0.05).astype(np.uint8), np.ones((9, 9))) > 0
        laid = refine(*pictures, np.ones((48, 64), np.float32), counts, np.zeros(5))
        for size in (laid.scale, laid.scale + laid.bend):
            assert 1 / TIMES <= size <= TIMES
