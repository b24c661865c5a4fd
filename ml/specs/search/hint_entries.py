"""The entries of a file of hints, read against the search space of their sweep."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ml.core.documents import Document, Key
from ml.core.errors import Place, Problem
from ml.specs.plan.plan import SweepPlan
from ml.specs.search import constraints, distributions
from ml.specs.search.constraints import Expression, Unclear
from ml.specs.search.distributions import Known, Misfit
from ml.specs.plan.plan import Constraint, Hints, Point


@dataclass
class Reading:
    """The hints of one sweep, read against its space; `problems` collects the errors."""

    document: Document
    keys: tuple[Key, ...]
    plan: SweepPlan
    problems: list[Problem] = field(default_factory=list)

    def hints(self) -> Hints:
        """The valid hints."""
        read = [pair for pair in self._constraints() if pair]
        points = tuple(self._points([expression for _, expression in read]))
        file = self.document.shown if points or read else ""
        return Hints(points, tuple(constraint for constraint, _ in read), file)

    def _entries(self, section: str) -> Iterator[tuple[tuple[Key, ...], Any]]:
        written = self.document.get(*self.keys, section)
        if written is None:
            return
        if not isinstance(written, list):
            self._wrong((section,), section, "a list: each entry begins with `- `")
            return
        for index, entry in enumerate(written):
            yield (section, index), entry

    def _constraints(self) -> Iterator[tuple[Constraint, Expression] | None]:
        names, meanings = constraints.names_in(self.plan.search_space), set[str]()
        for at, entry in self._entries("constraints"):
            text, because = self._entry(at, entry, "require")
            if not isinstance(text, str):
                self._wrong(at, "a constraint", "an expression: depth * width <= 4096")
                continue
            place = self._place(*at)
            try:
                expression = constraints.parse(text, names)
            except Unclear as unclear:
                details = (unclear.found, unclear.expected, unclear.hint)
                self.problems.append(Problem("constraint", *details, place))
                continue
            if expression.meaning in meanings:
                self._say("duplicate-hint", f"`{text}` is listed twice", "each once", place)
                continue
            meanings.add(expression.meaning)
            yield Constraint(expression.text, place, because), expression

    def _points(self, demanded: list[Expression]) -> Iterator[Point]:
        points: list[dict[str, Known]] = []
        for at, entry in self._entries("try_first"):
            values, because = self._entry(at, entry, "values")
            if not isinstance(values, dict) or not values:
                self._wrong(at, "a point", "`values: {NAME: VALUE, …}`")
                continue
            try:
                point = distributions.locate(self.plan.search_space, values)
            except Misfit as misfit:
                near = difflib.get_close_matches(misfit.path[-1], list(self.plan.search_space), n=1)
                is_misspelt = misfit.path[-1] not in self.plan.search_space and near
                hint = f"did you mean `{near[0]}`?" if is_misspelt else ""
                place = self._place(*at, "values", *misfit.path)
                self._say("hint-value", misfit.found, misfit.expected, place, hint)
                continue
            place = self._place(*at)
            if point in points:
                first = points.index(point) + 1
                message = f"this point is the same as point {first}"
                self._say("duplicate-hint", message, "each point once", place)
            elif not (broken := self._broken(values, demanded, place)):
                points.append(point)
                yield Point(values, place, because)
            else:
                message = f"this point breaks the constraint `{broken}`"
                self._say("point-breaks-constraint", message, "a point that satisfies it", place)
        if len(points) > self.plan.max_total_trials:
            message = f"{len(points)} points to try first, and {self.plan.max_total_trials} trials"
            place = self._place("try_first")
            expected = "as many trials as points, at least"
            self._say("more-points-than-trials", message, expected, place, severity="warning")

    def _broken(self, values: Mapping[str, object], demanded: list[Expression], at: Place) -> str:
        """The first constraint that a point breaks, whatever its other values; "" for none."""
        for expression in demanded:
            try:
                if not expression.holds(constraints.names_of(values), partial=True):
                    return expression.text
            except Unclear as unclear:
                details = (unclear.found, unclear.expected, unclear.hint)
                self.problems.append(Problem("constraint", *details, at))
        return ""

    def _entry(self, at: tuple[Key, ...], entry: Any, key: str) -> tuple[Any, str]:
        """The value of an entry under `key` and its reason; a plain text has no reason."""
        if not isinstance(entry, dict):
            return (entry if key == "require" else None), ""
        for other in entry:
            if other not in (key, "because"):
                self.problems.append(
                    unknown(self.document, (*self.keys, *at, other), (key, "because"))
                )
        because = entry.get("because")
        return entry.get(key), "" if because is None else str(because)

    def _place(self, *keys: Key) -> Place:
        return self.document.place(*self.keys, *keys)

    def _wrong(self, at: tuple[Key, ...], what: str, expected: str) -> None:
        self.problems.append(misshapen(self.document, (*self.keys, *at), what, expected))

    def _say(
        self, code: str, found: str, expected: str, place: Place, hint: str = "", **how: Any
    ) -> None:
        self.problems.append(Problem(code, found, expected, hint, place, **how))


def misshapen(document: Document, keys: tuple[Key, ...], what: str, expected: str) -> Problem:
    """The problem of a value with the wrong shape."""
    message = f"{what} is {document.get(*keys)!r}"
    return Problem("hint-shape", message, expected, place=document.place(*keys))


def unknown(document: Document, keys: tuple[Key, ...], allowed: Collection[str]) -> Problem:
    """The problem of an unknown key."""
    near = difflib.get_close_matches(str(keys[-1]), list(allowed), n=1)
    return Problem(
        "unknown-hint",
        f"`{keys[-1]}` is not a valid key here",
        f"one of {', '.join(allowed)}" if allowed else "nothing",
        f"did you mean `{near[0]}`?" if near else "",
        document.place(*keys),
    )
