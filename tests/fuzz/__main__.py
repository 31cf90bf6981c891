"""`python -m fuzz` in `tests/`: every reader of foreign files, with files that are mutated.

Allowed is success, or UnusableInputError in one line. Another exception, a hang, a crash, a GiB of
memory more, or anything opened or written outside is a finding. Each mutation is drawn from the
seed, the reader's name and its number, so that a finding can be replayed:

    python -m fuzz                                  # 10,000 mutations of each reader
    python -m fuzz --reader=info --first=4711 --mutations=1

With --folder=DIR it goes on where it stopped; `--short` is what `make test` runs: the readers of
files, all in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # benchmarks

from fuzz import readers
from fuzz.mutations import OUTSIDE, mutate
from fuzz.readers import READERS, SHORT, Reader

MEMORY = 4 << 30
"""How much a reader's process may take more than it had [bytes]."""
MORE = 1 << 30
"""How much more is a finding [bytes]."""
PROCESSOR_S = 60
WAIT_S = 240.0
"""How long one mutation may take, on a machine that does other things, too."""


def main() -> int:
    asked = _asked()
    if asked.child:
        return _child([READERS[name] for name in asked.child.split(",")], asked)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="gaploop_fuzz_"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "corpus").exists():
        from fuzz.corpus import make

        shutil.rmtree(folder / "making", ignore_errors=True)
        (folder / "making").mkdir()
        make(folder / "making").rename(folder / "corpus")
    names = asked.reader or list(SHORT if asked.short else READERS)
    print(f"seed {asked.seed}, {asked.mutations} mutations of {len(names)} readers, in {folder}")
    found = _at_once(folder, asked) if asked.short else 0
    for name in () if asked.short else names:
        found += _reader(name, folder, asked)
    if not asked.folder:
        shutil.rmtree(folder)
    print(f"{found} findings")
    return 1 if found else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m fuzz")
    parser.add_argument("--mutations", type=int, default=10_000, help="of each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", choices=list(READERS), help="only these")
    parser.add_argument("--short", action="store_true", help="readers of files, in one process")
    parser.add_argument("--folder", type=Path, help="where the corpus and the progress are kept")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


# --- the parent --------------------------------------------------------------------------------


def _reader(name: str, folder: Path, asked: argparse.Namespace) -> int:
    """Run a reader's mutations, in as many processes as die; return how many findings."""
    state = folder / f"{name}-{asked.seed}.json"
    done: dict[str, Any] = {"next": asked.first, "ok": 0, "refused": 0, "findings": []}
    if asked.folder and state.exists() and not asked.first:
        done = json.loads(state.read_text())
    begun, last = time.monotonic(), asked.first + asked.mutations
    while done["next"] < last:
        words = [f"--first={done['next']}", f"--mutations={last - done['next']}"]
        for line in _lines(name, folder, asked.seed, words):
            done["next"] += 1
            done[line["is"]] = done.get(line["is"], 0) + 1
            if line["is"] == "finding":
                done["findings"].append(line)
                print(f"  {name} {line['n']}: {line['says']}", flush=True)
            if done["next"] % 100 == 0:
                state.write_text(json.dumps(done))
        state.write_text(json.dumps(done))
    counts = f"{done['ok']} read, {done['refused']} refused, {len(done['findings'])} findings"
    print(
        f"{name}: {done['next']} mutations: {counts} ({time.monotonic() - begun:.0f} s)", flush=True
    )
    return len(done["findings"])


def _at_once(folder: Path, asked: argparse.Namespace) -> int:
    """Run the readers of files in one process; return how many findings."""
    found = 0
    words = [f"--first={asked.first}", f"--mutations={asked.mutations}"]
    for line in _lines(",".join(SHORT), folder, asked.seed, words):
        if line["is"] == "finding":
            found += 1
            print(f"  {line.get('reader', 'last')} {line['n']}: {line['says']}", flush=True)
    return found


def _lines(name: str, folder: Path, seed: int, words: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what a child says about each mutation, and what its end says about the last one."""
    command = [sys.executable, "-m", "fuzz", f"--child={name}", f"--seed={seed}", *words]
    box = folder / f"box-{name.partition(',')[0]}"
    shutil.rmtree(box, ignore_errors=True)
    box.mkdir()
    known = {
        "TMPDIR": str(box), "HOME": str(box), "HF_HOME": str(box / "hf"), "XDG_DATA_HOME": str(box),
        "GAPLOOP_CONSENTS": str(box / "consents.jsonl"), "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(box / "cache"),
    }  # fmt: skip
    child = subprocess.Popen(
        [*command, f"--folder={folder}"],
        stdout=subprocess.PIPE,
        stderr=(folder / f"{name.partition(',')[0]}.log").open("ab"),
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **known},
    )
    assert child.stdout is not None
    at, begun = int(words[0].partition("=")[2]), False
    try:
        with selectors.DefaultSelector() as wait:
            wait.register(child.stdout, selectors.EVENT_READ)
            while wait.select(WAIT_S):
                line = child.stdout.readline()
                if line == b"{}\n":
                    begun = True
                    continue
                if not line and not begun:
                    raise SystemExit(f"{name} can't read what is sound; see {folder}/{name}.log")
                if not line:
                    if child.wait() not in (0, 100):
                        yield {"is": "finding", "n": at, "says": f"it died of {child.returncode}"}
                    return
                at += 1
                yield json.loads(line)
        yield {"is": "finding", "n": at, "says": f"no answer for {WAIT_S:g} s"}
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        shutil.rmtree(box, ignore_errors=True)


# --- the child ---------------------------------------------------------------------------------


def _child(chosen: list[Reader], asked: argparse.Namespace) -> int:
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a reader prints
    readers.CORPUS = asked.folder / "corpus"
    box = Path(os.environ["TMPDIR"])
    _quiet()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for reader in chosen:  # what it imports is no growth, and it has to read what is sound
        _fresh(readers.CORPUS / reader.seed, box / "work")
        reader.read(box / "work" / Path(reader.seed).name)
    watch = _Watch(box)
    sys.addaudithook(watch)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, resource.RLIM_INFINITY))
    print("{}", file=said, flush=True)
    usual = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for reader in chosen:
        seed, work = readers.CORPUS / reader.seed, box / "work"
        _fresh(seed, work)
        for n in range(asked.first, asked.first + asked.mutations):
            rng = Random(f"{asked.seed} {reader.name} {n}")
            watch.seen = ""
            restore = _mutated(reader, seed, work, rng)
            watch.on = True
            line = _read(reader, work / seed.name)
            watch.on = False
            restore()
            if watch.seen:
                line = {"is": "finding", "says": watch.seen}
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - usual) << 10
            if grown > MORE and line["is"] != "finding":
                line = {"is": "finding", "says": f"{grown >> 20} MiB of memory more"}
            line |= {"reader": reader.name, "n": n}
            print(json.dumps(line), file=said, flush=True)
            if grown > MORE:
                return 100  # a new process: the mark doesn't go back
    return 0


def _fresh(seed: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    if seed.is_dir():
        shutil.copytree(seed, work / seed.name)
    else:
        shutil.copy(seed, work)
    outside = work / OUTSIDE
    outside.mkdir()
    (outside / "secret.json").write_text('{"secret": 1}')


def _mutated(reader: Reader, seed: Path, work: Path, rng: Random) -> Any:
    """Mutate one file and return what puts things as they were."""
    root = work / seed.name
    if reader.changes:
        _fresh(seed, work)
    files = sorted({p for glob in reader.files for p in root.glob(glob) if p.is_file()}) or [root]
    # Evenly over what they are, so that a hundred videos don't take all of it.
    kinds = sorted({p.suffix + p.parent.name[:4] for p in files})
    kind = rng.choice(kinds)
    file = rng.choice([p for p in files if p.suffix + p.parent.name[:4] == kind])
    before = file.read_bytes()
    try:
        mutate(file, rng)
    except Exception:  # noqa: BLE001  # the mutation itself met what it can't build
        file.write_bytes(before[: rng.randrange(len(before) + 1)])

    def restore() -> None:
        if not reader.changes:
            file.write_bytes(before)

    return restore


def _read(reader: Reader, path: Path) -> dict[str, Any]:
    from gaploop.core.errors import GaploopError

    soft = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + PROCESSOR_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
    try:
        reader.read(path)
    except GaploopError as error:
        return {"is": "refused"} if str(error) else {"is": "finding", "says": "it says nothing"}
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the finding
        last = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(last))
        return {"is": "finding", "says": f"{type(error).__name__}: {str(error)[:200]} at {where}"}
    return {"is": "ok"}


class _Watch:
    """Notes what is opened outside, written outside or started."""

    WRITES = frozenset(
        ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate")
    )

    def __init__(self, box: Path) -> None:
        self.on, self.seen, self._box = False, "", str(box) + os.sep

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or self.seen:
            return
        if event in (
            "os.system",
            "subprocess.Popen",
            "os.exec",
            "os.posix_spawn",
            "socket.connect",
        ):
            self.seen = f"{event} {str(arguments)[:200]}"
            return
        if event != "open" and event not in self.WRITES:
            return
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return
        from_ = os.getcwd()
        if event in ("os.remove", "os.rmdir", "os.mkdir") and arguments[-1] not in (-1, None):
            from_ = os.path.realpath(f"/proc/self/fd/{arguments[-1]}")  # as shutil.rmtree does
        name = os.path.normpath(os.path.join(from_, os.fsdecode(path)))
        writes = event != "open" or bool(int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        strays = writes and not f"{name}/".startswith((self._box, "/dev/"))
        if strays or f"/{OUTSIDE}/" in f"{name}/":
            self.seen = f"{event} outside: {name}"


def _address_space() -> int:
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return 1 << 40
    return int(pages.read_text().split()[0]) * resource.getpagesize()


def _quiet() -> None:
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
