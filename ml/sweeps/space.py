"""Points of a search space: chosen variable by variable, or listed as a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ml.core.errors import Problem, Refused
from ml.specs.plan.plan import Dimension
from ml.specs.search import distributions
from ml.specs.search.distributions import Known, Space, Variable, dimensions

# Chooses a value for a variable: a number between its bounds, or the index of a choice.
Choose = Callable[[Variable], float]


@dataclass(frozen=True)
class Candidate:
    """A point that may become a trial if it breaks no constraint.

    `values` are what the trial gets, `raw` the number chosen for each variable by its path, and
    `origin` says where the point came from (JSON values; see `ml.reports.sweep`).
    """

    values: Mapping[str, object]
    raw: Mapping[str, float]
    origin: Mapping[str, Any] = field(default_factory=dict)


def draw(space: Space, choose: Choose, fixed: Mapping[str, Known] | None = None) -> Candidate:
    """One point of the space: a value for each dimension, a mapping for a nested choice.

    In a conditional space only the branch that was chosen is drawn. Its variables have paths of
    their own (`model.1.depth`), so that a sampler does not mix the `depth` of two branches.
    `choose` is not called for variables that are `fixed`.
    """
    raw: dict[str, float] = {}

    def branch(members: Mapping[str, object], prefix: str) -> dict[str, object]:
        return {
            name: value_of(f"{prefix}{name}", member) if isinstance(member, Dimension) else member
            for name, member in members.items()
        }

    def value_of(path: str, dimension: Dimension) -> object:
        setting = (fixed or {}).get(path)
        raw[path] = setting.raw if setting else choose(distributions.variable(path, dimension))
        value = distributions.value(dimension, raw[path])
        if isinstance(value, Mapping):
            return branch(value, f"{path}.{int(raw[path])}.")
        return setting.value if setting else value

    return Candidate(branch(space, ""), raw)


def cells(
    space: Space, fixed: Mapping[str, Known] | None = None, prefix: str = ""
) -> Iterator[Candidate]:
    """Every point of a space of choices that has the `fixed` values; the last dimension varies
    fastest (grid sampling)."""
    if not space:
        yield Candidate({}, {})
        return
    name, *rest = space
    path = f"{prefix}{name}"
    setting = (fixed or {}).get(path)
    for index, value in enumerate(_choices(space[name])):
        if setting is not None and index != int(setting.raw):
            continue
        nested = dimensions(value) if isinstance(value, Mapping) else {}
        for inner in cells(nested, fixed, f"{path}.{index}."):
            chosen = {**value, **inner.values} if isinstance(value, Mapping) else value
            for others in cells({key: space[key] for key in rest}, fixed, prefix):
                raw = {path: index, **inner.raw, **others.raw}
                yield Candidate({name: chosen, **others.values}, raw)


def size(space: Space) -> int:
    """How many points `cells` yields."""
    return math.prod(
        sum(size(dimensions(one)) if isinstance(one, Mapping) else 1 for one in _choices(dimension))
        for dimension in space.values()
    )


def depth(space: Mapping[str, object]) -> int:
    """How many variables are chosen at most along any branch of the space."""
    count = 0
    for member in space.values():
        if isinstance(member, Dimension):
            branches = [depth(value) for value in member.args if isinstance(value, Mapping)]
            count += 1 + max(branches, default=0)
    return count


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
