"""Points of a search space: drawn one choice after the other, or listed as a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ml.core.errors import Problem, Refused
from ml.specs.plan.plan import Dimension
from ml.specs.search import distributions
from ml.specs.search.distributions import Known, Space, Variable, dimensions

# Chooses for a variable: a number between its bounds, the index of a choice.
Choose = Callable[[Variable], float]


@dataclass(frozen=True)
class Drawn:
    """A point: the values that a trial gets, and what was chosen for each variable by its path."""

    values: Mapping[str, object]
    raw: Mapping[str, float]


def draw(space: Space, choose: Choose, known: Mapping[str, Known] | None = None) -> Drawn:
    """One point of the space: a value a dimension, a mapping for a nested choice.

    In a conditional space only the branch that was chosen is drawn, under names of its own
    (`model.1.depth`), so that a sampler does not mix the `depth` of one branch with another's.
    What is `known` is not chosen.
    """
    raw: dict[str, float] = {}
    given = known or {}

    def level(inside: Mapping[str, object], prefix: str) -> dict[str, object]:
        return {
            name: one_value(f"{prefix}{name}", one) if isinstance(one, Dimension) else one
            for name, one in inside.items()
        }

    def one_value(path: str, dimension: Dimension) -> object:
        settled = given.get(path)
        raw[path] = settled.raw if settled else choose(distributions.variable(path, dimension))
        chosen = distributions.value(dimension, raw[path])
        if isinstance(chosen, Mapping):
            return level(chosen, f"{path}.{int(raw[path])}.")
        return settled.value if settled else chosen

    return Drawn(level(space, ""), raw)


def cells(
    space: Space, known: Mapping[str, Known] | None = None, prefix: str = ""
) -> Iterator[Drawn]:
    """Every point of a space of choices, the last dimension changing fastest (grid sampling).

    With `known`, those alone in which it is so.
    """
    if not space:
        yield Drawn({}, {})
        return
    name, *rest = space
    path = f"{prefix}{name}"
    settled = (known or {}).get(path)
    for index, value in enumerate(_choices(space[name])):
        if settled is not None and index != int(settled.raw):
            continue
        nested = dimensions(value) if isinstance(value, Mapping) else {}
        for inside in cells(nested, known, f"{path}.{index}."):
            chosen = {**value, **inside.values} if isinstance(value, Mapping) else value
            for others in cells({key: space[key] for key in rest}, known, prefix):
                yield Drawn(
                    {name: chosen, **others.values}, {path: index, **inside.raw, **others.raw}
                )


def size(space: Space) -> int:
    """How many points `cells` yields."""
    return math.prod(
        sum(size(dimensions(one)) if isinstance(one, Mapping) else 1 for one in _choices(dimension))
        for dimension in space.values()
    )


def _choices(dimension: Dimension) -> tuple[object, ...]:
    if dimension.kind != "choice":
        raise Refused(
            Problem(
                "grid-needs-choices",
                f"`search_space.{dimension.name}` is `{dimension.kind}`",
                "`choice`: grid sampling takes no other distribution",
                "list its values, or use `sampling_algorithm: random`",
                dimension.place,
            )
        )
    return dimension.args
