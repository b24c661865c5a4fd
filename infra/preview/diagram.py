"""A Mermaid diagram of an environment's network, which GitHub draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.preview.capture import REFERENCE, Capture, Resource, logical_name

# Kinds that appear as nodes → their labels.
LABELS: Mapping[str, str] = {
    "applicationinsights:Component": "Application Insights",
    "compute:VirtualMachine": "VM",
    "containerregistry:Registry": "container registry",
    "keyvault:Vault": "key vault",
    "machinelearningservices:Compute": "cluster",
    "machinelearningservices:OnlineEndpoint": "online endpoint",
    "machinelearningservices:Registry": "shared asset registry",
    "machinelearningservices:Workspace": "Azure ML workspace",
    "managedidentity:UserAssignedIdentity": "identity",
    "network:PrivateEndpoint": "private endpoints",
    "redisenterprise:RedisEnterprise": "Redis",
    "storage:StorageAccount": "storage account",
}
# Input of the workspace → sub-resources to which Azure adds private endpoints in a managed network
# (how-to-managed-network, "List of required rules").
REQUIRED: Mapping[str, Sequence[str]] = {
    "storageAccount": ("blob", "file"),
    "keyVault": ("vault",),
    "containerRegistry": ("registry",),
}
_LONGEST_LIST = 12
INTERNET = "Internet"


class _Graph:
    """A flowchart of grouped nodes and labelled edges; equal edges are merged into one arrow."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, str]] = {}
        self._ids: dict[str, str] = {}
        self._edges: dict[tuple[str, str], dict[str, None]] = {}

    def node(self, key: str, label: Sequence[str], group: str = "") -> None:
        """Add a node with the lines of its label; later calls with the same key are ignored."""
        if key not in self._ids:
            self._ids[key] = f"n{len(self._ids)}"
            self._groups.setdefault(group, {})[key] = "<br/>".join(map(_escaped, label))

    def edge(self, start: str, end: str, labels: Sequence[str] = ()) -> None:
        """Add an arrow; repeated calls add their labels to it."""
        self._edges.setdefault((start, end), {}).update(dict.fromkeys(labels))

    def __str__(self) -> str:
        if not self._edges:
            return ""
        for key in [key for edge in self._edges for key in edge]:
            self.node(key, [_last(key)])  # such as a subnet of an existing network
        lines = ["flowchart LR"]
        for number, (group, nodes) in enumerate(self._groups.items()):
            indent = "    " if group else "  "
            if group:
                lines.append(f'  subgraph g{number}["{_escaped(group)}"]')
            lines += [f'{indent}{self._ids[key]}["{label}"]' for key, label in nodes.items()]
            if group:
                lines.append("  end")
        for (start, end), labels in self._edges.items():
            text = f'|"{", ".join(map(_escaped, labels))}"|' if labels else ""
            lines.append(f"  {self._ids[start]} -->{text} {self._ids[end]}")
        return "\n".join(lines)


def diagram(capture: Capture) -> str:
    """Return a Mermaid diagram of the network; "" if no resource is connected.

    It has the subnets and their machines, private endpoints, public addresses, and the outbound
    route.
    """
    graph, resources = _Graph(), _by_reference(capture)
    machines: dict[str, list[str]] = {}
    for compute in _of_kind(capture, "machinelearningservices:Compute"):
        properties = compute.inputs["properties"].get("properties") or {}
        subnet = (properties.get("subnet") or {}).get("id", "")
        machines.setdefault(_last(subnet), []).append(compute.name)
    for card in _of_kind(capture, "network:NetworkInterface"):
        subnet = card.inputs["ipConfigurations"][0]["subnet"]["id"]
        machines.setdefault(_last(subnet), []).append(card.name.removesuffix("-card"))
    for network in _of_kind(capture, "network:VirtualNetwork"):
        _subnets(graph, capture, network, machines)
    for endpoint in _of_kind(capture, "network:PrivateEndpoint"):
        subnet = _last(endpoint.inputs["subnet"]["id"])
        for connection in endpoint.inputs["privateLinkServiceConnections"]:
            target = _target(connection["privateLinkServiceId"], resources)
            graph.node(target, _label(target, resources), "Resources")
            graph.edge(f"subnet {subnet}", target, connection["groupIds"])
    for workspace in _of_kind(capture, "machinelearningservices:Workspace"):
        _managed_network(graph, workspace, resources, machines.get("", []), capture)
    for resource in capture.provided:
        inner = resource.inputs.get("properties")
        access = resource.inputs.get("publicNetworkAccess") or (
            inner.get("publicNetworkAccess") if isinstance(inner, Mapping) else None
        )
        if access == "Enabled" and resource.kind in LABELS:
            key = _key(resource)
            graph.node(INTERNET, [INTERNET])
            graph.node(key, _label(key, resources), "Resources")
            graph.edge(INTERNET, key, ["Entra sign-in"])
    return str(graph)


def _subnets(
    graph: _Graph, capture: Capture, network: Resource, machines: Mapping[str, list[str]]
) -> None:
    title = f"Virtual network {', '.join(network.inputs['addressSpace']['addressPrefixes'])}"
    rules = {
        group.name: group.inputs.get("securityRules") or ()
        for group in _of_kind(capture, "network:NetworkSecurityGroup")
    }
    endpoints = len(_of_kind(capture, "network:PrivateEndpoint"))
    unused = []
    for subnet in network.inputs["subnets"]:
        name = subnet["name"]
        prefix = ", ".join(_either(subnet, "addressPrefix"))
        content = _listed(machines.get(name, []))
        if name == "endpoints" and endpoints:
            content = [f"{endpoints} private endpoints"]
            graph.node("inside", ["people and machines", "inside the network"])
            graph.edge("inside", f"subnet {name}", ["private addresses"])
        if not content:
            unused.append(f"{name} {prefix}")
            continue
        services = [service["service"] for service in subnet.get("serviceEndpoints") or ()]
        if services:
            content = [*content, f"service endpoints: {', '.join(services)}"]
        graph.node(f"subnet {name}", [f"subnet {name} {prefix}", *content], title)
        if subnet.get("natGateway"):
            graph.node("nat", ["NAT gateway"], title)
            graph.node(INTERNET, [INTERNET])
            graph.edge(f"subnet {name}", "nat", _outbound(rules, subnet))
            graph.edge("nat", INTERNET)
        for table in _of_kind(capture, "network:RouteTable") if subnet.get("routeTable") else ():
            for route in table.inputs.get("routes") or ():
                hop = str(route.get("nextHopIpAddress") or route.get("nextHopType"))
                graph.node(hop, [f"next hop {hop}"])
                out = [str(route["addressPrefix"]), *_outbound(rules, subnet)]
                graph.edge(f"subnet {name}", hop, out)
    for peering in network.inputs.get("virtualNetworkPeerings") or ():
        remote = _last(str(peering["remoteVirtualNetwork"]["id"]))
        graph.node(f"peer {remote}", [f"peered network {remote}"])
        graph.edge(f"peer {remote}", "inside", ["peering"])
    if unused:
        graph.node("unused", ["unused subnets", *unused], title)


def _outbound(
    rules: Mapping[str, Sequence[Mapping[str, Any]]], subnet: Mapping[str, Any]
) -> list[str]:
    """Return labels for the outbound destinations that a subnet's security group allows."""
    group = subnet.get("networkSecurityGroup") or {}
    allowed = [
        destination
        for rule in rules.get(logical_name(str(group.get("id", ""))), ())
        if rule["direction"] == "Outbound" and rule["access"] == "Allow"
        for destination in _either(rule, "destinationAddressPrefix")
    ]
    services = [destination for destination in allowed if destination != INTERNET]
    labels = [f"{len(services)} Azure service tags"] if services else []
    return labels + ([INTERNET] if INTERNET in allowed else [])


def _managed_network(
    graph: _Graph,
    workspace: Resource,
    resources: Mapping[str, Resource],
    machines: Sequence[str],
    capture: Capture,
) -> None:
    network = workspace.inputs.get("managedNetwork") or {}
    mode = network.get("isolationMode", "Disabled")
    if mode == "Disabled":
        return
    endpoints = [
        endpoint.name for endpoint in _of_kind(capture, "machinelearningservices:OnlineEndpoint")
    ]
    content = [*_listed(machines), *(f"deployments of {name}" for name in endpoints)]
    graph.node("managed", content or ["no compute"], f"Azure ML's managed network: {mode}")
    hosts: list[str] = []
    tags: list[str] = []
    for name, rule in sorted((network.get("outboundRules") or {}).items()):
        # A host (string), a resource, or a service tag or addresses with an `action`.
        destination = rule.get("destination") or name
        if isinstance(destination, str):
            hosts.append(destination)
        elif id := destination.get("serviceResourceId"):
            target = _target(id, resources)
            graph.node(target, _label(target, resources), "Resources")
            graph.edge("managed", target, _either(destination, "subresourceTarget"))
        elif destination.get("action") != "Deny":
            tags += _either(destination, "serviceTag") or _either(destination, "addressPrefix")
    if mode == "AllowOnlyApprovedOutbound":
        for name, parts in REQUIRED.items():
            target = _target(str(workspace.inputs.get(name, name)), resources)
            graph.node(target, _label(target, resources), "Resources")
            graph.edge("managed", target, parts)
    if hosts:
        graph.node("hosts", ["allowed hosts", *_listed(sorted(hosts))])
        graph.edge("managed", "hosts", [f"firewall {network.get('firewallSku', '')}".strip()])
    if tags:
        graph.node("tags", ["allowed service tags", *_listed(sorted(tags))])
        graph.edge("managed", "tags")
    if mode == "AllowInternetOutbound":
        graph.node(INTERNET, [INTERNET])
        graph.edge("managed", INTERNET, ["outbound"])


def _of_kind(capture: Capture, kind: str) -> list[Resource]:
    return [resource for resource in capture.provided if resource.kind == kind]


def _by_reference(capture: Capture) -> dict[str, Resource]:
    return {_key(resource): resource for resource in capture.provided}


def _key(resource: Resource) -> str:
    return f"{resource.type.rpartition(':')[2]}:{resource.name}"


def _target(value: str, resources: Mapping[str, Resource]) -> str:
    """Return the node key of a reference, else `value`; all private endpoints share one key."""
    match = REFERENCE.search(value)
    key = match[0][2:-1].rpartition(".")[0] if match else value
    kind = resources[key].kind if key in resources else ""
    return kind if kind == "network:PrivateEndpoint" else key


def _label(target: str, resources: Mapping[str, Resource]) -> list[str]:
    if target in resources:
        resource = resources[target]
        return [resource.name, LABELS.get(resource.kind, resource.kind.split(":")[1])]
    if target in LABELS:
        return [LABELS[target]]
    return [_last(target), "not of this stack"]


def _either(fields: Mapping[str, Any], name: str) -> list[str]:
    """Return the values of a field in singular (`name`) and plural (`names` or `namees`) form."""
    several = fields.get(f"{name}s") or fields.get(f"{name}es") or ()
    return [str(value) for value in (fields.get(name), *several) if value]


def _last(id: str) -> str:
    return id.rpartition("/")[2]


def _listed(names: Sequence[str]) -> list[str]:
    more = len(names) - _LONGEST_LIST
    return [*names[:_LONGEST_LIST], *([f"and {more} more"] if more > 0 else [])]


def _escaped(text: str) -> str:
    """Return the text on one line, escaped for a quoted Mermaid label."""
    text = " ".join(text.split())
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return text
