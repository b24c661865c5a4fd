"""Every problem of a loaded spec: the SDK's, translated, and those that the SDK does not see."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace

from ml.core.errors import Problem, errors
from ml.specs.assets import mltables
from ml.specs.assets.links import Links
from ml.specs.check.nodes import Node, inside, nodes
from ml.specs.check.rules.registry import RULES, Rule, Subject
from ml.specs.sdk.load import Spec
from ml.specs.search import hints

for _module in ("attacks", "expressions", "numbers", "parallel", "paths", "pipeline"):
    importlib.import_module(f"ml.specs.check.rules.{_module}")
for _module in ("ports", "schedule", "steps", "sweep"):
    importlib.import_module(f"ml.specs.check.rules.{_module}")


def check(spec: Spec, links: Links | None = None) -> list[Problem]:
    """The problems of a spec in the order of its lines, errors and warnings.

    The rules also read a spec that the SDK refused, so that a person sees everything at once.
    `links` remembers the folders that were searched, for a caller with many specs.
    """
    pieces = nodes(spec)
    subject = Subject(spec, links or Links(), pieces)
    found: list[Problem] = []
    every = [*pieces, *inside(pieces)]
    for rule in RULES.values():
        for target in _targets(rule, subject, every):
            try:
                found += rule.apply(target)
            except (AttributeError, KeyError, TypeError, ValueError):
                if not spec.problems:
                    raise  # of a spec that the SDK refused nobody knows the shape
    found += mltables.problems(spec)
    # Of two that say the same the better: a rule's before the SDK's own words, else the SDK's.
    ruled = {problem.place for problem in errors(found)}
    kept = [one for one in spec.problems if one.code != "invalid-field" or one.place not in ruled]
    kept = [one for one in kept if one.code != "loader-failed" or not ruled]
    told = {(problem.code, problem.place) for problem in kept}
    found = kept + [one for one in found if (one.code, one.place) not in told]
    found.sort(key=lambda problem: _order(problem, spec))
    if not errors(found):
        found += hints.problems(spec)  # they are read against a search space that is right
    return list(dict.fromkeys(map(_printable, found)))


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
