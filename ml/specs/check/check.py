"""Every problem of a loaded spec: the SDK's, translated, and those that the SDK misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ml.core.errors import Problem, errors
from ml.specs.assets import mltables
from ml.specs.assets.links import Links
from ml.specs.check.nodes import Node, inside, nodes
from ml.specs.check.rules import (  # noqa: F401  each registers its rules
    attacks,
    expressions,
    numbers,
    paths,
    pipeline,
    ports,
    sweep,
)
from ml.specs.check.rules.registry import RULES, Rule, Subject
from ml.specs.sdk.load import Spec
from ml.specs.search import hints


def check(spec: Spec, links: Links | None = None) -> list[Problem]:
    """The problems of a spec in the order of its lines, errors and warnings.

    The rules also run on a spec that the SDK refused, so that all problems show at once.
    `links` remembers the folders that were searched, for a caller with many specs.
    """
    own_nodes = nodes(spec)
    subject = Subject(spec, links or Links(), own_nodes)
    problems: list[Problem] = []
    all_nodes = [*own_nodes, *inside(own_nodes)]
    for rule in RULES.values():
        for target in _targets(rule, subject, all_nodes):
            try:
                problems += rule.apply(target)
            except (AttributeError, KeyError, TypeError, ValueError):
                if not spec.problems:
                    raise  # a spec that the SDK refused may have any shape
    problems += mltables.problems(spec)
    problems = _without_repeats(spec.problems, problems)
    problems.sort(key=lambda problem: _order(problem, spec))
    if not errors(problems):
        problems += hints.problems(spec)  # hints need a valid search space
    return list(dict.fromkeys(map(_printable, problems)))


def _without_repeats(from_sdk: Iterable[Problem], from_rules: list[Problem]) -> list[Problem]:
    """Both lists, without the less specific of two problems at the same place.

    An error of a rule replaces the SDK's untranslated message (`invalid-field`) at that place, and
    the SDK's own failure (`loader-failed`) anywhere; otherwise the SDK's problem stays.
    """
    places = {problem.place for problem in errors(from_rules)}
    specific = [
        problem
        for problem in from_sdk
        if (problem.code != "invalid-field" or problem.place not in places)
        and (problem.code != "loader-failed" or not places)
    ]
    reported = {(problem.code, problem.place) for problem in specific}
    return specific + [
        problem for problem in from_rules if (problem.code, problem.place) not in reported
    ]


def _order(problem: Problem, spec: Spec) -> tuple[bool, str, int]:
    """Its own lines in their order, then those of the components that it runs."""
    if problem.place is None:
        return False, "", 0
    is_elsewhere = problem.place.path != spec.document.shown and problem.place.line > 0
    return is_elsewhere, problem.place.path if is_elsewhere else "", problem.place.line


def _printable(problem: Problem) -> Problem:
    """The problem with control characters of the spec spelt out: a key cannot forge a line."""
    found, expected, hint = map(_spelt_out, (problem.found, problem.expected, problem.hint))
    return replace(problem, found=found, expected=expected, hint=hint)


def _spelt_out(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _targets(rule: Rule, subject: Subject, pieces: list[Node]) -> Iterator[Subject | Node]:
    if rule.scope == "spec":
        yield subject
    elif rule.scope == "node":
        yield from pieces
    else:
        yield from (node for node in pieces if node.type == rule.scope)
