"""The camera check on real pictures: what it says of unaltered takes, and of altered ones.

`--data` holds LeRobot v3 datasets; nothing of them is kept. The first half of a dataset's episodes
is the reference, the second is judged: as it is, and altered (`--n` of them, 16 alterations of 3
strengths, and whole pictures mirrored and the like; none with `--quick`; swapped cameras are
apart). What an alteration costs is told by a small ACT trained on the reference, by its action
error open loop on the pictures that the check saw, and by `base_vision` in the cell, before the
photos of the folder `photos`, if there is one. Folders of single pictures, one for each light, tell
what real light does. Each dataset's outcomes are made up, too, and `diagnose` typed. What a run
before left in `--output_dir` isn't run again.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np

from benchmarks.bench import BenchConfig
from benchmarks.real_said import cases, said_of
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import FloatArray, Image, Observation
from gaploop.core.statistics import rate
from gaploop.core.take import Take
from gaploop.datasets.layout import is_dataset
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.cameras.camera_check import CameraCheck, YesNo, judge
from gaploop.failure_analysis.cameras.known_camera import KnownCamera
from gaploop.failure_analysis.views.camera_samples import PLACES, CameraSamples, reduced, sample
from gaploop.failure_analysis.views.camera_samples import measure as measured

log = logging.getLogger(__name__)
BLACK: Final = 8.0
"""Mean grey below which a whole take is black: it was never a picture."""


ALTERED: Final = 3
"""Takes of each dataset that are altered, unless `--n` says otherwise."""
ACT_STEPS: Final = 1000
SCENES: Final = 10
"""Scenes that `base_vision` is tried on at each strength."""


def _pixels(picture: Image) -> Any:
    return picture.astype(np.float32)


def _done(values: Any) -> Image:
    return np.asarray(np.clip(values, 0, 255), dtype=np.uint8)


def _gained(picture: Image, stops: float) -> Image:
    """Return a picture as another exposure gives it: linear light times 2^stops (gamma 2.2)."""
    light = (_pixels(picture) / 255.0) ** 2.2 * 2.0**stops
    return _done(255.0 * np.minimum(light, 1.0) ** (1 / 2.2))


def _warped(picture: Image, right: float = 0.0, turn_deg: float = 0.0, scale: float = 1.0) -> Image:
    h, w = picture.shape[:2]
    matrix = cv2.getRotationMatrix2D((0.5 * (w - 1), 0.5 * (h - 1)), turn_deg, scale)
    matrix[0, 2] += right * w
    return np.asarray(cv2.warpAffine(picture, matrix, (w, h), borderMode=cv2.BORDER_REFLECT))


def _shade(picture: Image, stops: float) -> Image:
    w = picture.shape[1]
    across = 1.0 / (1.0 + np.exp(-(np.arange(w) / w - 0.5) * 12.0))
    gain = 2.0 ** (stops * across / 2.2)
    return _done(_pixels(picture) * gain[None, :, None])


def _vignette(picture: Image, loss: float) -> Image:
    h, w = picture.shape[:2]
    y, x = np.mgrid[-1 : 1 : h * 1j, -1 : 1 : w * 1j]
    return _done(_pixels(picture) * (1.0 - loss * (x**2 + y**2) / 2.0)[..., None])


def _covered(picture: Image, share: float) -> Image:
    h, w = picture.shape[:2]
    side = share**0.5
    top, left = int(0.12 * h), int(0.15 * w)
    out = picture.copy()
    out[top : top + int(side * h), left : left + int(side * w)] = (60, 55, 50)
    return out


def _noisy(picture: Image, sigma: float, row: int) -> Image:
    rng = np.random.default_rng(row)
    return _done(_pixels(picture) + rng.normal(0, sigma, picture.shape))


def _dirty(picture: Image, share: float) -> Image:
    """Return a picture through specks on the lens, out of focus, over a share of it."""
    h, w = picture.shape[:2]
    rng, specks = np.random.default_rng(7), np.zeros((h, w), dtype=np.float32)
    radius = int(max(2, w * (share / 12 / np.pi) ** 0.5))
    for x, y in rng.uniform(0.05, 0.95, (12, 2)):
        cv2.circle(specks, (int(x * w), int(y * h)), radius, 1.0, -1)
    over = np.asarray(cv2.GaussianBlur(specks, (0, 0), 0.4 * radius))[..., None]
    soft = cv2.GaussianBlur(picture, (0, 0), 2.0 * radius).astype(np.float32)
    return _done(_pixels(picture) * (1 - 0.7 * over) + 0.7 * over * (0.5 * soft + 40))


def _through(picture: Image, bend: float) -> Image:
    """Return a picture as a lens has it whose edges lie farther in (barrel, k1 = -bend)."""
    h, w = picture.shape[:2]
    y, x = np.mgrid[-1 : 1 : h * 1j, -1 : 1 : w * 1j] * 0.5 * np.array([h, w])[:, None, None]
    far = 1.0 + bend * (x**2 + y**2) / (0.25 * (h**2 + w**2))
    u, v = (x * far + 0.5 * (w - 1)), (y * far + 0.5 * (h - 1))
    u, v = u.astype(np.float32), v.astype(np.float32)
    return np.asarray(cv2.remap(picture, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT))


type Alteration = Callable[[Image, int, float], Image]
ALTERATIONS: Final[dict[str, tuple[str, tuple[float, float, float], Alteration]]] = {
    "brighter [stops]": ("exposure", (0.5, 1.0, 1.5), lambda p, _, s: _gained(p, s)),
    "darker [stops]": ("exposure", (0.5, 1.0, 1.5), lambda p, _, s: _gained(p, -s)),
    "warmer [share]": (
        "white_balance", (0.1, 0.25, 0.4),
        lambda p, _, s: _done(_pixels(p) * np.array([1 + s / 2, 1, 1 - s / 2])),
    ),
    "cooler [share]": (
        "white_balance", (0.1, 0.25, 0.4),
        lambda p, _, s: _done(_pixels(p) * np.array([1 - s / 2, 1, 1 + s / 2])),
    ),
    "haze [share]": (
        "haze", (0.1, 0.25, 0.4), lambda p, _, s: _done(_pixels(p) * (1 - s) + 200 * s)
    ),
    "vignette [loss]": ("vignette", (0.3, 0.5, 0.7), lambda p, _, s: _vignette(p, s)),
    "side light [stops]": ("local_light", (0.5, 1.0, 2.0), lambda p, _, s: _shade(p, s)),
    "flicker [share]": (
        "flicker", (0.03, 0.08, 0.2), lambda p, r, s: _done(_pixels(p) * (1 + s * np.sin(2.1 * r)))
    ),
    "blur [px of 640]": (
        "sharpness", (1.0, 2.0, 3.0),
        lambda p, _, s: np.asarray(cv2.GaussianBlur(p, (0, 0), s * p.shape[1] / 640)),
    ),
    "noise [levels]": ("noise", (4.0, 8.0, 16.0), lambda p, r, s: _noisy(p, s, r)),
    "moved [share of width]": ("moved", (0.03, 0.05, 0.08), lambda p, _, s: _warped(p, right=s)),
    "turned [deg]": ("moved", (1.5, 3.0, 6.0), lambda p, _, s: _warped(p, turn_deg=s)),
    "cropped [share]": ("crop", (0.03, 0.08, 0.15), lambda p, _, s: _warped(p, scale=1 / (1 - s))),
    "lens [barrel]": ("crop", (0.03, 0.08, 0.2), lambda p, _, s: _through(p, s)),
    "cover [share]": ("cover", (0.03, 0.08, 0.2), lambda p, _, s: _covered(p, s)),
    "dirt [share]": ("cover", (0.03, 0.08, 0.2), lambda p, _, s: _dirty(p, s)),
}  # fmt: skip
"""Name and unit to the question that it is about, its strengths and itself; swapped is apart."""
WHOLE: Final[dict[str, tuple[str, Callable[[Image], Image]]]] = {
    "mirrored left to right": ("turned", lambda p: p[:, ::-1]),
    "mirrored top to bottom": ("turned", lambda p: p[::-1]),
    "turned by 180°": ("turned", lambda p: p[::-1, ::-1]),
    "turned by 90°": ("turned", np.rot90),
    "turned by 90°, pressed": (
        "turned", lambda p: np.asarray(cv2.resize(np.rot90(p), p.shape[1::-1]), np.uint8)
    ),
    "red and blue swapped": ("colour_order", lambda p: p[..., ::-1]),
    "grey": ("colourless", lambda p: p.mean(axis=-1, keepdims=True).repeat(3, -1).astype(np.uint8)),
    "black": ("black", np.zeros_like),
    "frozen": ("frozen", lambda p: p),
}  # fmt: skip
"""What is done to whole pictures, and the question that it is about."""
BESIDE: Final = dict.fromkeys(("local_light", "vignette", "haze"), frozenset({"exposure"}))
"""What a change does besides, which is no false finding: a picture is brighter or darker by it."""


def looked_at(take: Take, camera: str | None = None, **how: Any) -> dict[str, CameraSamples]:
    """Return a take's cameras, or one, sampled."""
    names = [camera] if camera else list(take.cameras)
    found = {name: sample(take, name, **how) for name in names}
    return {name: s for name, s in found.items() if s is not None and s.pictures.mean() > BLACK}


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Judge takes of every dataset in the folder, pictures by light, and what commands say."""
    if config.data is None:
        raise UnusableInputError("Which pictures? Name a folder of datasets: --data=FOLDER")
    cv2.setNumThreads(1)
    roots = sorted(p.parent.parent for p in config.data.glob("*/meta/info.json"))
    roots = [root for root in roots if is_dataset(root)]
    altered = 0 if config.quick else config.n or ALTERED
    lights = [_lights(p) for p in sorted(config.data.iterdir()) if _by_light(p)]
    said, sets = list[dict[str, Any]](), list[dict[str, Any]]()
    for root in roots:
        kept = config.output_dir and config.output_dir / f"{root.name}_said.json"
        said += _once(kept, partial(said_of, root, folder))
        kept = config.output_dir and config.output_dir / f"{root.name}_{altered}.json"
        sets.append(_once(kept, partial(_dataset, root, altered, folder / f"{root.name}_act")))
    cell, photos, n = dict[str, list[int]](), config.data / "photos", SCENES if altered else 0
    for about in ("", *ALTERATIONS) if n else ():
        name = (about or "plain").split(" [")[0].replace(" ", "_")
        kept = config.output_dir and config.output_dir / f"cell_{name}_{n}.json"
        cell[about] = _once(kept, partial(_in_cell, about, photos, n))
    return {
        "sets": [s for s in sets if s["cameras"]], "lights": lights, "said": said,
        "cell": {"n": n, "won": cell},
    }  # fmt: skip


def _once(kept: Path | None, work: Callable[[], Any]) -> Any:
    """Return what a run before left in a file, if one is named, else do the work and keep it."""
    if kept is None:
        return work()
    if not kept.is_file():
        write_json(kept, work())
    return read_json(kept)


def _dataset(root: Path, altered_takes: int, act: Path) -> dict[str, Any]:
    takes = list(load_takes(root))
    began = time.process_time()
    looks = [looked_at(take) for take in takes]
    if not any(looks):
        return {"name": root.name, "cameras": {}}
    each_s = (time.process_time() - began) / len(takes)
    half = len(takes) // 2
    began = time.process_time()
    check = CameraCheck(looks[:half])
    result: dict[str, Any] = {"name": root.name, "reference": half, "cameras": {}, "swapped": []}
    told = [check.judge(look) for look in looks[half:]]
    result["s_per_take"] = each_s + (time.process_time() - began) / len(takes)
    later = zip(takes[half:], looks[half:], strict=True)
    judged = [(t, look) for t, look in later if len(look) == len(t.cameras)][:altered_takes]
    policy = SmallAct.trained(root, takes[:half], act) if judged else None

    plain = sum(policy.error(take, look) for take, look in judged) if policy else 0.0

    def cost(altered: Sequence[Mapping[str, CameraSamples]]) -> float | None:
        """Return the action error with these pictures instead of each take's, to that without."""
        pairs = zip(judged, altered, strict=True)
        errors = [policy.error(t, {**look, **shown}) for (t, look), shown in pairs if policy]
        return sum(errors) / plain if errors else None

    for name, camera in check.cameras.items():
        own = [[a for a in answers if a.camera == name] for answers in told]
        wrong = [
            [a.question for a in answers if a.answer is YesNo.YES] for answers in own if answers
        ]
        held, altered = [_decoded(take, name) for take, _ in judged], {}
        for about, (question, strengths, change) in ALTERATIONS.items():
            rows = []
            for s in strengths:
                seen = [sample(take, name, partial(_altered, change, s)) for take in held]
                shown = [samples for samples in seen if samples is not None]
                answers = [judge(camera, samples) for samples in shown]
                yes = [{a.question for a in told if a.answer is YesNo.YES} for told in answers]
                beside = Counter(
                    q for told in yes for q in told - {question} - BESIDE.get(question, frozenset())
                )
                unknown = sum(
                    (a.question, a.answer) == (question, YesNo.UNKNOWN) for t in answers for a in t
                )
                rows.append({
                    "strength": s, "n": len(shown), "found": sum(question in q for q in yes),
                    "unknown": unknown, "beside": dict(beside),
                    "error": cost([{name: samples} for samples in shown]),
                })  # fmt: skip
            altered[about] = rows
            log.debug("%s %s %s", name, about, rows)
        whole = {about: _whole(check, held, name, about) for about in WHOLE if held}
        black = [
            {name: replace(look[name], pictures=0 * look[name].pictures)} for _, look in judged
        ]
        result["cameras"][name] = {
            "kind": camera.kind.value, "judged": len(wrong), "accused": sum(map(bool, wrong)),
            "questions": dict(Counter(q for w in wrong for q in w)), "altered": altered,
            "whole": whole, "black": cost(black),
        }  # fmt: skip
    names = sorted(check.cameras)
    for one, other in zip(names[::2], names[1::2], strict=False):
        pairs = [look for look in looks[half:] if one in look and other in look]
        crossed = [check.judge({**p, one: p[other], other: p[one]}) for p in pairs]
        straight = [check.judge(p) for p in pairs]
        result["swapped"].append({
            "cameras": [one, other], "n": len(pairs),
            "found": sum(_says_swapped(a) for a in crossed),
            "false": sum(_says_swapped(a) for a in straight),
            "error": cost([{one: look[other], other: look[one]} for _, look in judged]),
        })  # fmt: skip
    return result


def _whole(
    check: CameraCheck, takes: Sequence[Take], camera: str, about: str
) -> tuple[int, int, int]:
    """Return in how many takes' whole pictures it is told, of how many, and what is told beside."""
    question, change = WHOLE[about]
    found, beside = 0, 0
    for take in takes:
        kept = list[Image]()

        def done(picture: Image, _: int, kept: list[Image] = kept) -> Image:
            kept.append(picture)
            return np.ascontiguousarray(change(kept[0 if question == "frozen" else -1]), np.uint8)

        shown = sample(take, camera, done)
        said = check.judge({camera: shown}) if shown is not None else []
        yes = {a.question for a in said if a.answer is YesNo.YES} - {"size"}
        found += question in yes
        beside += len(yes - {question})
    return found, len(takes), beside


def _altered(change: Alteration, strength: float, picture: Image, row: int) -> Image:
    return change(picture, row, strength)


def _decoded(take: Take, camera: str) -> Take:
    """Return a take whose pictures, as far as they are sampled, are decoded once for all."""
    kept = dict[int, Image]()
    sample(take, camera, lambda picture, row: kept.setdefault(row, picture))
    n = len(take.frames)
    images: Any = lambda: (kept.get(row) for row in range(n))  # noqa: E731
    return replace(take, cameras={camera: images})


@dataclass(frozen=True)
class SmallAct:
    """A small ACT that learned from the reference's pictures, as small as the check keeps them.

    Attributes:
        ask: it, asked open loop.
        stride: rows of a take to a step of its plans.
        spread: of each entry of the commands: the unit of its errors.
    """

    ask: Any
    stride: int
    spread: FloatArray

    @classmethod
    def trained(cls, root: Path, takes: Sequence[Take], folder: Path) -> SmallAct:
        """Train it on takes of a dataset, unless a run before did."""
        from benchmarks.checkpoint import FPS, MadeEpisode, add_thin_backbone, train
        from gaploop.finetune.lerobot_open_loop import LerobotAsk

        add_thin_backbone()
        stride = max(1, round(takes[0].info.fps / FPS + 0.25))
        if not (folder / "train_config.json").exists():
            episodes = [
                MadeEpisode(
                    take.frames.action[::stride], take.frames.state[::stride],
                    {
                        name: np.stack([reduced(p) for p in islice(shown(), 0, None, stride)])
                        for name, shown in take.cameras.items()
                    },
                    take.info.task,
                )
                for take in takes if len(looked_at(take)) == len(take.cameras)
            ]  # fmt: skip
            train("act", root, episodes, folder, 0, ACT_STEPS)
        spread = np.concatenate([take.frames.action for take in takes]).std(axis=0)
        return cls(LerobotAsk(folder), stride, np.maximum(spread, 1e-6))

    def error(self, take: Take, look: Mapping[str, CameraSamples]) -> float:
        """Return the mean error of its plans at what is sampled of a take [spreads of commands]."""
        n = len(take.frames)
        rows = np.unique(np.linspace(0, n - 2, PLACES).astype(int))
        pictures = {f"observation.images.{name}": s.pictures[:, None] for name, s in look.items()}
        plans = self.ask(
            take.frames.state[rows][:, None], pictures, None, [take.info.task] * len(rows)
        )
        ahead = rows[:, None] + self.stride * np.arange(plans.shape[1])
        wanted = take.frames.action[np.minimum(ahead, n - 1)]
        return float((np.abs(plans - wanted) / self.spread)[ahead < n].mean())


def _in_cell(about: str, photos: Path, n: int) -> list[int]:
    """Return in how many of n scenes `base_vision` succeeds through each strength; sim-to-sim.

    `about` is an alteration; "" leaves pictures as they are.
    """
    from gaploop.finetune.evaluate import CellSpec, rig_of, roll_out, unhurried

    spec = CellSpec()
    policy, won = spec.load("base_vision"), list[int]()
    plan, (_, strengths, change) = policy.plan, ALTERATIONS.get(about, ("", (0.0,), None))
    condition = {"backdrop": str(photos)} if photos.is_dir() else {}
    rig = unhurried(rig_of(spec, condition, policy.fps))
    try:
        for strength in strengths:
            rows = itertools.count()

            def seen(observation: Observation, s: float = strength, rows: Any = rows) -> FloatArray:
                row, images = next(rows), observation.images
                if change is not None:
                    images = {k: change(np.array(p), row, s) for k, p in images.items()}
                return plan(replace(observation, images=images))

            policy.plan = seen  # type: ignore[method-assign]
            rolled = roll_out(rig, policy, range(n), "", spec.max_s)
            won.append(sum(rollout.success for rollout in rolled))
    finally:
        rig.close()
    return won


def _says_swapped(answers: list[Any]) -> bool:
    return any(a.question == "swapped" and a.answer is YesNo.YES for a in answers)


def _by_light(path: Path) -> bool:
    """Say whether a folder holds folders of pictures `…cam_<n>_….jpg`."""
    return path.is_dir() and any(path.glob("*/*cam_*_*.jpg"))


def _unmoving(picture: Image) -> CameraSamples:
    """Return samples of a picture that no joints and no next picture are known of."""
    told, size = measured(picture), picture.shape[:2]
    return CameraSamples(
        (int(size[0]), int(size[1])),
        reduced(picture)[None],
        np.zeros((1, 1)),
        False,
        {name: np.array([value]) for name, value in told.items()},
        np.full(1, np.nan),
        np.zeros((1, 1)),
        np.full((1, 2), np.nan),
    )


def _lights(path: Path) -> dict[str, Any]:
    """Judge each light's pictures by those of another light, camera by camera, each a take."""
    cells = dict[str, dict[str, list[CameraSamples]]]()
    for file in sorted(path.glob("*/*cam_*_*.jpg")):
        camera = file.name.split("cam_")[1].split("_")[0]
        read: Any = cv2.imread(str(file))
        picture = np.asarray(cv2.cvtColor(read, cv2.COLOR_BGR2RGB), dtype=np.uint8)
        cells.setdefault(camera, {}).setdefault(file.parent.name, []).append(_unmoving(picture))
    rows = []
    for camera, lights in cells.items():
        for light, reference in lights.items():
            others = [s for name, shown in lights.items() if name != light for s in shown]
            known = KnownCamera(camera, reference)
            yes = Counter(
                a.question for s in others for a in judge(known, s) if a.answer is YesNo.YES
            )
            rows.append({"camera": camera, "light": light, "reference": len(reference),
                         "judged": len(others), "yes": dict(yes)})  # fmt: skip
    return {"name": path.name, "rows": rows}


def table(result: dict[str, Any]) -> str:
    """Return the tables in Markdown, the cases that once misled first."""
    lines = [*cases(result), ""]
    lines += ["| set, camera | kind | unaltered takes accused | of what |", "|---|---|---|---|"]
    for data in result["sets"]:
        for name, camera in data["cameras"].items():
            told = ", ".join(f"{q} {n}" for q, n in camera["questions"].items()) or "–"
            share = rate(camera["accused"], camera["judged"])
            lines.append(
                f"| {data['name']}, {name} | {camera['kind']} | {camera['accused']} of "
                f"{camera['judged']} [{share.low:.0%}, {share.high:.0%}] | {told} |"
            )
    lines.append("")
    for data in result["sets"]:
        lines.append(
            f"{data['name']}: {data['reference']} reference takes, {data['s_per_take']:.2f} s of "
            "processor time a take, all cameras."
        )
        lines += [
            f"Swapped {' and '.join(s['cameras'])}: found {s['found']} of {s['n']}, false "
            f"{s['false']} of {s['n']}; action error {_more(s['error'])}."
            for s in data["swapped"]
        ]
    columns = {
        f"{d['name']}, {name}": c for d in result["sets"] for name, c in d["cameras"].items()
    }
    cell = result["cell"]
    head = ["alteration, weakest to strongest", *columns, f"base_vision, of {cell['n']}", "beside"]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for about, (_, strengths, _) in ALTERATIONS.items():
        rows = {name: camera["altered"][about] for name, camera in columns.items()}
        shown = [
            f"{_found(cells)}; {', '.join(_more(cell['error']) for cell in cells)}"
            for cells in rows.values()
        ]
        beside = Counter[str]()
        for cells in rows.values():
            for row in cells:
                beside.update(row["beside"])
        shown += [", ".join(map(str, cell["won"].get(about, ()))) or "–"]
        shown += [", ".join(f"{q} {n}" for q, n in beside.items()) or "–"]
        unit = about.partition("[")[2].rstrip("]")
        name = f"{about.partition(' [')[0]} {', '.join(f'{x:g}' for x in strengths)} {unit}"
        lines.append(f"| {name} | {' | '.join(shown)} |")
    black = [_more(camera["black"]) for camera in columns.values()]
    plain = ", ".join(map(str, cell["won"].get("", ()))) or "–"
    lines.append(f"| all black | {' | '.join(black)} | unaltered {plain} | |")
    lines += ["", f"| whole pictures | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for about in WHOLE:
        done = [camera["whole"].get(about, (0, 0, 0)) for camera in columns.values()]
        shown = [f"{k} of {n}{f', {b} beside' * bool(b)}" if n else "–" for k, n, b in done]
        lines.append(f"| {about} | {' | '.join(shown)} |")
    for data in result["lights"]:
        lines += ["", f"| {data['name']}: camera, light of the reference | n | answered yes |"]
        lines.append("|---|---|---|")
        for row in data["rows"]:
            said = ", ".join(f"{q} {n}" for q, n in row["yes"].items()) or "–"
            lines.append(
                f"| {row['camera']}, {row['light']} ({row['reference']}) | {row['judged']} | "
                f"{said} |"
            )
    return "\n".join(lines)


def _found(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return in how many takes each strength is found; "?": can't be told, "!": denied."""
    return ", ".join(
        f"{c['found']}{'!' * (c['found'] + c['unknown'] < c['n'])}{'?' * bool(c['unknown'])}"
        for c in cells
    )


def _more(error: float | None) -> str:
    """Return a ratio of action errors as what it is more."""
    return "–" if error is None or not np.isfinite(error) else f"{error - 1:+.0%}"
