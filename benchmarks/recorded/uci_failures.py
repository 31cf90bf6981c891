"""UCI "Robot Execution Failures": force and torque at the wrist after a failure was detected.

Each case is 15 samples over 315 ms of six integers Fx Fy Fz Tx Ty Tz. The source states no
units; the columns are named N and Nm after what they measure.
Source: L. Seabra Lopes and L. Camarinha-Matos, UCI, doi 10.24432/C5M89N (CC BY 4.0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.recorded.csv_log import LabelledTake
from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_text
from gaploop.core.messages import FloatArray
from gaploop.core.take import Frames, Take, TakeInfo
from gaploop.core.telemetry import Telemetry
from gaploop.core.vocabulary import Domain, Outcome, TakeKind

CHANNELS: Final = {
    "wrist.fx_n": "N",
    "wrist.fy_n": "N",
    "wrist.fz_n": "N",
    "wrist.tx_nm": "Nm",
    "wrist.ty_nm": "Nm",
    "wrist.tz_nm": "Nm",
}
SAMPLES: Final = 15
PERIOD_S: Final = 0.315 / SAMPLES
TASKS: Final = {
    "lp1": "approach to grasp position",
    "lp2": "transfer of a part",
    "lp3": "position of a part after a transfer failure",
    "lp4": "approach to ungrasp position",
    "lp5": "motion with a part",
}
"""Learning problem to what the arm was doing, from the data set's own description."""


def read_uci_failures(path: Path) -> list[LabelledTake]:
    """Read one file of cases of 15 rows of six numbers."""
    takes = []
    for index, (label, values) in enumerate(_cases(path)):
        info = TakeInfo(
            uid=f"{path.stem}-{index}",
            task=TASKS.get(path.stem.lower(), "unknown"),
            fps=1 / PERIOD_S,
            kind=TakeKind.IMPORT,
            domain=Domain.REAL,
            session=path.stem,
        )
        columns = dict(zip(CHANNELS, values.T, strict=True))
        t_s = np.arange(SAMPLES, dtype=np.float64) * PERIOD_S
        record = Telemetry(t_s, columns, CHANNELS)
        take = Take(info, Outcome.UNLABELLED, Frames.empty(), record)
        takes.append(LabelledTake(take, label))
    return takes


def labelled_windows(path: Path) -> tuple[FloatArray, NDArray[np.str_]]:
    """Read one file's windows, shape (n_cases, 15, 6), and the source's label of each."""
    cases = list(_cases(path))
    return np.stack([values for _, values in cases]), np.array([label for label, _ in cases])


def _cases(path: Path) -> Iterator[tuple[str, FloatArray]]:
    lines = read_text(path).splitlines()
    label, start, rows = "", 0, list[list[float]]()
    found = False
    for number, line in enumerate([*lines, ""], 1):
        words = line.split()
        if words and not label:
            label, start, rows = words[0], number, []
        elif words:
            try:
                values = [float(word) for word in words]
            except ValueError:
                values = [math.nan]
            if not all(map(math.isfinite, values)):
                raise UnusableInputError(
                    f"{path}, line {number}: {' '.join(words)[:60]!r} are not numbers. "
                    "Expected six."
                )
            rows.append(values)
        elif label:
            if len(rows) != SAMPLES or any(len(row) != len(CHANNELS) for row in rows):
                raise UnusableInputError(
                    f"{path}, line {start}: a case must have {SAMPLES} rows of {len(CHANNELS)} "
                    f"numbers, this one has {len(rows)} rows. Get the file again from UCI."
                )
            yield label, np.array(rows)
            label, found = "", True
    if not found:
        raise UnusableInputError(f"{path} holds no cases. Name an lp*.data file of the UCI set.")
