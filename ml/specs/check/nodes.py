"""The nodes of a spec (job, component, each step), their fields, and the specs they reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Key, strings
from ml.specs.assets import assets
from ml.specs.kinds import Kind, kind_of
from ml.specs.sdk.load import Spec
from ml.specs.yaml_node import YamlNode

# The families of specs that have nodes.
WITH_NODES = ("job", "component", "schedule")
# An inline trial with one of these keys is a component.
_PORTS = frozenset({"inputs", "outputs"})
# Field → the family of the spec that its value references; "" if the file's own schema determines
# it.
FAMILIES = {
    **dict.fromkeys(("component", "trial"), "component"),
    **dict.fromkeys(("create_job", "job"), "job"),
    "environment": "environment",
    "model": "model",
    "specification": "",
    "$ref": "",
}
# The keys below these are names that users choose, not fields.
_FREE = frozenset(
    {"inputs", "outputs", "environment_variables", "tags", "properties", "search_space", "conf"}
    | {"conda_file"}
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Node(YamlNode):
    """A job, component or step, with the component that it runs, its inputs and its outputs."""

    type: str  # in lower case: `command`, `sweep`, `pipeline` …
    parent: Node | None = None  # the pipeline that a step belongs to
    # The node that runs this one with its own inputs: a step (of its component), or a schedule's
    # `create_job` (of its job).
    user: Node | None = None
    is_component: bool = False  # True: its inputs are declarations of ports, not values

    @property
    def name(self) -> str:
        """Return the step's name; for a whole spec, the file's name without suffix."""
        return str(self.keys[-1]) if self.keys else self.file.stem

    @cached_property
    def data(self) -> Mapping[str, Any]:
        """Return the node's fields."""
        return self.mapping()

    @property
    def component_key(self) -> str:
        """Return the key of the component: "trial" for a sweep, else "component"."""
        return "trial" if self.type == "sweep" else "component"

    @cached_property
    def _component(self) -> YamlNode | None:
        return assets.component(self, self.component_key, repository.root(self.file))

    @cached_property
    def component(self) -> Mapping[str, Any] | None:
        """Return the component that the node runs; None if it runs none, or a remote one."""
        if self._component is None:
            return None
        written, data = self.data[self.component_key], self._component.get()
        if isinstance(written, dict):
            return written if self.type != "sweep" or written.keys() & _PORTS else None
        # A prompt flow can be a component too, but accepts inputs that it does not declare.
        return data if isinstance(data, dict) and "nodes" not in data else None

    @cached_property
    def steps(self) -> Mapping[str, Node]:
        """Return the steps of a pipeline by name; {} for other types."""
        steps = {}
        for name, step in self.mapping("jobs").items() if self.type == "pipeline" else ():
            if isinstance(step, dict):
                part = self.child("jobs", name)
                kind = str(step.get("type") or _type_of_component(part)).lower()
                steps[str(name)] = Node(part.document, part.file, part.keys, type=kind, parent=self)
        return steps

    @cached_property
    def inner(self) -> Node | None:
        """Return the step's component as a node if it is inline or a pipeline; else None."""
        part = self._component
        if part is None or self.component is None or not (self.type == "pipeline" or part.keys):
            return None
        kind = str(part.get("type") or ("command" if self.type == "sweep" else self.type)).lower()
        return Node(part.document, part.file, part.keys, type=kind, is_component=True, user=self)

    @property
    def is_remote(self) -> bool:
        """Return True if the node runs a component that is not on this machine."""
        written = self.data.get(self.component_key)
        return isinstance(written, str | dict) and self.component is None and not self.is_inline

    @property
    def is_inline(self) -> bool:
        """Return True if it is a sweep with an inline trial."""
        return self.type == "sweep" and isinstance(self.data.get("trial"), dict)

    def ports(self, direction: str) -> Mapping[str, Any] | None:
        """Return the declared inputs or outputs by name; None if the component is remote."""
        if self.is_remote:
            return None
        owner = self.data if self.component is None else self.component
        declared = owner.get(direction)
        return declared if isinstance(declared, dict) else {}

    def port(self, direction: str, name: str) -> tuple[YamlNode, Mapping[str, Any]] | None:
        """Return the component, and its declaration of an input or output; None if undeclared."""
        part = self._component
        declared = part.mapping(direction, name) if part is not None else {}
        return (part, declared) if part is not None and declared else None

    @property
    def variables(self) -> Iterator[tuple[YamlNode, tuple[Key, ...], str]]:
        """Yield (owner, keys in the owner, value) of each environment variable.

        The owner is the node itself, its component, or the node that runs it.
        """
        for part in (self, self._component, self.user):
            variables = part.mapping("environment_variables") if part is not None else {}
            for name, value in variables.items():
                yield part or self, ("environment_variables", str(name)), str(value)

    @property
    def environment(self) -> tuple[YamlNode, tuple[Key, ...]] | None:
        """Return (owner, keys) of the field that names the environment; None without one."""
        for part in filter(None, (self, self._component)):
            for keys in (("environment",), ("trial", "environment"), ("task", "environment")):
                if part.get(*keys) is not None:
                    return part, keys
        return None

    @property
    def command(self) -> tuple[tuple[Key, ...], str] | None:
        """Return the keys (in the node) and the text of its shell command; None without one."""
        keys: tuple[Key, ...] = ("trial", "command") if self.type == "sweep" else ("command",)
        text = self.get(*keys)
        if isinstance(text, str):
            return keys, text
        if self.type in {"command", "sweep"} and self.component is not None:
            text = self.component.get("command")
            return (keys[:1], text) if isinstance(text, str) else None
        return None

    @property
    def arguments(self) -> str:
        """Return the arguments of a parallel job's script; "" for other types."""
        part = self._component if self._component is not None and not self.get("task") else self
        text = part.get("task", "program_arguments") if self.type == "parallel" else ""
        return text if isinstance(text, str) else ""

    @property
    def search_space(self) -> Mapping[str, Any]:
        """Return the hyperparameters of a sweep by name; {} for other types."""
        return self.mapping("search_space") if self.type == "sweep" else {}


def nodes(spec: Spec) -> list[Node]:
    """Return the nodes of a job or component, the root first.

    For a schedule: the nodes of its inline job, or `create_job` and the nodes of the job's file.
    """
    document, file, kind = spec.document, spec.file, spec.kind
    if kind.family in {"job", "component"}:
        is_component = kind.family == "component"
        return list(_below(Node(document, file, type=kind.type, is_component=is_component)))
    inline = spec.get("create_job") if kind.family == "schedule" else None
    if isinstance(inline, dict) and inline.keys() & {"jobs", "command", "trial"}:
        type_ = str(getattr(kind_of(inline), "type", ""))
        return list(_below(Node(document, file, ("create_job",), type=type_)))
    created = spec.child("create_job")
    written = spec.get("create_job", "job") if kind.family == "schedule" else None
    job = assets.read_referenced(written, spec.folder) if isinstance(written, str) else None
    job_kind = kind_of(job.get()) if job is not None else None
    if job is None or job_kind is None:
        return []
    user = Node(created.document, created.file, created.keys, type=job_kind.type)
    return [user, *_below(Node(job.document, job.file, type=job_kind.type, user=user))]


def nested_component_nodes(
    pieces: Iterable[Node], above: frozenset[Path] = frozenset()
) -> Iterator[Node]:
    """Yield the nodes of pipeline components in other files that the nodes run, recursively."""
    for node in pieces:
        inner = node.inner
        # A rule refuses a component that contains itself. `_below` yields inline components.
        if inner is not None and not inner.keys and inner.file not in above:
            below = list(_below(inner))
            yield from below
            yield from nested_component_nodes(below, above | {inner.file})


def _below(node: Node) -> Iterator[Node]:
    yield node
    for step in node.steps.values():
        yield from _below(step)
    if node.inner is not None and node.inner.keys:
        yield from _below(node.inner)


def _type_of_component(step: YamlNode) -> str:
    component = assets.component(step, "component", repository.root(step.file))
    return str((component.get("type") if component else None) or "command")


def fields(value: Any, keys: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yield (keys, value) of every field, except keys that users choose: inputs, tags …"""
    children = value.items() if isinstance(value, dict) else ()
    for key, child in enumerate(value) if isinstance(value, list) else children:
        child_keys = (*keys, key)
        # Keys below `jobs` are names of steps, not fields.
        if keys[-1:] != ("jobs",):
            yield child_keys, child
        if key not in _FREE or keys[-1:] == ("jobs",):
            yield from fields(child, child_keys)


def references(spec: Spec) -> list[Spec]:
    """Return the specs that a spec references, directly or indirectly, each once.

    Files outside the repository are not read. The SDK reports problems of referenced specs as
    problems of the spec.
    """
    root, met = repository.root(spec.file), {spec.file.resolve()}
    specs, queue = list[Spec](), list[YamlNode]([spec])
    while queue:
        owner = queue.pop(0)
        for part, family in _named(owner, root):
            file = part.file.resolve()
            is_outside = spec.boundary is not None and not file.is_relative_to(spec.boundary)
            if is_outside or file in met or not isinstance(part.get(), dict):
                continue
            met.add(file)
            kind = kind_of(part.get())
            if kind is None or (family and kind.family != family):
                kind = Kind(family, str(part.get("type") or "command").lower())
            specs.append(Spec(part.document, part.file, kind=kind, entity=None))
            queue.append(specs[-1])
    return specs


def _named(owner: YamlNode, root: Path) -> Iterator[tuple[YamlNode, str]]:
    """Yield (spec, family) for each spec that a field of `owner` references."""
    for keys, text in strings(owner.get()):
        family = FAMILIES.get(str(keys[-1])) if keys else None
        if keys and keys[-1] == "path":  # the path of data or a model
            family = next((f for f in ("data", "model") if assets.find(text, f, root)), None)
        if family is None or "${{" in text or _FREE.intersection(keys) - {"inputs", "outputs"}:
            continue
        part = assets.read_referenced(text, owner.folder) if keys[-1] != "path" else None
        part = part or (assets.find(text, family, root) if family else None)
        if part is not None:
            yield part, family


def environments(spec: Spec) -> Iterator[YamlNode]:
    """Yield each environment that a spec defines: the spec itself, or an inline `environment`."""
    if spec.kind.family == "environment":
        yield spec
    for keys, value in fields(spec.document.data):
        if keys[-1] == "environment" and isinstance(value, dict):
            yield spec.child(*keys)
