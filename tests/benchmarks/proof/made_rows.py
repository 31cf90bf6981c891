"""Rows of the study whose truth is known."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.proof.rows import StudyRow

SCENES = 100


def bits(rate: float) -> str:
    won = round(rate * SCENES)
    return "1" * won + "0" * (SCENES - won)


def row(arm: str, budget: int, after: float, seed: int = 0, **given: object) -> StudyRow:
    made = StudyRow(
        task="pick_place", gap="spatial_geometry", seed=seed, arm=arm, budget=budget,
        gaps={"spatial_geometry.camera_pose": 0.9}, found="spatial_geometry", failures=12,
        planned={"spatial_geometry": budget} if budget else {}, takes=budget, attempts=budget,
        hours=0.02 * budget, before=bits(0.1), after=bits(after), base="b", policy="p", data="d",
        code="c",
    )  # fmt: skip
    return replace(made, **given)
