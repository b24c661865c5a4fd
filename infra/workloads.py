"""What runs in an environment: clusters, machines for people, endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.fields import Form, field
from infra.forms import COMPUTE, GUID, NAME, VM_SIZE
from infra.sizes import PRESETS, SIZES, Preset, Size

# Of a compute instance, where the settings say nothing.
IDLE_MINUTES = 60


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a typical month is taken to be, for the estimate of the cost alone."""

    jobs: int = field("jobs a month", 20, low=0, high=100000)
    hours: int = field("hours a job", 2, low=0, high=720)
    nodes: int = field("nodes a job", 1, low=0, high=1000)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A compute cluster: a preset or a size, from `min_nodes` to `max_nodes`."""

    name: str = field("its name in the workspace", form=COMPUTE)
    preset: Preset | None = field("a size by what it is for; or `size`", None)
    size: str | None = field(
        "a size by its name; or `preset`; a cluster keeps what it was made with",
        None,
        form=VM_SIZE,
    )
    priority: Literal["dedicated", "spot"] | None = field(
        "by default CPU is dedicated and GPU is spot, but for H100, which has no spot", None
    )
    min_nodes: int = field("nodes that stay when there is no job", 0, low=0, high=100)
    max_nodes: int = field("most nodes", 4, low=1, high=1000)
    idle_minutes: int = field("minutes until an idle node goes", 15, low=1, high=1440)
    lake: Literal["read", "write"] = field("what its identity may do with the data lake", "write")
    usage: Usage = field("a typical month", Usage)

    @property
    def vm_size(self) -> str:
        """The size that the cluster has, by preset or by name."""
        return PRESETS[self.preset] if self.preset else str(self.size)

    @property
    def hardware(self) -> Size:
        """What is in a node."""
        return SIZES[self.vm_size]

    @property
    def spot(self) -> bool:
        """Whether nodes may be taken away: as stated, else for GPUs that Azure ML has as spot."""
        by_default = self.hardware.gpus > 0 and self.hardware.low_priority
        return self.priority == "spot" if self.priority else by_default


@dataclass(frozen=True, kw_only=True)
class Workstation:
    """A machine for one person: a compute instance of the workspace, or a Linux VM."""

    name: str = field("its name", form=NAME)
    kind: Literal["compute-instance", "data-science-vm"] = field(
        "an Azure ML compute instance, which reaches what jobs reach (Git wants its host in"
        " `allowed_hosts`; our own network lets it out to Azure alone), or a Linux data-science VM",
        "compute-instance",
    )
    size: str = field(
        "a VM size",
        "Standard_E4ds_v4",
        form=VM_SIZE,
    )
    person: str = field("object id of who it is for", form=GUID)
    ssh_key: str = field(
        "public key of a VM's administrator; a VM keeps what it was made with",
        "",
        form=Form(r"ssh-(rsa|ed25519) \S+.*", "a public key: ssh-ed25519 AAAA…"),
    )
    idle_minutes: int = field(
        "minutes until an idle instance stops", IDLE_MINUTES, low=15, high=4320
    )


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An online endpoint, which may be there before its first model."""

    name: str = field(
        "its name in the region",
        form=Form(
            r"(?=.{3,32}$)[a-z](-?[a-z0-9])+",
            "3 to 32 lower-case letters, digits and single hyphens, a letter first",
        ),
    )
    alert_errors: int = field("failed requests a minute that raise an alert", 10, low=1, high=10**6)
