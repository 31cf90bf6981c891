"""Laws of widening a twin by hypothesis: what was measured stays, and what is alike isn't told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.twin import Twin, TwinParameter, load_twin, save_twin
from gaploop.core.vocabulary import GapDimension, Outcome, TakeKind
from gaploop.failure_analysis.diagnosis import Diagnosis, TakeDiagnosis
from gaploop.failure_analysis.station import POLICY, UNMEASURED
from gaploop.finetune import hypotheses as tried
from gaploop.finetune.evaluate import CellJob
from gaploop.finetune.hypotheses import Attempt, likeness, widened, with_hypothesis, worth_trying

NUDGE, CLUTTER, TALL = (
    "human_behavior.nudge", "environmental_complexity.clutter", "object_property.tall",
)  # fmt: skip
NOTHING = Twin("lab", "so101", ())


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures as far apart as here are told apart by fewer, too."""
    monkeypatch.setattr(tried, "TREES", 100)


def attempts(centres: dict[str, float], n: int = 12) -> list[Attempt]:
    """Return failures whose one telling figure lies about a mechanism's centre."""
    rng = np.random.default_rng(1)
    return [
        Attempt(name, k // 2, {"told": at + rng.normal(), "noise": rng.normal()})
        for name, at in centres.items()
        for k in range(n)
    ]


def seen(at: float, n: int = 10) -> list[dict[str, float]]:
    rng = np.random.default_rng(2)
    return [{"told": at + rng.normal(), "noise": rng.normal()} for _ in range(n)]


def diagnosed(unmeasured: float) -> tuple[Diagnosis, list[Take]]:
    """Return a reproduced diagnosis of three failures, and their takes."""
    rest = 1.0 - unmeasured
    hidden = [d.value for d in GapDimension if d is not GapDimension.ACTUATOR_RESPONSE]
    shares = {d: 0.6 * unmeasured / len(hidden) for d in hidden}
    posterior = {
        **shares, "actuator_response": rest / 2, POLICY: rest / 2, UNMEASURED: 0.4 * unmeasured,
    }  # fmt: skip
    one = {d.value: posterior[d.value] for d in GapDimension}
    none = 1.0 - sum(one.values())
    found = [TakeDiagnosis(f"t{k}", k, "slip", "transport", one, none, True, ()) for k in range(3)]
    leads = {"actuator_response": rest / 2, POLICY: rest / 2, UNMEASURED: unmeasured}
    named = [UNMEASURED] if unmeasured > 0.8 else []
    summary: dict[str, Any] = {
        "station": {"posterior": posterior, "named": named, "takes": 3},
        "reproduction": {"leads": leads, "shown": {}, "sees": "lerobot", "shares": leads},
    }
    info = TakeInfo("t", kind=TakeKind.ROLLOUT, joint_names=("a", "b"))
    take = Take(info, Outcome.FAILURE, Frames.empty(2), Telemetry(np.empty(0), {}))
    return Diagnosis("d", "", tuple(found), summary), [take] * 3


def test_failures_look_like_those_of_what_brings_them_and_what_is_alike_is_not_told() -> None:
    told = likeness(attempts({NUDGE: 0.0, CLUTTER: 8.0, TALL: 16.0}), seen(8.0))
    assert told.best == CLUTTER
    assert told.dimensions["environmental_complexity"] > 0.8
    assert sum(told.dimensions.values()) == pytest.approx(1.0)
    assert sum(told.draws.values()) == pytest.approx(1.0)
    alike = likeness(attempts({NUDGE: 0.0, CLUTTER: 0.0, TALL: 16.0}), seen(0.0))
    assert max(alike.dimensions.values()) < 0.8
    assert "can't tell" in " ".join(tried._lines(alike, []))


def test_a_dimension_weighs_no_more_for_having_more_mechanisms() -> None:
    many = {NUDGE: 0.0, "human_behavior.take": 0.0, "human_behavior.reach_in": 0.0, CLUTTER: 0.0}
    told = likeness(attempts(many), seen(0.0))
    assert told.dimensions["environmental_complexity"] == pytest.approx(0.5, abs=0.25)


def test_what_brings_no_failures_explains_none() -> None:
    clean = [Attempt(TALL, k // 2, {}) for k in range(12)]
    told = likeness([*attempts({NUDGE: 0.0, CLUTTER: 8.0}), *clean], seen(0.0))
    assert told.silent == (TALL,)
    assert "object_property" not in told.dimensions
    nothing = likeness(clean, seen(0.0))
    assert nothing.dimensions == {}
    assert nothing.best == ""


def test_only_what_nobody_measured_is_rolled_out_and_only_where_it_may_matter() -> None:
    measured = TwinParameter(f"{TALL}.height_factor", "1", 1.0, 1.0, (0.9, 1.1))
    open_yet = replace(measured, name=f"{CLUTTER}.count", excited=False)
    twin = Twin("lab", "so101", (measured, open_yet))
    untried = worth_trying(diagnosed(0.9)[0], twin)
    assert TALL not in untried
    assert {CLUTTER, NUDGE} <= set(untried)
    assert worth_trying(diagnosed(0.1)[0], twin) == ()
    assert worth_trying(diagnosed(0.9)[0], replace(twin, world={"id": "a"})) == ()


def test_what_was_measured_keeps_its_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And a person who pushes is named with values to try, where that alone looks like it."""
    monkeypatch.setattr(tried, "figures_at", lambda _take, _sees: {"told": 0.1, "noise": 0.0})
    rollouts = attempts({NUDGE: 0.0, CLUTTER: 8.0, TALL: 16.0})
    before, takes = diagnosed(0.97)
    after = widened(before, takes, NOTHING, rollouts, tmp_path)
    was, now = (d.summary["station"]["posterior"] for d in (before, after))
    assert sum(now.values()) == pytest.approx(1.0, abs=1e-4)
    for cause in ("actuator_response", POLICY):
        assert now[cause] == pytest.approx(was[cause], abs=1e-4)
    assert max(now, key=lambda c: now[c]) == "human_behavior"
    for take in after.takes:
        assert sum(take.dimensions.values()) + take.none == pytest.approx(1.0)
        assert take.leaning == "human_behavior"
    assert "look like" in " ".join(after.summary["hypotheses"]["says"])


def test_a_hypothesis_is_a_twin_that_a_cell_can_be_made_of(tmp_path: Path) -> None:
    like = likeness(attempts({NUDGE: 0.0, CLUTTER: 8.0, TALL: 16.0}), seen(16.0))
    save_twin(with_hypothesis(NOTHING, like), tmp_path / "twin.yaml")
    twin = load_twin(tmp_path / "twin.yaml")
    assert twin.mechanisms == (TALL,)
    assert twin.values()[TALL]["height_factor"] > 1.0
    assert all("not measured" in p.source for p in twin.parameters)


def test_what_was_rolled_out_is_not_rolled_out_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[CellJob] = []

    def run(
        _work: Any, jobs: Sequence[CellJob], _workers: int
    ) -> Iterator[tuple[str, int, list[Any]]]:
        for job in jobs:
            asked.append(job)
            (name,) = job.spec.gaps
            yield name, (job.spec.gap_seed - tried.SCENES) // tried.EACH, [{"told": 1.5}, {}]

    monkeypatch.setattr(tried, "run_jobs", run)
    how: dict[str, Any] = {"sees": "lerobot", "max_s": 8.0, "workers": 1, "folder": tmp_path}
    first = tried.rolled_out("base", NOTHING, [NUDGE], "pick_place", **how)
    assert len(first) == tried.ROLLOUTS
    assert len({job.spec.gap_seed for job in asked}) == tried.DRAWS
    (kept,) = tmp_path.rglob("attempts.jsonl")
    kept.write_text(kept.read_text() + '["torn')
    done = len(asked)
    again = tried.rolled_out("base", NOTHING, [NUDGE, TALL], "pick_place", **how)
    assert len(asked) == done + tried.DRAWS
    assert [a for a in again if a.mechanism == NUDGE] == first
