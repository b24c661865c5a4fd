"""The pieces of a spec that do work: a job or component, and each step of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Key
from ml.specs.assets import assets
from ml.specs.check.kinds import Kind, kind_of
from ml.specs.sdk.load import Spec
from ml.specs.sdk.tree import included

# What a trial that is written in place has only when it is a component.
_PORTS = frozenset({"inputs", "outputs"})


@dataclass(frozen=True, eq=False)
class Node:
    """A job, a component or a step: what it runs, and what goes in and out.

    `keys` lead to it in the spec's document. `ports` is the component that declares its inputs
    and outputs, None when it is one of another place, and the node's own data when inline.
    `declares` says that it is a component inside another spec.
    """

    spec: Spec
    keys: tuple[Key, ...]
    type: str
    data: Mapping[str, Any]
    parent: Node | None = None
    declares: bool = False

    @property
    def name(self) -> str:
        """The step's name, the file's for a whole spec."""
        return str(self.keys[-1]) if self.keys else self.spec.file.stem

    @property
    def is_component(self) -> bool:
        """Whether inputs are declarations of ports, not values."""
        return self.declares or (not self.keys and self.spec.kind.family == "component")

    def get(self, *keys: Key) -> Any:
        """A field of the node, None where there is none."""
        return self.spec.get(*self.keys, *keys)

    def mapping(self, *keys: Key) -> Mapping[str, Any]:
        """A field of the node that is a mapping; empty where it is none."""
        value = self.get(*keys)
        return value if isinstance(value, dict) else {}

    @cached_property
    def component(self) -> Mapping[str, Any] | None:
        """The data of the component that the node runs, when it names one that is here."""
        written = self.data.get("trial" if self.type == "sweep" else "component")
        if isinstance(written, dict) and (self.type != "sweep" or written.keys() & _PORTS):
            return written
        if not isinstance(written, str):
            return None
        inside = included(written, self.spec.folder)
        if inside is None:
            asset = assets.find(written, "component", repository.root(self.spec.file))
            inside = (asset.document, asset.file) if asset else None
        data = inside[0].data if inside else None
        # A prompt flow stands in for a component too, and takes inputs that it does not declare.
        return data if isinstance(data, dict) and "nodes" not in data else None

    @cached_property
    def steps(self) -> Mapping[str, Node]:
        """The steps of a pipeline by name; none of anything else."""
        steps = {}
        for name, step in self.mapping("jobs").items() if self.type == "pipeline" else ():
            if isinstance(step, dict):
                kind = step.get("type") or _type_of_component(step, self.spec.folder)
                keys = (*self.keys, "jobs", name)
                steps[str(name)] = Node(self.spec, keys, str(kind).lower(), step, self)
        return steps

    @cached_property
    def inner(self) -> Node | None:
        """The pipeline component that the step runs, in the file where it is written."""
        written = self.data.get("component")
        if self.type != "pipeline" or not isinstance(self.component, dict):
            return None
        if isinstance(written, dict):
            keys = (*self.keys, "component")
            return Node(self.spec, keys, self.type, written, declares=True)
        source = included(str(written), self.spec.folder)
        if source is None:
            asset = assets.find(str(written), "component", repository.root(self.spec.file))
            source = (asset.document, asset.file) if asset else None
        if source is None or not isinstance(source[0].data, dict):
            return None
        document, file = source
        kind = Kind("component", self.type)
        spec = Spec(file, kind, document, None, (), repository.boundary(file))
        return Node(spec, (), self.type, document.data)

    @property
    def is_remote(self) -> bool:
        """Whether it runs a component of which nothing is known here."""
        written = self.data.get("trial" if self.type == "sweep" else "component")
        return isinstance(written, str | dict) and self.component is None and not self.is_inline

    @property
    def is_inline(self) -> bool:
        """Whether what it runs is written in it, not in a component."""
        return self.type == "sweep" and isinstance(self.data.get("trial"), dict)

    def ports(self, direction: str) -> Mapping[str, Any] | None:
        """The declared inputs or outputs by name; None when they are declared elsewhere."""
        if self.is_remote:
            return None
        owner = self.data if self.component is None else self.component
        declared = owner.get(direction)
        return declared if isinstance(declared, dict) else {}

    @property
    def command(self) -> tuple[tuple[Key, ...], str] | None:
        """The keys (inside the node) and the text of the command that a shell runs here."""
        at: tuple[Key, ...] = ("trial", "command") if self.type == "sweep" else ("command",)
        text = self.get(*at)
        if isinstance(text, str):
            return at, text
        if self.type in {"command", "sweep"} and self.component is not None:
            text = self.component.get("command")
            return (at[:1], text) if isinstance(text, str) else None
        return None

    @property
    def search_space(self) -> Mapping[str, Any]:
        """The hyperparameters of a sweep by name; of nothing else."""
        return self.mapping("search_space") if self.type == "sweep" else {}


def nodes(spec: Spec) -> list[Node]:
    """The nodes of a job or component, the whole first; of a schedule, those of an inline job."""
    data = spec.document.data
    if spec.kind.family in {"job", "component"}:
        return list(_below(Node(spec, (), spec.kind.type, data)))
    inline = data.get("create_job") if spec.kind.family == "schedule" else None
    if isinstance(inline, dict) and inline.keys() & {"jobs", "command", "trial"}:
        kind = kind_of(inline)
        return list(_below(Node(spec, ("create_job",), kind.type if kind else "", inline)))
    return []


def inside(pieces: Iterable[Node], above: frozenset[Path] = frozenset()) -> Iterator[Node]:
    """The pipeline components that the nodes run, their steps, and those that these run."""
    for node in pieces:
        inner = node.inner
        # A component that contains itself is the planner's to refuse.
        if inner is not None and (inner.keys or inner.spec.file not in above):
            below = list(_below(inner))
            yield from below
            yield from inside(below, above | {inner.spec.file})


def _below(node: Node) -> Iterator[Node]:
    yield node
    for step in node.steps.values():
        yield from _below(step)


def _type_of_component(step: Mapping[str, Any], folder: Path) -> str:
    written = step.get("component")
    if isinstance(written, str):
        inside = included(written, folder)
        written = inside[0].data if inside else None
    if isinstance(written, dict) and isinstance(written.get("type"), str):
        return str(written["type"])
    return "command"
