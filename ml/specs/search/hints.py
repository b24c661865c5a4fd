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

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Document, Key, read
from ml.core.errors import Place, Problem, Refused
from ml.specs.check.nodes import Node, nodes
from ml.specs.plan import fields
from ml.specs.plan.plan import CommandPlan, Environment, SweepPlan
from ml.specs.sdk.load import Spec
from ml.specs.search.hint_entries import Reading, misshapen, unknown

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
    reading = Reading(document, keys, plan)
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
        reading = Reading(document, node.keys, _planned(node))
        reading.hints()
        results += reading.problems
    return results


def _planned(node: Node) -> SweepPlan:
    """The parts of a sweep's plan that hints refer to."""
    trial = CommandPlan(node.spec.place(), node.name, "", "", None, Environment(""))
    return fields.sweep(_Written(node), trial)


@dataclass(frozen=True)
class _Written:
    """A node in the form that `ml.specs.plan.fields` reads."""

    node: Node

    @property
    def folder(self) -> Path:
        return self.node.spec.folder

    def get(self, *keys: Key) -> Any:
        return self.node.get(*keys)

    def place(self, *keys: Key) -> Place:
        return self.node.spec.place(*self.node.keys, *keys)


def _structure(
    document: Document,
    node_keys: Collection[tuple[Key, ...]],
    sweep_keys: Collection[tuple[Key, ...]],
) -> Iterator[Problem]:
    """Unknown keys, unknown steps, and hints outside of a sweep."""

    def below(keys: tuple[Key, ...]) -> Iterator[Problem]:
        value = document.get(*keys)
        if not isinstance(value, dict):
            yield misshapen(document, keys, "hints", f"a mapping of {' and '.join(SECTIONS[:2])}")
            return
        for key in value:
            if key not in SECTIONS:
                yield unknown(document, (*keys, key), SECTIONS)
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
                yield unknown(document, inner, names)
        if steps is not None and not isinstance(steps, dict):
            yield misshapen(document, (*keys, "jobs"), "jobs", "a mapping of steps")

    yield from below(())
