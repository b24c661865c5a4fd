"""Checks pipelines and components: steps, components, ports (inputs, outputs) and bindings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Key, read, strings
from ml.core.errors import UserError
from ml.specs.assets import assets
from ml.specs.check.nodes import Node
from ml.specs.check.rules.rule import Finding, rule
from ml.specs.check.rules.security import PARENT_INPUT
from ml.specs.expressions import Reference, did_you_mean, references
from ml.specs.sdk.errors import in_words

_JOBS = "reference-yaml-job-pipeline: jobs"
_COMPONENT = "reference-yaml-job-pipeline: jobs.<name>.component"
_YAML = "reference-yaml-job-pipeline: expressions"
# Step types that declare all their outputs in the step or in its component.
_DECLARING = frozenset({"command", "sweep", "parallel", "spark", "pipeline"})


_OLDER = re.compile(r"\$\{\{\s*((?:inputs|outputs|jobs)\.[^}]*\}\})")
_PORTS = "reference-yaml-component-command: inputs.<input_name>"
_TRUTHS = frozenset({"true", "false"})


def bindings(node: Node) -> Iterator[tuple[tuple[Key, ...], Reference]]:
    """Yield (keys, reference) of every `${{parent.…}}` in the steps of a pipeline."""
    for name, step in node.mapping("jobs").items():
        for keys, text in strings(step):
            for reference in references(text):
                if reference.source == "parent":
                    yield ("jobs", name, *keys), reference


@rule("empty-pipeline", scope="pipeline", severity="warning", source=_YAML)
def empty_pipeline(node: Node) -> Iterator[Finding]:
    """A pipeline has steps: `jobs` is required, although azure-ai-ml accepts an empty one."""
    if node.get("jobs") == {}:
        actual = "the pipeline has no steps: it completes without doing anything"
        yield Finding(("jobs",), actual, "a step", "jobs: {train: {component: ./train.yml}}")


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
                f"`{reference.text}`: the pipeline has no step `{name}`",
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
    """`${{parent.inputs.Z}}` and `${{parent.outputs.Z}}` name declared ports of the pipeline."""
    for name, step in node.mapping("jobs").items():
        for keys, text in strings(step):
            if keys[:1] in {("inputs",), ("outputs",)} and _OLDER.fullmatch(text):
                actual = f"`{text}` is the older form, which azure-ai-ml does not submit"
                newer = _OLDER.sub(r"${{parent.\1", text)
                yield Finding(("jobs", name, *keys), actual, newer, severity="warning")
    for keys, reference in bindings(node):
        path = reference.path
        if len(path) < 3 or path[1] not in {"inputs", "outputs"}:
            continue
        names = list(map(str, node.mapping(path[1])))
        if not {path[2], ".".join(path[2:])} & set(names):
            yield Finding(
                keys,
                f"`{reference.text}`: the pipeline has no {path[1][:-1]} `{path[2]}`",
                f"one of {', '.join(names)}" if names else f"`{path[1]}:` in the pipeline",
                did_you_mean(path[2], names),
            )


@rule("pipeline-cycle", scope="pipeline", source="reference-yaml-job-pipeline: a pipeline is a DAG")
def pipeline_cycle(node: Node) -> Iterator[Finding]:
    """The steps of a pipeline form no cycle."""
    waits: dict[str, set[str]] = {str(name): set() for name in node.mapping("jobs")}
    for keys, reference in bindings(node):
        if reference.path[1:2] == ("jobs",) and len(reference.path) > 2:
            waits[str(keys[1])].add(reference.path[2])
    waits = {name: on & set(waits) - {name} for name, on in waits.items()}
    while waits:
        ready = [name for name, on in waits.items() if not on]
        if not ready:
            circle, first = ", ".join(sorted(waits)), min(waits)
            hint = f"remove an input of `{first}` that one of the others writes"
            yield Finding(("jobs", first), f"{circle} form a cycle", "no cycle", hint)
            return
        waits = {n: on - set(ready) for n, on in waits.items() if n not in ready}


@rule("wrong-type", scope="pipeline", source=_JOBS)
def wrong_type(node: Node) -> Iterator[Finding]:
    """`jobs` is a mapping of steps by their names, and each step is a mapping."""
    jobs = node.get("jobs")
    if "jobs" in node.data and not isinstance(jobs, dict):
        message = f"`jobs` is {in_words('jobs', jobs)}"
        yield Finding(
            ("jobs",), message, "a mapping of steps", "for example `train: {type: command}`"
        )
    for name, step in node.mapping("jobs").items():
        if not isinstance(step, dict):
            message = f"`{name}` is {in_words(str(name), step)}"
            yield Finding(("jobs", name), message, "a mapping", f"for example `{name}: {{…}}`")


@rule("not-a-component", scope=("step", "pipeline", "sweep"), source=_COMPONENT)
def not_a_component(node: Node) -> Iterator[Finding]:
    """The file that a step names as its component can be read and holds a mapping."""
    key = node.component_key
    written = node.data.get(key)
    path = assets.local_path(written, node.folder) if isinstance(written, str) else None
    boundary = repository.boundary(node.file)
    is_outside = boundary and path and not path.resolve().is_relative_to(boundary)
    if path is None or is_outside or not path.is_file():
        return  # other rules report missing and remote components
    component = assets.read_referenced(str(written), node.folder)
    if component is None:
        try:
            read(path)
        except UserError as refused:
            first = refused.problems[0]
            yield Finding((key,), f"{first.place}: {first.actual}", first.expected, first.hint)
    elif not isinstance(component.get(), dict):
        message = f"`{key}: {written}` holds {in_words('', component.get())}"
        yield Finding((key,), message, "the spec of a component", "name a component's YAML file")


# Fields of a step that runs a component (azure-ai-ml 1.35, `_schema/pipeline/component_job.py`).
_STEP = frozenset(
    {"type", "component", "trial", "inputs", "outputs", "compute", "environment", "identity"}
    | {"environment_variables", "resources", "distribution", "limits", "services", "settings"}
    | {"queue_settings", "properties", "comment", "display_name", "description", "name", "tags"}
    | {"sampling_algorithm", "search_space", "objective", "early_termination", "code", "command"}
    | {"input_data", "mini_batch_size", "mini_batch_error_threshold", "error_threshold", "task"}
    | {"max_concurrency_per_instance", "partition_keys", "retry_settings", "logging_level"}
)


@rule("misspelt-field", scope="step", severity="warning", source=_JOBS)
def misspelt_field(node: Node) -> Iterator[Finding]:
    """A step that runs a component has only known fields; the SDK ignores misspelt ones."""
    if not {"component", "trial"} & node.data.keys():
        return
    for name in map(str, node.data):
        if name not in _STEP and (hint := did_you_mean(name, _STEP)):
            yield Finding(
                (name,),
                f"`{name}` of step `{node.name}` is ignored: a step has no such field",
                "",
                hint,
            )


@rule("component-cycle", scope="pipeline", root_only=True, source=_COMPONENT)
def component_cycle(node: Node) -> Iterator[Finding]:
    """A pipeline component does not contain itself."""
    if _contains(node, frozenset({node.file.resolve()})):
        actual = f"`component: {node.data.get('component')}` contains itself"
        hint = "delete the step that names it, or name another component there"
        yield Finding(("component",), actual, "no cycle", hint)


@rule(
    "shared-output",
    scope="pipeline",
    source="Azure/azure-sdk-for-python#40896: duplicate PipelineRun output names are not allowed",
)
def output_shared(node: Node) -> Iterator[Finding]:
    """Only one step writes each output of a pipeline; Azure ML refuses duplicates."""
    writers: dict[str, str] = {}
    for keys, reference in bindings(node):
        path = reference.path
        if len(path) < 3 or path[1] != "outputs" or len(keys) < 4 or keys[2] != "outputs":
            continue
        output = f"{keys[1]}.{keys[3]}"
        first = writers.setdefault(path[2], output)
        if first != output:
            message = f"`{output}` writes the same output of the pipeline as `{first}`"
            hint = f"declare a separate output of the pipeline for `{output}`"
            yield Finding(keys, message, "one step's output", hint)


def _contains(step: Node, above: frozenset[Path]) -> bool:
    """Return True if the component of a step contains itself or one of the files `above` it."""
    inner = step.inner
    if inner is None:
        return False
    file = inner.file.resolve()
    if not inner.keys and file in above:
        return True
    return any(_contains(below, above | {file}) for below in inner.steps.values())


def fault(value: Any, port: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (error, expected) if a literal does not fit an input's declaration; else None.

    Text that parses as a number or boolean fits, because Azure ML passes every literal as text.
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
    """A step sets every required input of its component."""
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
    """A step sets only inputs that its component declares."""
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
    """Return an input's value, and the node and keys that set it.

    The node is the given one, the pipeline that binds the input, or the job or schedule above.
    """
    value = node.get("inputs", name)
    if node.user is not None and node.user.get("inputs", name) is not None:
        return _value(node.user, name)
    bound = PARENT_INPUT.fullmatch(value.strip()) if isinstance(value, str) else None
    if bound and node.parent is not None:
        return _value(node.parent, bound[1])
    return value, node, ("inputs", name)


@rule("input-range", scope="step", source=_PORTS)
def input_range(node: Node) -> Iterator[Finding]:
    """A literal input fits the type and the range that the component declares."""
    for name, port in (node.ports("inputs") or {}).items():
        value, owner, keys = _value(node, str(name))
        is_literal = isinstance(value, str | int | float) and "${{" not in str(value)
        if not isinstance(port, dict) or not is_literal:
            continue
        if wrong := fault(value, port):
            actual = f"`{keys[-1]}: {value}` is {wrong[0]}"
            hint = f"change it, or the type, range or `enum` of `{name}` in the component"
            yield Finding(keys, actual, wrong[1], hint, place=owner.place(*keys))


@rule("port-range", scope="node", source=_PORTS)
def port_range(node: Node) -> Iterator[Finding]:
    """An input's `min` is at most its `max`, and its `default` fits its type and range."""
    if not node.is_component:
        return
    for name, port in node.mapping("inputs").items():
        if not isinstance(port, dict):
            continue
        low, high = _number(port.get("min")), _number(port.get("max"))
        if low is not None and high is not None and low > high:
            message = f"`min` of `{name}` is {low:g}, more than `max`, {high:g}"
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
    """A literal input is not empty; omit an optional input instead.

    An empty default is a warning: Azure ML refuses it only if a job does not set the input.
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
                f"omit `{name}` if it is optional; else write `none` and handle it in the code",
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
