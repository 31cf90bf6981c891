"""The table of cases on real pictures calls each right, wrong or not told."""

from __future__ import annotations

from benchmarks.real_said import cases, named


def test_a_named_cause_of_made_up_outcomes_is_wrong() -> None:
    take = {"mode": "slip", "abstained": False, "named": ["latency"]}
    quiet = {"mode": "unknown", "abstained": True, "named": ["latency"]}
    summary = {"station": {"named": []}, "camera_check": None}
    told = named({"takes": [take, quiet], "summary": summary})
    assert told == {"mode slip": 1, "cause latency": 1}
    rows = [{"set": "arm", "tried": "10 called failures", "named": n} for n in (told, {})]
    first, second = cases({"said": rows, "sets": [], "lights": []})[2:]
    assert first.endswith("| mode slip 1, cause latency 1 | wrong |")
    assert second.endswith("| no mode, no cause | can't tell |")


def test_an_alteration_answered_no_is_wrong_unless_it_is_the_weakest() -> None:
    cell = {"strength": 1.0, "n": 2, "found": 2, "unknown": 0, "false": 0}
    missed = {**cell, "found": 0}
    camera = {
        "kind": "fixed", "judged": 20, "accused": 1, "questions": {"crop": 1},
        "altered": {"blur": [missed, cell, cell], "cover": [cell, missed, cell]},
    }  # fmt: skip
    pair = {"cameras": ["a", "b"], "n": 2, "found": 2, "false": 0}
    data = {"name": "arm", "cameras": {"top": camera}, "swapped": [pair]}
    light = {"name": "desk", "rows": [{"judged": 3, "yes": {"exposure": 2}}]}
    unaltered, desk, blur, cover, swapped = cases({"said": [], "sets": [data], "lights": [light]})[
        2:
    ]
    assert unaltered.endswith("| accused 1 (crop 1) | right |")
    assert desk.endswith("| exposure 2 | right, else can't tell |")
    assert "0 yes 0 can't tell 2 no, 2 yes" in blur
    assert [row.rsplit("|", 2)[1].strip() for row in (blur, cover, swapped)] == [
        "right or can't tell", "wrong", "right",
    ]  # fmt: skip
