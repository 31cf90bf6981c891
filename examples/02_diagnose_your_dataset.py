"""Diagnose your own LeRobot dataset: check it, look at its takes, find out why some failed.

    python examples/02_diagnose_your_dataset.py path/to/dataset

Outcomes come from the dataset's labels (`gaploop label`, `gaploop review`) or its success column.
Without a folder it first records 12 takes of the packaged policy in an embedded cell with a gap.
"""

import sys
from collections import Counter
from pathlib import Path

import gaploop


def main(root: Path, out: Path) -> None:
    """Diagnose the dataset in `root`; write the report to `out`."""
    # Is it intact? Each finding names its place and the command that fixes it.
    for finding in gaploop.check(root):
        print(f"{finding.severity}: {finding.where}: {finding.message} → {finding.fix}")

    takes = list(gaploop.load_takes(root))
    print(f"{len(takes)} episodes: {dict(Counter(take.outcome.value for take in takes))}")

    diagnosis = gaploop.diagnose(root, output_dir=out)
    for take in diagnosis.takes:
        cause = take.top if not take.abstained else "no clear cause"
        print(f"episode {take.episode}: {take.mode} in {take.phase}, {cause}")
    print(f"The report: {out / 'report.html'}")


def made_up(root: Path) -> Path:
    """Record takes that fail: this station's commands arrive late (sim-to-sim)."""
    if not root.exists():
        gaploop.rollout(
            robot={"gaps": {"actuator_response.latency": 0.8}},
            policy={"path": "base"},
            dataset={"root": root, "num_episodes": 12, "single_task": "Put the cube on the disc"},
        )
    return root


if __name__ == "__main__":
    here = Path("outputs/diagnose")
    main(Path(sys.argv[1]) if sys.argv[1:] else made_up(here / "takes"), here / "diagnosis")
