"""The settings of one environment: a stack file as one frozen value, checked once.

A stack file says only what differs from the defaults of `foundations` and `workloads`. Nothing asks
which environment it is: what differs is a value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infra.fields import Form, field
from infra.forms import EMAIL, GUID
from infra.foundations import (
    AssetRegistry,
    Guardrails,
    Images,
    Monitoring,
    Network,
    Storage,
    Vault,
)
from infra.workloads import Cluster, Endpoint, Usage, Workstation
from ml.core.errors import Problem, Refused

HERE = Path(__file__).parent
BUILDER = "image-builder"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One environment, checked. `environment` is the name of its stack."""

    environment: str = field("the stack", internal=True)
    location: str = field(
        "as `az account list-locations` names it",
        key="azure-native:location",
        form=Form(r"[a-z]+[a-z0-9]*", "a region such as westeurope"),
    )
    subscription: str = field(
        "`az account list` names it", key="azure-native:subscriptionId", form=GUID
    )
    tenant: str = field("`az account list` names it", key="azure-native:tenantId", form=GUID)
    name: str = field(
        "short name of the platform, a part of every name",
        form=Form(r"[a-z][a-z0-9]{1,7}", "2 to 8 lower-case letters and digits, a letter first"),
    )
    repository: str = field(
        "GitHub repository whose workflows may sign in, with its ids where its tokens have them"
        " (`infra bootstrap` says so)",
        form=Form(
            r"[A-Za-z0-9][A-Za-z0-9-]*(@\d+/(?=.*@\d+$)|/(?!.*@))"
            r"(?!\.{1,2}(@|$))(?!.*\.git(@|$))[A-Za-z0-9._-]+(@\d+)?",
            "owner/name or owner@id/name@id, as GitHub writes it and without .git",
        ),
    )
    owner: str = field("who is told of alerts and budgets", form=EMAIL)
    cost_center: str = field(
        "tag for billing",
        form=Form(r"[\w .-]{1,64}", "1 to 64 of A to Z, a to z, 0 to 9, blank, dot, hyphen and _"),
    )
    exposure: Literal["private", "starter"] = field(
        "`private`: reached through private endpoints alone; `starter`: public addresses, still"
        " without keys; a workspace keeps what it was made with",
        "private",
    )
    network: Network = field("virtual network", Network)
    storage: Storage = field("storage accounts", Storage)
    vault: Vault = field("key vault", Vault)
    images: Images = field("container registry", Images)
    monitoring: Monitoring = field("logs and alerts", Monitoring)
    asset_registry: AssetRegistry = field("shared registry", AssetRegistry)
    clusters: tuple[Cluster, ...] = field("compute clusters", (), high=200)
    workstations: tuple[Workstation, ...] = field("machines for people", (), high=100)
    endpoints: tuple[Endpoint, ...] = field("online endpoints", (), high=100)
    guardrails: Guardrails = field("budget and locks")

    @property
    def github(self) -> str:
        """The repository by its name alone, as GitHub's own commands take it."""
        return re.sub(r"@\d+", "", self.repository)

    @property
    def private(self) -> bool:
        """Whether everything is reached through private endpoints alone."""
        return self.exposure == "private"

    @property
    def way_out(self) -> bool:
        """Whether machines stand in our own network, and need a way out of it."""
        own = self.network.isolation == "own" or bool(self.machines("data-science-vm"))
        return self.private and own

    @property
    def builder(self) -> Cluster | None:
        """The node that builds images where the registry is private, and nothing but images."""
        if not self.private:
            return None
        usage = Usage(jobs=self.images.builds, hours=1, nodes=1)
        size = self.images.builder_size
        return Cluster(name=BUILDER, size=size, priority="dedicated", max_nodes=1, usage=usage)

    @property
    def computes(self) -> tuple[Cluster, ...]:
        """Every cluster of the workspace: those of the stack file, and the builder of images."""
        return (*self.clusters, *([self.builder] if self.builder else []))

    @property
    def sizes(self) -> frozenset[str]:
        """Every VM size that the environment may pay for."""
        return frozenset(
            [*(one.vm_size for one in self.computes), *(one.size for one in self.workstations)]
        )

    def machines(
        self, kind: Literal["compute-instance", "data-science-vm"]
    ) -> tuple[Workstation, ...]:
        """The workstations of one kind."""
        return tuple(one for one in self.workstations if one.kind == kind)


def stacks(folder: Path = HERE) -> tuple[str, ...]:
    """The environments that have a stack file, by name."""
    files = folder.glob("Pulumi.*.yaml")
    return tuple(sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in files))


def chosen(named: Sequence[str] | None, folder: Path = HERE) -> Sequence[str]:
    """The environments that were named, else all; Refused where there is none."""
    found = named or stacks(folder)
    if not found:
        expected, hint = "an environment at least", "write Pulumi.dev.yaml there"
        raise Refused(Problem("no-stack", f"no stack file in {folder.name}/", expected, hint))
    return found


def load(stack: str, folder: Path = HERE) -> Settings:
    """The settings of a stack; Refused with every problem of its file, each with line and key."""
    from infra import agreement, reading

    if stack not in stacks(folder):
        known = ", ".join(stacks(folder)) or "none"
        near = difflib.get_close_matches(stack.lower(), stacks(folder), 1)
        hint = f"did you mean `{near[0]}`?" if near else "write Pulumi.STACK.yaml beside the others"
        if (folder / f"Pulumi.{stack}.yml").exists():
            hint = f"rename Pulumi.{stack}.yml: Pulumi reads .yaml alone"
        raise Refused(Problem("unknown-stack", f"no stack {stack!r}", f"one of: {known}", hint))
    document = reading.document(folder / f"Pulumi.{stack}.yaml")
    settings = reading.settings(Settings, document, environment=stack)
    problems = tuple(agreement.problems(settings, document))
    if problems:
        raise Refused(*problems)
    return settings
