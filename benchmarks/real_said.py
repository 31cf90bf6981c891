"""What `gaploop diagnose`, as typed, says of real episodes nothing is known to be wrong with.

Each line is a case in which it once named causes with confidence. Outcomes are made up by
`gaploop label`, so that whatever is named is named falsely.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.core.take import Take
from gaploop.datasets.layout import read_info
from gaploop.datasets.lerobot_read import load_takes
from gaploop.failure_analysis.views.camera_samples import sample
from gaploop.scripts.cli import main

ALONE: Final = 10
"""Episodes called failures, none a success."""
DEALT: Final = 12
"""Episodes called failures, then the other ones."""
LIGHT: Final = frozenset(
    {"exposure", "white_balance", "haze", "vignette", "local_light", "flicker"}
)
"""Questions about a camera that another light may answer by yes."""
MADE_UP: Final = {
    f"{ALONE} called failures": "10 of 10 environmental complexity",
    f"{DEALT} called failures, the next": "12 of 12 obstruction",
    f"those successes, the next {DEALT} failures": "12 of 12 obstruction",
    "joints only": "25 of 25 a mode",
    "of the first 6": "3 with a clear cause",
}
"""What is tried with made-up outcomes, and what was said of it when the check was asked for."""
UNALTERED: Final = "unaltered later takes", "head 3 of 3, wrist 2 of 6, fixed 0 of 3 accused"
REAL_LIGHT: Final = "real change of light, same desk", "cover 8, dirt 3, light 3 of 9"
ALTERED: Final = {
    "white balance ±25 %": ("mostly silent", (("warmer [share]", 1), ("cooler [share]", 1))),
    "±½ stop": ("mostly silent", (("brighter [stops]", 0), ("darker [stops]", 0))),
    "blur σ 1 px": ("mostly silent", (("blur [px of 640]", 0),)),
    "blur σ 3 px": ("unseen on a fixed camera", (("blur [px of 640]", 2),)),
    "vignette": ("mostly silent", tuple(("vignette [loss]", k) for k in range(3))),
    "moved 3 %, 8 %, 3°, crop": (
        "fixed 12 of 12, wrist and head 0 of 24",
        (("moved [share of width]", 0), ("moved [share of width]", 2), ("turned [deg]", 1),
         ("cropped [share]", 1)),
    ),
}  # fmt: skip
"""Alterations and which of their strengths, likewise."""
SMALL: Final = 6
TWO_SIDED: Final = 3
"""Draws of three failures and three successes of six episodes."""
WORTH: Final = 0.03
"""Share of a picture's width by which another measure must find it elsewhere, too."""


def said_of(root: Path, folder: Path) -> list[dict[str, Any]]:
    """Return what is said of one LeRobot v3 dataset: what was tried, named, and by which command.

    Raises:
        UnusableInputError: a command failed; with what it said.
    """
    n = read_info(root).total_episodes
    every, half = range(n), range(DEALT, 2 * DEALT)
    cases: list[tuple[str, Sequence[int], Sequence[int], Sequence[str]]] = [
        (f"all {n} called failures, joints only", every, (), ("--pictures=false",))
    ]
    if n >= ALONE:
        cases.append((f"{ALONE} called failures", every[:ALONE], (), ()))
    if n >= 2 * DEALT:
        cases.append((f"{DEALT} called failures, the next successes", every[:DEALT], half, ()))
        cases.append((f"those successes, the next {DEALT} failures", half, every[:DEALT], ()))
    if n >= SMALL:
        ways = list(itertools.combinations(range(SMALL), SMALL // 2))
        for failed in ways[:: len(ways) // TWO_SIDED][:TWO_SIDED]:
            words = f"of the first {SMALL}, {', '.join(map(str, failed))} called failures"
            cases.append((words, failed, [e for e in range(SMALL) if e not in failed], ()))
    with tempfile.TemporaryDirectory(dir=folder) as here:
        copy = Path(shutil.copytree(root, Path(here, root.name)))
        return [
            {"set": root.name, "tried": tried, **_told(copy, n, failed, well, more)}
            for tried, failed, well, more in cases
        ]


def _told(
    copy: Path, n: int, failed: Sequence[int], went_well: Sequence[int], more: Sequence[str]
) -> dict[str, Any]:
    """Label a copy of a dataset, diagnose it, and return what that named."""
    others = [e for e in range(n) if e not in failed and e not in went_well]
    for outcome, episodes in (
        ("failure", failed), ("success", went_well), ("unlabelled", others)
    ):  # fmt: skip
        if episodes:
            chosen = f"--episodes={list(episodes)}"
            _typed("label", copy, chosen, f"--outcome={outcome}", "--author=made up")
    to = copy.with_name(f"{copy.name}_diagnosis")
    shutil.rmtree(to, ignore_errors=True)
    command = ["diagnose", copy, *more, f"--output_dir={to}"]
    try:
        printed = _typed(*command)
    except UnusableInputError as error:
        if "--units=unknown goes on" not in str(error):
            raise
        command.insert(2, "--units=unknown")  # as the refusal says
        printed = _typed(*command)
    told = json.loads((to / "diagnosis.json").read_text())
    names = re.compile(r"^\d+\. (.*)", re.MULTILINE).findall(printed)
    return {
        "named": named(told), "borne_out": _borne_out(copy, told, went_well), "by_itself": names,
        "command": " ".join(["gaploop", *map(str, command)]).replace(f"{copy.parent}/", ""),
        "says": told["summary"]["station"]["says"],
    }  # fmt: skip


def named(told: Mapping[str, Any]) -> dict[str, int]:
    """Return what a diagnosis named, each with the number of episodes or sets that it names."""
    takes, summary = told["takes"], told["summary"]
    found = Counter(f"mode {take['mode']}" for take in takes if take["mode"] != "unknown")
    found.update(f"cause {name}" for take in takes if not take["abstained"]
                 for name in take["named"])  # fmt: skip
    found.update(f"station {name}" for name in summary["station"]["named"])
    found.update(f"camera {one['camera']}: {one['question']}"
                 for one in (summary.get("camera_check") or {}).get("found", ()))  # fmt: skip
    return dict(found)


def _borne_out(copy: Path, told: Mapping[str, Any], went_well: Sequence[int]) -> dict[str, str]:
    """Return what else says so of cameras named as moved or black.

    Moved: by phase correlation of episodes' median pictures, and by what share of the width. Black:
    by their mean grey. Outcomes that are made up don't make untrue what is in the pictures.
    """
    summary = told["summary"].get("camera_check") or {"found": ()}
    asked = {"moved", "black"} & {one["question"] for one in summary["found"]}
    takes, result = list(load_takes(copy)) if asked else [], dict[str, str]()

    def of(question: str) -> list[str]:
        return [one["camera"] for one in summary["found"] if one["question"] == question]

    def said_of(camera: str, question: str) -> list[Take]:
        key = f"{camera}.{question}"
        return [t for t in takes if summary["takes"].get(t.info.uid, {}).get(key) == "yes"]

    for camera in of("black"):
        grey = max(float(_median(take, camera).mean()) for take in said_of(camera, "black"))
        if grey < 1.0:
            result[f"camera {camera}: black"] = f"so it is: a mean of {grey:.1f} of 255"
    for camera in of("moved"):
        usual, *others = (
            np.median([_median(take, camera) for take in chosen], axis=0).astype(np.float32)
            for chosen in (
                [take for take in takes if take.episode in went_well],
                *([take] for take in said_of(camera, "moved")),
            )
        )  # fmt: skip
        window = cv2.createHanningWindow(usual.shape[::-1], cv2.CV_32F)
        far = np.median([cv2.phaseCorrelate(usual, p, window)[0] for p in others], axis=0)
        share = float(np.hypot(*far)) / usual.shape[1]
        if share >= WORTH:
            result[f"camera {camera}: moved"] = f"by phase correlation, too: {share:.1%} of width"
    return result


def _median(take: Take, camera: str) -> FloatArray:
    """Return the grey median of the pictures that are sampled of a take."""
    found = sample(take, camera)
    if found is None:
        raise UnusableInputError(f"{take.info.uid}: no pictures of {camera}")
    grey = [cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) for p in found.pictures]
    return np.asarray(np.median(grey, axis=0), dtype=np.float64)


def _typed(*words: object) -> str:
    """Run a command as typed, in this process, and return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    if code:
        raise UnusableInputError(f"gaploop {' '.join(map(str, words))}: {err.getvalue().strip()}")
    return out.getvalue()


def cases(result: Mapping[str, Any]) -> list[str]:
    """Return the table of cases that misled once: what was said, what is now, if it is right."""
    lines = ["| tried on real pictures | said once | said now | |", "|---|---|---|---|"]

    def add(tried: str, once: str, now: Sequence[str], judged: str) -> None:
        told = f"{'; '.join(now)} | {judged}" if now else "no data | –"
        lines.append(f"| {tried} | {once} | {told} |")

    for words, once in MADE_UP.items():
        rows = [row for row in result["said"] if words in row["tried"]]
        told, false = list[str](), 0
        for row in rows:
            for name, n in row["named"].items():
                too = row["borne_out"].get(name, "")
                told.append(f"{row['set']} {name} {n}{too and f' ({too})'}")
                false += not too
        quiet = sum(not row["named"] for row in rows)
        now = [*told, f"{quiet} of {len(rows)} sets of outcomes: no mode, no cause, no camera"]
        judged = "wrong" if false else "right, else can't tell" if told else "can't tell"
        add(words, once, now if rows else (), judged)
    cameras: dict[str, list[Mapping[str, Any]]] = {}
    for data in result["sets"]:
        for camera in data["cameras"].values():
            cameras.setdefault(camera["kind"], []).append(camera)
    now, wrong = list[str](), False
    for kind, of_kind in cameras.items():
        n, accused = (sum(c[what] for c in of_kind) for what in ("judged", "accused"))
        now.append(f"{kind}: accused {accused} of {n}")
        wrong |= accused > max(1, 0.05 * n)
    add(*UNALTERED, now, "wrong: more than 1 in 20" if wrong else "right")
    yes = Counter[str]()
    for data in result["lights"]:
        for row in data["rows"]:
            yes.update(row["yes"])
    n = sum(row["judged"] for data in result["lights"] for row in data["rows"])
    now = [f"of {n} pictures " + (", ".join(f"{q} {k}" for q, k in yes.items()) or "nothing")]
    add(*REAL_LIGHT, now if n else (), "wrong" if set(yes) - LIGHT else "right, else can't tell")
    for tried, (once, strengths) in ALTERED.items():
        now, wrong = [], False
        for kind, of_kind in cameras.items():
            cells = [
                camera["altered"][about][k]
                for camera in of_kind for about, k in strengths if about in camera["altered"]
            ]  # fmt: skip
            n, found, unknown = (sum(c[w] for c in cells) for w in ("n", "found", "unknown"))
            now += (
                [f"{kind}: {found} yes, {unknown} can't tell, {n - found - unknown} no"]
                if n
                else []
            )
            wrong |= n > found + unknown
        add(tried, once, now, "wrong" if wrong else "right or can't tell")
    pairs = [pair for data in result["sets"] for pair in data["swapped"]]
    now = [f"{p['found']} of {p['n']}, said of {p['false']} of {p['n']} others" for p in pairs]
    wrong = any(pair["found"] < pair["n"] or pair["false"] for pair in pairs)
    add("wrist cameras swapped", "0 of 3", now, "wrong" if wrong else "right")
    return lines
