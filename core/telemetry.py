"""The control-rate record: which columns it has, in which units, on disk and in memory.

Columns: `t_ns`; per joint `<arm>.<joint>.<quantity>`; sensors as `<name>.fx_n`, `<name>.tx_nm`
or `<name>.<channel>`; loop timing as `loop.period_s`, `loop.lateness_s`, `loop.latency_s` (from
the leader's sample to the goals sent) and `loop.overruns` (turns skipped just before). What a
device lacks is null on disk and NaN in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from gaploop.core.errors import DAMAGE, UnusableInputError
from gaploop.core.messages import FloatArray

JOINT_QUANTITIES: Final[dict[str, str]] = {
    "leader_rad": "rad",
    "requested_rad": "rad",
    "sent_rad": "rad",
    "position_rad": "rad",
    "velocity_rad_s": "rad/s",
    "current_a": "A",
    "load_pct": "%",
    "temperature_c": "°C",
    "voltage_v": "V",
    "status": "bits",
}
"""Quantity, which is the last part of a joint column's name, to unit."""

HELD_S: Final = 0.5
"""A sensor's reading stands for itself until the next one, for so long at most [s]."""

LOOP_CHANNELS: Final[dict[str, str]] = {
    "loop.period_s": "s",
    "loop.lateness_s": "s",
    "loop.latency_s": "s",
    "loop.overruns": "turns",
}


def joint_columns(arm: str, joints: Iterable[str]) -> dict[str, str]:
    """Return the telemetry columns of one arm, name to unit."""
    return {
        f"{arm}.{joint}.{quantity}": unit
        for joint in joints
        for quantity, unit in JOINT_QUANTITIES.items()
    }


def arrow_schema(channels: Mapping[str, str]) -> pa.Schema:
    """Return the schema of `telemetry.arrows`: `t_ns` and one nullable float64 per channel.

    `channels` is column name to unit, which is kept in the field's metadata.
    """
    fields = [pa.field("t_ns", pa.int64(), nullable=False)]
    fields += [pa.field(name, pa.float64(), metadata={"unit": u}) for name, u in channels.items()]
    return pa.schema(fields)


@dataclass(frozen=True)
class Telemetry:
    """A take's control-rate record in memory.

    Attributes:
        t_s: time since the take began [s], shape (n,).
        columns: channel name to values, shape (n,), NaN where missing.
        units: channel name to unit.
    """

    t_s: FloatArray
    columns: Mapping[str, FloatArray]
    units: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.t_s)

    def arms(self) -> tuple[str, ...]:
        """Return the names of the arms that have joint columns."""
        found = {
            name.split(".")[0]
            for name in self.columns
            if name.count(".") == 2 and name.rsplit(".", 1)[1] in JOINT_QUANTITIES
        }
        return tuple(sorted(found))

    def joints(self, arm: str) -> tuple[str, ...]:
        """Return the joints of `arm`, in the order of their columns."""
        names = (
            n.split(".") for n in self.columns if n.startswith(f"{arm}.") and n.count(".") == 2
        )
        return tuple(dict.fromkeys(parts[1] for parts in names if parts[2] in JOINT_QUANTITIES))

    def stack(self, arm: str, quantity: str) -> FloatArray:
        """Return one quantity of every joint of `arm`, shape (n, n_joints), NaN where lacking."""
        missing = np.full(len(self), np.nan)
        columns = [self.columns.get(f"{arm}.{j}.{quantity}", missing) for j in self.joints(arm)]
        return np.stack(columns, axis=1) if columns else np.empty((len(self), 0))

    def sensors(self) -> dict[str, tuple[str, ...]]:
        """Return the sensors beside the arms, each with its columns in order."""
        found, arms = dict[str, tuple[str, ...]](), self.arms()
        for column in self.columns:
            name, _, rest = column.partition(".")
            if rest and column not in LOOP_CHANNELS and name not in arms:
                found[name] = (*found.get(name, ()), column)
        return found

    def readings_at(self, columns: Iterable[str], t_s: FloatArray) -> FloatArray:
        """Return the newest readings at some times [s], shape (len(t_s), n_columns).

        Before the first reading that one; NaN where none is within `HELD_S`. (A take's first frame
        may be some milliseconds older than the first row: the two count from different instants.)
        """
        found = list[FloatArray]()
        for name in columns:
            known = np.isfinite(self.columns[name])
            if not known.any():
                found.append(np.full(len(t_s), np.nan))
                continue
            at_s, values = self.t_s[known], self.columns[name][known]
            rows = np.maximum(np.searchsorted(at_s, t_s + 1e-6, side="right") - 1, 0)
            found.append(np.where(np.abs(t_s - at_s[rows]) <= HELD_S, values[rows], np.nan))
        return np.stack(found, axis=1) if found else np.empty((len(t_s), 0))

    @classmethod
    def from_table(cls, table: pa.Table, where: str = "telemetry") -> Telemetry:
        """Read what `arrow_schema` describes.

        Raises:
            UnusableInputError: `t_ns` is missing, or infinite values stand in a channel.
        """
        try:
            if "t_ns" not in table.column_names:
                raise UnusableInputError(
                    f"{where} has no column t_ns. It is not a gaploop telemetry record."
                )
            if table["t_ns"].null_count:
                raise ValueError("rows without a time")
            t_ns = np.asarray(table["t_ns"].cast(pa.int64()), dtype=np.int64)
            channels = [spec for spec in table.schema if spec.name != "t_ns"]
            columns = {
                spec.name: np.asarray(table[spec.name].cast(pa.float64()), dtype=np.float64)
                for spec in channels
            }
        except (pa.ArrowException, *DAMAGE) as error:
            raise UnusableInputError(f"{where}: not columns of numbers ({error}).") from None
        t_s = (t_ns - (t_ns[0] if len(t_ns) else 0)) * 1e-9
        for name, values in columns.items():
            if np.isinf(values).any():
                raise UnusableInputError(
                    f"{where}: column {name} holds infinite values. Export it again with "
                    "missing values left empty."
                )
        told = {spec.name: (spec.metadata or {}).get(b"unit", b"") for spec in channels}
        units = {name: unit.decode(errors="replace") for name, unit in told.items()}
        return cls(t_s, columns, units)


SHORTEST_S: Final = 0.06
"""No shorter stand says anything: readings come late, and in steps [s]."""
LONG_S, LONG = 0.1, 0.25
"""Least share of stands that last so long [s]: an arm that swings stands briefly where it turns."""
CAUGHT_UP_S, CAUGHT_UP, FASTER = 0.25, 0.3, 1.5
"""So soon [s] after it stood a joint has caught up all but this share of what it was behind, going
so many times as far as its goal."""
STEPS, NOISES = (1.5, 4.0), (3.0, 8.0)
"""Steps of its readings and standard deviations of their noise within which a joint stands, and by
which one is behind."""
LOSSES: Final = 3
"""Fewer jumps are chance; where other joints jump, too, so many times more are asked for: all hear
by one bus."""
OF_ONE_SIZE: Final = 0.5
"""Spread of jumps (80th less 20th percentile, of the median) up to which they are a dead band's."""


class Stand(NamedTuple):
    """Rows in which a joint stood while it should have moved, and where.

    `jump` is by how much it then went on at once; 0 where it went on evenly, as what was blocked,
    slow or has play does, and NaN where the record ends.
    """

    first: int
    last: int
    place: float
    jump: float


def lost_goals(
    records: Sequence[tuple[FloatArray, FloatArray, FloatArray]], step: float, least: float
) -> tuple[int, list[list[Stand]]] | None:
    """Return the joint that misses its goals time and again, and where it does in each record.

    It jumps after them from where it stood, by any size, and no other joint does so.

    Args:
        records: times [s], shape (n,), readings, and where the joints would be, had all goals
            arrived, both of shape (n, n_joints).
        step: of the readings.
        least: no joint is behind its goals by less.
    """
    found, counts, spread = list[list[list[Stand]]](), list[int](), list[float]()
    for joint in range(records[0][1].shape[1]):
        moved = np.concatenate([np.diff(read[:, joint]) for _, read, _ in records])
        noise = float(np.median(np.abs(moved))) / 0.95  # of a normal difference of two readings
        still, far = (by * step + times * noise for by, times in (STEPS, NOISES))
        found.append([
            _stands(t_s, read[:, joint], due[:, joint], still, max(far, least))
            for t_s, read, due in records
        ])  # fmt: skip
        each = zip(records, found[-1], strict=True)
        stands = [(s.jump, t_s[s.last] - t_s[s.first]) for (t_s, _, _), mine in each for s in mine]
        jumps = [jump for jump, _ in stands if jump > 0.0]
        long = [jump for jump, stood_s in stands if jump > 0.0 and stood_s >= LONG_S]
        low, usual, high = np.quantile(jumps or [0.0], (0.2, 0.5, 0.8)).tolist()
        counts.append(len(jumps) if len(long) >= LONG * len(jumps) else 0)
        spread.append((high - low) / (usual or 1.0))
    *others, most = sorted(counts)
    joint = counts.index(most)
    if most < LOSSES * (1 + max(others, default=0)) or spread[joint] <= OF_ONE_SIZE:
        return None
    return joint, found[joint]


def _stands(
    t_s: FloatArray, read: FloatArray, due: FloatArray, still: float, least: float
) -> list[Stand]:
    found, n, first = list[Stand](), len(read), 0
    values, times_s = read.tolist(), t_s.tolist()
    while first < n - 1:
        low = high = values[first]
        last = first
        while last + 1 < n:
            low, high = min(low, values[last + 1]), max(high, values[last + 1])
            if high - low > still:
                break
            last += 1
        rows = slice(first, last + 1)
        is_long = times_s[last] - times_s[first] >= SHORTEST_S
        # What is never far off at all needs no closer look: nearly all that is long enough.
        if is_long and max(high - due[rows].min(), due[rows].max() - low) >= least:
            place = float(np.median(read[rows]))
            if np.abs(due[rows] - place).max() >= least:
                jump = _jump(t_s, read, due, last, place, least)
                found.append(Stand(first, last, place, jump))
        first = max(last, first + 1)
    return found


def _jump(
    t_s: FloatArray, read: FloatArray, due: FloatArray, last: int, place: float, least: float
) -> float:
    """Return by how much a joint goes on at once after a row in which it still stood."""
    behind, until = abs(float(due[last] - place)), t_s[last] + CAUGHT_UP_S
    after = slice(last + 1, int(np.searchsorted(t_s, until, side="right")))
    if after.start == after.stop:
        return math.nan
    there = after.start + int(np.argmin(np.abs(due[after] - read[after])))
    went = float(read[there] - place) * np.sign(due[last] - place)
    would, lacks = (abs(due[there] - at[k]) for at, k in ((due, last), (read, there)))
    at_once = lacks < CAUGHT_UP * behind and went > FASTER * would
    return behind if behind >= least and at_once else 0.0
