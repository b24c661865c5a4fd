"""Hints on a sweep's search space, in a file beside its spec that Azure ML ignores.

`sweep.hints.yml` belongs to `sweep.yml`. The spec itself stays valid for Azure ML:

    try_first:
      - values: {learning_rate: 0.1, leaves: 31}   # other parameters are sampled
        because: the best of the sweep in May
    constraints:
      - leaves * min_child_samples <= 2000
      - require: model.depth < 8                   # a parameter in a branch of a nested choice
        because: deeper trees do not fit into memory

In the hints of a pipeline, put the same below `jobs:` and the name of the sweep step.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Document, Key, read
from ml.core.errors import Place, Problem, Refused
from ml.specs.check.nodes import Node, nodes
from ml.specs.plan import fields
from ml.specs.plan.plan import CommandPlan, Constraint, Environment, Hints, Point, SweepPlan
from ml.specs.sdk.load import Spec
from ml.specs.search import constraints, distributions
from ml.specs.search.constraints import Expression, Unclear
from ml.specs.search.distributions import Known, Misfit

ENDINGS = (".hints.yml", ".hints.yaml")
SECTIONS = ("try_first", "constraints", "jobs")


def is_hints(path: Path) -> bool:
    """Whether a file is a hints file, by its name."""
    return path.name.endswith(ENDINGS)


def spec_of(path: Path) -> Path | None:
    """The spec that a file of hints belongs to; None when there is none."""
    stem = next(path.name.removesuffix(end) for end in ENDINGS if path.name.endswith(end))
    beside = (path.with_name(f"{stem}{suffix}") for suffix in (".yml", ".yaml"))
    return next((spec for spec in beside if spec.is_file()), None)


def without_spec(path: Path) -> Problem:
    """The problem of hints without a spec, renamed or misspelt."""
    display_path = repository.shown(path)
    return Problem(
        "hints-without-spec",
        f"there is no spec beside `{display_path}`",
        f"`{path.name.removesuffix('.yml').removesuffix('.yaml').removesuffix('.hints')}.yml`",
        "hints are found by their name: sweep.hints.yml belongs to sweep.yml",
        Place(display_path, 1),
    )


def document_of(spec: Path) -> Document | None:
    """The hints of a spec or None; raises Refused when unreadable or present twice."""
    files = [path for end in ENDINGS if (path := spec.with_name(spec.stem + end)).is_file()]
    if len(files) > 1:
        problem = Problem(
            "hints-twice",
            f"`{files[0].name}` and `{files[1].name}` are both hints of `{spec.name}`",
            "one of them",
            place=Place(repository.shown(files[1]), 1),
        )
        raise Refused(problem)
    return read(files[0], repository.shown(files[0])) if files else None


def attach(plan: SweepPlan, file: Path, keys: tuple[Key, ...]) -> tuple[SweepPlan, list[Problem]]:
    """The plan with its hints, and their problems; the search space is in `file` at `keys`."""
    try:
        document = document_of(file)
    except Refused as refused:
        return plan, list(refused.problems)
    if document is None:
        return plan, []
    reading = _Reading(document, keys, plan)
    return replace(plan, hints=reading.hints()), reading.problems


def problems(spec: Spec) -> list[Problem]:
    """The problems of the hints beside a valid spec."""
    try:
        document = document_of(spec.file)
    except Refused as refused:
        return list(refused.problems)
    if document is None:
        return []
    spec_nodes = nodes(spec)
    sweeps = [node for node in spec_nodes if node.search_space]
    if not sweeps:
        results = [
            Problem(
                "hints-without-sweep",
                f"`{document.shown}` belongs to a spec without a search space",
                "a sweep, or a pipeline with a sweep step",
                "delete it, or name it after the sweep",
                document.place(),
                severity="warning",
            )
        ]
    else:
        results = list(_structure(document, [n.keys for n in spec_nodes], [n.keys for n in sweeps]))
    for node in sweeps:
        reading = _Reading(document, node.keys, _planned(node))
        reading.hints()
        results += reading.problems
    return results


def _planned(node: Node) -> SweepPlan:
    """The parts of a sweep's plan that hints refer to."""
    trial = CommandPlan(node.place(), node.name, "", "", None, Environment(""))
    return fields.sweep(node, trial)


@dataclass
class _Reading:
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
                self.problems.append(unclear.problem(place))
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
                self.problems.append(unclear.problem(at))
        return ""

    def _entry(self, at: tuple[Key, ...], entry: Any, key: str) -> tuple[Any, str]:
        """The value of an entry under `key` and its reason; a plain text has no reason."""
        if not isinstance(entry, dict):
            return (entry if key == "require" else None), ""
        for other in entry:
            if other not in (key, "because"):
                self.problems.append(
                    _unknown(self.document, (*self.keys, *at, other), (key, "because"))
                )
        because = entry.get("because")
        return entry.get(key), "" if because is None else str(because)

    def _place(self, *keys: Key) -> Place:
        return self.document.place(*self.keys, *keys)

    def _wrong(self, at: tuple[Key, ...], what: str, expected: str) -> None:
        self.problems.append(_misshapen(self.document, (*self.keys, *at), what, expected))

    def _say(
        self, code: str, found: str, expected: str, place: Place, hint: str = "", **how: Any
    ) -> None:
        self.problems.append(Problem(code, found, expected, hint, place, **how))


def _misshapen(document: Document, keys: tuple[Key, ...], what: str, expected: str) -> Problem:
    """The problem of a value with the wrong shape."""
    message = f"{what} is {document.get(*keys)!r}"
    return Problem("hint-shape", message, expected, place=document.place(*keys))


def _unknown(document: Document, keys: tuple[Key, ...], allowed: Collection[str]) -> Problem:
    """The problem of an unknown key."""
    near = difflib.get_close_matches(str(keys[-1]), list(allowed), n=1)
    return Problem(
        "unknown-hint",
        f"`{keys[-1]}` is not a valid key here",
        f"one of {', '.join(allowed)}" if allowed else "nothing",
        f"did you mean `{near[0]}`?" if near else "",
        document.place(*keys),
    )


def _structure(
    document: Document,
    node_keys: Collection[tuple[Key, ...]],
    sweep_keys: Collection[tuple[Key, ...]],
) -> Iterator[Problem]:
    """Unknown keys, unknown steps, and hints outside of a sweep."""

    def below(keys: tuple[Key, ...]) -> Iterator[Problem]:
        value = document.get(*keys)
        if not isinstance(value, dict):
            yield _misshapen(document, keys, "hints", f"a mapping of {' and '.join(SECTIONS[:2])}")
            return
        for key in value:
            if key not in SECTIONS:
                yield _unknown(document, (*keys, key), SECTIONS)
            elif key != "jobs" and keys not in sweep_keys:
                expected = "`jobs:` and the name of the sweep step above it"
                place = document.place(*keys, key)
                message = f"`{key}` belongs to no sweep"
                yield Problem("hint-misplaced", message, expected, place=place)
        steps = value.get("jobs")
        for name in steps if isinstance(steps, dict) else ():
            inner = (*keys, "jobs", name)
            if inner in node_keys:
                yield from below(inner)
            else:
                names = [
                    str(step_keys[-1])
                    for step_keys in node_keys
                    if step_keys[:-1] == (*keys, "jobs")
                ]
                yield _unknown(document, inner, names)
        if steps is not None and not isinstance(steps, dict):
            yield _misshapen(document, (*keys, "jobs"), "jobs", "a mapping of steps")

    yield from below(())
