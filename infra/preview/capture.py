"""The resources that a program declared, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# A value that only Azure knows, such as an id: `${Type:logical name.output}`.
REFERENCE = re.compile(r"\$\{[^}]+\}")
SECRET = "[secret]"
STACK = "pulumi:pulumi:Stack"


@dataclass(frozen=True)
class Resource:
    """One registered resource; `inputs` are camelCase, secrets are `SECRET`.

    `parent`, `dependencies` and `uses` (input → the resources that it derives from) hold URNs.
    """

    urn: str
    type: str
    name: str
    parent: str
    inputs: Mapping[str, Any]
    custom: bool = True
    protect: bool = False
    dependencies: tuple[str, ...] = ()
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignore_changes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The type without its provider: `storage:StorageAccount`."""
        return self.type.split(":", 1)[1]


@dataclass(frozen=True)
class Finding:
    """A policy's message about a resource; only a `mandatory` one stops an update."""

    policy: str
    mandatory: bool
    urn: str
    message: str


@dataclass(frozen=True)
class Capture:
    """One run of the program for one stack; `problems` are what a real engine would refuse."""

    stack: str
    resources: tuple[Resource, ...]
    outputs: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def provided(self) -> Sequence[Resource]:
        """The resources that Azure would have: all except components and the stack."""
        return [resource for resource in self.resources if resource.custom]

    def component(self, resource: Resource) -> str:
        """The name of the component that a resource belongs to; "" if it has none."""
        by_urn = {other.urn: other for other in self.resources}
        top = resource
        while top.parent and by_urn[top.parent].type != STACK:
            top = by_urn[top.parent]
        return "" if top is resource and resource.custom else top.name

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)
