"""The learned model: a log-linear posterior over causes, calibrated, that names, or abstains.

Shares are a softmax of `weights @ features / temperature`. Every weight says how far one number
speaks for one cause, so that the model can be read, and corrected by a few labels. It ships as
JSON; `gaploop bench attribution` rebuilds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, write_atomically
from gaploop.core.types import FloatArray
from gaploop.core.vocabulary import GapDimension
from gaploop.failure_analysis.attribution import features

SCHEMA: Final = "gaploop.attribution.v1"
SHIPPED: Final = "model_so101_cell.json"
NONE: Final = "none"
CAUSES: Final = (*(d.value for d in GapDimension), NONE)
"""Order of shares and weights."""


@dataclass(frozen=True)
class Thresholds:
    """When a posterior is sure enough to name something.

    Attributes:
        name: least share of a single cause that is named.
        second: a second dimension of at least this share stands in the way of naming one alone.
        both: least share of two dimensions together, of which both are named.
        cuts: a cause belongs to the conformal set while the shares above its own sum to less than
            this; in the order of `CAUSES`.
    """

    name: float
    second: float
    both: float
    cuts: tuple[float, ...]


@dataclass(frozen=True)
class Judgement:
    """What the model says about one take.

    Attributes:
        shares: dimension to share; with `none` they sum to 1.
        none: share of "none of these".
        named: dimensions that are named, most likely first; none when abstaining.
        candidates: the conformal set, most likely first.
    """

    shares: Mapping[GapDimension, float]
    none: float
    named: tuple[GapDimension, ...]
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class EvidenceModel:
    """Weights, calibration and thresholds.

    Attributes:
        names: names of the features, in order.
        weights: shape (10, n), rows in the order of `CAUSES`.
        temperature: divides the logits.
        thresholds: when to name.
        coverage: stated coverage of the conformal sets.
        about: where it comes from: takes, seed, code.
    """

    names: tuple[str, ...]
    weights: FloatArray
    temperature: float
    thresholds: Thresholds
    coverage: float
    about: Mapping[str, Any]

    def shares(self, rows: FloatArray) -> FloatArray:
        """Return the posterior of rows of features, shape (m, n), as shape (m, 10)."""
        return softmax(rows @ self.weights.T / self.temperature)

    def judge(self, row: FloatArray) -> Judgement:
        """Return posterior, what is named, and the conformal set, of one row, shape (n,)."""
        p = self.shares(row[None])[0]
        shares = {d: float(p[n]) for n, d in enumerate(GapDimension)}
        return Judgement(
            shares, float(p[-1]), named(p, self.thresholds), candidates(p, self.thresholds.cuts)
        )

    def to_json(self) -> dict[str, Any]:
        """Return what the model's file holds."""
        return {
            "schema": SCHEMA,
            "about": dict(self.about),
            "temperature": self.temperature,
            "thresholds": asdict(self.thresholds),
            "coverage": self.coverage,
            "causes": list(CAUSES),
            "weights": {
                name: [round(float(w), 5) for w in column]
                for name, column in zip(self.names, self.weights.T, strict=True)
            },
        }


def softmax(logits: FloatArray) -> FloatArray:
    """Return shares along the last axis."""
    grown = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def named(shares: FloatArray, limits: Thresholds) -> tuple[GapDimension, ...]:
    """Return the dimensions that a posterior, shape (10,), is sure enough to name."""
    order = np.argsort(-shares[:-1], kind="stable")
    first, second = (int(n) for n in order[:2])
    every = tuple(GapDimension)
    if shares[first] >= limits.name and shares[second] < limits.second:
        return (every[first],)
    if shares[first] + shares[second] >= limits.both and shares[second] >= limits.second:
        return (every[first], every[second])
    return ()


def candidates(shares: FloatArray, cuts: Sequence[float]) -> tuple[str, ...]:
    """Return the conformal set of a posterior, shape (10,), likeliest first; never empty.

    A cause belongs to it while the shares of likelier ones sum to less than its cut (adaptive sets
    of Romano, Sesia and Candès 2020, without randomisation).
    """
    order = np.argsort(-shares, kind="stable")
    above = np.cumsum(shares[order]) - shares[order]
    inside = above < np.asarray(cuts)[order]
    return tuple(CAUSES[int(n)] for n in order[inside]) or (CAUSES[int(order[0])],)


def save_model(model: EvidenceModel, path: Path) -> None:
    """Write a model's file, atomically."""
    text = json.dumps(model.to_json(), indent=0)
    write_atomically(path, text + "\n")


def load_model(path: Path) -> EvidenceModel:
    """Read a model's file; features that it doesn't know get no weight.

    Raises:
        UnusableInputError: it is missing or isn't one.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnusableInputError(
            f"{path} is not an attribution model (schema {SCHEMA}). Build one with gaploop bench "
            "attribution."
        )
    try:
        if tuple(value["causes"]) != CAUSES:
            raise ValueError("causes differ")
        known, names = value["weights"], features.names()
        columns = [known.get(name, [0.0] * len(CAUSES)) for name in names]
        return EvidenceModel(
            names,
            np.array(columns, dtype=np.float64).T,
            float(value["temperature"]),
            _thresholds(value["thresholds"]),
            float(value["coverage"]),
            dict(value["about"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableInputError(f"{path} is damaged ({error}). Build it again.") from None


def _thresholds(value: Mapping[str, Any]) -> Thresholds:
    cuts = tuple(float(cut) for cut in value["cuts"])
    if len(cuts) != len(CAUSES):
        raise ValueError(f"{len(cuts)} cuts for {len(CAUSES)} causes")
    return Thresholds(float(value["name"]), float(value["second"]), float(value["both"]), cuts)


@cache
def shipped_model() -> EvidenceModel | None:
    """Return the model that ships, if this build has one."""
    path = Path(str(files("gaploop.failure_analysis").joinpath(SHIPPED)))
    return load_model(path) if path.exists() else None
