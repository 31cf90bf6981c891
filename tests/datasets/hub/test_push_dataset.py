"""Laws of a push: what LeRobot loads from the Hub is the folder, whatever happened on the way."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tenacity
from loopback_hub import Fault, LoopbackHub, Repo

from gaploop.core import consent, labels
from gaploop.core.consent import Use, today
from gaploop.core.errors import UnusableInputError
from gaploop.core.vocabulary import Domain
from gaploop.datasets import layout
from gaploop.datasets.check.dataset import check
from gaploop.datasets.edit.actions import delete_takes
from gaploop.datasets.hub import card
from gaploop.datasets.hub import dataset as hub_dataset
from gaploop.datasets.hub.dataset import require_clean
from gaploop.datasets.hub.upload import HubUnreachableError, Pushed
from gaploop.datasets.lerobot_publish import publish

type Push = Callable[..., Pushed]
type PushPacked = Callable[..., Path]
type Loads = Callable[..., dict[str, Any]]
NAME = "me/cube"


def commits(hub: LoopbackHub) -> int:
    """Return how many there are besides the Hub's own first one."""
    return len(hub.repo(NAME).commits) - 1


def is_whole(hub: LoopbackHub, root: Path) -> None:
    """The Hub holds what the folder holds, in one commit that the tag names."""
    there = hub.files(NAME)
    for path in (p for part in ("data", "meta", "videos", "telemetry") for p in
                 (root / part).rglob("*") if p.is_file()):  # fmt: skip
        assert there[path.relative_to(root).as_posix()] == path.read_bytes()
    assert hub.repo(NAME).tags == {"v3.0": hub.repo(NAME).branches["main"]}


def test_plain_lerobot_loads_what_was_pushed(
    dataset: Path, hub: LoopbackHub, push: Push, lerobot_loads: Loads
) -> None:
    done = push(dataset, private=True)
    is_whole(hub, dataset)
    assert lerobot_loads()["frames"] == 18
    assert (commits(hub), done.commit) == (1, hub.repo(NAME).branches["main"])
    assert hub.repo(NAME).private
    assert "truth.jsonl" not in hub.files(NAME)


def test_pushing_twice_equals_pushing_once(dataset: Path, hub: LoopbackHub, push: Push) -> None:
    first = push(dataset)
    hub.log.clear()
    second = push(dataset)
    assert (second.commit, second.uploaded, second.deleted) == (first.commit, (), ())
    assert commits(hub) == 1
    assert not [call for call in hub.log if call.split()[0] in ("PUT", "POST", "DELETE")]


FAULTS: list[tuple[int | str, str, dict[str, Any]]] = [
    (500, "/api/repos/create", {}),
    (503, "/commit/", {"headers": {"Retry-After": "0"}}),
    (429, "/preupload/", {"times": 2}),
    (409, "/commit/", {}),
    (500, "/lfs/", {}),
    (500, "validate-yaml", {}),
    (502, "/refs", {"times": 3}),
    ("drop", "objects/batch", {}),
    ("drop", "/lfs/", {}),
    ("drop", "/tree/", {"times": 2}),
    ("lost", "/api/repos/create", {}),
    ("lost", "/commit/", {}),
    ("lost", "/tag/", {}),
    ("hang", "/commit/", {}),
    ("hang", "/tag/", {"seconds": 1.0}),
    ("hang", "/revision/main", {}),
    ("html", "/preupload/", {}),
    ("html", "/commit/", {}),
]


@pytest.mark.members(5)
@pytest.mark.parametrize(("kind", "path", "options"), FAULTS)
def test_after_a_fault_the_push_is_whole_and_was_made_once(
    kind: int | str,
    path: str,
    options: dict[str, Any],
    hub: LoopbackHub,
    push_packed: PushPacked,
) -> None:
    fault = hub.fault(kind, path, **options)
    root = push_packed(timeout_s=0.8 if kind == "hang" else 30.0)
    assert fault.times == 0
    is_whole(hub, root)
    assert commits(hub) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_in_any_weather_a_push_ends_whole_or_says_that_it_didnt(
    seed: int, hub: LoopbackHub, push_packed: PushPacked, lerobot_loads: Loads
) -> None:
    draw = random.Random(seed)

    def weather() -> Fault | None:
        return Fault(draw.choice([500, 503, 429, "drop", "lost"])) if draw.random() < 0.3 else None

    hub.weather = weather
    for notice in ("", "changed"):
        for _ in range(9):
            try:
                root = push_packed(notice)
                break
            except HubUnreachableError:
                pass
    hub.weather = lambda: None
    is_whole(hub, root)
    assert commits(hub) == 2
    assert lerobot_loads()["revision"] == "v3.0"


def test_a_lost_answer_to_a_commit_that_deletes_is_no_error(
    dataset: Path, hub: LoopbackHub, push: Push
) -> None:
    """Repeating the commit as it was would delete files that are gone: the Hub refuses that."""
    push(dataset)
    uid = layout.read_episodes(layout.read_info(dataset))[1].info.uid
    delete_takes(dataset, lambda e: e.info.uid == uid)
    hub.fault("lost", "/commit/")
    done = push(dataset)
    assert commits(hub) == 2
    assert not [name for name in hub.files(NAME) if uid in name]
    assert done.commit == hub.repo(NAME).tags["v3.0"]


def test_what_the_folder_lost_the_hub_loses(
    dataset: Path, hub: LoopbackHub, push: Push, lerobot_loads: Loads
) -> None:
    push(dataset)
    hub.repo(NAME).trees[hub.repo(NAME).branches["main"]]["notes.txt"] = b"somebody's"
    ignored = "\n".join(f.relative_to(dataset).as_posix() for f in (dataset / "meta").rglob("*.*"))
    hub.files(NAME)[".gitignore"] = ignored.encode()  # what it names was left out of the commit
    gone = layout.read_episodes(layout.read_info(dataset))[0].info.uid
    delete_takes(dataset, lambda e: e.info.uid == gone)
    push(dataset)
    is_whole(hub, dataset)
    assert lerobot_loads()["episodes"] == 2
    everything = b"".join(hub.files(NAME).values())
    assert gone.encode() not in everything
    assert hub.files(NAME)["notes.txt"] == b"somebody's"


def test_loading_by_the_version_works_at_every_instant(
    hub: LoopbackHub, push_packed: PushPacked
) -> None:
    """LeRobot deletes the tag and creates it anew: whoever loads in between finds no version."""
    push_packed()
    seen = []

    def look(_method: str, _path: str) -> None:
        seen.append(sorted(hub.repo(NAME).tags))

    hub.watch = look
    push_packed("changed")
    look("", "")
    assert ["v3.0.dev0"] in seen
    assert all(tags in (["v3.0"], ["v3.0", "v3.0.dev0"], ["v3.0.dev0"]) for tags in seen)
    assert seen[-1] == ["v3.0"]


@pytest.mark.members(3)
@pytest.mark.parametrize("call", ["/tree/", "/preupload/", "/commit/", "/refs", "/tag/"])
def test_what_others_push_meanwhile_is_never_mixed_with_ours(
    call: str, hub: LoopbackHub, push_packed: PushPacked
) -> None:
    """A commit took only what had changed since the listing: with a colleague's push in between,
    the episodes were theirs and the table of episodes ours, and LeRobot couldn't load it."""
    push_packed()
    repo, once = hub.repo(NAME), iter([True])
    name = "data/chunk-000/file-000.parquet"
    theirs = {**hub.files(NAME), name: b"theirs", "meta/info.json": b"{}"}

    def meanwhile(_method: str, path: str) -> None:
        if call in path and next(once, False):
            repo.commit(dict(theirs), "a colleague's")

    hub.watch = meanwhile
    root = push_packed("changed")
    there = hub.files(NAME, revision="v3.0")
    assert there["NOTICE"] == b"changed"
    for file in (name, "meta/info.json"):
        assert there[file] == (root / file).read_bytes()
    assert "a colleague's" in dict(repo.commits).values()


def test_a_push_that_ends_while_the_tag_is_gone_leaves_a_dataset_that_loads(
    hub: LoopbackHub, push_packed: PushPacked, lerobot_loads: Loads
) -> None:
    push_packed()
    hub.fault(500, "/tag/", method="POST", times=99, after=1)
    with pytest.raises(HubUnreachableError):
        push_packed("changed")
    assert list(hub.repo(NAME).tags) == ["v3.0.dev0"]
    assert lerobot_loads()["revision"] == "v3.0.dev0"
    is_whole(hub, push_packed("changed"))


def label(root: Path, value: str = "success") -> None:
    """Append one label event."""
    uid = layout.read_episodes(layout.read_info(root))[0].info.uid
    event = labels.LabelEvent(uid, "outcome", value, source="engineer", author="ana")
    labels.append(root / layout.LABELS, event)


def test_what_changes_while_it_is_pushed_is_pushed_as_it_is_then(
    dataset: Path, hub: LoopbackHub, push: Push
) -> None:
    once = iter([True])

    def change(method: str, _path: str) -> None:
        if method == "PUT" and next(once, False):
            label(dataset)

    hub.watch = change
    push(dataset)
    is_whole(hub, dataset)
    assert commits(hub) == 1


def test_a_colleagues_labels_are_not_dropped(
    dataset: Path, hub: LoopbackHub, push: Push, tmp_path: Path
) -> None:
    """Both labelled a copy of their own; who pushed last took the other's labels away."""
    push(dataset)
    shutil.copytree(dataset, theirs := tmp_path / "theirs")
    label(theirs)
    push(theirs)
    label(dataset)
    with pytest.raises(UnusableInputError, match=r"by ana; episodes 0\).*gaploop edit merge"):
        push(dataset)
    assert hub.files(NAME)[layout.LABELS] == (theirs / layout.LABELS).read_bytes()
    history = labels.merge(*(labels.read(root / layout.LABELS) for root in (dataset, theirs)))
    (dataset / layout.LABELS).write_text("".join(f"{event.to_line()}\n" for event in history))
    push(dataset)
    is_whole(hub, dataset)


def test_a_hub_without_a_card_check_takes_a_push(hub: LoopbackHub, push_packed: PushPacked) -> None:
    """LeRobot's push asks huggingface.co whatever the endpoint, after the data are committed."""
    hub.card_check = False
    is_whole(hub, push_packed())


def test_private_data_never_go_to_a_public_repository(
    hub: LoopbackHub, push_packed: PushPacked
) -> None:
    push_packed()
    with pytest.raises(UnusableInputError, match="is public already"):
        push_packed("changed", private=True)
    assert commits(hub) == 1


FULL = {"X-Error-Message": "Private repository storage limit reached"}


@pytest.mark.members(4)
@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (401, {}, "hf auth login"),
        (403, {}, "may write"),
        (403, FULL, "Make room there"),
        (413, {}, "Raise its limit"),
    ],
)
@pytest.mark.parametrize("path", ["/api/repos/create", "/lfs/"])
def test_a_refusal_is_one_line_and_isnt_tried_again(
    status: int,
    path: str,
    headers: dict[str, str],
    says: str,
    hub: LoopbackHub,
    push_packed: PushPacked,
) -> None:
    """The client wraps what it was told in the midst of an upload in an error of another kind."""
    hub.fault(status, path, times=9, headers=headers)
    with pytest.raises(UnusableInputError, match=says) as caught:
        push_packed()
    assert "\n" not in str(caught.value)
    calls = [call for call in hub.log if path in call]
    assert len(calls) == len(set(calls)) >= 1


@pytest.mark.parametrize("patience", [{"Retry-After": "120"}, {"RateLimit": '"api";r=0;t=120'}])
def test_a_login_page_is_told_of_and_so_is_a_hub_that_asks_for_patience(
    hub: LoopbackHub,
    push_packed: PushPacked,
    caplog: pytest.LogCaptureFixture,
    patience: dict[str, str],
) -> None:
    """The public Hub says only in RateLimit how long; a push gave up after half a minute."""
    asked_s: list[float] = []
    caplog.set_level("WARNING", logger="gaploop.datasets.hub.upload")
    hub.fault("html", times=99)
    with pytest.raises(HubUnreachableError, match="login page"):
        push_packed()
    assert not caplog.messages
    hub.faults.clear()
    hub.fault(429, headers=patience)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tenacity.nap, "time", SimpleNamespace(sleep=asked_s.append))
        push_packed()
    assert asked_s == [120.0]
    assert "trying again in 120 s" in caplog.text


# -- what must not be pushed --------------------------------------------------------------------


def add_to_json(path: Path, key: str, value: str) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


def to_info(root: Path, text: str) -> None:
    add_to_json(root / layout.INFO, "note", text)


def to_labels(root: Path, text: str) -> None:
    uid = layout.read_episodes(layout.read_info(root))[0].info.uid
    event = labels.LabelEvent(uid, "outcome", "success", source="engineer", author="ana", note=text)
    labels.append(root / layout.LABELS, event)


def to_tasks(root: Path, text: str) -> None:
    import pandas as pd

    tasks = pd.read_parquet(root / layout.TASKS)
    tasks.index = [text, *tasks.index[1:]]
    tasks.to_parquet(root / layout.TASKS)


def to_telemetry(root: Path, text: str) -> None:
    import zipfile

    path = next((root / layout.TELEMETRY).iterdir())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes/zarr.json", json.dumps({"attributes": {"from": text}}))


def to_archive(root: Path, text: str) -> None:
    import zipfile

    path = next((root / layout.TELEMETRY).iterdir())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes/deploy.sh", f"export FROM={text}\n")


def to_struct(root: Path, text: str) -> None:
    """As LeRobot's features of dtype image: {bytes, path}."""
    path = root / "meta" / "more.parquet"
    pq.write_table(pa.table({"a.b": [[{"bytes": b"x", "path": text}]]}), path)


def to_category(root: Path, text: str) -> None:
    """As pandas writes categories: dictionary-encoded."""
    column = pa.array([text, "a", text]).dictionary_encode()
    pq.write_table(pa.table({"who": column}), root / "meta" / "more.parquet")


def to_view(root: Path, text: str) -> None:
    column = pa.array([text], pa.string_view())
    pq.write_table(pa.table({"who": column}), root / "meta" / "more.parquet")


TOKEN = "hf_" + "aB3" * 11
PLANTS = [to_info, to_labels, to_tasks, to_struct, to_telemetry, to_archive, to_category, to_view]


@pytest.mark.members(14)
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize(
    ("text", "what"),
    [
        (TOKEN, "a Hugging Face token"),
        ("AKIA" + "Q7" * 8, "an AWS key"),
        ("wandb_api_key = 0123456789abcdef", "a password or key"),
        ("recorded in /home/ana/takes/cube", "an absolute path"),
        ("C:\\Users\\ana\\takes", "an absolute path"),
    ],
)
def test_secrets_and_paths_are_found_wherever_there_is_text(
    plant: Callable[[Path, str], None], text: str, what: str, dataset: Path
) -> None:
    plant(dataset, text)
    with pytest.raises(UnusableInputError, match=what) as caught:
        require_clean(dataset, hub_dataset.files_of(dataset)[0], allow_paths=False)
    assert text not in str(caught.value) or what == "an absolute path"


@pytest.mark.members(3)
@pytest.mark.parametrize("ending", ["pem", "key", "log", "sh", "xml", "ipynb", "JSON", "x1"])
def test_text_is_read_whatever_its_name_ends_with(dataset: Path, ending: str) -> None:
    (dataset / "meta" / f"deploy.{ending}").write_text(f"<a>{TOKEN}</a>\n")
    with pytest.raises(UnusableInputError, match=f"deploy.{ending} holds a Hugging Face token"):
        hub_dataset.inspect(dataset, hub_dataset.PushOptions())


def test_a_secret_in_the_card_is_found_before_anything_is_sent(
    dataset: Path, hub: LoopbackHub, push: Push
) -> None:
    (dataset / "README.md").write_text(f"# Cubes\n\nLog in with {TOKEN}\n")
    with pytest.raises(UnusableInputError, match=r"README\.md, line 3 holds a Hugging Face token"):
        push(dataset, allow_paths=True)
    assert hub.log == []


def test_a_secret_is_found_before_anything_is_sent(
    dataset: Path, hub: LoopbackHub, push: Push
) -> None:
    to_info(dataset, TOKEN)
    with pytest.raises(UnusableInputError, match=r"meta/info.json.*revoke"):
        push(dataset)
    assert hub.log == []


def test_paths_may_be_allowed_and_secrets_never(dataset: Path) -> None:
    to_info(dataset, "/home/ana/takes")
    files = hub_dataset.files_of(dataset)[0]
    require_clean(dataset, files, allow_paths=True)
    to_labels(dataset, TOKEN)
    with pytest.raises(UnusableInputError, match="token"):
        require_clean(dataset, files, allow_paths=True)


def test_what_doesnt_belong_to_a_dataset_stays_here(dataset: Path) -> None:
    before = set(hub_dataset.files_of(dataset)[0])
    for name in (".env", "diary.txt", "meta/.info.json.x1", "images/0.png", "meta/info.lock"):
        path = dataset / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"HF_TOKEN={TOKEN}")
    after, left_out = hub_dataset.files_of(dataset)
    assert set(after) == before
    assert "diary.txt" in left_out


def test_a_damaged_dataset_isnt_pushed(dataset: Path, hub: LoopbackHub, push: Push) -> None:
    shutil.rmtree(dataset / "videos")
    with pytest.raises(UnusableInputError, match=r"isn't sound.*gaploop check"):
        push(dataset)
    assert hub.log == []


@pytest.fixture
def with_people(
    write_take: Callable[..., str], hub: LoopbackHub, tmp_path: Path
) -> Callable[[set[Use]], tuple[Path, str]]:
    """Return a function that makes a dataset with somebody in it, who agreed to some uses."""
    assert hub is not None  # it sets the register

    def make(scope: set[Use]) -> tuple[Path, str]:
        register, root = consent.default_register(), tmp_path / "people"
        id_ = "c-aaaaaaaaaa"
        day = today() + timedelta(days=9)
        full = frozenset({Use.RECORD, Use.PUBLISH})
        consent.add(register, id_, day, full)
        write_take(tmp_path / "j", 5, domain=Domain.REAL, consent=id_,
                   conditions={"human": "reaches_in"})  # fmt: skip
        publish(tmp_path / "j", root, NAME)
        consent.add(register, id_, day, frozenset(scope))
        return root, id_

    return make


def test_nothing_is_pushed_that_consent_forbids(
    with_people: Callable[[set[Use]], tuple[Path, str]], hub: LoopbackHub, push: Push
) -> None:
    root, id_ = with_people({Use.RECORD, Use.PUBLISH})
    with pytest.raises(UnusableInputError, match=f"{id_} doesn't cover 'push'"):
        push(root)
    assert hub.log == []
    assert consent.load_register().places[id_][-1].what != "hub"


def test_a_push_with_consent_is_remembered_for_a_withdrawal(
    with_people: Callable[[set[Use]], tuple[Path, str]], hub: LoopbackHub, push: Push
) -> None:
    root, id_ = with_people(set(Use))
    push(root)
    places = consent.load_register().places[id_]
    assert (places[-1].what, places[-1].where) == ("hub", f"{hub.url}/datasets/{NAME}")
    assert "1 of the 1 episodes shows people" in hub.files(NAME)["README.md"].decode()


def test_who_withdraws_during_a_push_isnt_pushed(
    with_people: Callable[[set[Use]], tuple[Path, str]], hub: LoopbackHub, push: Push
) -> None:
    root, id_ = with_people(set(Use))

    def withdraw(method: str, _path: str) -> None:
        if method == "PUT":
            consent.withdraw(consent.default_register(), id_)

    hub.watch = withdraw
    with pytest.raises(UnusableInputError, match="withdrawn"):
        push(root)
    assert commits(hub) == 0


# -- the card -----------------------------------------------------------------------------------


def test_the_card_counts_what_is_there(dataset: Path, hub: LoopbackHub, push: Push) -> None:
    push(dataset, license="cc-by-4.0")
    card = hub.files(NAME)["README.md"].decode()
    for line in (
        "license: cc-by-4.0",
        "- sim-to-sim",
        "2 of the 3 episodes come from a simulated cell",
        "| success | 2 |",
        "| failure | 1 |",
        "| sim_target (sim-to-sim) | 2 |",
        "| distractors: 4 | 1 |",
        "| contact_dynamics | 1 | 0 |",
        "| object_property | 0 | 1 |",
        "Licence: cc-by-4.0.",
        "nobody is in them",
        f'LeRobotDataset("{NAME}")',
    ):
        assert line in card
    jpeg = np.frombuffer(hub.files(NAME)["assets/sample.jpg"], dtype=np.uint8)
    assert cv2.imdecode(jpeg, cv2.IMREAD_COLOR).shape == (240, 240, 3)


def test_what_people_write_in_the_card_stays(dataset: Path, hub: LoopbackHub, push: Push) -> None:
    push(dataset)
    repo: Repo = hub.repo(NAME)
    tree = dict(hub.files(NAME))
    text = tree["README.md"].decode().replace("# cube", "# Cubes of ours\n\nAsk Ana.")
    text = text.replace("license: apache-2.0", "license: mit\nlanguage: en")
    tree["README.md"] = text.encode()
    repo.commit(tree, "by hand")
    uid = layout.read_episodes(layout.read_info(dataset))[1].info.uid
    delete_takes(dataset, lambda e: e.info.uid == uid)
    push(dataset)
    card = hub.files(NAME)["README.md"].decode()
    assert card.count("gaploop:begin") == 1
    for line in ("# Cubes of ours", "Ask Ana.", "license: mit", "language: en", "Licence: mit."):
        assert line in card
    assert "| failure | 1 |" not in card
    (dataset / "README.md").write_text("# Cubes at home\n")  # replaces the Hub's
    push(dataset)
    card = hub.files(NAME)["README.md"].decode()
    assert "# Cubes at home" in card
    assert "Ask Ana." not in card


@pytest.mark.members(4)
@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("license: mit\ntags: {a: b}\n", "license: mit"),
        ("license: mit\ndate: 2024-01-01\ntags:\ntask_categories: [[a]]\n", "license: mit"),
        ("", "license: apache-2.0"),
        ("license: mit\ntags: [a, b\n", ""),
        ("license: mit\nlicense: cc-by-4.0\n", ""),
        ("- license: mit\n", ""),
    ],
)
@pytest.mark.parametrize("first", ["", "\ufeff"])
def test_an_odd_card_keeps_its_licence_or_is_refused(first: str, head: str, says: str) -> None:
    """Where the metadata couldn't be read, a push licensed the dataset anew, as apache-2.0."""
    before = f"{first}---\n{head}---\n# Ours\n"
    if not says:
        with pytest.raises(UnusableInputError, match=r"README.md here or on the Hub"):
            card.card(before, "cube", "body", {"tags": ["gaploop"]})
        return
    made = card.card(before, "cube", "body", {"tags": ["gaploop"], "task_categories": ["x"]})
    assert f"\n{says}\n" in made
    assert made.count("---\n") == 2
    assert card.card(made, "cube", "body", {"tags": ["gaploop"], "task_categories": ["x"]}) == made


@pytest.mark.parametrize("name", ["meta/passwd", "LICENSE", "README.md", "videos/more"])
def test_a_link_out_of_the_dataset_is_never_pushed(
    dataset: Path, hub: LoopbackHub, push: Push, name: str, tmp_path: Path
) -> None:
    """A link in `meta/` was followed: the system's password file stood in the repository, and
    `check` said that nothing was wrong."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "passwd").write_text("root:x:0:0")
    (dataset / name).unlink(missing_ok=True)
    (dataset / name).symlink_to(secret if name == "videos/more" else secret / "passwd")
    with pytest.raises(UnusableInputError, match="is a link that leads out"):
        push(dataset)
    assert not hub.log
    assert [f.where for f in check(dataset) if f.code == "link_out"] == [name]


def test_a_snapshot_of_the_hub_is_not_pushed_through_its_links(
    dataset: Path, hub: LoopbackHub, push: Push, tmp_path: Path
) -> None:
    """Reading follows a cache's own links; what leaves this computer lies in the folder."""
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "abc"
    shutil.copytree(dataset, snapshot)
    blobs.mkdir()
    (snapshot / layout.STATS).rename(blobs / "1234")
    (snapshot / layout.STATS).symlink_to("../../../blobs/1234")
    assert not [f for f in check(snapshot) if f.code == "link_out"]
    with pytest.raises(UnusableInputError, match="put a copy of what it leads to in its place"):
        push(snapshot)
    assert not hub.log
