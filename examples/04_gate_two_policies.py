"""Run the gate on two policies: may the candidate replace the baseline?

    python examples/04_gate_two_policies.py [CANDIDATE]

Both are tried blinded and interleaved on the same scenes of the embedded cell (sim-to-sim), one
pair after the other, until the answer is clear. On a station, `command=` runs each attempt there;
docs/train/gate.md has a suite for it. Without a candidate the base is tried against itself, which
must not be promoted.
"""

import sys
from pathlib import Path

import gaploop


def main(candidate: str, out: Path, stage: str = "hardware") -> str:
    """Let the gate decide; return its verdict."""
    result = gaploop.gate("base", candidate, stage=stage, seed=1, output_dir=out)
    for found in result.stages:
        print(f"{found.stage}: {found.answer.value}. {found.message}")
    print(f"{candidate}: {result.verdict.value}. {result.message}")
    return result.verdict.value


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "base", Path("outputs/gate_two_policies"))
