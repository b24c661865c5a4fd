"""The steps of a pipeline: their form, their components and their outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ml.core import repository
from ml.core.documents import read
from ml.core.errors import Refused
from ml.specs.assets import assets
from ml.specs.check.nodes import Node
from ml.specs.check.rules.registry import Finding, Subject, rule
from ml.specs.expressions import did_you_mean
from ml.specs.sdk.tree import included
from ml.specs.sdk.words import in_words

_YAML = "reference-yaml-job-pipeline: jobs"
_COMPONENT = "reference-yaml-job-pipeline: jobs.<name>.component"


@rule("wrong-type", scope="pipeline", source=_YAML)
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


@rule("not-a-component", scope="node", source=_COMPONENT)
def not_a_component(node: Node) -> Iterator[Finding]:
    """The file that a step names as its component can be read and holds a mapping."""
    key = "trial" if node.type == "sweep" else "component"
    written = node.data.get(key)
    path = assets.local(written, node.spec.folder) if isinstance(written, str) else None
    boundary = node.spec.boundary
    is_outside = boundary and path and not path.resolve().is_relative_to(boundary)
    if path is None or is_outside or not path.is_file():
        return  # other rules report missing and remote components
    inside = included(str(written), node.spec.folder)
    if inside is None:
        try:
            read(path, repository.shown(path))
        except Refused as refused:
            first = refused.problems[0]
            yield Finding((key,), f"{first.place}: {first.found}", first.expected, first.hint)
    elif not isinstance(inside[0].data, dict):
        message = f"`{key}: {written}` holds {in_words('', inside[0].data)}"
        yield Finding((key,), message, "the spec of a component")


# Fields of a step that runs a component (azure-ai-ml 1.35, `_schema/pipeline/component_job.py`).
_STEP = frozenset(
    {"type", "component", "trial", "inputs", "outputs", "compute", "environment", "identity"}
    | {"environment_variables", "resources", "distribution", "limits", "services", "settings"}
    | {"queue_settings", "properties", "comment", "display_name", "description", "name", "tags"}
    | {"sampling_algorithm", "search_space", "objective", "early_termination", "code", "command"}
    | {"input_data", "mini_batch_size", "mini_batch_error_threshold", "error_threshold", "task"}
    | {"max_concurrency_per_instance", "partition_keys", "retry_settings", "logging_level"}
)


@rule("misspelt-field", scope="node", severity="warning", source=_YAML)
def misspelt_field(node: Node) -> Iterator[Finding]:
    """A step that runs a component has known fields: the SDK lets any other through, unread."""
    if node.parent is None or not {"component", "trial"} & node.data.keys():
        return
    for name in map(str, node.data):
        if name not in _STEP and (hint := did_you_mean(name, _STEP)):
            yield Finding(
                (name,),
                f"`{name}` of step `{node.name}` is ignored: a step has no such field",
                "",
                hint,
            )


@rule("component-cycle", scope="spec", source=_COMPONENT)
def component_cycle(subject: Subject) -> Iterator[Finding]:
    """A pipeline component does not contain itself."""
    for node in subject.nodes:
        if node.parent is not None and _returns(node, frozenset({node.spec.file.resolve()})):
            message = f"`component: {node.data.get('component')}` contains itself"
            yield Finding(
                (*node.keys, "component"), message, "a component that does not contain itself"
            )


@rule("output-shared", scope="pipeline", severity="warning", source=_YAML)
def output_shared(node: Node) -> Iterator[Finding]:
    """Each output of a pipeline is written by one step."""
    writers: dict[str, str] = {}
    for name, step in node.steps.items():
        for output, written in step.mapping("outputs").items():
            text = written.get("path") if isinstance(written, dict) else written
            target = str(text).replace(" ", "")
            if not target.startswith("${{parent.outputs."):
                continue
            first = writers.setdefault(target, f"{name}.{output}")
            if first != f"{name}.{output}":
                message = f"`{name}.{output}` writes the same output of the pipeline as `{first}`"
                hint = "declare an output of the pipeline for each step"
                yield Finding(("jobs", name, "outputs", output), message, "one step", hint)


def _returns(step: Node, above: frozenset[Path]) -> bool:
    """Whether what a step runs comes to one of the files above it, or to itself, again."""
    inner = step.inner
    if inner is None:
        return False
    file = inner.spec.file.resolve()
    if not inner.keys and file in above:
        return True
    return any(_returns(below, above | {file}) for below in inner.steps.values())
