"""Hints for local sweeps, in a file beside the spec that Azure ML ignores.

`sweep.hints.yml` belongs to `sweep.yml`. The spec itself stays valid for Azure ML:

    try_first:
      - values: {learning_rate: 0.1, leaves: 31}   # other parameters are sampled
        because: the best of the sweep in May
    constraints:
      - leaves * min_child_samples <= 2000
      - require: model.depth < 8                   # a parameter in a branch of a nested choice
        because: deeper trees do not fit into memory
    sampler: evolution                           # instead of `sampling_algorithm: random`
    conditions:
      width_2: layers >= 2                       # if false, `width_2` is not varied

For a pipeline, put the same below `jobs:` and the name of the sweep step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ml.core import repository
from ml.core.documents import Key, read
from ml.core.errors import Place, Problem, UserError
from ml.specs.check.nodes import nodes
from ml.specs.expressions import did_you_mean
from ml.specs.plan import fields
from ml.specs.plan.plans import (
    CommandPlan,
    Condition,
    Constraint,
    Dimension,
    Environment,
    Hints,
    Point,
    SweepPlan,
)
from ml.specs.sdk.load import Spec
from ml.specs.search import constraints, distributions
from ml.specs.search.constraints import Expression, InvalidExpression
from ml.specs.search.distributions import FixedValue, Misfit
from ml.specs.yaml_node import YamlNode

ENDINGS = (".hints.yml", ".hints.yaml")
SECTIONS = ("try_first", "constraints", "sampler", "conditions", "jobs")
EVOLUTION: Literal["evolution"] = "evolution"
# Number of random trials before evolution begins to mutate the better ones. Real et al. (see
# `ml.sweeps.evolution`) use 100 of 20,000 trials; 10 suits sweeps of some dozens.
POPULATION = 10
# The check of a condition evaluates at most this many combinations of choices.
MOST_COMBINATIONS = 10_000


def is_hints(path: Path) -> bool:
    """Return True if the name of a file is that of a hints file."""
    return path.name.endswith(ENDINGS)


def spec_of(path: Path) -> Path | None:
    """Return the spec that a hints file belongs to; None if there is none."""
    stem = next(path.name.removesuffix(end) for end in ENDINGS if path.name.endswith(end))
    specs = (path.with_name(f"{stem}{suffix}") for suffix in (".yml", ".yaml"))
    return next((spec for spec in specs if spec.is_file()), None)


def without_spec(path: Path) -> Problem:
    """Return the problem of a hints file without a spec of the same name."""
    display_path = repository.shown(path)
    return Problem(
        "hints-without-spec",
        f"`{display_path}` has no spec",
        f"`{path.name.removesuffix('.yml').removesuffix('.yaml').removesuffix('.hints')}.yml`",
        "hints are found by their name: sweep.hints.yml belongs to sweep.yml",
        Place(display_path, 1),
    )


def attach(plan: SweepPlan, file: Path, keys: tuple[Key, ...]) -> tuple[SweepPlan, list[Problem]]:
    """Return the plan with the hints beside `file`, and their problems.

    `keys` are the position of the search space in the file, and of its hints in the hints file.
    """
    try:
        node = _beside(file)
    except UserError as refused:
        return plan, list(refused.problems)
    if node is None:
        return plan, []
    reading = _Reading(node.child(*keys), plan)
    return replace(plan, hints=reading.hints()), reading.problems


def problems(spec: Spec) -> list[Problem]:
    """Return the problems of the hints beside a valid spec."""
    try:
        node = _beside(spec.file)
    except UserError as refused:
        return list(refused.problems)
    if node is None:
        return []
    spec_nodes = nodes(spec)
    sweeps = [sweep for sweep in spec_nodes if sweep.search_space]
    if not sweeps:
        return [
            Problem(
                "hints-without-sweep",
                f"`{node.document.shown}` belongs to a spec without a search space",
                "a sweep, or a pipeline with a sweep step",
                "delete it, or name it after the sweep",
                node.place(),
                severity="warning",
            )
        ]
    results = list(_structure(node, [n.keys for n in spec_nodes], [n.keys for n in sweeps]))
    for sweep in sweeps:
        # A plan with only the search space and the limits, which the hints are checked against.
        trial = CommandPlan(sweep.place(), sweep.name, "", "", None, Environment(""))
        reading = _Reading(node.child(*sweep.keys), fields.sweep(sweep, trial))
        reading.hints()
        results += reading.problems
    return results


def _beside(spec: Path) -> YamlNode | None:
    """Return the hints file beside a spec, or None; raise UserError for two or invalid YAML."""
    files = [path for end in ENDINGS if (path := spec.with_name(spec.stem + end)).is_file()]
    if len(files) > 1:
        problem = Problem(
            "duplicate-hints-file",
            f"`{files[0].name}` and `{files[1].name}` are both hints of `{spec.name}`",
            "one file",
            f"git rm {repository.shown(files[1])}",
            Place(repository.shown(files[1]), 1),
        )
        raise UserError(problem)
    return YamlNode(read(files[0]), files[0]) if files else None


@dataclass
class _Reading:
    """Parses the hints of one sweep and checks them against its search space."""

    node: YamlNode
    plan: SweepPlan
    problems: list[Problem] = field(default_factory=list)

    def hints(self) -> Hints:
        """Return the valid hints; add the errors to `problems`."""
        required = list(self._constraints())
        points = tuple(self._points([expression for _, expression in required]))
        sampler, conditions = self._sampler(), tuple(self._conditions())
        hints = Hints(points, tuple(constraint for constraint, _ in required), "", sampler)
        file = self.node.document.shown if hints else ""
        return replace(hints, file=file, conditions=conditions)

    def _entries(self, section: str, key: str) -> Iterator[tuple[YamlNode, Any, str]]:
        """Yield (position, value at `key`, reason) of each entry of a section.

        An entry of `constraints` may be the expression itself instead of a mapping.
        """
        written = self.node.get(section)
        if written is not None and not isinstance(written, list):
            hint = "begin each entry with `- `"
            self.problems.append(_misshapen(self.node.child(section), section, "a list", hint))
            return
        for index, entry in enumerate(written or ()):
            entry_node = self.node.child(section, index)
            if not isinstance(entry, dict):
                yield entry_node, entry if key == "require" else None, ""
                continue
            names = (key, "because")
            self.problems += [
                _unknown(entry_node.child(name), names) for name in entry if name not in names
            ]
            because = entry.get("because")
            yield entry_node, entry.get(key), "" if because is None else str(because)

    def _constraints(self) -> Iterator[tuple[Constraint, Expression]]:
        names, meanings = constraints.names_in(self.plan.search_space), set[str]()
        for entry_node, text, because in self._entries("constraints", "require"):
            if not isinstance(text, str):
                hint = "for example `depth * width <= 4096`"
                self.problems.append(_misshapen(entry_node, "a constraint", "an expression", hint))
                continue
            try:
                expression = constraints.parse(text, names)
            except InvalidExpression as unclear:
                self.problems.append(unclear.problem(entry_node.place()))
                continue
            if expression.meaning in meanings:
                message = f"`{text}` is listed twice"
                problem = Problem(
                    "duplicate-hint", message, "each once", "delete it", entry_node.place()
                )
                self.problems.append(problem)
                continue
            meanings.add(expression.meaning)
            yield Constraint(expression.text, entry_node.place(), because), expression

    def _sampler(self) -> Literal["", "evolution"]:
        sampler, place = self.node.get("sampler"), self.node.place("sampler")
        if sampler is None:
            return ""
        if sampler != EVOLUTION:
            hint = did_you_mean(str(sampler), (EVOLUTION,))
            self._invalid(f"`sampler` is {sampler!r}", f"`{EVOLUTION}`", hint, place)
            return ""
        algorithm = "sobol" if self.plan.rule == "sobol" else self.plan.algorithm
        if algorithm != "random":
            hint = f"remove `sampler`, or sample at random on Azure ML instead of by {algorithm}"
            message = f"`sampler: {EVOLUTION}` beside `sampling_algorithm: {algorithm}`"
            self._invalid(message, "`sampling_algorithm: random`", hint, place)
        elif (most := self.plan.max_total_trials) <= POPULATION:
            actual = f"all {most} trials are random: evolution begins after {POPULATION}"
            expected = f"more than {POPULATION} trials"
            hint = f"max_total_trials: {2 * POPULATION}"
            self.problems.append(
                Problem("few-trials", actual, expected, hint, place, severity="warning")
            )
        return EVOLUTION

    def _conditions(self) -> Iterator[Condition]:
        written, space = self.node.get("conditions"), self.plan.search_space
        if written is None:
            return
        if not isinstance(written, dict):
            hint = "conditions: {PARAMETER: EXPRESSION}"
            self.problems.append(
                _misshapen(self.node.child("conditions"), "conditions", "a mapping", hint)
            )
            return
        if self.node.get("sampler") is None:
            message = "`conditions` without a sampler that uses them"
            place = self.node.place("conditions")
            self._invalid(message, f"`sampler: {EVOLUTION}`", "add it", place)
        for name, text in written.items():
            entry_node = self.node.child("conditions", name)
            if name not in space:
                hint = did_you_mean(str(name), space)
                expected = f"one of {', '.join(space)}"
                self._invalid(
                    f"`{name}` is not a hyperparameter", expected, hint, entry_node.place()
                )
            elif not isinstance(text, str):
                hint = "for example `layers >= 2`"
                self.problems.append(_misshapen(entry_node, f"`{name}`", "an expression", hint))
            else:
                try:
                    names = constraints.names_in(space)
                    expression = constraints.parse(text, names)
                except InvalidExpression as unclear:
                    self.problems.append(unclear.problem(entry_node.place()))
                    continue
                if self._is_possible(name, expression, entry_node.place()):
                    yield Condition(name, expression.text, entry_node.place())

    def _is_possible(self, name: str, expression: Expression, place: Place) -> bool:
        """Return True if a condition is valid and can be true; else add a problem.

        Conditions apply in order, so each may use only parameters without a condition or with an
        earlier one.
        """
        conditional = list(map(str, self.node.mapping("conditions")))
        later = conditional[conditional.index(name) :]
        for used in sorted(expression.names):
            if (parameter := used.partition(".")[0]) in later:
                expected = "only parameters without a condition, or with an earlier condition"
                message = f"the condition of `{name}` names `{parameter}`"
                if parameter != name:
                    message += ", whose condition stands below"
                self._invalid(message, expected, "move it up, or remove a cycle", place)
                return False
        choices = [_choices(self.plan.search_space.get(used)) for used in sorted(expression.names)]
        if not all(choices) or math.prod(map(len, choices)) > MOST_COMBINATIONS:
            return True
        points = (
            dict(zip(sorted(expression.names), values, strict=True)) for values in product(*choices)
        )
        try:
            if True not in {expression.holds(point) for point in points}:
                message = f"`{expression.text}` holds for no values of the search space"
                self._invalid(message, "a condition that some points meet", "", place)
                return False
        except InvalidExpression as unclear:
            self.problems.append(unclear.problem(place))
            return False
        return True

    def _invalid(self, message: str, expected: str, hint: str, place: Place) -> None:
        self.problems.append(Problem("invalid-hint", message, expected, hint, place))

    def _points(self, conditions: list[Expression]) -> Iterator[Point]:
        points: list[dict[str, FixedValue]] = []
        for entry_node, values, because in self._entries("try_first", "values"):
            if not isinstance(values, dict) or not values:
                hint = "values: {NAME: VALUE}"
                self.problems.append(_misshapen(entry_node, "a point", "a mapping `values`", hint))
                continue
            place = entry_node.place()
            try:
                point = distributions.locate(self.plan.search_space, values)
            except Misfit as misfit:
                name, space = misfit.path[-1], self.plan.search_space
                hint = "" if name in space else did_you_mean(name, space)
                place = entry_node.place("values", *misfit.path)
                problem = Problem("invalid-hint", misfit.actual, misfit.expected, hint, place)
                self.problems.append(problem)
                continue
            if point in points:
                message = f"this point is the same as point {points.index(point) + 1}"
                problem = Problem("duplicate-hint", message, "each once", "delete it", place)
                self.problems.append(problem)
            elif broken := self._broken(values, conditions, place):
                message = f"this point breaks the constraint `{broken}`"
                expected, hint = "a point that satisfies it", "change its values, or the constraint"
                problem = Problem("point-breaks-constraint", message, expected, hint, place)
                self.problems.append(problem)
            else:
                points.append(point)
                yield Point(values, place, because)
        if len(points) > self.plan.max_total_trials:
            self.problems.append(
                Problem(
                    "more-points-than-trials",
                    f"{len(points)} points to try first, and {self.plan.max_total_trials} trials",
                    "at least as many trials as points",
                    f"max_total_trials: {len(points)}, or delete points",
                    self.node.place("try_first"),
                    severity="warning",
                )
            )

    def _broken(
        self, values: Mapping[str, object], conditions: list[Expression], place: Place
    ) -> str:
        """Return the first constraint that a point breaks, whatever values are sampled; or ""."""
        for expression in conditions:
            try:
                if not expression.holds(constraints.names_of(values), partial=True):
                    return expression.text
            except InvalidExpression as unclear:
                self.problems.append(unclear.problem(place))
        return ""


def _choices(dimension: Dimension | None) -> Sequence[object]:
    """Return the values of a choice without nested spaces; () for any other dimension."""
    is_choice = dimension is not None and dimension.kind == "choice"
    values = dimension.args if dimension is not None and is_choice else ()
    return () if any(isinstance(value, Mapping) for value in values) else values


def _misshapen(node: YamlNode, what: str, expected: str, hint: str) -> Problem:
    """Return the problem of a value with the wrong shape."""
    return Problem("wrong-hint-type", f"{what} is {node.get()!r}", expected, hint, node.place())


def _unknown(node: YamlNode, allowed: Collection[str]) -> Problem:
    """Return the problem of an unknown key."""
    name = str(node.keys[-1])
    return Problem(
        "unknown-hint",
        f"`{name}` is not a valid key here",
        f"one of {', '.join(allowed)}" if allowed else "no keys",
        did_you_mean(name, allowed),
        node.place(),
    )


def _structure(
    node: YamlNode,
    node_keys: Collection[tuple[Key, ...]],
    sweep_keys: Collection[tuple[Key, ...]],
) -> Iterator[Problem]:
    """Yield problems of unknown keys, unknown steps, and hints outside a sweep."""
    value = node.get()
    if not isinstance(value, dict):
        yield _misshapen(node, "hints", "a mapping", "try_first: [{values: {NAME: VALUE}}]")
        return
    for key in value:
        if key not in SECTIONS:
            yield _unknown(node.child(key), SECTIONS)
        elif key != "jobs" and node.keys not in sweep_keys:
            hint, place = f"jobs: {{STEP: {{{key}: …}}}}", node.place(key)
            yield Problem(
                "misplaced-hint", f"`{key}` is outside a sweep", "it in a sweep step", hint, place
            )
    steps = value.get("jobs")
    if steps is not None and not isinstance(steps, dict):
        yield _misshapen(node.child("jobs"), "jobs", "a mapping", "jobs: {STEP: {try_first: …}}")
    for name in node.mapping("jobs"):
        step = node.child("jobs", name)
        if step.keys in node_keys:
            yield from _structure(step, node_keys, sweep_keys)
        else:
            names = [str(keys[-1]) for keys in node_keys if keys[:-1] == step.keys[:-1]]
            yield _unknown(step, names)
