"""What a program declared, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# What only Azure knows, such as an id, stands as `${Type:logical name.output}`.
REFERENCE = re.compile(r"\$\{[^}]+\}")
SECRET = "[secret]"
STACK = "pulumi:pulumi:Stack"


@dataclass(frozen=True)
class Resource:
    """One resource that a program registered; `inputs` are camelCase, secrets are `SECRET`.

    `parent`, `dependencies` and `uses` (input → what it was made from) hold URNs.
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
    """What a policy says of a resource; `mandatory` stops an update, advice does not."""

    policy: str
    mandatory: bool
    urn: str
    message: str


@dataclass(frozen=True)
class Spent:
    """What a process took: seconds of CPU, and its peak resident memory in MiB."""

    cpu_seconds: float
    peak_mib: float


@dataclass(frozen=True)
class Capture:
    """One run of the program for one stack; `problems` are what a real engine would refuse."""

    stack: str
    resources: tuple[Resource, ...]
    outputs: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    spent: Spent = Spent(0.0, 0.0)

    @property
    def provided(self) -> Sequence[Resource]:
        """The resources that Azure would have: all but components and the stack."""
        return [one for one in self.resources if one.custom]

    def component(self, resource: Resource) -> str:
        """The name of the component that a resource belongs to, "" for one that stands alone."""
        by_urn = {one.urn: one for one in self.resources}
        found = resource
        while found.parent and by_urn[found.parent].type != STACK:
            found = by_urn[found.parent]
        return "" if found is resource and resource.custom else found.name

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)
