"""Remedies as commands: priced beside collecting, filled in, and none of them a dead end."""

from __future__ import annotations

import importlib
import json
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from benchmarks.proof.lessons import LADDER, as_text, with_ladder
from benchmarks.proof.rows import kept_rows
from gaploop.core.plan import Plan, load_plan, save_plan
from gaploop.core.statistics import TrialCounts
from gaploop.core.twin import Twin, TwinParameter, save_twin
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis, save_diagnosis
from gaploop.failure_analysis.planning import remedies
from gaploop.failure_analysis.planning.document import plan_section
from gaploop.failure_analysis.planning.gains import Budget, expected_curves
from gaploop.failure_analysis.planning.ledger import LedgerEntry
from gaploop.failure_analysis.planning.planner import LEAST_POINTS, PlanRequest, plan_for
from gaploop.failure_analysis.planning.remedies import (
    LIGHT,
    MEASURED,
    RANGES,
    STEPS,
    PlanContext,
    RemedyTrial,
    commands,
    fixed_by,
    machine_hours,
    offers,
)
from gaploop.failure_analysis.station import POLICY
from gaploop.scripts import _arguments
from gaploop.scripts.cli import config_class_of, main, positional
from gaploop.sim import recalibration
from gaploop.sim.randomise import preset

D = GapDimension
RECORD = (
    "--robot.type=so101_follower --robot.port=/dev/ttyACM0 "
    "--teleop.type=so101_leader --teleop.port=/dev/ttyACM1"
)
WEAK = "actuator_response.weak.gain_factor"
CAMERA = "spatial_geometry.camera_pose.dx_m"
SIZE = "object_property.size.size_factor"


def twin(*names: str) -> Twin:
    found = [TwinParameter(n, "1", 0.0, 0.02, (0.01, 0.03), True, "test") for n in names]
    return Twin("bench", "so101", tuple(found))


def about(folder: Path, *names: str, **more: str) -> PlanContext:
    known = twin(*names) if names else None
    return PlanContext(folder, "base", known, folder / "my twin.yaml" if names else None, **more)


def test_what_a_policy_is_fed_is_read_and_not_asked(tmp_path: Path) -> None:
    """A plan for base_vision said that a policy that sees tracked poses can't learn to see."""
    for feature, name in (("VISUAL", "run/adapter"), ("ENV", "tracked")):
        config = {"input_features": {"x": {"type": feature}}}
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    sees = {
        name: PlanContext(policy=name).sees_pictures
        for name in ("base", "base_vision", "me/on_hub", *map(str, tmp_path.iterdir()))
    }
    tracked = {"base", str(tmp_path / "tracked")}
    assert {name for name, pictures in sees.items() if not pictures} == tracked
    hours = {name: machine_hours(PlanContext(policy=name), True, 20) for name in sees}
    assert hours["base_vision"] < 0.5 < 4 < hours["me/on_hub"]


def diagnosed(shares: dict[str, float], count: int = 16) -> Diagnosis:
    every = {d.value: shares.get(d.value, 0.0) for d in D}
    rest = 1.0 - sum(every.values())
    takes = tuple(
        TakeDiagnosis(
            f"t{k}", None, "timeout", "approach", every, rest, False, (), named=tuple(shares)
        )
        for k in range(count)
    )
    return Diagnosis("diag", "", takes, {"outcomes": {"failure": count, "success": 4}})


def planned(shares: dict[str, float], context: PlanContext | None, takes: int = 20) -> Plan:
    return plan_for(
        diagnosed(shares), PlanRequest(Budget(takes=takes), expected_curves(), about=context)
    )


def parsed(line: str) -> object:
    """Read a printed line as the command line would, without running it."""
    program, command, *arguments = shlex.split(line)
    assert program == "gaploop"
    module = importlib.import_module(f"gaploop.scripts.{command}")
    made = config_class_of(module, command, arguments)
    return _arguments.parse(made, arguments, positional(module), f"gaploop {command}")


@pytest.mark.members(4)
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("remedy", [*STEPS, "collect"])
def test_no_printed_command_is_a_dead_end(remedy: str, images: bool, tmp_path: Path) -> None:
    context = about(tmp_path / "a plan", WEAK, CAMERA, record_with=RECORD, task="pick_lift")
    for dimension in RANGES:
        lines = commands(remedy, dimension, context, images)
        assert lines
        made = [tmp_path]
        for line in lines:
            config = parsed(line)
            for option in ("real", "sim"):  # reads what a line before it has made
                for root in getattr(config, option, ()):
                    assert root in made
            made += [p for o in ("dataset.root", "output_dir") if (p := _of(config, o))]
        assert "--env.twin" in " ".join(lines)
        assert not any(" my twin" in line and "'" not in line for line in lines)


@pytest.mark.parametrize("record_with", [RECORD, ""])
def test_what_was_not_measured_is_measured_by_commands(record_with: str, tmp_path: Path) -> None:
    """From the station check to the next plan; without an arm, from what was diagnosed."""
    rollouts = tmp_path / "my rollouts"
    context = replace(about(tmp_path / "plan", record_with=record_with), takes=(rollouts,))
    found = replace(diagnosed({"actuator_response": 0.9}), source=rollouts.name)
    plan = plan_for(found, PlanRequest(Budget(takes=20), expected_curves(), about=context))
    names = [shlex.split(line)[1] for line in plan.measure]
    assert names == ["identify", "diagnose", "plan"]
    made: list[Path] = [rollouts]
    for line in plan.measure:  # each reads what a line before it has made
        config = parsed(line)
        made += getattr(config, "roots", []) if getattr(config, "measure", False) else []
        for read in ("roots", "dataset.root", "diagnosis", "takes"):
            value = _of(config, read)
            for root in value if isinstance(value, list) else [value]:
                assert root is None or root in made
        twin_file = _of(config, "twin")
        assert twin_file is None or twin_file.parent in made
        made += [p for o in ("output_dir",) if (p := _of(config, o))]
    assert all(escape(line) in plan_section(plan).body for line in plan.measure)
    measured = replace(found, summary={**found.summary, "reproduction": NOTHING_REPRODUCED})
    assert not plan_for(
        measured, PlanRequest(Budget(takes=20), expected_curves(), about=context)
    ).measure


NOTHING_REPRODUCED = {"reproduces": False}


@pytest.mark.members(9)
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("by_station", [False, True])
@pytest.mark.parametrize("dimension", list(D))
def test_what_was_not_named_is_not_bought_against(
    dimension: GapDimension, by_station: bool, images: bool, tmp_path: Path
) -> None:
    """A diagnosis that abstained 12 of 12 times leaned to people with 72 %: "change scene".

    Another named nothing, and its plan recalibrated a camera that stood where it should.
    """
    shares = {dimension.value: 0.82, **{d.value: 0.02 for d in D if d is not dimension}}
    named = diagnosed(shares)
    sure = replace(named, takes=tuple(replace(t, named=(dimension.value,)) for t in named.takes))
    unsure = replace(named, takes=tuple(replace(t, named=(), abstained=True) for t in named.takes))
    if by_station:  # all failures together name it, none alone
        told = {**unsure.summary, "station": {"named": [dimension.value]}}
        sure = replace(unsure, summary=told)
    context = about(tmp_path, WEAK, CAMERA, SIZE)
    context = replace(context, takes=(tmp_path / "rollouts",))
    ask = PlanRequest(
        Budget(takes=20), expected_curves(image_policy=images), image_policy=images, about=context
    )
    assert {item.dimension for item in plan_for(sure, ask).items} == {dimension}
    plan = plan_for(replace(unsure, source="rollouts"), ask)
    assert plan.items == ()
    assert plan.takes == 0
    assert plan.measure
    assert "Find out first" in " ".join(plan.notes)


def test_points_are_what_the_twin_says_a_gap_costs(tmp_path: Path) -> None:
    """Where the failures came back; the posteriors of takes say who, not how much."""
    shares = {"actuator_response": 0.8, "spatial_geometry": 0.15}
    costs = [
        {"name": WEAK, "cause": "actuator_response", "points": [0.1, 0.05, 0.15]},
        {"name": CAMERA, "cause": "spatial_geometry", "points": [0.6, 0.5, 0.7]},
    ]
    came = {"reproduces": True, "failing": {"station": [0.8, 0.6, 0.9]}, "costs": costs}

    def gains(reproduction: dict[str, object]) -> dict[str, float]:
        found = diagnosed(shares)
        found = replace(found, summary={**found.summary, "reproduction": reproduction})
        plan = plan_for(
            found,
            PlanRequest(Budget(takes=20), expected_curves(), about=about(tmp_path, WEAK, CAMERA)),
        )
        return {i.dimension: i.gain_points.value for i in plan.items if i.gain_points}

    measured, assumed = gains(came), gains({**came, "reproduces": False})
    assert measured["actuator_response"] < 10.0 < assumed["actuator_response"]
    assert measured["spatial_geometry"] > 30.0 > assumed["spatial_geometry"]


def _of(config: object, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part, None)
    return config if isinstance(config, Path | list) else None


def test_ranges_against_a_dimension_are_of_that_dimension() -> None:
    for dimension, name in RANGES.items():
        mechanisms = {r.mechanism.partition(".")[0] for r in preset(name).ranges}
        assert dimension.value in mechanisms


def test_a_twin_opens_remedies_and_without_one_takes_are_weighed_as_before(tmp_path: Path) -> None:
    shares = {"actuator_response": 0.9}
    (without,) = planned(shares, about(tmp_path)).items
    (alone,) = planned(shares, None).items
    assert without.takes == alone.takes > 0
    assert not without.alternatives
    plan = planned(shares, about(tmp_path, WEAK))
    (item,) = plan.items
    assert (item.remedy, item.takes, plan.takes) == ("resimulate", 0, 0)
    assert item.commands
    assert "Don't collect yet" in plan.stop
    assert plan.success_then is not None
    assert plan.success_now is not None
    assert plan.success_then.value > plan.success_now.value


def test_the_remedy_is_the_one_that_brings_most_for_an_operators_hour(tmp_path: Path) -> None:
    for shares in ({"actuator_response": 0.9}, {"spatial_geometry": 0.9}, {"object_property": 0.8}):
        context = about(tmp_path, WEAK, CAMERA, SIZE)
        (item,) = planned(shares, context).items
        assert item.gain_points is not None
        assert item.hours is not None
        rate = item.gain_points.value / item.hours.value
        assert item.alternatives
        for other in item.alternatives:
            worth = other.gain_points.value >= LEAST_POINTS
            assert rate >= other.points_per_hour or not worth
        assert "operator's hour" in item.why


def test_collecting_wins_where_it_brings_more_and_says_by_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gaploop.failure_analysis.planning import planner as module

    hopeless = (np.full(4000, 0.02), 3)
    monkeypatch.setattr("gaploop.failure_analysis.planning.remedies.fixed_by", lambda *_: hopeless)
    (item,) = planned({"spatial_geometry": 0.9}, about(tmp_path, SIZE, CAMERA)).items
    assert item.remedy == module.COLLECT
    assert item.takes > 0
    assert {o.remedy for o in item.alternatives} == {"recalibrate", "resimulate"}
    assert "points in all" in item.why
    assert "+" in item.why


def test_takes_in_a_twin_serve_every_dimension_and_are_recorded_once(tmp_path: Path) -> None:
    shares = {"actuator_response": 0.5, "spatial_geometry": 0.4}
    plan = planned(shares, about(tmp_path, WEAK, CAMERA))
    assert [i.remedy for i in plan.items] == ["resimulate", "resimulate"]
    first, second = plan.items
    assert first.commands
    assert not second.commands
    assert "serve this, too" in second.protocol
    assert plan.hours is not None
    assert plan.hours.value == pytest.approx(0.1, abs=0.01)


def test_a_camera_alone_is_recalibrated(tmp_path: Path) -> None:
    (item,) = planned({"spatial_geometry": 0.9}, about(tmp_path, CAMERA)).items
    assert item.remedy == "recalibrate"
    assert item.commands[0].startswith("gaploop calibrate from_twin")
    assert not offers(D.SPATIAL_GEOMETRY, about(tmp_path, "spatial_geometry.table_height.x"), True)[
        0
    ].remedy.startswith("recal")


def test_what_was_tried_counts_and_not_what_was_expected(tmp_path: Path) -> None:
    """Incident: takes against a late arm were bought by a prior; success went from 15 to 2 %."""
    shares = {"spatial_geometry": 0.9}
    context = about(tmp_path, CAMERA)
    (before,) = planned(shares, context).items
    assert before.remedy == "recalibrate"
    tried = {
        "recalibrate": RemedyTrial((3, 20), (2, 20)),
        "resimulate": RemedyTrial((3, 20), (18, 20)),
    }
    plan = planned(shares, replace(context, tried=tried))
    (item,) = plan.items
    assert item.remedy == "resimulate"
    assert "tried in the twin: 3 of 20 rollouts before, 18 of 20 after" in item.why
    (other,) = (o for o in item.alternatives if o.remedy == "recalibrate")
    assert other.gain_points.value < LEAST_POINTS
    assert any("recalibrate was tried" in note for note in plan.notes)
    assert item.gain_points is not None
    assert item.gain_points.low > 20  # of the 72 % of rollouts that fail for it
    stuck = {**tried, "resimulate": RemedyTrial((0, 0), (0, 0), "Gave up on the episodes.")}
    plan = planned(shares, replace(context, tried=stuck))
    assert all(
        "resimulate" not in (i.remedy, *(a.remedy for a in i.alternatives)) for i in plan.items
    )
    assert any("couldn't be carried out (Gave up on the episodes.)" in note for note in plan.notes)
    worse = {name: RemedyTrial((3, 20), (0, 20)) for name in tried}
    (item,) = planned(shares, replace(context, tried=worse)).items
    assert item.remedy == "collect"


def test_dimensions_share_in_what_one_trial_brings(tmp_path: Path) -> None:
    """The trial's share is of all failures in the twin; it isn't promised twice."""
    shares = {"actuator_response": 0.5, "spatial_geometry": 0.4}
    trial = {
        "resimulate": RemedyTrial((0, 20), (20, 20)),
        "recalibrate": RemedyTrial((0, 20), (8, 20)),
    }
    plan = planned(shares, replace(about(tmp_path, WEAK, CAMERA), tried=trial))
    assert {i.remedy for i in plan.items} == {"resimulate"}
    assert plan.gain_points is not None
    assert 60 < plan.gain_points.value <= 80  # 80 % of the rollouts failed


@pytest.mark.parametrize("images", [False, True])
def test_light_is_taken_out_of_pictures(images: bool, tmp_path: Path) -> None:
    """Takes in too bright a cell brought nothing: 0 of 20 before and after."""
    found = offers(D.VISUAL_DOMAIN, about(tmp_path, "visual_domain.exposure.gain"), images)
    assert max(found, key=lambda o: o.fixed.mean()).remedy == "recalibrate"
    blurred = about(tmp_path, "visual_domain.blur.defocus_fraction")
    assert [o.remedy for o in offers(D.VISUAL_DOMAIN, blurred, images)] == ["resimulate"]
    # A part alone isn't promised what sites brought that had nothing else.
    for other, wanted in (("flicker.depth", 2), ("blur.defocus_fraction", 1)):
        both = about(tmp_path, "visual_domain.exposure.gain", f"visual_domain.{other}")
        assert len(offers(D.VISUAL_DOMAIN, both, images)) == wanted
    assert LIGHT == recalibration.LIGHT


@pytest.mark.parametrize("images", [False, True])
def test_noise_is_filtered_and_coarse_steps_are_not(images: bool, tmp_path: Path) -> None:
    """A servo goes by its own coarse readings: a filter of what the policy reads mends nothing."""
    for name, wanted in (
        ("encoder_drift.noise_rad", {"compensate", "resimulate"}),
        ("readings.noise_rad", {"compensate", "resimulate"}),
        ("encoder_drift.drift_rad", {"resimulate"}),
        ("coarse_encoder.step_rad", {"resimulate"}),
    ):
        found = offers(D.SENSOR_NOISE, about(tmp_path, f"sensor_noise.{name}"), images)
        assert {o.remedy for o in found} == wanted, name


def test_no_command_is_printed_that_has_nothing_to_take_out(tmp_path: Path) -> None:
    """At coarse encoders a plan printed `calibrate from_twin`, which refused that twin."""
    for name, runs in (
        ("sensor_noise.coarse_encoder.step_rad", False),
        ("object_property.size.size_factor", False),
        ("sensor_noise.camera_delay.delay_s", True),
        ("spatial_geometry.zero_offset.pan_rad", True),
    ):  # fmt: skip
        printed = commands("recalibrate", D.SENSOR_NOISE, about(tmp_path, name))
        assert bool(printed) == runs, name


def test_what_is_not_offered_brings_nothing() -> None:
    assert fixed_by("resimulate", D.TASK_SPECIFICATION, False) is None
    assert fixed_by("recalibrate", D.OBJECT_PROPERTY, False) is None
    assert fixed_by("randomise", D.VISUAL_DOMAIN, False) is None
    assert fixed_by("randomise", D.VISUAL_DOMAIN, True) is not None


def test_a_plan_with_commands_comes_back(tmp_path: Path) -> None:
    context = about(tmp_path, WEAK, CAMERA, record_with=RECORD)
    plan = planned({"actuator_response": 0.5, "object_property": 0.4}, context)
    save_plan(plan, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == plan
    text = plan_section(plan).body
    assert all(escape(line) in text for item in plan.items for line in item.commands)


@pytest.mark.parametrize("draws", [(), (0.01, 0.03)], ids=["one value", "known together"])
def test_the_command_takes_a_twin_and_prints_what_to_type(
    tmp_path: Path, draws: tuple[float, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    save_diagnosis(diagnosed({"actuator_response": 0.9}), tmp_path / "diagnosis.json")
    bench = twin(WEAK)
    bench = replace(bench, parameters=(replace(bench.parameters[0], draws=draws),))
    save_twin(replace(bench, station="b"), tmp_path / "twin.yaml")
    command = ["plan", str(tmp_path), f"--twin={tmp_path / 'twin.yaml'}", "--policy.path=base"]
    assert main([*command, f"--output_dir={tmp_path / 'p'}"]) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith("gaploop ")]
    assert len(lines) == 3
    assert all(parsed(line) for line in lines)
    assert "--policy.path=base" in lines[1]
    assert f"--real=[{tmp_path}/p/resimulated]" in shlex.split(lines[1])
    assert f"--robot.twin={tmp_path / 'twin.yaml'}" in lines[0]
    assert [".randomise=twin" in line for line in lines] == [bool(draws), False, bool(draws)]


@pytest.mark.parametrize(
    ("world", "record_with", "shown_by"),
    [
        ({"scene": "/my bench/scene.yaml"}, "", "--policy.path=demonstrator"),
        (
            {"gym": "metaworld:Meta-World/MT1", "kwargs": {"env_name": "reach-v3"}, "roles": "r.y"},
            "--policy.path=my_lab:reach",
            "--policy.path=my_lab:reach",
        ),
    ],
)
def test_in_a_simulation_of_ones_own_demonstrations_come_from_its_own_commands(
    world: dict[str, Any], record_with: str, shown_by: str, tmp_path: Path
) -> None:
    theirs, file = replace(twin(SIZE), world=world), tmp_path / "t.yaml"
    known = PlanContext(tmp_path, "me/act", theirs, file, record_with=record_with)
    assert [o.remedy for o in offers(D.OBJECT_PROPERTY, known, False)] == ["resimulate"]
    typed = commands("resimulate", D.OBJECT_PROPERTY, known)
    assert [line.split()[1] for line in typed] == ["evaluate", "evaluate", "finetune", "evaluate"]
    twins, nominal, _, last = typed
    assert shown_by in twins
    assert (f"--twin={file}" in twins, f"--twin={file}" in nominal) == (True, False)
    # Demonstrations of the scenes that are evaluated would flatter.
    for line, seed in ((twins, 1000), (nominal, 1000), (last, 0)):
        config: Any = parsed(line)
        assert (config.seed, config.roles) == (seed, Path("r.y") if "roles" in world else None)
    assert parsed(typed[2])


LADDER_ROWS = Path("docs/figures/ladder_mended.parquet")


def test_what_the_ladder_teaches_is_what_its_rows_say() -> None:
    """The stored file is the one that `python -m benchmarks.proof.lessons` makes, and no other."""
    known = json.loads(remedies.SITES.read_text())
    made = with_ladder(known, kept_rows(LADDER_ROWS, "station", None))
    assert as_text(made) == remedies.SITES.read_text()
    nothing, all_ = "0" * 30, "1" * 30
    row = {"station": "s", "gaps": "{'actuator_response.latency': 0.6}"}
    arms = {"none": nothing, "both_mild": nothing, "randomised_identified": all_}
    few = with_ladder(known, [row | {"arm": arm, "after": bits} for arm, bits in arms.items()])
    assert few["ladder"]["identify"] == {"points": [100.0, 100.0, 100.0], "stations": 1}
    assert [s for s in few["sites"] if s["site"] == "ladder/s"] == [
        {"remedy": "randomise", "dimension": "actuator_response", "site": "ladder/s",
         "before": [0, 30], "after": [0, 30]}
    ]  # fmt: skip


def test_measuring_comes_first_where_experiments_and_nothing_here_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(dimension: GapDimension, context: PlanContext | None = None) -> bool:
        plan = planned({dimension.value: 0.9}, context or about(tmp_path))
        return any(note.startswith("Identify first") for note in plan.notes)

    known = json.loads(remedies.SITES.read_text())
    clear = {"randomise": [9, 0, 17], "identify": [27, 2, 52], "demonstrate": [57, 39, 73]}
    ladder = {rung: {"points": points, "stations": 5} for rung, points in clear.items()}
    monkeypatch.setattr(remedies, "_known", lambda: {**known, "ladder": ladder})
    assert {d for d in D if told(d)} == set(MEASURED)
    assert not told(D.ACTUATOR_RESPONSE, about(tmp_path, WEAK))  # its twin weighs remedies itself
    here = (LedgerEntry("", "", "plan", None, TrialCounts(1, 9), TrialCounts(8, 9), ()),)
    assert not told(D.ACTUATOR_RESPONSE, replace(about(tmp_path), ledger=here))
    found = diagnosed({D.ACTUATOR_RESPONSE.value: 0.9})
    alone = {**found.summary, "shown_alone": [{"what": "An offset.", "fix": "Calibrate."}]}
    ask = PlanRequest(Budget(takes=20), expected_curves(), about=about(tmp_path))
    first, *_ = plan_for(replace(found, summary=alone), ask).notes
    assert first.startswith("Mend first")
    late = {"kind": "action_lag", "belongs_to": D.ACTUATOR_RESPONSE.value, "what": "", "fix": ""}
    alone = {**found.summary, "shown_alone": [late]}
    told_late = plan_for(replace(found, summary=alone), replace(ask, about=about(tmp_path, WEAK)))
    assert told_late.items[0].commands
    assert not any(n.startswith("Mend first") for n in told_late.notes)
    ladder["identify"] = {"points": [27, -2, 52], "stations": 5}
    assert not told(D.ACTUATOR_RESPONSE)


@pytest.mark.parametrize(
    ("policy", "world", "said", "typed"),
    [
        ("base", {}, "more simulated episodes", "finetune --policy.type=act"),
        ("me/act", {"scene": "s.yaml"}, "--steps", "evaluate --policy.path=demonstrator --env.sce"),
        ("me/act", {"gym": "gym_follow/Follow-v0"}, "--steps", ""),
        ("my_lab:act", {"scene": "s.yaml"}, "Mend my_lab:act", ""),
    ],
)
def test_a_policy_that_fails_of_itself_is_trained_where_it_was(
    policy: str, world: dict[str, Any], said: str, typed: str, tmp_path: Path
) -> None:
    """The cell's training command was printed in the simulation of somebody else."""
    known = replace(about(tmp_path, SIZE), policy=policy)
    assert known.twin is not None
    known = replace(known, twin=replace(known.twin, world=world))
    found = diagnosed({D.OBJECT_PROPERTY.value: 0.5})
    weak = {"reproduction": {"failing": {"nominal": [0.5, 0.3, 0.7]}, "costs": []}}
    weak |= {"station": {"named": [POLICY]}}
    ask = PlanRequest(Budget(takes=20), expected_curves(), about=known)
    plan = plan_for(replace(found, summary={**found.summary, **weak}), ask)
    (note,) = [n for n in plan.notes if n.startswith("Fix the policy first")]
    words, _, command = note.partition(" → ")
    assert said in words
    assert command.removeprefix("gaploop ").startswith(typed)
    assert bool(command) == bool(typed)
    assert not command or parsed(command)
    # Of ten failures of a policy that fails by itself a plan said that nothing explains them, and
    # asked for a named cause.
    told = {"evidence": {"cannot_rule_out": ["visual_domain"]}, **weak}
    told["station"] = {"named": [POLICY], "leading": POLICY, "posterior": {POLICY: 0.9}}
    unnamed = replace(found, takes=(), summary={**found.summary, **told})
    assert "the policy itself" in plan_for(unnamed, ask).stop
    assert not any("named cause" in n for n in plan.notes)


def test_a_script_is_not_trained(tmp_path: Path) -> None:
    theirs = replace(twin("actuator_response.slow.speed_limit_rad_s"), world={"scene": "s.yaml"})
    known = PlanContext(tmp_path, "my_lab:act", theirs, tmp_path / "t.yaml")
    assert [o.remedy for o in offers(D.ACTUATOR_RESPONSE, known, False)] == ["drive_slower"]
    # At Lift, whose actions pull, it advised what `evaluate --speed_scale` refuses.
    pulls = replace(theirs, fit={"takes_targets": False})
    assert not offers(D.ACTUATOR_RESPONSE, replace(known, twin=pulls), False)
    # In metaworld, for its own script, a plan asked for 50 demonstrations.
    pulled = replace(twin("actuator_response.latency.latency_s"), world={"gym": "g:Follow-v0"})
    plan = planned({D.ACTUATOR_RESPONSE.value: 0.9}, replace(known, twin=pulled))
    assert not plan.takes
    assert "fix this" not in plan.items[0].why
    (note,) = [n for n in plan.notes if "is a script" in n]
    assert parsed(note.partition(" → ")[2])


def test_how_many_sites_of_remedies_lie_where_the_others_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of docs/diagnose/planning.md; those of the ladder may come anew, with its rows."""
    known: dict[str, Any] = json.loads(remedies.SITES.read_text())
    rng, inside = np.random.default_rng(0), Counter[bool]()
    for site in known["sites"]:
        rest = {**known, "sites": [s for s in known["sites"] if s is not site]}
        monkeypatch.setattr(remedies, "_known", lambda rest=rest: rest)
        images = site.get("sees") == "pictures"
        said = fixed_by(site["remedy"], D(site["dimension"]), images)
        assert said is not None
        (won, n), (won_after, n_after) = site["before"], site["after"]
        failed = rng.beta(n - won + 0.5, won + 0.5, len(said[0]))
        expected = rng.binomial(n_after, 1.0 - failed * (1.0 - said[0]))
        low, high = np.quantile(expected, [0.05, 0.95])
        inside[site["site"].startswith(LADDER)] += bool(low <= won_after <= high)
    ladders = sum(site["site"].startswith(LADDER) for site in known["sites"])
    assert (inside[False], len(known["sites"]) - ladders) == (30, 35)
    assert inside[True] >= 0.75 * ladders
