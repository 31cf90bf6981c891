"""The command `gaploop demo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXAMPLE: Final = "gaploop demo --output_dir=outputs/demo"


@dataclass
class DemoConfig:
    """Find out why a policy fails, carry out the remedy that the plan chose, and prove the fix.

    All on the embedded cell, so sim-to-sim. One cell is measured, its arm is late; the other isn't,
    and needs demonstrations. Measurement, diagnosis and plan don't know which. Every step is one of
    gaploop's commands, printed as it is typed. Exit code 0, whatever the verdict. After Ctrl-C the
    same command continues.
    """

    output_dir: Path = Path("outputs/demo")
    """Run folder; report.html and the figures go there."""
    quick: bool = False
    """Fewer rollouts and steps: shows the way, proves little."""
    json: bool = False
    """Print one JSON object."""
