"""Every reader of files that others wrote, and what of the corpus it reads."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaploop.core.errors import UnusableInputError

CORPUS = Path()
"""Where the sound files are; set by whoever runs a reader."""


@dataclass(frozen=True)
class Reader:
    """One way into gaploop.

    Attributes:
        name: as `--reader` has it.
        seed: a file or folder of the corpus; a copy of it is mutated.
        read: reads it, or raises UnusableInputError.
        files: which of a folder's files are mutated, as globs.
        changes: it writes into the folder, so that every mutation gets a fresh copy.
    """

    name: str
    seed: str
    read: Callable[[Path], object]
    files: tuple[str, ...] = ()
    changes: bool = False


def command(*words: str) -> Callable[[Path], object]:
    """Return what runs a command on a path (`{}` among its words), `OUT` beside it."""

    def run(path: Path) -> object:
        from gaploop.scripts.cli import main

        out = path.parent / "out"
        argv = [
            w.replace("{}", str(path)).replace("OUT", str(out)).replace("CORPUS", str(CORPUS))
            for w in words
        ]
        said, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
            code = main(argv)
        if code not in (0, 1, 2, 3):
            raise AssertionError(f"exit code {code}")
        lines = [line for line in wrong.getvalue().splitlines() if line.startswith("gaploop")]
        if code == 2 and len(lines) != 1:
            raise AssertionError(f"exit code 2 with {len(lines)} lines: {wrong.getvalue()[:500]}")
        if code == 2:
            raise UnusableInputError(lines[0])
        return said.getvalue()

    return run


def _yaml(path: Path) -> object:
    from gaploop.core.schema import load_yaml

    return load_yaml(path, "File")


def _outcomes(path: Path) -> object:
    from gaploop.finetune.gate.run import read_outcomes

    return read_outcomes(path, None)


def _messages(folder: Path) -> object:
    """What another machine sends, as it comes from the socket."""
    from gaploop.collect import remote_policy
    from gaploop.teleop.leaders import browser, remote
    from gaploop.teleop.link import decoded

    read = []
    for path in sorted(folder.iterdir()):
        if path.name == "PageTouch":
            text = path.read_bytes().decode(errors="replace")
            read.append(decoded(text, browser.PageTouch))
            continue
        kind = getattr(remote, path.name, None) or getattr(remote_policy, path.name)
        read.append(message := decoded(path.read_bytes(), kind))
        for picture in getattr(message, "pictures", {}).values():
            remote_policy.unpacked(picture)
    return read


def _mix(root: Path) -> object:
    mixture = root.with_name("mixture.yaml")
    mixture.write_text((CORPUS / "files" / "mixture.yaml").read_text().replace("../set", "set"))
    return command("finetune", str(mixture), "--dry_run")(root)


def _header(folder: Path) -> object:
    from gaploop.core.journal_format import read_end, read_header

    return [(read_header(p), read_end(p)) for p in sorted(folder.glob("0*"))]


def _journal(folder: Path) -> object:
    from gaploop.core.journal_format import read_journal

    return [
        (len(t.frames), [len(list(c())) for c in t.cameras.values()]) for t in read_journal(folder)
    ]


def _recover(folder: Path) -> object:
    from gaploop.collect.recovery import recover

    for end in folder.glob("*/end.json"):
        end.unlink()
    return recover(folder)


def _takes(root: Path) -> object:
    from gaploop.datasets.lerobot_read import read_takes

    return [(t.info, len(t.frames), len(t.telemetry)) for t in read_takes(root)]


def _pictures(root: Path) -> object:
    from gaploop.datasets.lerobot_read import read_takes

    return [len(list(c())) for t in read_takes(root) for c in t.cameras.values()]


def _video(path: Path) -> object:
    from gaploop.datasets.video import count_frames, sample_pictures

    with contextlib.suppress(UnusableInputError):
        count_frames(path)
    return sample_pictures(path)


def _labels(path: Path) -> object:
    from gaploop.core import labels

    return labels.merge(labels.read(path)), labels.current(labels.read(path)), labels.readable(path)


def _register(path: Path) -> object:
    from gaploop.core.consent import load_register

    return load_register(path)


def _names(path: Path) -> object:
    from gaploop.core.consent import read_names

    return read_names(path.with_name("consents.jsonl"))


def _poses(path: Path) -> object:
    from gaploop.core.kinematics import ArmModel
    from gaploop.teleop.calibration.store import read_poses

    return read_poses(path.parent, ArmModel.load("so101"))


def _calibration(path: Path) -> object:
    """Its content with the id that belongs to it: another would end every look at once."""
    from gaploop.teleop.calibration.store import SCHEMA, calibration_id, load_calibration

    with contextlib.suppress(ValueError, RecursionError, TypeError, UnusableInputError):
        content = json.loads(path.read_text())
        whole = {"schema": SCHEMA, "id": calibration_id(content), "content": content, "history": []}
        path.write_text(json.dumps(whole))
    found = load_calibration(path)
    with contextlib.suppress(UnusableInputError):
        found.intrinsics("wrist")
    with contextlib.suppress(UnusableInputError):
        found.hand_eye("wrist")
    return found.ages_days()


def _motors(path: Path) -> object:
    from gaploop.teleop.checks.calibrations import check_arm_file

    return check_arm_file(path, 0.0)


def _faults(path: Path) -> object:
    from gaploop.scripts.emulate import read_faults

    return read_faults(str(path))


def _run(folder: Path) -> object:
    from gaploop.collect.withdrawal import runs_of
    from gaploop.finetune.gate.folder import _run_of
    from gaploop.finetune.hub_policy import _lineage

    found = list(runs_of(["u"], [folder / "none"], [folder], []))
    with contextlib.suppress(UnusableInputError):
        _run_of(folder / "policy", "p")
    return found, _lineage(folder / "policy", "p")


def _withdraw(what: str) -> Callable[[Path], object]:
    """Return what withdraws the consent of whoever the first take is of."""

    def read(path: Path) -> object:
        from gaploop.collect.withdrawal import report_path, withdraw
        from gaploop.core.consent import Place

        id_ = "c-abcdefghij"
        register = path.parent / "consents.jsonl"
        events = (CORPUS / "files" / "consents.jsonl").read_text().splitlines()
        register.write_text("".join(f"{e}\n" for e in events if '"place"' not in e))
        noted = {"uids": ["0192f0c1-0000-7000-8000-000000000000"]}
        report_path(register, id_).write_text(json.dumps(noted))
        return withdraw(register, id_, places=[Place(what, str(path))], remove=True)

    return read


def _policy(folder: Path) -> object:
    from gaploop.finetune.lerobot_policy import cell_of, load_policy, policy_id

    return load_policy(folder), policy_id(folder), cell_of(folder)


def _rollouts(folder: Path) -> object:
    from gaploop.finetune.evaluation import RolloutLog

    return RolloutLog(folder, {"policy": "p"}).held


def _preflight(folder: Path) -> object:
    from gaploop.collect.preflight import Checked, missing

    return missing(folder, Checked("p", "r"))


def _canary(path: Path) -> object:
    from gaploop.finetune.gate.canary import _read

    return _read(path, ("a", "b"))


def _loaded(module: str, name: str) -> Callable[[Path], object]:
    """Return a reader that takes a path."""

    def read(path: Path) -> object:
        import importlib

        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        value = found(path)
        return list(value) if hasattr(value, "__next__") else value

    return read


META = ("meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/episodes/**/*.parquet")
EVERY = (
    *META, "data/**/*.parquet", "meta/gap/labels.jsonl", "telemetry/*.zip", "videos/**/*.mp4",
    "*.jsonl",
)  # fmt: skip

FILES = (
    Reader("yaml", "files/plan.yaml", _yaml),
    Reader("plan", "files/plan.yaml", _loaded("gaploop.core.plan", "load_plan")),
    Reader("station", "files/station.yaml", _loaded("gaploop.core.station", "load_station")),
    Reader("twin", "files/twin.yaml", _loaded("gaploop.core.twin", "load_twin")),
    Reader("suite", "files/suite.yaml", _loaded("gaploop.core.suite", "load_suite")),
    Reader(
        "mixture", "files/mixture.yaml", _loaded("gaploop.datasets.mixing.sources", "load_mixture")
    ),
    Reader(
        "harmonise-spec",
        "files/spec.yaml",
        _loaded("gaploop.datasets.edit.harmonise_spec", "load_spec"),
    ),
    Reader("faults", "files/faults.yaml", _faults),
    Reader("labels", "set/meta/gap/labels.jsonl", _labels),
    Reader("consents", "files/consents.jsonl", _register),
    Reader("names", "files/names.json", _names),
    Reader("outcomes", "files/outcomes.csv", _outcomes),
    Reader(
        "truth",
        "files/truth.jsonl",
        _loaded("benchmarks.corpus.scores", "read_truth"),
    ),
    Reader(
        "predictions",
        "files/predictions.jsonl",
        _loaded("benchmarks.corpus.scores", "read_predictions"),
    ),
    Reader(
        "diagnosis",
        "files/diagnosis.json",
        _loaded("gaploop.failure_analysis.diagnosis", "load_diagnosis"),
    ),
    Reader(
        "reference",
        "files/reference.json",
        _loaded("gaploop.failure_analysis.reference", "load_reference"),
    ),
    Reader("speeds", "files/ramp.json", _loaded("gaploop.collect.rollout", "_read")),
    Reader("poses-jsonl", "files/poses.jsonl", _poses),
    Reader("calibration", "files/calibration.json", _calibration),
    Reader("motors", "files/motors.json", _motors),
    Reader("link", "link", _messages, ("*",)),
)
POLICY = ("**/*.json", "**/*.safetensors")
FOLDERS = (
    Reader("info", "set", _loaded("gaploop.datasets.layout", "read_info"), ("meta/info.json",)),
    Reader("episodes", "set", _takes, ("meta/episodes/**/*.parquet",)),
    Reader("frames", "set", _takes, ("data/**/*.parquet",)),
    Reader("telemetry", "set", _takes, ("telemetry/*.zip",)),
    Reader("pictures", "set", _pictures, ("videos/**/*.mp4",)),
    Reader("take-header", "journal", _header, ("*/take.json", "*/end.json")),
    Reader("take-streams", "journal", _journal, ("*/*.arrows",)),
    Reader("take-video", "journal", _journal, ("*/*.mkv",)),
    Reader("take", "journal", _journal, ("**/*.*",)),
    Reader("recover", "journal", _recover, ("*/*.*",), changes=True),
)
POLICIES = (
    Reader("policy", "policy", _policy, POLICY),
    Reader(
        "submission",
        "policy",
        _loaded("benchmarks.board.entries", "look_at_policy"),
        POLICY,
    ),
    Reader(
        "adapter",
        "adapter",
        _loaded("gaploop.finetune.lerobot_trust", "refuse_foreign_code"),
        ("*.json",),
    ),
    Reader("run", "run", _run, ("**/*.json",)),
    Reader("rollouts", "rollouts", _rollouts, ("*.*",)),
    Reader("preflight", "rollouts", _preflight, ("preflight.json",)),
    Reader("canary", "files/canary.jsonl", _canary),
)
"""What belongs to policies; most need PyTorch to be read."""
COMMANDS = (
    Reader("check", "set", command("check", "{}"), EVERY),
    Reader("check-journal", "journal", command("check", "{}"), ("**/*.*",)),
    Reader("label", "set", command("label", "{}", "--json"), EVERY),
    Reader(
        "label-set",
        "set",
        command("label", "{}", "--episodes=1", "--outcome=failure", "--author=bo"),
        EVERY,
        changes=True,
    ),
    Reader(
        "edit",
        "set",
        command("edit", "keep", "{}", "--episodes=[0, 1]", "--output_dir=OUT"),
        EVERY,
        changes=True,
    ),
    Reader(
        "merge",
        "set",
        command("edit", "merge", "{}", "CORPUS/set", "--output_dir=OUT"),
        EVERY,
        changes=True,
    ),
    Reader(
        "retag",
        "set",
        command(
            "edit",
            "retag",
            "{}",
            "--episodes=[0]",
            '--set={"operator": "bo"}',
            "--yes",
        ),
        EVERY,
        changes=True,
    ),
    Reader(
        "convert-to",
        "set",
        command("convert", "{}", "--to=lerobot_v21", "--output_dir=OUT"),
        EVERY,
        changes=True,
    ),
    Reader(
        "convert",
        "set",
        command("convert", "{}", "--output_dir=OUT"),
        EVERY,
        changes=True,
    ),
    Reader("check-fix", "set", command("check", "{}", "--fix"), EVERY, changes=True),
    Reader(
        "publish",
        "journal",
        command("publish", "--journal={}", "--dataset.root=OUT"),
        ("**/*.*",),
        changes=True,
    ),
    Reader("withdraw", "set", _withdraw("dataset"), EVERY, changes=True),
    Reader("withdraw-journal", "journal", _withdraw("journal"), ("**/*.*",), changes=True),
    Reader("push", "set", command("push", "{}", "--repo_id=me/x", "--dry_run"), EVERY),
    Reader(
        "push-policy",
        "policy",
        command("push", "{}", "--repo_id=me/x", "--dry_run"),
        POLICY,
    ),
    Reader("check-many", "set", command("check", "{}", "{}"), EVERY),
    Reader("mix", "set", _mix, EVERY),
    Reader(
        "harmonise",
        "set",
        command("edit", "harmonise", "{}", "--spec=CORPUS/files/spec.yaml", "--dry_run"),
        EVERY,
    ),
    Reader("diagnose", "set", command("diagnose", "{}", "--output_dir=OUT"), EVERY, changes=True),
    Reader(
        "plan-command",
        "files/diagnosis.json",
        command("plan", "{}", "--output_dir=OUT"),
        changes=True,
    ),
    Reader(
        "gate-outcomes",
        "files/outcomes.csv",
        command("gate", "--outcomes={}", "--output_dir=OUT"),
        changes=True,
    ),
)
SHORT = [reader.name for reader in (*FILES, *FOLDERS) if not reader.changes]
"""What `make test` runs."""
READERS = {reader.name: reader for reader in (*FILES, *FOLDERS, *POLICIES, *COMMANDS)}
