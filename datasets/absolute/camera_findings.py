"""What sampled pictures show by themselves, and beside the arm's motion.

Nobody says when a picture was taken: its age is the lag between how much pictures change and how
fast joints move, so it is relative to the readings, which are late themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from gaploop.core.messages import FloatArray
from gaploop.core.statistics import Estimate, median_interval
from gaploop.datasets.absolute import joint_fits
from gaploop.datasets.absolute.camera_looks import (
    COARSE,
    FROZEN_S,
    MOVES_DEG,
    THUMB,
    CameraLook,
    Run,
)
from gaploop.datasets.absolute.findings import FEWEST, AbsoluteReport, scaled
from gaploop.datasets.absolute.recording import MotionRecording
from gaploop.datasets.check.frames import stretches

SAME: Final = 0.12
"""Mean difference of two decoded pictures that are one [levels of 255]; a camera's noise, encoded,
leaves more."""
LIVELY: Final = 18.0
"""A part that changes more before and after a repeated picture shows that something new was to be
seen: of a scene in which nothing moves, encoders repeat pictures by themselves [levels of 255]."""
REPEATED: Final = 0.25
"""Of what changes most before and after it, what does in a picture repeated but encoded anew."""
WHOLE: Final = 10
"""Key frames that tell an encoder's repeated pictures from a camera's, which repeats those, too."""
BLACK: Final = 8.0
DUPLICATES: Final = 0.2
AGE_S: Final = 0.04
"""A camera at the rate of the rows is half a frame old on average, USB adds 10 to 30 ms."""
LAGS_S: Final = 0.6
EXPLAINED: Final = 0.5
"""Of the pictures' change by the joints' speeds, for an age to be told."""
HUNTS: Final = 0.06
"""Brightness of still pixels between its extremes in a few seconds, as a share."""
FLICKERS: Final = 0.006
BLURRED: Final = 0.62
"""Crete's measure, 0 sharp to 1 (Crete, Dolmiere, Ladret and Nicolas 2007)."""
EDGE_PX: Final = 3.0
"""Width of the sharpest edges, from which on they are blurred: 14 real photos have at most 1.6, and
3 to 4.7 once blurred by 2 pixels. Where nothing has an edge, nothing is out of focus."""
MOVED: Final = 0.015
"""Shift of the first pictures' still parts, as a share of the width; up to a sixth is found."""
TILES: Final = (12, 9)
ARM_RESTS_DEG_S: Final = 3.0
GRIP_RESTS_PCT_S: Final = 5.0
GRIP_MOVES_PCT_S: Final = 40.0
"""Per cent of its travel a second: a second for half of it."""
GRIP_ROWS: Final = 8
GRIP_SEEN: Final = 2.0
"""A part of the picture must change so many times as much as when nothing moves."""
ALIKE: Final = 0.8
WHITE: Final = 250.0
"""A level from which on a sensor is full [levels of 255]."""
TURNED: Final[Mapping[str, Callable[[FloatArray], FloatArray]]] = {
    "have red and blue exchanged": lambda x: x[..., ::-1],
    "are upside down": lambda x: x[::-1, ::-1],
    "are mirrored": lambda x: x[:, ::-1],
    "are flipped": lambda x: x[::-1],
}
"""What was done to pictures, and what undoes it."""
STOOD_S: Final = 0.5
STOOD_DEG: Final = 0.3
"""Readings that moved less for so long are those of an arm that stands."""
UNLIKE: Final = 25.0
"""Levels of 255 by which a pixel of something else differs; a video's compression seldom does."""
STILL: Final = 12.0
"""What changes less within an episode stands still [levels of 255]."""
WITH_ARM: Final = 0.5
"""A camera of whose pixels more change as the arm moves is mounted on it."""


class CameraTests:
    """Tests of one recording's cameras, each adding to its report."""

    def __init__(
        self, recording: MotionRecording, report: AbsoluteReport, looks: Sequence[CameraLook]
    ) -> None:
        self.recording, self.report, self.looks = recording, report, looks
        self.fps, self.total = recording.info.fps, len(recording.lengths)
        self.readings = {e.index: e.reading[:, recording.arm] for e in recording.episodes}
        grips = [k for k, joint in enumerate(recording.joints) if joint.is_grip]
        self.grips = {e.index: e.reading[:, grips] for e in recording.episodes if grips}
        self.sees_grip: dict[str, float] = {}

    def run(self) -> None:
        """Run all tests."""
        if not self.looks:
            stored = self.recording.info.camera_keys
            why = "their pictures are in the rows; only comparisons with others look at them"
            self.report.untested["cameras"] = why if stored else "there are no pictures"
            return
        good = list[str]()
        for seen in self.looks:
            if seen.broken:
                self.report.untested[f"camera {seen.name}"] = seen.broken
                continue
            before = len(self.report.findings)
            bright = {e: float(x.mean()) for e, x in seen.starts.items()}
            self._note("brightness", seen, "of 255", bright, 8.0)
            self._note("blur", seen, "", seen.blur, 0.05)
            if self._black(seen):
                continue
            moving = self._with_arm(seen)
            frozen = self._frozen_or_slow(seen)
            if seen.thin is None and len(seen.runs) < self.total:
                what = f"frozen pictures of {seen.name} in {self.total - len(seen.runs)} episodes"
                self.report.untested[what] = "only some are decoded"
            if not frozen:
                self._age(seen)
                self._gripper(seen)
            self._light(seen, moving)
            self._blurred(seen)
            self._turned(seen)
            if not moving:
                self._moved(seen)
            if len(self.report.findings) == before:
                carried = "moves with the arm" if self.recording.arm else "moves"
                where = carried if moving else "stands still"
                good.append(f"{seen.name} ({where})")
        self._swapped()
        if self.sees_grip:
            seeing = [f"{n} ({r:.1f}×)" for n, r in self.sees_grip.items() if r > GRIP_SEEN]
            none = "no camera's pictures change as the gripper moves alone"
            found = f"the gripper's motion is seen by {', '.join(seeing)}" if seeing else none
            (self.report.good if seeing else self.report.untested)["sight of the gripper"] = found
        elif self.grips and not all(seen.broken for seen in self.looks):
            why = "it doesn't move while the arm stands, in the pictures decoded"
            self.report.untested["which camera sees the gripper"] = why
        if good:
            self.report.good["cameras"] = "cameras " + ", ".join(good)

    def _note(
        self, what: str, seen: CameraLook, unit: str, values: dict[int, float], least: float
    ) -> None:
        if len(values) >= FEWEST:
            size = median_interval(np.array(list(values.values())))
            self.report.note(what, seen.name, unit, size, least)

    def _speed(self, run: Run) -> FloatArray | None:
        """Return how fast the arm moves between pictures [deg a row], shape (n - 1,)."""
        reading = self.readings.get(run.episode)
        if reading is None or not reading.shape[1]:
            return None
        part = reading[run.start : run.start + len(run.grey)]
        if len(part) < len(run.grey):
            return None
        return np.asarray(np.linalg.norm(np.diff(part, axis=0), axis=1))

    def _black(self, seen: CameraLook) -> bool:
        starts = seen.starts.items()
        dark = {e: float(x.mean()) for e, x in starts if x.mean() < BLACK and x.std() < BLACK}
        self.report.add(
            "black_camera", seen.name, f"Pictures of {seen.name} are black: mean brightness",
            dark, len(starts), self.report.without(list(dark), self.total), 60.0,
            unit="of 255", apart="a covered lens, no light, a camera that sends nothing",
        )  # fmt: skip
        gaps, least = dict[int, float](), max(3, round(0.1 * self.fps))
        for run in [*seen.runs, *(seen.thin or ())]:
            for a, b in stretches(run.grey.mean(axis=(1, 2)) < BLACK):
                if b - a >= least and run.episode not in dark and b - a < len(run.grey):
                    gaps[run.episode] = max(gaps.get(run.episode, 0.0), (b - a) / self.fps)
        self.report.add(
            "black_camera", seen.name, f"Pictures of {seen.name} are black in between, for at "
            "least", gaps, len(seen.runs) if seen.thin is None else self.total,
            self.report.without(list(gaps), self.total), 50.0, unit="s",
            apart="a loose cable, a lens that was covered",
        )  # fmt: skip
        return 2 * len(dark) > len(seen.starts)

    def _with_arm(self, seen: CameraLook) -> bool:
        """Say whether the camera is on the arm: most of what it sees changes as that moves."""
        shares = list[float]()
        for run in seen.runs:
            speed = self._speed(run)
            if speed is None:  # no joints, or of no known unit: when most changes, something moves
                speed = np.abs(np.diff(run.grey, axis=0)).mean(axis=(1, 2))
            if speed.max() < 0.3 or len(run.grey) < 12:
                continue
            k = int(np.convolve(speed, np.ones(6), "valid").argmax())
            before, after = run.grey[k], run.grey[min(k + 6, len(run.grey) - 1)]
            brighter = np.median((after + 4) / (before + 4))  # the light, not the arm
            shares.append(float((np.abs(after - brighter * before) > 6.0).mean()))
        return bool(shares) and float(np.median(shares)) > WITH_ARM

    def _frozen_or_slow(self, seen: CameraLook) -> bool:
        frozen, rates, slow = dict[int, float](), dict[int, float](), dict[int, float]()
        whole = list[bool]()
        """Of the pictures encoded whole, whether they repeat the one before."""
        for n, run in enumerate([*seen.runs, *(seen.thin or ())]):
            steps = np.abs(np.diff(run.grey, axis=0))
            change, most = steps.mean(axis=(1, 2)), steps.max(axis=(1, 2))
            speed = self._speed(run)
            moves = speed > MOVES_DEG if speed is not None else np.ones(len(change), dtype=bool)
            same = (change < SAME) & (most < STILL)
            for a, b in stretches(same) if speed is not None else ():
                long = b - a >= max(5, round(FROZEN_S * self.fps) - 1)
                long &= float(np.abs(run.grey[b] - run.grey[a]).max()) < STILL  # all the way
                long &= float(run.grey[a:b].mean()) >= BLACK
                if long and moves[a:b].sum() > 0.3 * (b - a):
                    frozen[run.episode] = max(frozen.get(run.episode, 0.0), (b - a + 1) / self.fps)
            if n >= len(seen.runs):
                continue
            beside = np.minimum(np.r_[0.0, most[:-1]], np.r_[most[1:], 0.0])
            same |= most < np.minimum(STILL, REPEATED * beside)
            moves &= np.where(same, beside, most) > LIVELY
            if speed is not None:  # what moves by less than a pixel looks repeated, too
                moves &= speed >= np.percentile(speed, 60)
            if run.episode not in frozen and moves.sum() >= 10:
                share = float(same[moves].mean())
                rates[run.episode] = self.fps * (1 - share)
                if run.keys is not None:
                    whole += same[moves & run.keys[1:]].tolist()
                if share > DUPLICATES:
                    slow[run.episode] = share
        self._note("new pictures a second", seen, "", rates, 0.1 * self.fps)
        if frozen:
            self.report.add(
                "frozen_camera", seen.name, f"Pictures of {seen.name} stand still while the arm "
                "moves, for", frozen, len(seen.runs) if seen.thin is None else self.total,
                self.report.without(list(frozen), self.total), 40.0, unit="s",
                apart="an unplugged camera, one that doesn't see the arm",
            )  # fmt: skip
        elif len(slow) <= 0.5 * len(rates):
            pass
        elif len(whole) >= WHOLE and np.mean(whole) < 0.1 * float(np.mean(list(slow.values()))):
            self.report.untested[f"rate of {seen.name}"] = (
                "pictures repeat, but no key frame does, as where an encoder leaves out what "
                "changes little"
            )
        else:
            self.report.add(
                "camera_rate", seen.name, f"{seen.name} gives new pictures less often than there "
                f"are rows ({self.fps:g} a second):", slow, len(rates),
                f"Set the camera to {self.fps:g} a second, or record at its rate (--dataset.fps). "
                "If it is set so: more light, or a lower resolution.", 6.0, unit="a second",
                size=median_interval(np.array(list(rates.values()))),
                apart="a camera set to a lower rate, long exposure in poor light, USB bandwidth",
            )  # fmt: skip
        return bool(frozen)

    def _age(self, seen: CameraLook) -> None:
        """Tell how much later pictures show motion than readings do."""
        runs, speeds = list[tuple[FloatArray, FloatArray]](), list[float]()
        for run in seen.runs:
            reading, speed = self.readings.get(run.episode), self._speed(run)
            if reading is None or speed is None or speed.max() < 0.5:
                continue
            runs.append((reading[run.start : run.start + len(run.grey)], run.grey))
            speeds.append(float(np.median(speed[speed > 0.15])) * self.fps)
        what = f"age of {seen.name}"
        found, why = picture_age(runs, self.fps)
        if found is None:
            self.report.untested[what] = why
            return
        age_s, low, high = found.value, found.low, found.high
        size = scaled(found, 1e3)
        self.report.note("age", seen.name, "ms", size, 500 / self.fps)
        if abs(age_s) > AGE_S and min(abs(low), abs(high)) > 0.5 * AGE_S and low * high > 0:
            text = "shows motion later than readings do" if age_s > 0 else "is ahead of readings"
            self.report.add(
                "camera_age", seen.name, f"{seen.name} {text}, by",
                [run.episode for run in seen.runs], len(seen.runs),
                "gaploop identify DIR --output_dir=station  # then calibrate from_twin, which lets "
                "the policy allow for it", abs(age_s) * float(np.median(speeds)),
                unit="ms", size=size, apart="late pictures, or the other column early",
            )  # fmt: skip
        else:
            self.report.good[what] = f"{seen.name} is within {1e3 * abs(age_s):.0f} ms of readings"

    def _gripper(self, seen: CameraLook) -> None:
        """Tell how much more some part of the picture changes as the gripper alone moves."""
        alone, still = list[FloatArray](), list[FloatArray]()
        for run in seen.runs:
            speed, grip = self._speed(run), self.grips.get(run.episode)
            if speed is None or grip is None:
                continue
            part = grip[run.start : run.start + len(run.grey)]
            closing = np.abs(np.diff(part, axis=0)).max(axis=1) * self.fps
            change = np.abs(np.diff(run.grey, axis=0))
            tiles = np.array([cv2.resize(c, TILES, interpolation=cv2.INTER_AREA) for c in change])
            calm = np.convolve(speed * self.fps > ARM_RESTS_DEG_S, np.ones(5), "same") == 0
            shut = np.convolve(closing > GRIP_RESTS_PCT_S, np.ones(5), "same") == 0
            alone.append(tiles[calm & (closing > GRIP_MOVES_PCT_S)])
            still.append(tiles[calm & shut])
        if sum(map(len, alone)) >= GRIP_ROWS and sum(map(len, still)) >= GRIP_ROWS:
            moved, stood = (np.concatenate(x).mean(axis=0) for x in (alone, still))
            self.sees_grip[seen.name] = float(((moved + 0.1) / (stood + 0.1)).max())

    def _light(self, seen: CameraLook, moving: bool) -> None:
        """Tell brightness that hunts, and flicker, by the pixels that stand still."""
        if moving:
            return
        hunts, flickers, hz = dict[int, float](), dict[int, float](), list[float]()
        looked = 0
        for run in seen.runs:
            if len(run.grey) < 30:
                continue
            looked += 1
            usual = np.median(run.grey, axis=0)
            lit = usual > 30
            if lit.sum() < 100:
                continue
            logs = np.log((run.grey[:, lit] + 4) / (usual[lit] + 4))
            gain = np.median(logs, axis=1)
            width = max(3, round(0.2 * self.fps))
            slow = np.convolve(gain, np.ones(width) / width, "valid")
            bends = np.diff(np.sign(np.diff(slow[:: max(1, width)])))
            if np.ptp(slow) > HUNTS and np.count_nonzero(bends) >= 2:
                hunts[run.episode] = 100 * float(np.ptp(slow))
            fast = gain - np.convolve(np.pad(gain, width // 2, "edge"), np.ones(width) / width,
                                      "same")[width // 2 : width // 2 + len(gain)]  # fmt: skip
            power = np.abs(np.fft.rfft(fast * np.hanning(len(fast)))) * 4 / len(fast)
            rates = np.fft.rfftfreq(len(fast), 1 / self.fps)
            high = rates > 0.08 * self.fps
            peak = int(np.argmax(np.where(high, power, 0)))
            if power[peak] > FLICKERS and power[peak] > 6 * np.median(power[high]):
                flickers[run.episode] = 100 * float(power[peak])
                hz.append(float(rates[peak]))
        for kind, found, text, apart, fix in (
            ("exposure", hunts, "goes up and down in a few seconds, by",
             "automatic exposure, changing daylight", "Fix exposure and white balance."),
            ("flicker", flickers, f"flickers {np.median(hz) if hz else 0:.1f} times a second, by",
             "mains light (100 or 120 Hz, aliased), a dimmed lamp",
             "Set the camera's power-line frequency, or an exposure of whole mains periods."),
        ):  # fmt: skip
            if len(found) >= max(2, 0.3 * looked):
                self.report.add(
                    kind, seen.name, f"Brightness of {seen.name} {text}", found, looked, fix,
                    0.2 * float(np.median(list(found.values()))), unit="%", apart=apart,
                )  # fmt: skip

    def _blurred(self, seen: CameraLook) -> None:
        if not seen.blur:
            self.report.untested[f"focus of {seen.name}"] = f"it has fewer than {COARSE} columns"
            return
        size = median_interval(np.array(list(seen.blur.values())))
        wide = {e for e, px in seen.edges_px.items() if px > EDGE_PX}
        found = {e: v for e, v in seen.blur.items() if v > BLURRED and e in wide}
        if 2 * len(found) > len(seen.blur):
            self.report.add(
                "blur", seen.name, f"{seen.name} is out of focus: blur (0 sharp, 1 flat)", found,
                len(seen.blur), "Focus the lens on the table, then record again.", 4.0, size=size,
                apart="a dirty lens, compression",
            )  # fmt: skip

    def _moved(self, seen: CameraLook) -> None:
        """Tell from which episode on what stands still stands elsewhere in the picture."""
        indices = sorted(seen.starts)
        if len(indices) < 6:
            return
        grey = [cv2.GaussianBlur(seen.starts[e].mean(axis=2), (3, 3), 0) for e in indices]
        edges = [(g - cv2.blur(g, (9, 9))).astype(np.float32) for g in grey]
        reference = np.median(edges[: max(3, len(edges) // 4)], axis=0).astype(np.float32)
        still = np.ones(reference.shape, dtype=bool)  # where neither the arm nor objects move
        if seen.runs:
            spread = [np.percentile(run.grey, 90, 0) - np.percentile(run.grey, 10, 0)
                      for run in seen.runs]  # fmt: skip
            still = np.median(spread, axis=0) < STILL
        shifts = np.array([_shift(e, reference, still) for e in edges])
        away = np.hypot(*shifts.T) / THUMB[0]
        first, step, clear = joint_fits.change_point(away)
        there = shifts[first:]
        # A camera that was moved stays where it was put; other things in the picture don't agree.
        strays = float(np.median(np.hypot(*(there - np.median(there, axis=0)).T))) / THUMB[0]
        if step > MOVED and clear > 4 and strays < max(0.01, 0.25 * step):
            after = {indices[k]: float(away[k]) for k in range(first, len(indices))}
            size = median_interval(100 * away[first:])
            self.report.add(
                "moved_camera", seen.name, f"From episode {indices[first]} on, {seen.name} sees "
                "the scene shifted, by", after, len(indices),
                f"Put {seen.name} back: compare with a picture of episode {indices[0]}.",
                2.0 * size.value, unit="% of its width", size=size,
                apart="a camera that was moved, a scene that was",
            )  # fmt: skip

    def _turned(self, seen: CameraLook) -> None:
        """Tell episodes whose first picture is the usual one with red and blue, or sides, changed,
        or is all but white."""
        usual = np.median(list(seen.starts.values()), axis=0)
        found: dict[str, dict[int, float]] = {how: {} for how in TURNED}
        white = dict[int, float]()
        apart = {e: _apart(start, usual) for e, start in seen.starts.items()}
        like_others = max(1.5 * float(np.median([*apart.values()])), STILL / 2)
        for e, start in seen.starts.items():
            for how, undo in TURNED.items() if apart[e] > STILL else ():
                # Light of another colour makes red of blue, too, but not the others' picture.
                if _apart(undo(start), usual) < min(0.6 * apart[e], like_others):
                    found[how][e] = apart[e]
            if (start >= WHITE).mean() > 0.5 > 2 * (usual >= WHITE).mean():
                white[e] = 100 * float((start >= WHITE).mean())
        for how, odd in found.items():
            if odd and 2 * len(odd) < len(seen.starts):
                self.report.add(
                    "turned_camera", seen.name, f"Pictures of {seen.name} {how} in some episodes",
                    list(odd), len(seen.starts), self.report.without(list(odd), self.total), 40.0,
                    worst=max(odd, key=lambda e: odd[e]),
                    apart="a driver's setting, another program"
                    + ", light of another colour" * ("red" in how),
                )  # fmt: skip
        self.report.add(
            "exposure", seen.name, f"Pictures of {seen.name} are washed out in some episodes: "
            "white are", white, len(seen.starts), self.report.without(list(white), self.total),
            30.0, unit="%", apart="exposure or gain set too high, sunlight, a lamp",
        )  # fmt: skip

    def _swapped(self) -> None:
        """Tell episodes in which two cameras' pictures are under each other's names."""
        looks = [s for s in self.looks if len(s.starts) >= 3 and not s.broken]
        for n, a in enumerate(looks):
            for b in looks[n + 1 :]:
                both = sorted(set(a.starts) & set(b.starts))
                if len(both) >= 3 and all(_apart(a.starts[e], b.starts[e]) < SAME for e in both):
                    self.report.add(
                        "swapped_cameras", f"{a.name}, {b.name}", f"{a.name} and {b.name} show the "
                        "same pictures", both, len(both), "Give each camera its own index or path, "
                        "then record again.", 50.0, apart="one camera opened twice, a copy",
                    )  # fmt: skip
                    continue
                usual = [np.median([s.starts[e] for e in both], axis=0) for s in (a, b)]
                if _apart(*usual) < 10.0 * SAME:  # not to be told apart
                    continue
                odd = dict[int, float]()
                for e in both:
                    straight = _apart(a.starts[e], usual[0]) + _apart(b.starts[e], usual[1])
                    crossed = _apart(a.starts[e], usual[1]) + _apart(b.starts[e], usual[0])
                    if crossed < 0.6 * straight:
                        odd[e] = straight - crossed
                if odd and 2 * len(odd) < len(both):
                    listed = f"[{', '.join(map(str, sorted(odd)))}]"
                    fix = f"gaploop edit correct {self.recording.info.root} --episodes='{listed}'"
                    self.report.add(
                        "swapped_cameras", f"{a.name}, {b.name}", f"{a.name} and {b.name} have "
                        "changed places in some episodes", odd, len(both),
                        f"{fix} --swap='[{a.name}, {b.name}]' --yes", 50.0,
                        size=Estimate(len(odd), len(odd), len(odd)),
                    )  # fmt: skip


def _shift(edges: FloatArray, reference: FloatArray, still: NDArray[np.bool_]) -> FloatArray:
    """Return where the reference's still parts lie in a picture, (right, down) [thumb pixels].

    Each tile that has edges and stands still looks for itself; zero where most don't agree on one.
    """
    reach, tile = THUMB[0] // 6, THUMB[0] // 6
    height, width = reference.shape
    found = list[tuple[float, float, float]]()
    texture = float(reference[still].std()) if still.any() else np.inf
    for top in range(0, height - tile + 1, tile // 2):
        for left in range(0, width - tile + 1, tile // 2):
            part = np.s_[top : top + tile, left : left + tile]
            if still[part].mean() < 0.7 or reference[part].std() < 0.5 * texture:
                continue
            y, x = max(0, top - reach), max(0, left - reach)
            around = edges[y : top + tile + reach, x : left + tile + reach]
            match = cv2.matchTemplate(around, reference[part], cv2.TM_CCOEFF_NORMED)
            _, best, _, (right, down) = cv2.minMaxLoc(match)
            if best > 0.5:
                found.append((best, right - (left - x), down - (top - y)))
    # Of a tile that left the picture something else is alike, and less so.
    votes = [place for best, *place in found if best > ALIKE * max(found)[0]]
    if len(votes) < 3:
        return np.zeros(2)
    middle = np.median(votes, axis=0)
    agree = np.hypot(*(np.array(votes) - middle).T) < 2.5
    return np.asarray(middle if agree.mean() > 0.5 else np.zeros(2), dtype=np.float64)


def _apart(a: FloatArray, b: FloatArray) -> float:
    return float(np.abs(a - b).mean())


def moved_beside(reading: FloatArray, pictures: NDArray[np.uint8], fps: float) -> float | None:
    """Return in how much of a picture something moves while the arm stands, the largest share.

    What changes all over, or row by row, is light and a lamp's flicker. None where it never stands.

    Args:
        reading: of all joints [deg], shape (n, n_joints).
        pictures: small ones of the same rows, shape (n, height, width, 3).
    """
    n, most = round(STOOD_S * fps), list[float]()
    if len(reading) <= n:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(reading, n + 1, axis=0)
    for a, b in stretches(np.ptp(windows, axis=2).max(axis=1) < STOOD_DEG):
        stood = pictures[a + n : b + n].astype(np.float64)
        if len(stood) < max(n, 3):  # too short to see anything go by
            continue
        off = stood - np.median(stood, axis=0)
        off -= np.median(off, axis=(1, 2), keepdims=True)
        off -= np.median(off, axis=2, keepdims=True)
        for unlike in (np.abs(off).max(axis=3) > UNLIKE).astype(np.uint8):
            of_each = cv2.connectedComponentsWithStats(unlike)[2][1:, cv2.CC_STAT_AREA]
            most.append(float(of_each.max(initial=0)) / unlike.size)
    return max(most, default=None)


def picture_age(
    runs: Sequence[tuple[FloatArray, FloatArray]], fps: float
) -> tuple[Estimate | None, str]:
    """Return by how much pictures show motion later than readings do [s]; or None, and why.

    How much pictures change is explained by the joints' speeds, each with a weight of its own from
    0 up, at the lag at which these explain most; by one speed for all joints lags came out 0.3 s
    apart between episodes of one camera.

    Args:
        runs: of each episode readings [deg], shape (n, n_joints), and grey pictures of the same
            rows, shape (n, height, width).
        fps: rows a second [Hz].
    """
    lags, smooth = np.arange(-4, round(LAGS_S * fps) + 1), np.ones(3) / 3
    sums = []  # of each episode, over the same rows for all lags: all that least squares need
    for reading, grey in runs:
        rows = np.arange(lags[-1], len(grey) - 1 + lags[0])
        if len(rows) < 10:
            continue
        change = np.abs(np.diff(grey, axis=0)).mean(axis=(1, 2))
        change = np.convolve(np.minimum(change, np.percentile(change, 98)), smooth, "same")[rows]
        speed = [np.convolve(v, smooth, "same") for v in np.abs(np.diff(reading, axis=0)).T]
        known = np.array(
            [np.vstack([np.array(speed)[:, rows - lag], np.ones(len(rows))]) for lag in lags]
        )
        sums.append((known @ known.swapaxes(1, 2), known @ change, change @ change))
    if len(sums) < FEWEST:
        return None, "joints move enough in fewer than five episodes"

    def explained(chosen: Sequence[int]) -> FloatArray:
        products, answers, square = (np.sum([sums[k][n] for k in chosen], 0) for n in range(3))
        total = square - answers[0][-1] ** 2 / products[0][-1, -1]
        shares = []
        for product, answer in zip(products, answers, strict=True):
            root = np.linalg.cholesky(product + 1e-9 * np.trace(product) * np.eye(len(product)))
            aim = np.linalg.solve(root, answer)
            shares.append(1 - (nnls(root.T, aim)[1] ** 2 + square - aim @ aim) / max(total, 1e-9))
        return np.array(shares)

    shares = explained(range(len(sums)))
    if shares.max() < EXPLAINED:
        return None, f"the joints' speeds explain {shares.max():.0%} of the pictures' change only"
    draws = np.random.default_rng(0).integers(0, len(sums), size=(100, len(sums)))
    ages = [_peak(explained(draw), lags) / fps for draw in draws]
    age_s, (low, high) = _peak(shares, lags) / fps, np.percentile(ages, [2.5, 97.5])
    if high - low > max(AGE_S, 0.5 * abs(age_s)):
        return None, f"episodes differ, between {1e3 * low:.0f} and {1e3 * high:.0f} ms"
    return Estimate(age_s, float(min(low, age_s)), float(max(high, age_s))), ""


def _peak(curve: FloatArray, lags: NDArray[np.int_]) -> float:
    k = int(curve.argmax())
    if 0 < k < len(curve) - 1:
        return joint_fits.vertex(lags[k - 1 : k + 2].astype(float), -curve[k - 1 : k + 2])
    return float(lags[k])
