"""Laws of a campaign's participants: quotas are always filled, nobody is told apart, ids only."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.collect.campaign import Participants
from gaploop.collect.journal import JournalWriter
from gaploop.collect.rig import embedded_rig
from gaploop.core import consent
from gaploop.core.consent import BANDS, Use, new_id, today
from gaploop.core.plan import ParticipantQuotas, load_plan, save_plan
from gaploop.core.take import Outcome, TakeInfo
from gaploop.scripts.cli import main

PLAN = """
schema: gaploop.plan.v1
id: people
participants:
  most_each: 2
  age_band: {18-29: 2, 60+: 1}
  experience: {none: 2}
items:
- {id: people/light, dimension: visual_domain, takes: 4, remedy: collect, why: w,
   vary: {lighting: [dim, warm]}}
"""


@given(st.integers(0, 9999), st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_whoever_comes_first_the_quotas_are_filled(seed: int, most_each: int) -> None:
    """A plan that takes anybody until it is full has no room left for those it asks for."""
    quotas = ParticipantQuotas(
        {"age_band": {"18-29": 7, "60+": 9}, "handedness": {"left": 5}}, most_each
    )
    rng = random.Random(seed)
    total, bands, takes = 24, dict[str, dict[str, str]](), Counter[str]()
    for n in range(400):
        id_ = f"p{n}"
        bands[id_] = {kind: rng.choice(words) for kind, words in BANDS.items()}
        people = Participants(quotas, bands, takes, total - takes.total())
        takes[id_] += people.room(id_)
        assert takes[id_] <= (most_each or total)
    end = Participants(quotas, bands, takes, total - takes.total())
    assert end.left == 0
    assert all(p.have >= p.wanted for p in end.progress())


def take_of(journal: Path, id_: str, lighting: str) -> None:
    journal.mkdir(exist_ok=True)
    header = embedded_rig().header(TakeInfo("", "Put it there"))
    info = replace(header.info, plan="people/light", conditions={"lighting": lighting}, consent=id_)
    with JournalWriter(journal, replace(header, info=info)) as writer:
        writer.seal(Outcome.SUCCESS)


def test_a_campaign_asks_who_takes_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    register, journal = tmp_path / "safe" / "consents.jsonl", tmp_path / "set_journal"
    plan = load_plan(tmp_path / "plan.yaml")
    save_plan(plan, tmp_path / "again.yaml")
    assert load_plan(tmp_path / "again.yaml").participants == plan.participants
    command = ["record", f"--plan={tmp_path / 'plan.yaml'}", f"--dataset.root={tmp_path / 'set'}"]
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    assert main(command) == 2
    assert "--consent=ID" in capsys.readouterr().err
    until = today() + timedelta(days=9)
    nobody = consent.add(register, new_id(), until, frozenset({Use.RECORD})).id
    assert main([*command, f"--consent={nobody}"]) == 2
    assert f"gaploop consent add {nobody}" in capsys.readouterr().err
    add = ["consent", "add", f"--expires={until}", "--scope=[record]"]
    assert main([*add, "--bands={age_band: young}"]) == 2
    assert "18-29" in capsys.readouterr().err
    assert main([*add, "--bands={age_band: 18-29, experience: some}", "--json"]) == 0
    ana = json.loads(capsys.readouterr().out)["id"]
    take_of(journal, ana, "dim")
    take_of(journal, ana, "warm")
    assert main([*command, f"--consent={ana}"]) == 2
    error = capsys.readouterr().err
    assert "age_band 60+" in error
    assert "at most 2 each" in error
    assert main([*command, "--status", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    young = said["participants"][0]
    assert (young["band"], young["have"], young["wanted"]) == ("18-29", 2, 2)
    assert main([*command, "--status"]) == 0
    assert "18-29" in capsys.readouterr().out
    assert "18-29" not in "".join(p.read_text() for p in journal.rglob("*.json"))
    assert consent.read_bands(register)[ana]["age_band"] == "18-29"
    assert main(["consent", "withdraw", ana, "--yes"]) in (0, 1)
    assert ana not in consent.read_bands(register)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("{age_band: {young: 2}}", "18-29"),
        ("{age: {18-29: 2}}", "age_band"),
        ("{handedness: {left: 5}}", "5 episodes, the plan for 4"),
        ("{handedness: {left: -1}}", "0 or more"),
        ("{most_each: some}", "whole number"),
        ("[age_band]", "must be a mapping"),
    ],
)
def test_what_a_plan_cannot_ask_of_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str, said: str
) -> None:
    head, tail = PLAN.split("participants:")[0], PLAN[PLAN.index("items:") :]
    (tmp_path / "plan.yaml").write_text(f"{head}participants: {asked}\n{tail}")
    assert main(["record", f"--plan={tmp_path / 'plan.yaml'}", "--dataset.root=x"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
