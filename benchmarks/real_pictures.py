"""The camera check on real pictures: what it says of unaltered takes, and of altered ones.

`--data` holds LeRobot v3 datasets; nothing of them is kept. The first half of a dataset's episodes
is the reference, the second is judged: as it is, and altered (`--n` of them, 14 alterations of 3
strengths; none with `--quick`; swapped cameras are apart). Folders of single pictures, one for each
light, tell what real light does. Each dataset's outcomes are made up, too, and `diagnose` typed.
What a run before left in `--output_dir` isn't run again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np

from benchmarks.bench import BenchConfig
from benchmarks.real_said import cases, said_of
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_json
from gaploop.core.messages import Image
from gaploop.core.statistics import rate
from gaploop.core.take import Take
from gaploop.datasets.layout import is_dataset
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.camera_check import CameraCheck, KnownCamera, YesNo
from gaploop.failure_analysis.views.pictures import CameraSamples, reduced, sample
from gaploop.failure_analysis.views.pictures import measure as measured

log = logging.getLogger(__name__)
BLACK: Final = 8.0
"""Mean grey below which a whole take is black: it was never a picture."""


ALTERED: Final = 3
"""Takes of each dataset that are altered, unless `--n` says otherwise."""


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
    "cover [share]": ("cover", (0.03, 0.08, 0.2), lambda p, _, s: _covered(p, s)),
}  # fmt: skip
"""Name and unit to the question that it is about, its strengths and itself; swapped is apart."""
BESIDE: Final[dict[str, frozenset[str]]] = {"local_light": frozenset({"exposure"})}
"""What an alteration does besides: no false finding. Half of a picture is brighter."""


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
        sets.append(_once(kept, partial(_dataset, root, altered)))
    return {"sets": [s for s in sets if s["cameras"]], "lights": lights, "said": said}


def _once(kept: Path | None, work: Callable[[], Any]) -> Any:
    """Return what a run before left in a file, if one is named, else do the work and keep it."""
    if kept is None:
        return work()
    if not kept.is_file():
        write_json(kept, work())
    return read_json(kept)


def _dataset(root: Path, altered_takes: int) -> dict[str, Any]:
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
    for name, camera in check.cameras.items():
        own = [[a for a in answers if a.camera == name] for answers in told]
        wrong = [
            [a.question for a in answers if a.answer is YesNo.YES] for answers in own if answers
        ]
        altered = {}
        for about, (question, strengths, change) in ALTERATIONS.items():
            rows = []
            for strength in strengths:
                found = unknown = false = n = 0
                for take in takes[half : half + altered_takes]:

                    def alter(
                        picture: Image, row: int, c: Alteration = change, s: float = strength
                    ) -> Image:
                        return c(picture, row, s)

                    seen = looked_at(take, name, alter=alter)
                    if name not in seen:
                        continue
                    answers = camera.judge(seen[name])
                    yes = {a.question for a in answers if a.answer is YesNo.YES}
                    n += 1
                    found += question in yes
                    unknown += any(
                        a.question == question and a.answer is YesNo.UNKNOWN for a in answers
                    )
                    false += bool(yes - {question} - BESIDE.get(question, frozenset()))
                log.debug("%s %s %g: %d of %d", name, about, strength, found, n)
                rows.append({"strength": strength, "n": n, "found": found, "unknown": unknown,
                             "false": false})  # fmt: skip
            altered[about] = rows
        result["cameras"][name] = {
            "kind": camera.kind.value, "judged": len(wrong), "accused": sum(map(bool, wrong)),
            "questions": dict(Counter(q for w in wrong for q in w)), "altered": altered,
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
        })  # fmt: skip
    return result


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
                a.question for s in others for a in known.judge(s) if a.answer is YesNo.YES
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
            f"{s['false']} of {s['n']}."
            for s in data["swapped"]
        ]
    columns = [(d, name) for d in result["sets"] for name in d["cameras"]]
    lines += ["", "| alteration | " + " | ".join(f"{d['name']}, {n}" for d, n in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for about, (_, strengths, _) in ALTERATIONS.items():
        for k, strength in enumerate(strengths):
            cells = []
            for data, name in columns:
                rows = data["cameras"][name]["altered"][about]
                if k >= len(rows):
                    continue
                row = rows[k]
                cells.append(f"{row['found']}/{row['n']}, ? {row['unknown']}, false {row['false']}")
            if cells:
                lines.append(f"| {about} {strength:g} | " + " | ".join(cells) + " |")
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
