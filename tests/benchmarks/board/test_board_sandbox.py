"""What a submission may do in its process, tried by programs that try to do more."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from benchmarks.board import sandbox
from benchmarks.board.policy_box import BoxedPolicy, framed
from benchmarks.board.sandbox import GUARD, NAMESPACES, EndedError, Limits, Sandbox
from gaploop.collect.remote_policy import PolicyAnswer, PolicyCard
from gaploop.core.messages import Observation

namespaces = pytest.mark.skipif(
    sandbox.isolation() != NAMESPACES, reason="needs user namespaces, which aren't permitted here"
)
SMALL = Limits(memory_mb=256, file_mb=1, output_mb=1, program_s=60.0, load_s=60.0, answer_s=60.0)
TRIES = """
import glob, json, os, socket, sys
secret, outside, server = sys.argv[1:4]
def tried(work):
    try:
        return repr(work())
    except (OSError, PermissionError) as error:
        return type(error).__name__
def fill():
    with open("/tmp/big", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
print(json.dumps({
    "network": tried(lambda: socket.create_connection(("127.0.0.1", int(server)), 5)),
    "secret": tried(lambda: open(secret).read()),
    "listing": tried(lambda: os.listdir(os.path.dirname(secret))),
    "write": tried(lambda: open(outside, "w")),
    "python": tried(lambda: open(os.__file__, "a")),
    "kernel": tried(lambda: open("/proc/sys/kernel/core_pattern", "w")),
    "kill": tried(lambda: os.kill(int(sys.argv[4]), 9)),
    "namespace": tried(lambda: os.unshare(os.CLONE_NEWUSER)),
    "disk": tried(fill),
    "processes": len(glob.glob("/proc/[0-9]*")),
    "environment": sorted(os.environ),
}))
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


@namespaces
def test_no_network_no_secret_no_writing_and_nobody_to_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    secret, outside = tmp_path / "server.json", tmp_path / "outside"
    secret.write_text("the scenes")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        argv = python(TRIES, secret, outside, port, psutil.Process().pid)
        with Sandbox(argv, (), SMALL) as box:
            said = json.loads(box.output())
    assert "HF_TOKEN" not in said.pop("environment")
    assert said.pop("processes") <= 1
    assert set(said.values()) <= {"OSError", "FileNotFoundError", "ProcessLookupError",
                                  "PermissionError", "ConnectionRefusedError"}  # fmt: skip
    assert not outside.exists()


@namespaces
def test_what_is_given_to_read_can_be_read_and_not_changed(tmp_path: Path) -> None:
    take = tmp_path / "takes" / "take.json"
    take.parent.mkdir()
    take.write_text("seen")
    code = """
import sys
print(open(sys.argv[1]).read())
try:
    open(sys.argv[1], "w")
except OSError as error:
    print(type(error).__name__)
"""
    with Sandbox(python(code, take), [take.parent], SMALL) as box:
        assert box.output().split() == [b"seen", b"OSError"]
    assert take.read_text() == "seen"


@pytest.mark.members(2)
@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("import time; time.sleep(600)", Limits(load_s=0.1), "takes too long"),
        ("bytearray(1 << 30)", SMALL, "ended by itself"),
        ("import mmap, time; m, some = mmap.mmap(-1, 1 << 29), bytes(1 << 20)\n"
         "for _ in range(512): m.write(some)\ntime.sleep(600)", SMALL,
         "takes more than 256 MiB of memory"),
        ("while True: print('x' * 99999)", SMALL, "prints more than 1 MiB"),
        ("raise SystemExit('no')", SMALL, "ended by itself"),
    ],
)  # fmt: skip
def test_who_takes_too_much_is_ended(code: str, limits: Limits, reason: str) -> None:
    with Sandbox(python(code), (), limits) as box:
        with pytest.raises(EndedError) as error:
            box.output()
        assert error.value.reason == reason


def test_nothing_is_left_of_what_it_started() -> None:
    """A program that starts another in a session of its own and ends leaves nobody behind."""
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.close(1)
    time.sleep(600)
print("started")
"""
    mark = "time.sleep(600)"
    with Sandbox(python(code), (), SMALL) as box:
        assert box.receive(7) == b"started"
    left = [p for p in psutil.process_iter(["cmdline"]) if mark in str(p.info["cmdline"])]
    if sandbox.isolation() == NAMESPACES:
        assert not left
    for process in left:  # pragma: no cover  where there are no namespaces
        process.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel does it on Linux")
def test_a_server_that_is_killed_takes_its_programs_along() -> None:
    server = """
import sys
from benchmarks.board.sandbox import *
code = "import time; print('begun', flush=True); time.sleep(6543)"
box = Sandbox([sys.executable, "-c", code], (), Limits())
box.receive(5)
print("begun", flush=True)
box.process.wait()
"""
    with subprocess.Popen(python(server), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        below = psutil.Process(process.pid).children(recursive=True)
        assert below
        process.kill()
    assert not psutil.wait_procs(below, timeout=60)[1]


def test_where_there_are_no_namespaces_python_refuses_sockets_programs_and_writing(
    tmp_path: Path,
) -> None:
    code = """
import json, os, socket, subprocess, sys, tempfile
from benchmarks.board.sandbox import guard
guard()
def tried(work):
    try:
        return repr(work())
    except PermissionError:
        return "refused"
said = [tried(lambda: socket.socket()), tried(lambda: subprocess.run(["true"])),
        tried(lambda: os.fork()), tried(lambda: open(sys.argv[1], "w"))]
with tempfile.TemporaryFile() as file:
    file.write(b"may be")
print(json.dumps(said))
"""
    with Sandbox(python(code, tmp_path / "outside"), (), Limits(), GUARD) as box:
        assert json.loads(box.output()) == ["refused"] * 4
    assert not (tmp_path / "outside").exists()


# -- policies -------------------------------------------------------------------------------------

CARD = PolicyCard("", 50.0, 1, "", False, 0.0)
ANSWERS = """
import sys, time
messages, then = [bytes.fromhex(word) for word in sys.argv[1].split(",")], sys.argv[2]
for n, message in enumerate(messages):
    if n:
        sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "big"))
    sys.stdout.buffer.write(message)
    sys.stdout.buffer.flush()
if then == "sleep":
    time.sleep(600)
"""


def answering(*messages: bytes, then: str = "") -> list[str]:
    return python(ANSWERS, ",".join(m.hex() for m in messages), then)


def seen() -> Observation:
    return Observation(np.zeros(2), None, {"top": np.zeros((4, 6, 3), np.uint8)})


def test_a_policy_gets_what_is_seen_and_its_plan_comes_back(tmp_path: Path) -> None:
    plan = framed(PolicyAnswer(1, 0.0, [[1.0, 2.0]], ""))
    box = BoxedPolicy(tmp_path, SMALL, program=answering(framed(CARD), plan))
    assert (box.fps, box.execute) == (50.0, 1)
    assert box.act(seen()).tolist() == [1.0, 2.0]
    box.close()


@pytest.mark.members(3)
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (PolicyAnswer(1, 0.0, [[1.0]], ""), "answers nonsense"),
        (PolicyAnswer(1, 0.0, [], ""), "answers nonsense"),
        (PolicyAnswer(1, 0.0, [[1.0, 2.0], [1.0]], ""), "answers nonsense"),
        (PolicyAnswer(7, 0.0, [[1.0, 2.0]], ""), "answers nonsense"),
        (PolicyAnswer(1, 0.0, [[float("nan"), 2.0]], ""), "answers nonsense"),
        (PolicyAnswer(1, 0.0, [[1.0, 2.0]], "the cube is at 0.1, 0.2"), "answers nonsense"),
        (CARD, "answers nonsense"),
    ],
)
def test_an_answer_that_is_none_ends_it_and_says_nothing_of_the_scene(
    answer: msgspec.Struct, reason: str, tmp_path: Path
) -> None:
    box = BoxedPolicy(tmp_path, SMALL, program=answering(framed(CARD), framed(answer)))
    with pytest.raises(EndedError) as error:
        box.act(seen())
    assert error.value.reason == reason
    box.close()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda: answering(framed(CARD), then="sleep"), "takes too long"),
        (lambda: answering(framed(CARD)), "ended by itself"),
        (lambda: answering(framed(CARD), b"\xff\xff\xff\xff"), "answers nonsense"),
    ],
)
def test_a_policy_that_sleeps_dies_or_floods_is_ended(
    program: Callable[[], list[str]], reason: str, tmp_path: Path
) -> None:
    limits = Limits(answer_s=1.0) if reason == "takes too long" else SMALL
    box = BoxedPolicy(tmp_path, limits, program=program())
    with pytest.raises(EndedError) as error:
        box.act(seen())
    assert error.value.reason == reason
    box.close()


def test_a_policy_that_does_not_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(EndedError, match="doesn't load: there are no weights"):
        BoxedPolicy(tmp_path, SMALL, program=python("import sys; sys.exit('there are no weights')"))


def test_closing_a_box_does_not_wait_for_its_threads(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(2):
        BoxedPolicy(tmp_path, SMALL, program=answering(framed(CARD), then="sleep")).close()
    assert threading.active_count() == before
