"""Pipelines: every binding leads to a step, an output or an input that is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ml.core.documents import Key, strings
from ml.specs.check.nodes import Node
from ml.specs.check.rules.registry import Finding, rule
from ml.specs.expressions import Reference, did_you_mean, references

_YAML = "reference-yaml-job-pipeline: expressions"
# Types of step whose outputs are all written in the step or in its component.
_DECLARING = frozenset({"command", "sweep", "parallel", "spark", "pipeline"})


def bindings(node: Node) -> Iterator[tuple[tuple[Key, ...], Reference]]:
    """Every `${{parent.…}}` in the steps of a pipeline, with its keys."""
    for name, step in node.mapping("jobs").items():
        for keys, text in strings(step):
            for reference in references(text):
                if reference.source == "parent":
                    yield ("jobs", name, *keys), reference


@rule("empty-pipeline", scope="pipeline", severity="warning", source=_YAML)
def empty_pipeline(node: Node) -> Iterator[Finding]:
    """A pipeline has steps: `jobs` is required; azure-ai-ml lets an empty one pass."""
    if node.get("jobs") == {}:
        yield Finding(
            ("jobs",), "the pipeline has no steps: it completes without doing anything", "a step"
        )


@rule("unknown-step", scope="pipeline", source=_YAML)
def unknown_step(node: Node) -> Iterator[Finding]:
    """`${{parent.jobs.X…}}` names a step of the pipeline."""
    jobs = node.mapping("jobs")
    for keys, reference in bindings(node):
        if reference.path[1:2] != ("jobs",) or len(reference.path) < 3:
            continue
        name = reference.path[2]
        if name not in jobs:
            names = ", ".join(map(str, jobs))
            yield Finding(
                keys,
                f"`{reference.text}`: there is no step `{name}`",
                f"one of {names}",
                did_you_mean(name, map(str, jobs)),
            )
        elif keys[1] == name:
            yield Finding(keys, f"`{name}` waits for itself", "another step's output")


@rule("unknown-output", scope="pipeline", source=_YAML)
def unknown_output(node: Node) -> Iterator[Finding]:
    """`${{parent.jobs.X.outputs.Y}}` names an output that step X declares."""
    for keys, reference in bindings(node):
        path = reference.path
        if len(path) < 5 or path[1] != "jobs" or path[3] != "outputs":
            continue
        step = node.steps.get(path[2])
        ports = step.ports("outputs") if step and step.type in _DECLARING else None
        if step is None or ports is None:
            continue
        outputs = {*map(str, ports), *map(str, step.mapping("outputs"))}
        if path[4] not in outputs:
            listed = ", ".join(sorted(outputs))
            yield Finding(
                keys,
                f"`{reference.text}`: step `{path[2]}` has no output `{path[4]}`",
                f"one of {listed}" if listed else f"`outputs:` in `{path[2]}`",
                did_you_mean(path[4], outputs),
            )


@rule("unknown-parent", scope="pipeline", source=_YAML)
def unknown_parent(node: Node) -> Iterator[Finding]:
    """`${{parent.inputs.Z}}` and `${{parent.outputs.Z}}` name what the pipeline declares."""
    for keys, reference in bindings(node):
        path = reference.path
        if len(path) < 3 or path[1] not in {"inputs", "outputs"}:
            continue
        names = list(map(str, node.mapping(path[1])))
        if path[2] not in names:
            yield Finding(
                keys,
                f"`{reference.text}`: the pipeline has no {path[1][:-1]} `{path[2]}`",
                f"one of {', '.join(names)}" if names else f"`{path[1]}:` in the pipeline",
                did_you_mean(path[2], names),
            )


@rule("pipeline-cycle", scope="pipeline", source="reference-yaml-job-pipeline: a pipeline is a DAG")
def pipeline_cycle(node: Node) -> Iterator[Finding]:
    """No step waits for a step that waits for it."""
    waits: dict[str, set[str]] = {str(name): set() for name in node.mapping("jobs")}
    for keys, reference in bindings(node):
        if reference.path[1:2] == ("jobs",) and len(reference.path) > 2:
            waits[str(keys[1])].add(reference.path[2])
    waits = {name: on & set(waits) - {name} for name, on in waits.items()}
    while waits:
        ready = [name for name, on in waits.items() if not on]
        if not ready:
            circle = ", ".join(sorted(waits))
            first = min(waits)
            yield Finding(("jobs", first), f"{circle} wait for each other", "steps in an order")
            return
        waits = {n: on - set(ready) for n, on in waits.items() if n not in ready}


@rule("missing-input", scope="node", source="azure-ai-ml 1.35, `_validate`: required inputs")
def missing_input(node: Node) -> Iterator[Finding]:
    """A step gives its component every input that has no default."""
    if node.parent is None or node.component is None:
        return
    inputs = {**node.mapping("inputs"), **node.search_space}
    for name, port in (node.ports("inputs") or {}).items():
        if not isinstance(port, dict) or name in inputs or not isinstance(port.get("type"), str):
            continue
        if not port.get("optional") and port.get("default") is None:
            message = f"step `{node.name}` gives its component no `{name}`"
            yield Finding(("inputs",), message, f"`{name}:` ({port['type']})")


@rule(
    "unknown-input", scope="node", severity="warning", source="reference-yaml-job-pipeline: inputs"
)
def unknown_input(node: Node) -> Iterator[Finding]:
    """A step gives its component only inputs that the component declares."""
    ports = node.ports("inputs")
    if node.parent is None or node.component is None or ports is None:
        return
    for name in node.mapping("inputs"):
        if name not in ports and "." not in str(name):
            names = list(map(str, ports))
            yield Finding(
                ("inputs", name),
                f"the component of step `{node.name}` has no input `{name}`",
                f"one of {', '.join(names)}" if names else "no inputs",
                did_you_mean(str(name), names),
            )


def literal_inputs(node: Node) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """A step's literals with the ports of its component that they go to."""
    for name, port in (node.ports("inputs") or {}).items():
        value = node.get("inputs", name)
        is_literal = isinstance(value, str | int | float) and "${{" not in str(value)
        if isinstance(port, dict) and is_literal:
            yield str(name), value, port
