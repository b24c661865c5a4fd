"""What somebody knows of a search space before a sweep begins, as a plan has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ml.core.errors import Place


@dataclass(frozen=True)
class Point:
    """A point to try first, whole or partial, and why; `place` is its line in the hints."""

    values: Mapping[str, object]
    place: Place
    because: str = ""


@dataclass(frozen=True)
class Constraint:
    """What the values of every trial have to fulfil, as an expression over their names."""

    expression: str
    place: Place
    because: str = ""


@dataclass(frozen=True)
class Hints:
    """Points and constraints, and the `file` beside the spec that holds them."""

    points: tuple[Point, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    file: str = ""

    def __bool__(self) -> bool:
        return bool(self.points or self.constraints)
