"""A board is served: hidden scenes, drawn orders, kept attempts, signed results, true groups."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from benchmarks.board import contest, sandbox, serving
from benchmarks.board.__main__ import main
from benchmarks.board.contest import Attempted, Job, Tried
from benchmarks.board.entries import Submission, enter
from benchmarks.board.ranking import ranked
from benchmarks.board.sandbox import EndedError, Limits
from benchmarks.board.serving import Measure, Served, Serving, look, serve
from benchmarks.board.signing import Server
from gaploop.collect.journal import JournalWriter
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, uuid7, write_json
from gaploop.core.journal_format import TRUTH, TakeHeader, append_truth
from gaploop.core.take import TakeInfo
from gaploop.core.vocabulary import Outcome
from gaploop.finetune.evaluate import condition_name
from gaploop.finetune.evaluation import Rollout
from gaploop.finetune.hub_policy import files_of
from gaploop.finetune.lerobot_policy import PACKAGED_BASE

sys.path.insert(0, str(Path(__file__).parents[2]))

from loopback_hub import LoopbackHub, Repo, loopback_hub

MEASURE = Measure("cup", conditions=({}, {"lighting": "dim"}), n=6)
MARK = "skill.json"
"""In the files of a made-up policy: its chance of success."""


def made_up(job: Job) -> Attempted:
    """Attempted of policies that succeed by their skill, as the scene alone decides."""
    found: dict[str, list[Rollout]] = {}
    for seed, order in job.scenes:
        for tried in order:
            skill = read_json(tried.folder / MARK)["skill"]
            won = bool(np.random.default_rng(seed).random() < skill)
            row = Rollout(seed, condition_name(job.condition), won, 2.0, "" if won else "timeout")
            found.setdefault(tried.alias, []).append(row)
    return Attempted(found, {})


def put(board: Path, name: str, skill: float, tmp_path: Path, user: str = "ana") -> Submission:
    mark = tmp_path / f"{name}-{MARK}"
    write_json(mark, {"skill": skill})
    entry = Submission(user, name, "policy", "me/takes, 200 takes")
    enter(board, entry, {**files_of(PACKAGED_BASE), MARK: mark})
    return entry


@pytest.fixture
def how(tmp_path: Path) -> Serving:
    def film(*given: Any) -> None:
        Path(given[-1]).write_bytes(b"a video")

    board, private = tmp_path / "board", tmp_path / "private"
    return Serving(board, private, make=made_up, load=lambda *_: "", film=film)


def without_time(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k not in ("at", "signature")} for r in results]


def public(board: Path) -> str:
    return "\n".join(p.read_text() for p in board.rglob("*.*") if p.suffix in (".json", ".html"))


def test_equal_secrets_give_equal_results_in_whatever_order_and_in_one_go_or_two(
    how: Serving, tmp_path: Path
) -> None:
    put(how.board, "good", 0.9, tmp_path)
    put(how.board, "bad", 0.1, tmp_path)
    together = serve(how, MEASURE)
    again = replace(how, board=tmp_path / "board2", private=tmp_path / "private2")
    again.private.mkdir()
    (again.private / "server.json").write_bytes((how.private / "server.json").read_bytes())
    put(again.board, "bad", 0.1, tmp_path)
    serve(again, MEASURE)
    put(again.board, "good", 0.9, tmp_path)
    one_by_one = serve(again)
    assert without_time(together.results) == without_time(one_by_one.results)
    assert one_by_one.new == ["ana/good"]
    assert len(look(again.board).ranking["tracks"]["policy"]["differences"]) == 1


def test_no_scene_no_order_and_no_secret_is_public_and_the_commitment_is(
    how: Serving, tmp_path: Path
) -> None:
    put(how.board, "good", 0.9, tmp_path)
    serve(how, MEASURE)
    server, said = Server.opened(how.private), public(how.board)
    seeds = {s for c in MEASURE.conditions for s in contest.scenes(server, c, MEASURE.n)}
    assert len(seeds) == 12, "no two settings share a scene"
    assert not [s for s in seeds if str(s) in said]
    assert server.secret not in said
    assert server.private not in said
    assert server.commitment in said
    assert ((how.private / "server.json").stat().st_mode & 0o777) == 0o600


def test_orders_are_drawn_for_each_scene_and_names_tell_nothing(
    how: Serving, tmp_path: Path
) -> None:
    orders: list[tuple[str, ...]] = []

    def watched(job: Job) -> Attempted:
        orders.extend(tuple(t.alias for t in order) for _, order in job.scenes)
        return made_up(job)

    for name in ("one", "two", "three"):
        put(how.board, name, 0.5, tmp_path)
    serve(replace(how, make=watched), replace(MEASURE, n=12))
    assert len(orders) == 24
    assert {len(set(order)) for order in orders} == {3}
    assert len(set(orders)) > 3
    assert not [name for order in orders for name in order if name in ("one", "two", "three")]


def test_what_was_rolled_out_before_a_stop_is_kept_and_nothing_is_done_twice(
    how: Serving, tmp_path: Path
) -> None:
    put(how.board, "good", 0.9, tmp_path)
    put(how.board, "bad", 0.1, tmp_path)
    done: Counter[tuple[str, int]] = Counter()

    def stopped(job: Job) -> Attempted:
        if len(done) >= 8 and stopping:
            raise KeyboardInterrupt
        found = made_up(job)
        done.update((alias, r.seed) for alias, rows in found.rollouts.items() for r in rows)
        return found

    stopping = True
    with pytest.raises(KeyboardInterrupt):
        serve(replace(how, make=stopped), MEASURE)
    assert not (how.board / "ranking.json").exists()
    change = how.board / "submissions/ana/bad/files" / MARK  # to stop the server, or to win
    change.write_text('{"skill": 0.2}')
    stopping = False
    serve(replace(how, make=stopped))
    assert len(done) == 24 + 4, "what was tried of the files before is of no use"
    assert set(done.values()) == {1}


def test_whatever_is_changed_on_the_board_is_seen_and_put_right(
    how: Serving, tmp_path: Path
) -> None:
    put(how.board, "good", 0.9, tmp_path)
    put(how.board, "bad", 0.1, tmp_path)
    serve(how, MEASURE)
    assert not look(how.board).wrong
    key = read_json(how.board / "benchmark.json")["key"]
    assert not look(how.board, key).wrong
    result, ranking = how.board / "results/ana/bad.json", how.board / "ranking.json"

    def rate(value: dict[str, Any]) -> None:
        value["rate"]["rate"] = 1.0

    changes: list[tuple[Path, Callable[[dict[str, Any]], object]]] = [
        (result, rate),
        (result, lambda v: v.update(user="eve")),
        (result, lambda v: v.pop("signature")),
        (ranking, lambda v: v["tracks"]["policy"]["order"].reverse()),
        (how.board / "benchmark.json", lambda v: v.update(n=5)),
    ]
    for path, change in changes:
        value = read_json(path)
        change(value)
        write_json(path, value)
        assert path.relative_to(how.board).as_posix() in look(how.board, key).wrong
        assert main(["show", str(how.board)]) == 1
        serve(how)
        assert not look(how.board, key).wrong
    good = how.board / "results/ana/good.json"
    result.write_bytes(good.read_bytes())  # signed, but another's
    assert look(how.board, key).wrong == ["results/ana/bad.json"]
    result.unlink()
    assert look(how.board, key).wrong
    (how.board / "results").rename(tmp_path / "results")
    (how.board / "results").symlink_to(tmp_path / "results")
    with pytest.raises(UnusableInputError, match="leads out"):
        serve(how)
    other = Server.opened(tmp_path / "other")
    assert len(look(how.board, other.public).wrong) == 3


def test_refusals_are_results_and_too_many_of_one_user_wait(how: Serving, tmp_path: Path) -> None:
    put(how.board, "a", 0.5, tmp_path)
    put(how.board, "b", 0.5, tmp_path)
    put(how.board, "c", 0.5, tmp_path)
    (how.board / "submissions/ana/b/files/weights.pkl").write_bytes(b"")
    served = serve(replace(how, per_user=2), MEASURE)
    assert served.new == ["ana/a", "ana/b"]
    assert list(served.waiting) == ["ana/c"]
    shown = look(how.board)
    assert [r.get("refused", "")[:11] for r in shown.results] == ["", "'weights.pk"]
    assert [e["submission"] for e in shown.ranking["tracks"]["policy"]["order"]] == ["ana/a"]
    assert "weights.pkl" in (how.board / "index.html").read_text()


def test_a_policy_that_often_fails_to_answer_is_given_up_and_the_others_are_not(
    how: Serving, tmp_path: Path
) -> None:
    bad = put(how.board, "bad", 0.0, tmp_path)
    put(how.board, "good", 0.9, tmp_path)

    def failing(job: Job) -> Attempted:
        found = made_up(job)
        gone = {
            t.alias for _, o in job.scenes for t in o if read_json(t.folder / MARK)["skill"] == 0
        }
        return Attempted(found.rollouts, dict.fromkeys(gone, "takes too long"))

    serve(replace(how, make=failing), MEASURE)
    results = {r["name"]: r.get("refused", "") for r in look(how.board).results}
    assert "takes too long" in results[bad.name]
    assert not results["good"]


def test_a_benchmark_stays_what_it_was_begun_as(how: Serving, tmp_path: Path) -> None:
    serve(how, MEASURE)
    with pytest.raises(UnusableInputError, match="another n"):
        serve(how, replace(MEASURE, n=7))
    with pytest.raises(UnusableInputError, match="on the board"):
        serve(replace(how, private=how.board / "private"), MEASURE)
    with pytest.raises(UnusableInputError, match="serves no benchmark"):
        serve(replace(how, private=tmp_path / "none"))


def test_a_policy_is_given_up_after_three_attempts_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Silent:
        fps = 50.0

        def __init__(self, *_: object) -> None:
            asked.append("made")

        def close(self) -> None:
            asked.append("closed")

    def roll_out(*_: object, **__: object) -> list[Rollout]:
        raise EndedError("takes too long")

    asked: list[str] = []
    monkeypatch.setattr(contest, "BoxedPolicy", Silent)
    monkeypatch.setattr(contest, "rig_of", lambda *_: Silent())
    monkeypatch.setattr(contest, "roll_out", roll_out)
    tried = Tried("alias", tmp_path, "id")
    job = Job(MEASURE.cell, {}, tuple((seed, (tried,)) for seed in range(5)), Limits())
    found = contest.attempt(job)
    contest.close()
    assert [r.success for r in found.rollouts["alias"]] == [False] * contest.STRIKES
    assert found.given_up == {"alias": "takes too long"}
    assert asked.count("made") == asked.count("closed")


# -- who can be told apart ------------------------------------------------------------------------


def outcomes(skills: dict[str, float], n: int, seed: int = 0) -> dict[str, list[Rollout]]:
    draws = np.random.default_rng(seed).random((n, len(skills)))
    return {
        name: [Rollout(k, "nominal", bool(draws[k, c] < skill)) for k in range(n)]
        for c, (name, skill) in enumerate(skills.items())
    }


def test_groups_hold_who_can_not_be_told_apart() -> None:
    found = ranked(outcomes({"a": 0.95, "b": 0.93, "c": 0.5, "d": 0.05}, 200))
    assert list(found.rates)[2:] == ["c", "d"]
    assert [found.letters[k] for k in ("a", "b", "c", "d")] == ["a", "a", "b", "c"]
    for pair in found.pairs:
        shared = set(found.letters[pair.better]) & set(found.letters[pair.other])
        assert not (shared and pair.is_significant)


def test_groups_overlap_where_only_the_ends_differ() -> None:
    rows = {
        "high": [Rollout(k, "x", k < 60) for k in range(60)],
        "middle": [Rollout(k, "x", k < 56) for k in range(60)],
        "low": [Rollout(k, "x", k < 51) for k in range(60)],
    }
    assert ranked(rows).letters == {"high": "a", "middle": "ab", "low": "b"}


def test_equal_policies_are_seldom_told_apart() -> None:
    """At 5 % for all pairs together: of 40 boards of four equals, few show a difference."""
    wrong = sum(
        any(p.is_significant for p in ranked(outcomes(dict.fromkeys("abcd", 0.7), 60, seed)).pairs)
        for seed in range(40)
    )
    assert wrong <= 6, "5 % of 40, and what chance adds to it in one of a hundred tries"


def test_one_alone_and_none_at_all_are_ranked() -> None:
    assert ranked({}).to_json() == {"order": [], "differences": []}
    assert ranked(outcomes({"a": 0.5}, 10)).letters == {"a": "a"}


# -- programs -------------------------------------------------------------------------------------

RUN = """
import json, pathlib, sys
takes = pathlib.Path(sys.argv[1])
for take in takes.iterdir():
    held = [p.name for p in take.iterdir()]
    assert "truth.jsonl" not in held and not list(takes.parent.rglob("truth.jsonl"))
    sure = {"contact_dynamics": 1.0, "none": 0.0}
    print(json.dumps({"id": take.name, "dimensions": {"contact_dynamics": 1.0}, "none": 0.0,
                      "named": ["contact_dynamics"]}))
"""


@pytest.fixture
def takes(tmp_path: Path) -> Path:
    """Return journals of four stations: one failure each, three of them by contact."""
    for n in range(4):
        journal = tmp_path / "takes" / str(n)
        info = TakeInfo(uuid7(), "Move", 50.0, joint_names=("pan",), units="deg")
        header = TakeHeader(info, (), {}, {"f.pan.position_rad": "rad"})
        with JournalWriter(journal, header) as writer:
            writer.telemetry(0, np.zeros(1))
            writer.seal(Outcome.FAILURE)
        cause = "contact_dynamics" if n else "visual_domain"
        append_truth(journal, info.uid, {"injected": [{"dimension": cause, "severity": 0.5}]})
    return tmp_path / "takes"


def enter_program(how: Serving, tmp_path: Path, code: str, name: str = "judge") -> None:
    run = tmp_path / f"{name}.py"
    run.write_text(code)
    enter(how.board, Submission("bob", name, "attribution", "own takes"), {"run.py": run})


@pytest.mark.skipif(sandbox.isolation() != sandbox.NAMESPACES, reason="programs need namespaces")
def test_a_program_reads_takes_and_is_scored_and_one_that_fails_is_refused(
    how: Serving, tmp_path: Path, takes: Path
) -> None:
    enter_program(how, tmp_path, RUN)
    enter_program(how, tmp_path, "raise SystemExit(1)", "broken")
    enter_program(how, tmp_path, 'print(\'{"id": "secret of a take"}\')', "odd")
    served = serve(how, MEASURE)
    assert sorted(served.waiting) == ["bob/broken", "bob/judge", "bob/odd"]
    serve(replace(how, programs=True, takes=takes))
    results = {r["name"]: r for r in look(how.board).results}
    assert results["broken"]["refused"] == "It ended by itself."
    assert results["odd"]["refused"] == "It prints something that is no prediction."
    assert results["judge"]["figures"]["top1"]["value"] == 0.75
    assert results["judge"]["rate"]["successes"] == 3
    assert "secret of a take" not in public(how.board)
    assert TRUTH not in [p.name for p in (how.private / "takes").rglob("*")]
    order = look(how.board).ranking["tracks"]["attribution"]["order"]
    assert [e["submission"] for e in order] == ["bob/judge"]


# -- on a Hub -------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with loopback_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield running


def test_a_board_on_a_hub_is_entered_served_and_looked_at(
    hub: LoopbackHub, how: Serving, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip

    def made(given: Serving, *rest: Any) -> Served:
        return serve(replace(given, make=how.make, load=how.load, film=how.film), *rest)

    monkeypatch.setattr(serving, "serve", made)
    repo = Repo("model", "ana/placer")
    files = {n: p.read_bytes() for n, p in files_of(PACKAGED_BASE).items()}
    first = repo.commit({**files, MARK: b'{"skill": 0.9}'}, "first")
    repo.commit({**files, MARK: b'{"skill": 0.0}', "weights.pkl": b""}, "second")
    hub.repos["model", "ana/placer"] = repo
    told = ["--policy.path=ana/placer", "--training_data=takes of ana, 200"]
    assert main(["serve", "lab/cup", "--n=4"]) == 0
    assert main(["submit", "lab/cup", *told, f"--revision={first}"]) == 0
    assert main(["submit", "lab/cup", *told, "--name=newer"]) == 0
    assert main(["submit", "lab/cup", *told]) == 2, "entered already"
    capsys.readouterr()
    assert main(["serve", "lab/cup", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["new"] == ["ana/newer", "ana/placer"]
    held = hub.files("lab/cup")
    for name in (
        *("benchmark.json", "ranking.json", "index.html", "results/ana/placer.json"),
        *("videos/ana/placer.mp4", "submissions/ana/placer/entry.json"),
    ):
        assert name in held
    assert not [name for name in held if "server" in name or "rollouts" in name]
    results = {r["name"]: r for r in said["results"]}
    assert results["placer"]["revision"] == first
    assert "pickle" in results["newer"]["refused"]
    assert main(["show", "lab/cup"]) == 0
    assert "ana/placer" in capsys.readouterr().out


@pytest.mark.slow
def test_the_base_drives_from_its_box_as_it_does_outside(tmp_path: Path) -> None:
    from gaploop.finetune.evaluate import evaluate

    board = str(tmp_path / "board")
    told = ["--user=ana", "--training_data=scripted takes", "--policy.path=base"]
    assert main(["submit", board, *told]) == 0
    assert main(["serve", board, "--n=2"]) == 0
    found = look(Path(board))
    server = Server.opened(tmp_path / "board_private")
    seeds = contest.scenes(server, {}, 2)
    outside = [evaluate("base", 1, seed=seed, workers=1, base={}).successes for seed in seeds]
    assert found.results[0]["rate"]["successes"] == sum(outside)
    assert (tmp_path / "board/videos/ana/base.mp4").stat().st_size > 1000
