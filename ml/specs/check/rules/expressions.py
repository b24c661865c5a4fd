"""Checks `${{…}}` and `$[[…]]` in commands and parallel jobs: every name must be declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ml.core.documents import Key
from ml.core.errors import Severity
from ml.specs import expressions
from ml.specs.check.nodes import Node
from ml.specs.check.rules.rule import Finding, rule

_YAML = "reference-yaml-core-syntax: expressions for configuring jobs and components"
# Node type → fields whose expressions refer to the node's own inputs and outputs.
_TEMPLATES: dict[str, list[tuple[Key, ...]]] = {
    "command": [("command",)],
    "sweep": [("trial", "command")],
    "parallel": [("task", "program_arguments"), ("input_data",)],
    "spark": [("args",)],
}
_SOURCES = frozenset({"inputs", "outputs", "search_space"})


def templates(node: Node) -> Iterator[tuple[tuple[Key, ...], str]]:
    """Yield (keys, text) of the fields whose expressions refer to the node's own ports."""
    for keys in _TEMPLATES[node.type]:
        text = node.get(*keys)
        if isinstance(text, str):
            yield keys, text
    prefix: tuple[Key, ...] = ("trial",) if node.type == "sweep" else ()
    for name, value in node.mapping(*prefix, "environment_variables").items():
        if isinstance(value, str) and node.type in {"command", "sweep"}:
            yield (*prefix, "environment_variables", name), value


def declared(node: Node, reference: expressions.Reference) -> Mapping[str, object] | None:
    """Return what the node declares as `inputs`, `outputs` or `search_space`; None if remote."""
    if reference.source == "search_space":
        space: dict[str, object] = dict(node.search_space)
        for distribution in node.search_space.values():
            values = distribution.get("values") if isinstance(distribution, dict) else None
            for value in values if isinstance(values, list) else []:
                space.update(value if isinstance(value, dict) else {})
        return space
    return node.ports(reference.source)


@rule("unbound-expression", scope=_TEMPLATES, source=_YAML)
def unbound_expression(node: Node) -> Iterator[Finding]:
    """An expression in a command names an input, an output or a hyperparameter of the job."""
    for keys, text in templates(node):
        for reference in expressions.references(text):
            if reference.source not in _SOURCES:
                continue
            names = declared(node, reference)
            name = reference.name.partition(".")[0]
            if names is None or {name, reference.name} & names.keys():
                continue
            if (reference.source, name) == ("outputs", "default"):
                continue
            problem = expressions.unbound(reference, {reference.source: names})
            yield Finding(keys, problem.actual, problem.expected, problem.hint)


@rule("unknown-expression", scope=_TEMPLATES, severity="warning", source=_YAML)
def unknown_expression(node: Node) -> Iterator[Finding]:
    """A command's expressions use inputs, outputs or search_space, and are closed."""
    for keys, text in templates(node):
        references = expressions.references(text)
        for reference in references:
            is_bound = reference.source == "parent" and "environment_variables" in keys
            if reference.source not in _SOURCES and not (is_bound and node.parent):
                yield Finding(
                    keys,
                    f"`{reference.text}` is not an expression of a command",
                    "inputs, outputs or search_space",
                )
        if text.count("${{") > len(references):
            yield Finding(keys, "`${{` without `}}`", "`${{inputs.NAME}}`")
        if expressions.NESTED.search(text) or text.count("$[[") > text.count("]]"):
            actual = "`$[[` without `]]`"
            yield Finding(
                keys,
                actual,
                "`$[[--NAME ${{inputs.NAME}}]]`",
                "close each `$[[` with `]]`",
                severity="error",
            )


@rule(
    "optional-without-brackets",
    scope=_TEMPLATES,
    source="Azure/azure-sdk-for-python#26252: optional input must be placed in `$[[…]]`",
)
def optional_without_brackets(node: Node) -> Iterator[Finding]:
    """An optional input is in `$[[…]]`, so that it can be left out.

    An input with a default always has a value, so it only causes a warning.
    """
    ports = node.ports("inputs") or {} if node.is_component else {}
    for keys, text in templates(node):
        for reference in expressions.references(text):
            port = ports.get(reference.name)
            if reference.source != "inputs" or not isinstance(port, dict) or reference.block:
                continue
            if port.get("optional") is True and keys != ("input_data",):
                hint = f"write `$[[--{reference.name} {reference.text}]]`"
                message = f"`{reference.text}` is optional and is used outside of `$[[…]]`"
                severity: Severity = "error" if port.get("default") is None else "warning"
                yield Finding(keys, message, "`$[[…]]` around it", hint, severity)


# Fields of parallel jobs for mini-batches and their results.

_PARALLEL = "reference-yaml-job-parallel: input_data, task.append_row_to"


@rule("parallel-input", scope="parallel", source=_PARALLEL)
def parallel_input(node: Node) -> Iterator[Finding]:
    """`input_data` of a parallel job names one of its inputs, and that input is data."""
    beneath = node.component or {}
    # A prompt flow as a parallel step has neither `task` nor `input_data`.
    if not (node.get("task") or beneath.get("task")):
        return
    written = node.get("input_data") or beneath.get("input_data")
    name = _only(written, "inputs")
    if name is None:
        message = f"`input_data` is `{written}`" if written else "no `input_data`"
        yield Finding(("input_data",), message, "one input", "input_data: ${{inputs.NAME}}")
        return
    port: Any = (node.ports("inputs") or {}).get(name)
    if isinstance(port, Mapping) and port.get("type") in {"string", "number", "integer", "boolean"}:
        actual = f"`input_data` is `{name}`, which has the type {port['type']}"
        yield Finding(("input_data",), actual, "a folder or table", f"{name}: {{type: uri_folder}}")


@rule("parallel-output", scope="parallel", source=_PARALLEL)
def parallel_output(node: Node) -> Iterator[Finding]:
    """`append_row_to` names an output of the parallel job."""
    task = node.mapping("task")
    written = task.get("append_row_to")
    if written is None:
        return
    name, outputs = _only(written, "outputs"), node.ports("outputs")
    if name is None or (outputs is not None and name not in outputs):
        actual, hint = f"`append_row_to` is `{written}`", "append_row_to: ${{outputs.NAME}}"
        expected = f"one of {', '.join(outputs)}" if outputs else "an output of the job"
        yield Finding(("task", "append_row_to"), actual, expected, hint)


def _only(text: object, source: str) -> str | None:
    """Return NAME if the text is exactly `${{source.NAME}}`; else None."""
    references = expressions.references(str(text or ""))
    is_single = len(references) == 1 and references[0].text == str(text).strip()
    return references[0].name if is_single and references[0].source == source else None
