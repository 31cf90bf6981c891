"""The table of cases on real pictures calls each right, wrong or not told."""

from __future__ import annotations

from typing import Any

from benchmarks.real_pictures import ALTERATIONS
from benchmarks.real_said import ALTERED, cases, named


def verdicts(result: dict[str, Any]) -> list[str]:
    return [row.rsplit("|", 2)[1].strip() for row in cases(result)[2:]]


def test_a_named_cause_of_made_up_outcomes_is_wrong() -> None:
    take = {"mode": "slip", "abstained": False, "named": ["latency"]}
    quiet = {"mode": "unknown", "abstained": True, "named": ["latency"]}
    summary = {"station": {"named": []}, "camera_check": None}
    told = named({"takes": [take, quiet], "summary": summary})
    assert told == {"mode slip": 1, "cause latency": 1}
    tried = ("10 called failures", "all 25 called failures, joints only")
    said = [
        {"set": "arm", "tried": t, "named": n, "borne_out": {}}
        for t, n in zip(tried, (told, {}), strict=True)
    ]
    rows = cases({"said": said, "sets": [], "lights": []})[2:]
    assert "arm mode slip 1; arm cause latency 1; 0 of 1 " in rows[0]
    assert rows[0].endswith("| wrong |")
    assert rows[3].endswith(
        "| 1 of 1 sets of outcomes: no mode, no cause, no camera | can't tell |"
    )
    assert "| no data |" in rows[1]
    told = {"camera top: moved": 3}
    moved = {
        "set": "arm",
        "tried": tried[0],
        "named": told,
        "borne_out": {"camera top: moved": "by phase correlation, too: 7.0% of width"},
    }
    rows = cases({"said": [moved], "sets": [], "lights": []})[2:]
    assert "moved 3 (by phase correlation, too: 7.0% of width)" in rows[0]
    assert rows[0].endswith("| right, else can't tell |")
    moved["named"] = {**told, "mode slip": 1}
    assert cases({"said": [moved], "sets": [], "lights": []})[2].endswith("| wrong |")


def test_every_case_is_printed_and_a_denied_alteration_is_wrong() -> None:
    cell = {"n": 2, "found": 1, "unknown": 1}
    altered = {about: [cell] * 3 for about in ALTERATIONS}
    camera = {"kind": "fixed", "judged": 20, "accused": 1, "questions": {}, "altered": altered}
    pair = {"cameras": ["a", "b"], "n": 2, "found": 2, "false": 0}
    data = {"name": "arm", "cameras": {"top": camera}, "swapped": [pair]}
    light = {"name": "desk", "rows": [{"judged": 3, "yes": {"exposure": 2}}]}
    result = {"said": [], "sets": [data], "lights": [light]}
    assert set(verdicts(result)[5:]) == {"right", "right, else can't tell", "right or can't tell"}
    for k, (_, strengths) in enumerate(ALTERED.values()):
        about, strength = strengths[-1]
        denied = [{**cell, "unknown": int(n != strength)} for n in range(3)]
        camera["altered"] = {**altered, about: denied}
        assert verdicts(result)[7 + k] == "wrong"
