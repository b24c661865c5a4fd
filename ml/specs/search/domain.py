"""Points of a search space: the hints of a plan, and the sample that a trial gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml.core.errors import Place


@dataclass(frozen=True)
class Point:
    """A complete or partial point to try first, with its reason and its line in the hints."""

    values: Mapping[str, object]
    place: Place
    because: str = ""


@dataclass(frozen=True)
class Constraint:
    """A condition on the values of every trial: an expression over their names."""

    expression: str
    place: Place
    because: str = ""


@dataclass(frozen=True)
class Hints:
    """Points and constraints, and the `file` beside the spec that contains them."""

    points: tuple[Point, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    file: str = ""

    def __bool__(self) -> bool:
        return bool(self.points or self.constraints)


@dataclass(frozen=True)
class Sample:
    """The hyperparameters of trial `number` (from 0), typed and nested as they were sampled.

    `origin` describes their source in JSON values: its `kind` is `given` (a point of the
    hints), `random`, `sobol`, `grid` or `tpe`; `ml.reports.origins` describes the other keys.
    """

    number: int
    values: Mapping[str, object]
    origin: Mapping[str, Any] = field(default_factory=dict)
