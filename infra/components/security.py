"""What passes between a part of the network and the rest: the rules of its security group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pulumi_azure_native import network

Part = Literal["endpoints", "compute", "workstations", "builds"]
PARTS: tuple[Part, ...] = ("endpoints", "compute", "workstations", "builds")


@dataclass(frozen=True)
class Opening:
    """Ports on which something passes; `to` is a service tag, with the region for `{region}`."""

    name: str
    ports: Sequence[str]
    to: str = "VirtualNetwork"
    protocol: str = "Tcp"


# From the network itself.
INWARD: Mapping[Part, Opening] = {
    # HTTPS, and files: the workspace's over SMB, the share over NFS (how-to-secure-training-vnet,
    # "Limitations"; storage-files-networking-overview).
    "endpoints": Opening("services-from-the-network", ("443", "445", "2049")),
    # Nodes of one job speak with each other on any port (NCCL, Gloo, MPI).
    "compute": Opening("nodes-with-each-other", ("*",), protocol="*"),
    "workstations": Opening("ssh-from-the-network", ("22",)),
    "builds": Opening("https-from-the-network", ("443",)),
}
# What every node has to reach (how-to-access-azureml-behind-firewall, "Basic configuration").
AZURE: tuple[Opening, ...] = (
    Opening("sign-in", ("80", "443"), "AzureActiveDirectory"),
    Opening("azure-ml", ("443", "8787", "18881"), "AzureMachineLearning"),
    Opening("azure-ml-nodes", ("5831",), "AzureMachineLearning", "Udp"),
    Opening("batch", ("443",), "BatchNodeManagement.{region}", "*"),
    Opening("resource-manager", ("443",), "AzureResourceManager"),
    # Without files (445) Azure ML refused the subnet: MicrosoftDocs/azure-docs#91825.
    Opening("storage", ("443", "445"), "Storage.{region}"),
    Opening("front-door", ("443",), "AzureFrontDoor.FrontEnd"),
    # Images of Microsoft, from any region, and what they come through.
    Opening("images", ("443",), "MicrosoftContainerRegistry"),
    Opening("images-front-door", ("443",), "AzureFrontDoor.FirstParty"),
    Opening("monitor", ("443",), "AzureMonitor"),
)
# Out of the network. Jobs reach Azure alone; packages come in through what builds images.
OUTWARD: Mapping[Part, Sequence[Opening]] = {
    "endpoints": (),
    "compute": AZURE,
    "workstations": (Opening("web", ("80", "443"), "Internet"),),
    # Ubuntu's packages come over HTTP, signed.
    "builds": (*AZURE, Opening("packages", ("80", "443"), "Internet")),
}


def rules(part: Part, region: str) -> Iterator[network.SecurityRuleArgs]:
    """The rules of a part, those inward first; what they do not let pass does not."""
    yield _rule(INWARD[part], 100, "Inbound", source="VirtualNetwork", region=region)
    nothing = Opening("nothing-else", ("*",), "*", "*")
    yield _rule(nothing, 4096, "Inbound", source="*", region=region)
    for at, opening in enumerate(OUTWARD[part]):
        yield _rule(opening, 100 + 10 * at, "Outbound", source="VirtualNetwork", region=region)
    nothing = Opening("nothing-else-out", ("*",), "Internet", "*")
    yield _rule(nothing, 4096, "Outbound", source="*", region=region)


def _rule(
    opening: Opening, priority: int, direction: str, *, source: str, region: str
) -> network.SecurityRuleArgs:
    one, several = (opening.ports[0], None) if len(opening.ports) == 1 else (None, opening.ports)
    return network.SecurityRuleArgs(
        name=opening.name,
        priority=priority,
        direction=direction,
        access="Allow" if source != "*" else "Deny",
        protocol=opening.protocol,
        source_address_prefix=source,
        source_port_range="*",
        destination_address_prefix=opening.to.format(region=region),
        destination_port_range=one,
        destination_port_ranges=several,
    )
