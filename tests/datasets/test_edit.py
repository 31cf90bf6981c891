"""Delete, keep, split, merge: what stays is what it was, whatever is done in which order."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaploop.core import labels
from gaploop.core.consent import Place, load_register
from gaploop.core.errors import UnusableInputError
from gaploop.core.journal_format import TRUTH, append_truth
from gaploop.core.labels import LabelEvent
from gaploop.core.vocabulary import Outcome
from gaploop.datasets import layout, staging
from gaploop.datasets.check.dataset import check
from gaploop.datasets.edit.actions import (
    by_field,
    carry_out,
    done_unsaid,
    opened,
    plan_choice,
    plan_merge,
    plan_split,
)
from gaploop.datasets.edit.compose import DatasetPiece, dataset_hash, read_run, spans
from gaploop.datasets.lerobot_publish import publish
from gaploop.datasets.lerobot_read import read_takes
from gaploop.scripts.cli import main

Write = Callable[..., str]
Barcodes = tuple[Callable[[int], np.ndarray], Callable[[np.ndarray], int]]
TAKES = 6
SESSIONS = ("monday", "monday", "tuesday", "tuesday", "tuesday", "friday")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, write_take: Write) -> Path:
    """A dataset of six takes of three sessions, with labels, truth and telemetry; don't change."""
    folder = tmp_path_factory.mktemp("edit")
    for n in range(TAKES):
        uid = write_take(
            folder / "journal",
            frames=4 + n,
            code=100 * n,
            outcome=Outcome.FAILURE if n % 2 else Outcome.SUCCESS,
            task="Lift it" if n == 3 else "Put the cube on the disc",
            session=SESSIONS[n],
            conditions={"lighting": "dim" if n < 2 else "day"},
        )
        append_truth(folder / "journal", uid, {"gap": n})
        for word in ("slip", "drift"):
            event = LabelEvent(uid, "failure_mode", word, "ana", "operator")
            labels.append(folder / "journal/labels.jsonl", event)
    publish(folder / "journal", folder / "set", "me/x")
    return folder / "set"


@pytest.fixture
def dataset(original: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(original, tmp_path / "set"))


def content(root: Path, read: Callable[[np.ndarray], int]) -> dict[str, tuple[Any, ...]]:
    """Return uid to everything that is known of a take: rows, pictures, telemetry, labels."""
    said: dict[str, list[str]] = {}
    for line in (root / layout.LABELS).read_text().splitlines():
        said.setdefault(json.loads(line)["uid"], []).append(line)
    truth = {json.loads(t)["uid"]: t for t in (root / TRUTH).read_text().splitlines()}
    rows = {row["gap_uid"]: row for row in layout.episode_rows(root)}
    data = pa.concat_tables([pq.read_table(p) for p in layout.data_files(root)])
    numbers = ("index", "episode_index", "task_index")
    found = {}
    for take in read_takes(root):
        uid = take.info.uid
        first, last = rows[uid]["dataset_from_index"], rows[uid]["dataset_to_index"]
        frames = data.slice(first, last - first)
        gap = {k: v for k, v in rows[uid].items() if k.startswith("gap_") or k == "tasks"}
        found[uid] = (
            gap,
            said.get(uid),
            truth.get(uid),
            [frames[n].to_pylist() for n in frames.column_names if n not in numbers],
            [read(picture) for picture in take.cameras["overhead"]()],
            {n: v.tolist() for n, v in take.telemetry.columns.items()},
        )
    return found


def errors(root: Path) -> list[str]:
    return [f.code for f in check(root) if f.severity == "error"]


def split(root: Path, parts: dict[str, list[int]], out: Path) -> list[Path]:
    with opened([root]) as (piece,):
        carry_out(plan_split(piece, parts, {}, named=True), out)
    return [out / name for name in parts]


def merge(roots: list[Path], out: Path) -> Path:
    with opened(roots) as pieces:
        carry_out(plan_merge(pieces), out)
    return out


@st.composite
def partitions(draw: st.DrawFn) -> dict[str, list[int]]:
    """Draw two or three parts that together hold every take once."""
    names = ["a", "b", "c"][: draw(st.integers(2, 3))]
    order = draw(st.permutations(range(TAKES)))
    cuts = sorted(draw(st.sets(st.integers(1, TAKES - 1), min_size=len(names) - 1, max_size=2)))
    edges = [0, *cuts[: len(names) - 1], TAKES]
    return {
        name: sorted(order[a:b])
        for name, (a, b) in zip(names, itertools.pairwise(edges), strict=True)
    }


@given(parts=partitions())
@settings(max_examples=3)
def test_splitting_then_merging_changes_nothing(
    original: Path, tmp_path_factory: pytest.TempPathFactory, barcodes: Barcodes,
    parts: dict[str, list[int]],
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("parts")
    before = content(original, barcodes[1])
    pieces = split(original, parts, folder / "out")
    for path, indices in zip(pieces, parts.values(), strict=True):
        uids = list(before)
        assert content(path, barcodes[1]) == {uids[i]: before[uids[i]] for i in indices}
    whole = merge(pieces, folder / "whole")
    assert content(whole, barcodes[1]) == before
    assert list(content(whole, barcodes[1])) == [list(before)[i] for p in parts.values() for i in p]
    assert errors(whole) == []


def test_parts_in_order_merge_to_the_very_same_rows(original: Path, tmp_path: Path) -> None:
    pieces = split(original, {"a": [0, 1, 2], "b": [3, 4, 5]}, tmp_path / "out")
    whole = merge(pieces, tmp_path / "whole")

    def rows(root: Path) -> pa.Table:
        files = layout.data_files(root)
        return pa.concat_tables([pq.read_table(p) for p in files]).combine_chunks()

    assert rows(whole).equals(rows(original))
    assert layout.episode_rows(whole)[4]["dataset_from_index"] == 4 + 5 + 6 + 7
    old, new = (json.loads((r / layout.STATS).read_text()) for r in (original, whole))
    for feature, stats in old.items():
        for name, value in stats.items():
            np.testing.assert_allclose(new[feature][name], value, rtol=1e-6, atol=1e-9)


def test_merging_is_associative(original: Path, tmp_path: Path, barcodes: Barcodes) -> None:
    a, b, c = split(original, {"a": [0, 3], "b": [1, 5], "c": [2, 4]}, tmp_path / "out")
    left = merge([merge([a, b], tmp_path / "ab"), c], tmp_path / "ab_c")
    right = merge([a, merge([b, c], tmp_path / "bc")], tmp_path / "a_bc")
    assert content(left, barcodes[1]) == content(right, barcodes[1])
    assert (left / layout.LABELS).read_text() == (right / layout.LABELS).read_text()
    turned = merge([c, b, a], tmp_path / "cba")
    assert content(turned, barcodes[1]) == content(left, barcodes[1])


def test_deleting_leaves_every_other_take_bit_by_bit(dataset: Path, barcodes: Barcodes) -> None:
    """Joint data of the others is compared as stored, NaN payloads and negative zeros included."""
    before, uids = (
        content(dataset, barcodes[1]),
        [r["gap_uid"] for r in layout.episode_rows(dataset)],
    )
    raw = buffers(dataset)
    assert main(["edit", "delete", str(dataset), "--episodes=[1, 4]", "--yes"]) == 0
    kept = [uids[i] for i in (0, 2, 3, 5)]
    assert content(dataset, barcodes[1]) == {uid: before[uid] for uid in kept}
    assert buffers(dataset) == {uid: raw[uid] for uid in kept}
    assert errors(dataset) == []
    everything = b"".join(p.read_bytes() for p in dataset.rglob("*") if p.is_file())
    assert uids[1].encode() not in everything
    run = read_run(dataset)
    assert (run["command"], run["inputs"][0]["episodes"]) == ("edit delete", "0,2:4,5")


def buffers(root: Path) -> dict[str, bytes]:
    """Return uid to the bytes of its joint data."""
    found = {}
    for row in layout.episode_rows(root):
        files = layout.data_files(root)
        table = pa.concat_tables([pq.read_table(p) for p in files])
        rows = table.slice(row["dataset_from_index"], row["length"])
        found[row["gap_uid"]] = b"".join(
            rows[name].combine_chunks().flatten().to_numpy().tobytes()
            for name in ("action", "observation.state", "gap.sent")
        )
    return found


def test_plain_lerobot_loads_every_part_with_its_pictures(
    original: Path, tmp_path: Path, barcodes: Barcodes
) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    parts = {"a": [0, 2, 5], "b": [1, 3, 4]}
    paths = split(original, parts, tmp_path / "out")
    whole = merge(paths, tmp_path / "whole")
    order = {paths[0]: parts["a"], paths[1]: parts["b"], whole: [0, 2, 5, 1, 3, 4]}
    for path, episodes in order.items():
        loaded = LeRobotDataset("me/x", root=path)
        assert loaded.num_episodes == len(episodes)
        for item in loaded:
            picture = item["observation.images.overhead"].numpy().transpose(1, 2, 0) * 255
            old = episodes[int(item["episode_index"])]
            assert barcodes[1](picture) == 100 * old + int(item["frame_index"])
            assert item["task"] == ("Lift it" if old == 3 else "Put the cube on the disc")


def test_publishing_goes_on_after_a_merge(
    original: Path, tmp_path: Path, write_take: Write
) -> None:
    whole = merge(
        split(original, {"a": [0, 3], "b": [1, 2, 4, 5]}, tmp_path / "out"), tmp_path / "w"
    )
    uid = write_take(tmp_path / "next", code=900)
    assert publish(tmp_path / "next", whole, "me/x") == 1
    assert list(read_takes(whole))[-1].info.uid == uid
    assert errors(whole) == []


def test_a_take_that_two_datasets_hold(dataset: Path, tmp_path: Path, barcodes: Barcodes) -> None:
    """Overlapping parts, one of them labelled again since: taken once, with the labels of both."""
    first, second = (
        split(dataset, {name: part, "rest": rest}, tmp_path / name)[0]
        for name, part, rest in (("a", [0, 1, 2], [3, 4, 5]), ("b", [2, 3, 4, 5], [0, 1]))
    )
    uid = layout.episode_rows(dataset)[2]["gap_uid"]
    event = LabelEvent(uid, "failure_mode", "collision", "bo", "engineer")
    labels.append(second / layout.LABELS, event)
    for roots in ([first, second], [second, first]):
        whole = merge(roots, tmp_path / f"whole_{roots[0].parent.name}")
        rows = {row["gap_uid"]: row for row in layout.episode_rows(whole)}
        assert len(rows) == TAKES
        assert rows[uid]["gap_failure_mode"] == "collision"
        assert errors(whole) == []
    same = [content(p, barcodes[1]) for p in (tmp_path / "whole_a", tmp_path / "whole_b")]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"robot_type": "koch"}, "robot_type is koch.*gaploop edit harmonise"),
        ({"fps": 30}, "30 fps.*gaploop edit harmonise"),
    ],
)
def test_other_robots_and_rates_are_not_merged(
    dataset: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    a, b = split(dataset, {"a": [0, 1], "b": [2, 3, 4, 5]}, tmp_path / "out")
    info = json.loads((b / layout.INFO).read_text()) | change
    (b / layout.INFO).write_text(json.dumps(info))
    with pytest.raises(UnusableInputError, match=says):
        merge([a, b], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_other_joints_and_units_are_not_merged(
    dataset: Path, tmp_path: Path, write_take: Write
) -> None:
    write_take(tmp_path / "j", joints=("pan", "lift", "wrist"))
    publish(tmp_path / "j", tmp_path / "other", "me/x")
    with pytest.raises(UnusableInputError, match=r"wrist.*gaploop edit harmonise"):
        merge([dataset, tmp_path / "other"], tmp_path / "whole")
    a, b = split(dataset, {"a": [0, 1], "b": [2, 3, 4, 5]}, tmp_path / "out")
    path = layout.episode_files(b)[0]
    table = pq.read_table(path)
    place = table.schema.get_field_index("gap_units")
    pq.write_table(table.set_column(place, "gap_units", pa.array(["rad"] * 4)), path)
    with pytest.raises(UnusableInputError, match=r"are in rad, not deg.*gaploop edit harmonise"):
        merge([a, b], tmp_path / "whole")
    with pytest.raises(UnusableInputError, match="named twice"):
        merge([a, a], tmp_path / "whole")


def test_lineage_goes_back_to_the_first_dataset(original: Path, tmp_path: Path) -> None:
    parts = split(original, {"a": [0, 3], "b": [1, 2, 4, 5]}, tmp_path / "out")
    run = read_run(merge(parts, tmp_path / "whole"))
    assert [i["name"] for i in run["inputs"]] == ["a", "b"]
    assert [i["id"] for i in run["inputs"]] == [read_run(p)["id"] for p in parts]
    first = run["inputs"][1]["run"]["inputs"][0]
    assert (first["name"], first["episodes"], first["of"]) == ("set", "1:3,4:6", TAKES)
    assert first["hash"] == dataset_hash(original)
    assert str(tmp_path) not in json.dumps(run)  # no path: a dataset is pushed with it


def test_consent_is_noted_where_takes_go(
    tmp_path: Path, write_take: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = tmp_path / "register" / "consents.jsonl"
    monkeypatch.setenv("GAPLOOP_CONSENTS", str(register))
    scope = "[record, publish]"
    assert main(["consent", "add", "--expires=2099-01-01", f"--scope={scope}"]) == 0
    id_ = next(iter(load_register(register).consents))
    for n in range(3):
        write_take(tmp_path / "j", code=n, consent=id_ if n == 1 else "")
    publish(tmp_path / "j", tmp_path / "set", "me/x")
    arguments = ["edit", "split", str(tmp_path / "set"), "--episodes=[1]"]
    assert main([*arguments, f"--output_dir={tmp_path / 'out'}"]) == 0
    places = load_register(register).places[id_]
    assert Place("dataset", str(tmp_path / "out/chosen")) in places
    assert Place("dataset", str(tmp_path / "out/rest")) not in places
    assert main(["consent", "withdraw", id_, "--yes"]) == 0
    assert not (tmp_path / "out/chosen").exists()
    assert len(layout.episode_rows(tmp_path / "set")) == 2


def tree(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if "lock" not in p.name}


@pytest.mark.members(8)
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["delete", "--episodes=[1]"], 2, "Nothing was changed.*--output_dir=OUT.*--yes"),
        (["delete", "--episodes=[1]", "--dry_run"], 0, ""),
        (["keep", "--where=outcome=success", "--dry_run"], 0, ""),
        (["split", '--splits={"a": 0.5, "b": 0.5}', "--dry_run"], 0, ""),
        (["delete", "--episodes=0:6", "--yes"], 2, "none of its 6 episodes would be left"),
        (["keep", "--where=session=absent", "--yes"], 2, "chooses none of the 6 episodes"),
        (["delete", "--episodes=[6]", "--yes"], 2, "name episodes 0 to 5"),
        (["delete", "--yes"], 2, "Which episodes.*--episodes.*--where"),
        (
            ["purge", "--yes"],
            2,
            "Unknown action 'purge'.*delete, force, harmonise, keep, merge, retag, split",
        ),
        (["split", "--where=outcome=success"], 2, "session monday.* would be in several parts"),
        (["split", "--splits=outcome", "--dry_run"], 2, "session .* would be in several parts"),
        (["split", "--splits=lightning"], 2, "Did you mean 'lighting'"),
        (["split", '--splits={"a": 1.5, "b": -0.5}'], 2, "between 0 and 1"),
        (["split", "--splits=session"], 2, "Where to.*--output_dir=OUT"),
        (["trim", "--splits=session", "--yes"], 2, "--splits is for split"),
        (["split"], 2, "Split how.*--splits"),
        (["split", '--splits={"a": 0.5, "b": [1]}'], 2, "every part a share"),
        (
            ["split", '--splits={"../x": 0.8, "b": 0.2}', "--output_dir=SET_o"],
            2,
            "'../x' is a path",
        ),
        (["split", '--splits={"/x": 0.8, "b": 0.2}', "--output_dir=SET_o"], 2, "'/x' is a path"),
        (["split", '--splits={"": 0.8, "b": 0.2}', "--output_dir=SET_o"], 2, "'' is empty"),
        (["split", '--splits={"a": [0], "a ": [1]}', "--output_dir=SET_o"], 2, "two parts.*'a'"),
        (["keep", "--episodes=[0]", "--output_dir=SET/inside"], 2, "lie inside each other"),
        (["keep", "--episodes=[0]", "--output_dir=SET"], 2, "not empty"),
    ],
)
def test_what_is_only_shown_or_refused_changes_nothing(
    dataset: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    before = tree(dataset.parent)
    action, *options = [a.replace("SET", str(dataset)) for a in arguments]
    assert main(["edit", action, str(dataset), *options]) == code
    assert tree(dataset.parent) == before
    error = capsys.readouterr().err
    assert re.search(says, error, re.IGNORECASE), error
    assert error.count("\n") <= 1


def test_an_output_folder_that_filled_while_it_was_waited_for_is_left_alone(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two edits into one new folder the later one threw away what the first had written."""
    recover = staging.recover

    def filled(root: Path) -> None:
        recover(root)
        if root == tmp_path / "out":  # as by another edit, which held the lock until now
            (root / "meta").mkdir(parents=True)

    monkeypatch.setattr(staging, "recover", filled)
    with pytest.raises(UnusableInputError, match="not empty"):
        split(original, {"a": [0, 1], "b": [2, 3, 4, 5]}, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["meta"]


def test_values_that_would_share_a_folder_are_refused(original: Path) -> None:
    """Takes of "lab 1" and of "lab_1" went into one part without a word."""
    (first, second, *others) = DatasetPiece.whole(original).held
    for a, b in (("lab 1", "lab_1"), ("", "none"), ("x", "x.")):
        held = [
            replace(e, info=replace(e.info, station=station))
            for e, station in ((first, a), (second, b), (others[0], "y"))
        ]
        with pytest.raises(UnusableInputError, match="would both go to"):
            by_field(held, "station")
        assert by_field([held[0], held[2]], "station").keys() >= {"y"}


def test_a_query_chooses_and_json_says_what_was_done(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "--where=lighting=day failure_mode=drift"
    out = tmp_path / "kept"
    assert main(["edit", "keep", str(dataset), query, f"--output_dir={out}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["changed"]
    assert answer["videos"]["takes_encoded"] == 0
    assert answer["parts"][0]["from"][0]["episodes"] == [2, 3, 4, 5]
    assert answer["left_out"][0]["episodes"] == [0, 1]
    assert len(layout.episode_rows(out)) == 4
    assert errors(out) == []
    again = [
        "edit",
        "merge",
        str(out),
        str(dataset),
        f"--output_dir={tmp_path / 'm'}",
    ]
    assert main(again) == 0
    assert "4 episodes are in several" in capsys.readouterr().out


def test_shares_draw_whole_sessions(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(2):
        out = f"--output_dir={tmp_path / str(n)}"
        shares = '--splits={"train": 0.5, "test": 0.5}'
        assert main(["edit", "split", str(dataset), shares, out]) == 0
    assert "Sessions stay whole" in capsys.readouterr().out
    held = [
        {row["gap_session"] for row in layout.episode_rows(tmp_path / str(n) / part)}
        for n in range(2)
        for part in ("train", "test")
    ]
    assert held[:2] == held[2:]
    assert not held[0] & held[1]


class Killed(BaseException):
    pass


STEPS = ("rows written", "videos written", "staged", "synced", "swapped")


@pytest.mark.members(2)
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_is_the_old_or_the_new_one(dataset: Path, step: str) -> None:
    def kill(at: str) -> None:
        if at == step:
            raise Killed

    uids = [row["gap_uid"] for row in layout.episode_rows(dataset)]
    with opened([dataset], change=True) as (piece,):
        plan = plan_choice("edit delete", piece, [0, 1, 2, 3], {})
        with pytest.raises(Killed):
            carry_out(plan, None, hook=kill)
    held = [row["gap_uid"] for row in layout.episode_rows(dataset)]
    assert held == (uids[:4] if step == "swapped" else uids)
    assert done_unsaid(dataset, "edit delete", {}) == (step == "swapped")
    assert errors(dataset) == []
    with opened([dataset], change=True) as (piece,):
        carry_out(plan_choice("edit keep", piece, [0, 1], {}), None)
    names = {p.name for p in dataset.parent.iterdir()}
    assert names <= {"set", staging.sibling(dataset, "lock").name}


class Gone(io.StringIO):
    """A terminal whose user is told nothing: the program dies at the first word."""

    def write(self, _text: str, /) -> int:
        raise Killed


@pytest.mark.members(2)
@pytest.mark.parametrize(
    "words",
    [
        ["delete", "--episodes=[1]"],
        ["delete", "--episodes=0:2"],
        ["keep", "--episodes=1:5"],
        ["correct", "--episodes=[0, 2]", '--subtract={"pan.pos": 1}'],
    ],
    ids=" ".join,
)
def test_an_edit_typed_again_since_it_said_nothing_is_done_once(
    dataset: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Otherwise another episode would go, or an offset be subtracted twice."""
    command = ["edit", words[0], str(dataset), *words[1:], "--yes"]
    before = dataset_hash(dataset)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Gone())
        with pytest.raises(Killed):
            main(command)
    once = dataset_hash(dataset)
    assert once != before
    capsys.readouterr()
    assert main(command) == 0
    assert "was changed so already" in capsys.readouterr().out
    assert dataset_hash(dataset) == once
    main(command)  # now it is meant
    assert "already" not in capsys.readouterr().out


def test_spans_read_back() -> None:
    from gaploop.datasets.layout import parse_episodes

    @given(st.sets(st.integers(0, 30), min_size=1))
    def law(numbers: set[int]) -> None:
        assert parse_episodes(spans(numbers), 31) == sorted(numbers)

    law()


@pytest.mark.slow
def test_sigkill_at_random_instants_leaves_the_old_or_the_new_one(
    original: Path, tmp_path: Path
) -> None:
    """A process that says when it begins, killed some time later; the whole of it takes as long."""
    root, uids = tmp_path / "set", [r["gap_uid"] for r in layout.episode_rows(original)]
    program = (
        "import sys, pandas, gaploop.datasets.labels;"
        "from gaploop.scripts.cli import main;"
        "import gaploop.datasets.edit.actions; print('begins', flush=True);"
        f"sys.exit(main(['edit', 'delete', {str(root)!r}, '--episodes=[1, 4]', '--yes']))"
    )

    def begun() -> subprocess.Popen[str]:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(original, root)
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        return process

    with begun() as process:
        begin_s = time.monotonic()
        assert process.wait() == 0
    took_s = time.monotonic() - begin_s
    draw = np.random.default_rng(0)
    for _ in range(8):
        with begun() as process:
            time.sleep(draw.uniform(0, took_s))
            process.kill()
        with opened([root], change=True) as (piece,):
            held = [e.info.uid for e in piece.held]
        assert held in (uids, [uids[n] for n in (0, 2, 3, 5)])
        assert {p.name for p in tmp_path.iterdir()} == {"set", ".set.lock"}
        content(root, lambda _: 0)
