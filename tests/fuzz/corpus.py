"""Sound files of every kind that gaploop reads, small: what the fuzzer starts from."""

# ruff: noqa: E501  # files of one line
from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import gaploop.failure_analysis
import gaploop.finetune
from gaploop.collect import remote_policy
from gaploop.collect.journal import FrameRow, JournalWriter
from gaploop.core import labels
from gaploop.core.files import write_json
from gaploop.core.journal_format import TakeHeader, append_truth
from gaploop.core.take import TakeInfo
from gaploop.core.telemetry import joint_columns
from gaploop.core.vocabulary import Outcome
from gaploop.datasets.lerobot_publish import publish
from gaploop.failure_analysis import diagnosis
from gaploop.finetune import evaluation
from gaploop.teleop.leaders import browser, remote

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
CAMERAS = ("overhead", "wrist")
SIDE = 32


def make(folder: Path) -> Path:
    """Write the corpus into a new folder and return it.

    `set` is a dataset of three takes with labels and telemetry, `journal` what it was published
    from; `link` messages of other machines, `files` the rest.
    """
    os.environ["GAPLOOP_CONSENTS"] = str(folder / "consents.jsonl")
    journal, root = folder / "journal", folder / "set"
    for k, frames in enumerate((7, 5, 6)):
        uid = _take(journal, frames, Outcome.SUCCESS if k else Outcome.FAILURE, code=k)
        append_truth(journal, uid, {"gaps": {"contact_dynamics": 0.5}})
        if not k:
            for name, value in (
                ("failure_mode", "slip"),
                ("dimensions", {"contact_dynamics": 0.5}),
            ):
                event = labels.LabelEvent(uid, name, value, "ana", "operator")
                labels.append(journal / "labels.jsonl", event)
    publish(journal, root, "local/set")
    _texts(folder / "files")
    _messages(folder / "link")
    _policies(folder)
    return folder


def _messages(folder: Path) -> None:
    """Write one message of each kind that passes over a link."""
    folder.mkdir()
    jpeg = remote_policy.packed(np.full((8, 8, 3), 90, dtype=np.uint8), 95)
    messages = (
        remote.LeaderCard("so101_leader", list(JOINTS)),
        remote.LeaderQuestion(7),
        remote.LeaderAnswer(7, 0.01, [1.5] * 6),
        remote_policy.PolicyCard("sha256:0", 30.0, 10, "so101", False, 0.0),
        remote_policy.PolicyQuestion(1, True, "lift it", [0.5] * 6, [1.0], {"top": jpeg}),
        remote_policy.PolicyAnswer(1, 0.02, [[0.5] * 6] * 3, ""),
    )
    for message in messages:
        (folder / type(message).__name__).write_bytes(msgspec.msgpack.encode(message))
    touch = browser.PageTouch(7, True, 0.5, 0.0, 0, 0, 0, 0, False, 2, "base", 0, 0, (0.1,) * 5)
    (folder / "PageTouch").write_bytes(msgspec.json.encode(touch))


def _take(journal: Path, frames: int, outcome: Outcome, code: int) -> str:
    draw = np.random.default_rng(code)
    uid = f"0192f0c1-0000-7000-8000-00000000000{code}"
    info = TakeInfo(
        uid,
        task="Put the cube on the disc",
        fps=50.0,
        joint_names=JOINTS,
        robot_type="so101_sim",
        units="deg",
        t0_ns=1_700_000_000_000_000_000 + code,
    )
    spec = {c: {"width": SIDE, "height": SIDE, "fps": 50.0, "codec": "h264"} for c in CAMERAS}
    channels = {**joint_columns("follower", JOINTS), "wrist.fx_n": "N"}
    with JournalWriter(journal, TakeHeader(info, ("cube_x_m",), spec, channels)) as writer:
        for k in range(frames):
            state = draw.normal(size=len(JOINTS))
            writer.frame(
                FrameRow(
                    t_s=k / 50,
                    state=state,
                    action=state + 1,
                    sent=state + 1,
                    environment_state=draw.normal(size=1),
                    intervention=False,
                    safety=0,
                    camera_age_s=dict.fromkeys(CAMERAS, 0.01),
                    pictures=dict.fromkeys(CAMERAS, _picture(code + k)),
                )
            )
            writer.telemetry(int(k * 2e7), draw.normal(size=len(channels)))
        writer.seal(outcome)
    return uid


def _picture(k: int) -> np.ndarray:
    return np.full((SIDE, SIDE, 3), (20 * k % 250, 90, 250 - 7 * k), np.uint8)


def _policies(folder: Path) -> None:
    """The base policy, an adapter's configuration, and what is kept of runs and rollouts."""
    shutil.copytree(Path(gaploop.finetune.__path__[0]) / "base", folder / "policy")
    (folder / "adapter").mkdir()
    for name in ("config.json", "policy_preprocessor.json", "gaploop.json"):
        shutil.copy(folder / "policy" / name, folder / "adapter")
    peft = {"peft_type": "LORA", "base_model_name_or_path": "base", "target_modules": ["q", "v"]}
    more = {"auto_mapping": {"parent_library": "lerobot.policies.act"}, "megatron_core": None}
    write_json(folder / "adapter" / "adapter_config.json", peft | more)
    entry = {"root": "set", "uids": ["u"], "plans": [], "domain": "real", "takes": 1}
    result = {"policy": "p", "merged": "m", "policies": ["p"]}
    run = {
        "schema": "gaploop.run.v1", "id": "r", "command": "finetune", "inputs": [entry],
        "config": {"lora": {"r": 8}}, "result": result, "lineage": {"base": "b", "takes": ["u"]},
    }  # fmt: skip
    (folder / "run" / "policy").mkdir(parents=True)
    write_json(folder / "run" / "run.json", run)
    shipped = {"policy": "p", "base": "b", "datasets": [entry], "result": result}
    write_json(folder / "run" / "policy" / "lineage.json", shipped)
    rolled = [evaluation.Rollout(k, evaluation.NOMINAL, True, 1.0, "", f"u{k}") for k in range(3)]
    (folder / "rollouts").mkdir()
    evaluation.RolloutLog(folder / "rollouts", {"policy": "p"}).add(rolled)
    (folder / "rollouts" / "preflight.json").write_text(TEXTS["preflight.json"])


def _texts(folder: Path) -> None:
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    rows = [
        ",".join([f"{side},{(k + n) % 2},0,lift,{k}"])
        for k in range(6)
        for n, side in enumerate(("baseline", "candidate"))
    ]
    (folder / "outcomes.csv").write_text("policy,success,safety,task,pair\n" + "\n".join(rows))
    motor = {"id": 1, "drive_mode": 0, "homing_offset": 12, "range_min": 100, "range_max": 4000}
    write_json(folder / "motors.json", dict.fromkeys(JOINTS, motor))
    write_json(folder / "diagnosis.json", _diagnosis())
    here = Path(gaploop.failure_analysis.__path__[0])
    shutil.copy(here / "reference_so101_cell_pick_place.json", folder / "reference.json")


def _diagnosis() -> dict[str, Any]:
    take = {
        "uid": "0192f0c1-0000-7000-8000-000000000000", "episode": 0, "mode": "slip",
        "phase": "grasp", "dimensions": {"contact_dynamics": 0.8, "visual_domain": 0.1},
        "none": 0.1, "abstained": False, "unseen": ["force"], "named": ["contact_dynamics"],
        "candidates": ["contact_dynamics"], "by": "rules",
        "evidence": [{"signal": "slip", "value": 1.5, "unit": "mm", "says": "it slips"}],
    }  # fmt: skip
    known = {"schema": diagnosis.SCHEMA, "id": "diagnosis-1", "source": "set"}
    return known | {"takes": [take], "summary": {"takes": 1}}


TEXTS = {
    "plan.yaml": """schema: gaploop.plan.v1
id: plan-1
diagnosis: diagnosis-1
minutes: 10.0
gain_points: {value: 8.7, low: 1.8, high: 18.9}
notes: [first, second]
items:
- id: a
  dimension: spatial_geometry
  takes: 20
  remedy: collect
  why: "14 mm off"
  conditions: {distractors: 0, camera_pose: [0, 0, 0, 0, 0, 0]}
  vary: {grid_cell: all, lighting: all}
  share: 0.75
  hours: {value: 1, low: 0, high: 2}
""",
    "station.yaml": """name: bench_3
domain: real
grid: [3, 3]
conditions: {lighting: [day, lamp], object: [cube, mug]}
robot_model: so101
workspace: {x: [0.0, 0.4], y: [-0.3, 0.3], z: [0.0, 0.4]}
joint_limits_rad: {shoulder_pan: [-1.0, 1.0]}
safety: {velocity_rad_s: 2.0, stall_s: 0.4}
costs: {}
""",
    "twin.yaml": """schema: gaploop.twin.v1
station: bench_3
arm: so101
made_from: [{id: j1, sha256: ab, uids: [u]}]
parameters:
- {name: actuator_response.latency.latency_s, unit: s, nominal: 0, estimate: 0.04, interval: [0.03, 0.05], joint: elbow_flex}
fit: {open_loop_error_before: 0.2, open_loop_error_after: 0.1}
""",
    "suite.yaml": """name: bench
tasks:
- {task: lift, instruction: Lift it, gaps: {contact_dynamics: 0.5}, min_pass_rate: 0.8}
- {task: place, conditions: {distractors: 2}, timeout_s: 30, success_check: script, check: "a:b"}
rules: {alpha: 0.05, gain: 0.1, max_pairs: 50}
canary: {fleet: [a, b], share: 0.5}
sim_tasks: [pick_place]
""",
    "mixture.yaml": """sources:
  real: [../set]
  sim: {roots: ../set, select: all, where: outcome=success}
shares: {real: 0.5, sim: 0.5}
weights: {outcome: {success: 2.0}}
seed: 1
""",
    "spec.yaml": """joints: {shoulder_pan: {name: pan, sign: -1, offset: 3}, gripper: jaw}
units: {from: deg, to: rad}
fps: 25
cameras: {wrist: {name: hand, crop: [0, 0, 16, 16], resize: [8, 8]}, overhead: null}
drop: [gap.sent]
""",
    "faults.yaml": """- {at_s: 5, fault: vanish, id: 3, for_s: 2}
- {at_s: 7, fault: corrupt, for_s: 1, rate: 0.5}
""",
    "consents.jsonl": """{"event": "add", "id": "c-abcdefghij", "at": "2026-01-01T00:00:00+00:00", "expires": "2027-01-01", "scope": ["record", "publish"]}
{"event": "place", "id": "c-abcdefghij", "at": "2026-01-01T00:00:00+00:00", "what": "dataset", "where": "/data"}
{"event": "withdraw", "id": "c-abcdefghij", "at": "2026-02-01T00:00:00+00:00"}
""",
    "names.json": """{"c-abcdefghij": "Ana"}""",
    "poses.jsonl": """{"image": "a.png", "q_rad": {"shoulder_pan": 0, "shoulder_lift": 0, "elbow_flex": 0, "wrist_flex": 0, "wrist_roll": 0}}
{"image": "b.png", "T_base_tcp": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]}
""",
    "truth.jsonl": """{"uid": "a", "gaps": {"contact_dynamics": 0.5}}
{"uid": "b", "label": "normal"}
""",
    "predictions.jsonl": """{"id": "a", "dimensions": {"contact_dynamics": 0.6}, "none": 0.4, "named": ["contact_dynamics"], "candidates": ["x"]}
""",
    "ramp.json": """{"schema": "gaploop.speeds.v1", "successes": {"p": 3}}""",
    "preflight.json": """{"schema": "x", "at": "2026-01-01T00:00:00+00:00", "policy": "p", "robot": "r", "ok": true}""",
    "calibration.json": json.dumps(
        {
            "cameras": {
                "wrist": {
                    "intrinsics": {
                        "at": "2026-01-01T00:00:00Z",
                        "width": 640,
                        "height": 480,
                        "lens": "pinhole",
                        "camera_matrix": np.eye(3).tolist(),
                        "distortion": [0.0] * 5,
                    },
                    "hand_eye": {
                        "at": "2026-01-01T00:00:00Z",
                        "setup": "eye_in_hand",
                        "T": np.eye(4).tolist(),
                    },
                }
            },
        }
    ),
    "canary.jsonl": """{"robot": "a", "episode": 0, "candidate": true, "success": true, "safety": false}
{"robot": "b", "episode": 1, "candidate": false, "success": false, "safety": true}
""",
}
