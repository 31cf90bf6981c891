"""A campaign as its operator meets it: what to set up, who has to agree, and where it stands."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.collect.campaign import Campaign, Quota, campaign, require_consents
from gaploop.collect.rig import Rig, embedded_rig
from gaploop.collect.session import Session
from gaploop.collect.take import SessionEnd, record_takes
from gaploop.core import consent as consents
from gaploop.core.consent import Place, Use, new_id, today
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import read_header, read_journal, take_folders
from gaploop.core.messages import LeaderSample
from gaploop.core.plan import Plan, load_plan
from gaploop.core.protocols import Leader
from gaploop.core.station import SIM_STATION, Station
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Domain, TakeKind
from gaploop.scripts.cli import main
from gaploop.scripts.record import campaign_text

BENCH = Station("bench", conditions={"human": ("none", "handover")})
PLAN = """
schema: gaploop.plan.v1
id: plan-1
items:
- {id: plan-1/light, dimension: visual_domain, takes: 4, remedy: collect, why: w,
   vary: {lighting: [dim, warm]}}
- {id: plan-1/place, dimension: spatial_geometry, takes: 2, remedy: collect, why: w,
   conditions: {grid_cell: [0, 2]}}
"""


class Idle:
    def reset(self) -> None:
        """Nothing to reset."""

    def read(self, t_s: float) -> LeaderSample:
        return LeaderSample(t_s, np.zeros(6))

    def done(self) -> bool:
        return False


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "plan.yaml").write_text(PLAN)
    return load_plan(tmp_path / "plan.yaml")


def idle(_rig: Rig, _seed: int) -> Leader:
    return Idle()


def record(
    journal: Path, order: list[Quota], *, stop_after: int = 99, **shared: Any
) -> tuple[SessionEnd, list[Mapping[str, object]]]:
    """Record rollouts of some 60 ms; return how it went and what was set up."""
    set_up: list[Mapping[str, object]] = []
    takes: list[object] = []
    end = record_takes(
        journal,
        TakeInfo("", "t", kind=TakeKind.ROLLOUT),
        order,
        lambda conditions: embedded_rig(conditions=conditions),
        idle,
        set_up=lambda quota, _before: set_up.append(quota.conditions) or True,
        on_take=lambda result, _counts: takes.append(result),
        stop=lambda: len(takes) >= stop_after,
        max_s=0.06,
        **shared,
    )
    return end, set_up


def test_a_session_that_goes_on_records_the_rest_of_the_same_order(
    tmp_path: Path, plan: Plan
) -> None:
    order = campaign(plan, 3)
    wanted = [dict(q.conditions) for q in order for _ in range(q.takes)]
    end, _ = record(tmp_path / "j", order, stop_after=2)
    assert end.interrupted
    end, set_up = record(tmp_path / "j", campaign(plan, 3))
    assert (end.counted, end.wanted) == (6, 6)
    sealed = [t for t in read_journal(tmp_path / "j") if t.outcome != "interrupted"]
    assert [dict(t.info.conditions) for t in sealed] == wanted
    assert len(set_up) < len(wanted)
    assert {t.info.plan for t in sealed} == {"plan-1/light", "plan-1/place"}
    end, set_up = record(tmp_path / "j", order)
    assert (end.takes, set_up) == ((), [])


def test_the_next_set_up_is_said_in_words_where_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    set_up = Session(None, BENCH, leads="")._announce
    first = Quota(3, "i", {}, {"grid_cell": [0, 2], "lighting": "day"})
    second = Quota(1, "i", {}, {"grid_cell": [1, 0], "lighting": "day"})
    assert set_up(Quota(1), None)  # the cell as it is
    assert set_up(first, None)
    assert set_up(first, first)  # nothing to change
    assert set_up(second, first)
    assert [record.getMessage() for record in caplog.records] == [
        "Set up: lighting: day; object in grid cell row 0, column 2 (right, far) (3 episodes).",
        "Set up: object in grid cell row 1, column 0 (middle, near) (1 episode).",
    ]


def test_people_who_have_not_agreed_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = tmp_path / "r.jsonl"
    later = today() + timedelta(days=9)
    id_ = consents.add(register, new_id(), later, frozenset({Use.RECORD})).id
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    human = Quota(1, "p-1", {}, {"human": "handover"})
    purpose = Quota(1, "p-2", {"human_behavior": 1.0})
    for quota in (human, purpose):
        with pytest.raises(UnusableInputError, match=f"Plan item '{quota.plan}'.*consent add"):
            require_consents([quota], BENCH, "")
        require_consents([quota], BENCH, id_)
        require_consents([quota], SIM_STATION, "")
    require_consents([Quota(1, "", {}, {"human": "none"})], BENCH, "")
    consents.withdraw(register, id_)
    for station in (BENCH, SIM_STATION):  # a given id must be valid wherever it is given
        with pytest.raises(UnusableInputError, match="withdrawn"):
            require_consents([human], station, id_)


def test_a_withdrawal_ends_a_running_session_before_the_next_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register, journal = tmp_path / "r.jsonl", tmp_path / "j"
    id_ = consents.add(register, new_id(), today() + timedelta(days=9), frozenset({Use.RECORD})).id
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    with pytest.raises(UnusableInputError, match="withdrawn"):
        record_takes(
            journal,
            TakeInfo("", "t", kind=TakeKind.ROLLOUT, consent=id_),
            [Quota(3)],
            lambda _conditions: embedded_rig(),
            idle,
            on_take=lambda *_: consents.withdraw(register, id_),
            max_s=0.06,
        )
    folders = take_folders(journal)
    assert 1 <= len(folders) <= 2
    assert {read_header(f).info.consent for f in folders} == {id_}
    assert Place("journal", str(journal)) in consents.load_register(register).places[id_]


def test_the_status_says_what_is_there_and_what_comes_next(
    tmp_path: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["record", f"--plan={tmp_path / 'plan.yaml'}", f"--dataset.root={tmp_path / 'set'}"]
    assert main([*command, "--status"]) == 0
    text = capsys.readouterr().out
    assert "0 of 6 episodes" in text
    assert "assumed" in text
    assert main([*command, "--status", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["have"], said["wanted"], len(said["setups"])) == (0, 6, 3)
    assert said["next"]["conditions"] == dict(campaign(plan)[0].conditions)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.yaml"]
    assert main(["record", f"--dataset.root={tmp_path / 'set'}", "--status"]) == 2
    assert "--plan" in capsys.readouterr().err


def test_the_status_needs_no_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Incident: with an arm it asked for a port, then for a leader, and then moved nothing."""
    command = ["record", f"--plan={tmp_path / 'plan.yaml'}", f"--dataset.root={tmp_path / 'set'}"]
    (tmp_path / "plan.yaml").write_text(PLAN)
    rig = tmp_path / "rig.yaml"
    rig.write_text("robot: {type: so101_follower, port: /dev/none}\nteleop: {type: so101_leader}\n")
    for more in (
        ["--robot.type=so101_follower"],
        ["--robot.type", "so101_follower", "--robot.port", "/dev/none", "--status=true"],
        ["--teleop.type=so101_leader", "--teleop.port=/dev/none"],
        [f"--config_path={rig}"],
    ):
        assert main([*command, "--status", *more]) == 0
        assert "0 of 6 episodes" in capsys.readouterr().out
    assert main([*command, "--status", "--robt.type=so101_follower"]) == 2
    assert "--robt.type" in capsys.readouterr().err


def test_a_plan_names_what_its_station_defines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Incident: a station's own names were refused, and the embedded cell's offered in their place.

    A station whose file names nothing keeps the cell's names, which plans for it hold.
    """
    plan, lab = tmp_path / "plan.yaml", tmp_path / "lab.yaml"
    command = ["record", f"--plan={plan}", f"--dataset.root={tmp_path / 'set'}", "--status"]
    plan.write_text(PLAN.replace("[dim, warm]", "all"))
    lab.write_text("name: lab\nconditions: {lighting: [morning, evening]}\n")
    assert main([*command, f"--station={lab}"]) == 0
    assert "lighting: morning" in capsys.readouterr().out
    plan.write_text(PLAN)
    assert main([*command, f"--station={lab}"]) == 2
    assert "One of: evening, morning" in capsys.readouterr().err
    lab.write_text("name: lab\n")
    assert main([*command, f"--station={lab}"]) == 0
    plan.write_text(PLAN.replace("[dim, warm]", "[morning, evening]"))
    # As finetune --plan reads it:
    assert [item.takes for item in load_plan(plan, None).items] == [4, 2]


def test_the_table_has_a_bar_for_every_setup_and_one_for_the_dimension(
    tmp_path: Path, plan: Plan
) -> None:
    order = campaign(plan)
    shown = campaign_text(Campaign(plan, tuple(order), tmp_path / "none", SIM_STATION))
    assert shown.count("░" * 18) == 4
    assert shown.count("0/2") == 3
    assert shown.count("0/4") == 1


def test_a_consent_that_does_not_hold_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new"
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(tmp_path / "r"))
    command = ["record", f"--dataset.root={folder / 'set'}"]
    for consent, said in (("ana", "never a name"), (new_id(), "not in")):
        assert main([*command, f"--consent={consent}"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error
        assert not folder.exists()


def test_consent_given_in_the_embedded_cell_is_carried_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register, root = tmp_path / "r.jsonl", tmp_path / "set"
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    later = today() + timedelta(days=9)
    id_ = consents.add(register, new_id(), later, frozenset({Use.RECORD})).id
    command = ["record", f"--dataset.root={root}", "--dataset.num_episodes=1", "--json"]
    assert main([*command, f"--consent={id_}"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["published"] == 0
    assert "doesn't cover 'publish'" in said["withheld"][said["uids"][0]]
    assert not root.exists()
    (take,) = read_journal(Path(said["journal"]))
    assert (take.info.consent, take.info.domain) == (id_, Domain.SIM)
