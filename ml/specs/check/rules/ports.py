"""Ports of components: ranges, types, defaults and the inputs of steps agree with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ml.core.documents import Key
from ml.specs.check.nodes import Node
from ml.specs.check.rules.pipeline import bindings
from ml.specs.check.rules.rule import Finding, rule
from ml.specs.check.rules.security import PARENT_INPUT
from ml.specs.expressions import did_you_mean

_YAML = "reference-yaml-component-command: inputs.<input_name>"
_TRUTHS = frozenset({"true", "false"})


def fault(value: Any, port: Mapping[str, Any]) -> tuple[str, str] | None:
    """The fault of a literal for a port and the expected value; None when it fits.

    Text that reads as the port's number or boolean fits: Azure ML passes every literal as text.
    """
    kind, allowed = str(port.get("type", "")).lower(), port.get("enum")
    if isinstance(allowed, list) and str(value) not in map(str, allowed):
        return "not an allowed value", f"one of {', '.join(map(str, allowed))}"
    if kind not in {"number", "integer", "boolean"}:
        return None
    if kind == "boolean":
        fits = isinstance(value, bool) or str(value).lower() in _TRUTHS
        return None if fits else ("not a boolean", "true or false")
    number = _number(value)
    if number is None or (kind == "integer" and number != int(number)):
        return (
            f"not a{'n' if kind == 'integer' else ''} {kind}",
            f"a{'n' if kind == 'integer' else ''} {kind}",
        )
    low, high = _number(port.get("min")), _number(port.get("max"))
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = [f"at least {low:g}"] if low is not None else []
        bounds += [f"at most {high:g}"] if high is not None else []
        return "out of range", " and ".join(bounds)
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number - number == 0 else None


@rule("missing-input", scope="step", source="azure-ai-ml 1.35, `_validate`: required inputs")
def missing_input(node: Node) -> Iterator[Finding]:
    """A step gives its component every input that has no default."""
    if node.component is None:
        return
    inputs = {**node.mapping("inputs"), **node.search_space}
    for name, port in (node.ports("inputs") or {}).items():
        if not isinstance(port, dict) or name in inputs or not isinstance(port.get("type"), str):
            continue
        if not port.get("optional") and port.get("default") is None:
            message = f"step `{node.name}` does not set the input `{name}`"
            expected, hint = f"a value of type {port['type']}", f"inputs: {{{name}: VALUE}}"
            yield Finding(("inputs",), message, expected, hint)


@rule(
    "unknown-input", scope="step", severity="warning", source="reference-yaml-job-pipeline: inputs"
)
def unknown_input(node: Node) -> Iterator[Finding]:
    """A step gives its component only inputs that the component declares."""
    ports = node.ports("inputs")
    if node.component is None or ports is None:
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


def _value(node: Node, name: str) -> tuple[Any, Node, tuple[Key, ...]]:
    """The value of an input and what sets it: the node, or a pipeline or schedule around it."""
    value = node.get("inputs", name)
    if node.user is not None and node.user.get("inputs", name) is not None:
        return _value(node.user, name)
    bound = PARENT_INPUT.fullmatch(value.strip()) if isinstance(value, str) else None
    if bound and node.parent is not None:
        return _value(node.parent, bound[1])
    return value, node, ("inputs", name)


@rule("input-range", scope="step", source=_YAML)
def input_range(node: Node) -> Iterator[Finding]:
    """A literal fits the type and the range that its component declares."""
    for name, port in (node.ports("inputs") or {}).items():
        value, owner, keys = _value(node, str(name))
        is_literal = isinstance(value, str | int | float) and "${{" not in str(value)
        if not isinstance(port, dict) or not is_literal:
            continue
        if wrong := fault(value, port):
            actual = f"`{keys[-1]}: {value}` is {wrong[0]}"
            hint = f"change it, or the type, range or `enum` of `{name}` in the component"
            yield Finding(keys, actual, wrong[1], hint, place=owner.place(*keys))


@rule("port-range", scope="node", source=_YAML)
def port_range(node: Node) -> Iterator[Finding]:
    """A port's minimum is below its maximum, and its default lies between them."""
    if not node.is_component:
        return
    for name, port in node.mapping("inputs").items():
        if not isinstance(port, dict):
            continue
        low, high = _number(port.get("min")), _number(port.get("max"))
        if low is not None and high is not None and low > high:
            message = f"`{name}` goes from {low:g} down to {high:g}"
            yield Finding(("inputs", name, "min"), message, "min below max", "swap them")
        default = port.get("default")
        wrong = fault(default, port) if default is not None else None
        if wrong and not (isinstance(default, str) and "${{" in default):
            message = f"the default {default} of `{name}` is {wrong[0]}"
            hint = f"change the default, or the type, range or `enum` of `{name}`"
            yield Finding(("inputs", name, "default"), message, wrong[1], hint)


@rule(
    "empty-input",
    scope="node",
    source="Azure/azure-sdk-for-python#41834: `The Value field is required`, of an empty text",
)
def empty_input(node: Node) -> Iterator[Finding]:
    """A literal input has a text: an optional one is left out.

    A default that is empty is a warning: it is refused where a job does not set the input.
    """
    for name, value in node.mapping("inputs").items():
        port = value if node.is_component and isinstance(value, dict) else None
        text = port.get("default") if port is not None else value
        if isinstance(text, dict) and port is None:
            text = text.get("path")
        if isinstance(text, str) and not text.strip():
            yield Finding(
                ("inputs", name) if port is None else ("inputs", name, "default"),
                f"`{name}` is an empty text",
                "a value with a letter or a digit",
                f"leave `{name}` out where it is optional, else write `none` and read it so",
                "error" if port is None else "warning",
            )


@rule(
    "optional-binding",
    scope="pipeline",
    source="azure-ai-ml 1.35 PipelineComponent._validate_binding_inputs",
)
def optional_binding(node: Node) -> Iterator[Finding]:
    """An optional input of a pipeline component goes only to optional inputs of its steps."""
    ports = node.mapping("inputs") if node.is_component else {}
    for keys, reference in bindings(node):
        port = ports.get(".".join(reference.path[2:]))
        is_whole = str(node.get(*keys)).strip() == reference.text
        if keys[2:3] != ("inputs",) or reference.path[1:2] != ("inputs",) or not is_whole:
            continue
        step = node.steps.get(str(keys[1]))
        targets = step.ports("inputs") if step is not None else None
        if not isinstance(port, dict) or port.get("optional") is not True or targets is None:
            continue
        target = targets.get(str(keys[3])) if step is not None and step.component else None
        if not isinstance(target, dict) or target.get("optional") is not True:
            message = f"`{reference.text}` is optional, and `{keys[3]}` of `{keys[1]}` is required"
            hint = f"delete `optional` and add a `default`, or make `{keys[3]}` optional"
            yield Finding(keys, message, "both optional, or neither", hint)
