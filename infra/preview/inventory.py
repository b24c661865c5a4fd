"""Counts the billed items that a captured program declares."""

from __future__ import annotations

from infra.cost.estimate import REQUIRED_ENDPOINTS, Inventory
from infra.preview.capture import Capture, Resource


def counted(capture: Capture) -> Inventory:
    """Count the billed items among the captured resources, without reading the settings."""
    kinds = [item.kind for item in capture.provided]
    workspaces = (item.inputs for item in capture.provided if item.inputs.get("kind") == "Default")
    workspace = next(workspaces, {})
    rules = (workspace.get("managedNetwork") or {}).get("outboundRules") or {}
    outbound = sum(rule.get("type") == "PrivateEndpoint" for rule in rules.values())
    if rules and workspace.get("publicNetworkAccess") == "Disabled":
        outbound += REQUIRED_ENDPOINTS
    shared = (item for item in capture.provided if item.kind == "machinelearningservices:Registry")
    replicas = sum(len(item.inputs.get("regionDetails", ())) for item in shared)
    return Inventory(
        endpoints=kinds.count("network:PrivateEndpoint"),
        outbound=outbound,
        zones=kinds.count("privatedns:PrivateZone"),
        accounts=kinds.count("security:DefenderForStorage"),
        alerts=kinds.count("monitor:MetricAlert"),
        registries=kinds.count("containerregistry:Registry") + replicas,
        gateways=kinds.count("network:NatGateway"),
        machines=frozenset(filter(None, map(_machine, capture.provided))),
    )


def _machine(resource: Resource) -> tuple[str, str, int] | None:
    """Return (name, VM size, maximum nodes) of a compute resource; None for other resources."""
    inputs = resource.inputs
    if resource.kind == "compute:VirtualMachine":
        return resource.name, str(inputs.get("hardwareProfile", {}).get("vmSize")), 1
    if resource.kind != "machinelearningservices:Compute":
        return None
    inner = inputs.get("properties", {}).get("properties", {})
    nodes = inner.get("scaleSettings", {}).get("maxNodeCount", 1)
    return resource.name, str(inner.get("vmSize")), int(nodes)
