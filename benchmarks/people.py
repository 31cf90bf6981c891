"""`benchmarks people`: whom OpenCV's detectors miss, on pictures in which somebody marked people.

`--data` is a folder in YOLO's layout: images/*.jpg, and labels/*.txt with a line for each object,
class 0 a person, such as COCO's. Somebody counts as found where the centre of a box lies in theirs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.datasets.people import Box, people_detector

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

HEIGHTS: Final = {"half of the picture or more": 0.5, "a quarter to half": 0.25, "less": 0.0}
"""Least height of a person, as a share of the picture's."""


def measure(config: BenchConfig, _folder: Path) -> dict[str, Any]:
    """Look for the people in up to `--n` pictures."""
    root, detector = config.data or Path(), people_detector("true")
    pictures = sorted((root / "images").glob("*.jpg"))[: config.n or None]
    if not pictures or detector is None:
        raise UnusableInputError(f"{root}/images holds no *.jpg. Name a folder with --data=DIR.")
    people = {name: [0, 0] for name in HEIGHTS}  # found, there
    with_people, without, looked_s = [0, 0], [0, 0], 0.0
    for path in pictures:
        picture = np.ascontiguousarray(np.asarray(cv2.imread(str(path)))[:, :, ::-1])
        marked = _marked(root / "labels" / f"{path.stem}.txt", *picture.shape[:2])
        began_s = time.process_time()
        found = detector.find(picture)
        looked_s += time.process_time() - began_s
        hits = [any(_holds(box, other) for other in found) for box in marked]
        for (_, _, _, height), hit in zip(marked, hits, strict=True):
            name = next(n for n, least in HEIGHTS.items() if height >= least * picture.shape[0])
            people[name][0] += hit
            people[name][1] += 1
        of = with_people if marked else without
        of[0] += any(hits) if marked else bool(found)
        of[1] += 1
    return {
        "detector": detector.name,
        "people": people,
        "pictures_with_people": with_people,
        "pictures_without": without,
        "processor_s_each": looked_s / len(pictures),
    }


def _marked(path: Path, height: int, width: int) -> list[Box]:
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [[float(word) for word in line.split()] for line in lines if line.strip()]
    return [
        (int((x - w / 2) * width), int((y - h / 2) * height), int(w * width), int(h * height))
        for kind, x, y, w, h in (row[:5] for row in rows)
        if kind == 0
    ]


def _holds(box: Box, other: Box) -> bool:
    x, y = other[0] + other[2] / 2, other[1] + other[3] / 2
    return box[0] <= x <= box[0] + box[2] and box[1] <= y <= box[1] + box[3]


def table(result: Mapping[str, Any]) -> str:
    """Return the figures in lines."""

    def share(pair: list[int]) -> str:
        return f"{pair[0]} of {pair[1]}" + (f" ({pair[0] / pair[1]:.0%})" if pair[1] else "")

    return "\n".join([
        f"{result['detector']}: {result['processor_s_each']:.2f} s of a core for a picture.",
        *(f"People {name} high: found {share(pair)}." for name, pair in result["people"].items()),
        f"Pictures with people: somebody found in {share(result['pictures_with_people'])}.",
        f"Pictures without: something found in {share(result['pictures_without'])}.",
    ])  # fmt: skip
