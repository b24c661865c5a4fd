"""The Mermaid diagram: every node is declared once, every arrow leads from a node to a node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.preview.capture import Capture, Resource
from infra.preview.diagram import diagram
from tests.infra.programs import HUB, changed, own

STACK = Resource("urn:stack", "pulumi:pulumi:Stack", "platform-dev", "", {}, custom=False)
NODE = re.compile(r'(n\d+)\["([^"]*)"\]')
EDGE = re.compile(r'(n\d+) -->(?:\|"([^"]*)"\|)? (n\d+)')
GROUP = re.compile(r'subgraph g\d+\["([^"]*)"\]')


def _resource(name: str, kind: str, **inputs: Any) -> Resource:
    return Resource(f"urn:{name}", f"azure-native:{kind}", name, STACK.urn, inputs)


def _edges(capture: Capture) -> dict[tuple[str, str], set[str]]:
    """Labels by the first lines of both nodes; fails on a line that is not Mermaid's."""
    nodes, edges = {}, {}
    head, *lines = diagram(capture).splitlines()
    assert head == "flowchart LR"
    for line in map(str.strip, lines):
        if node := NODE.fullmatch(line):
            assert node[1] not in nodes
            nodes[node[1]] = node[2].split("<br/>")[0]
        elif edge := EDGE.fullmatch(line):
            labels = set((edge[2] or "").split(", "))
            edges[nodes[edge[1]], nodes[edge[3]]] = labels
        else:
            assert line == "end" or GROUP.fullmatch(line), line
    return edges


def test_text_from_settings_cannot_leave_its_label() -> None:
    """Quotes and angle brackets are written as Mermaid's entities."""
    endpoint = _resource("e", "network:PrivateEndpoint")
    endpoint.inputs.update(  # type: ignore[attr-defined]
        subnet={"id": "/subnets/endpoints"},
        privateLinkServiceConnections=[
            {"privateLinkServiceId": '/x/<b>"]; click', "groupIds": ["blob"]}
        ],
    )
    network = _resource(
        "v",
        "network:VirtualNetwork",
        addressSpace={"addressPrefixes": ["10.0.0.0/16"]},
        subnets=[
            {
                "name": "endpoints",
                "addressPrefix": "10.0.0.0/18",
                "networkSecurityGroup": {"id": "${NetworkSecurityGroup:g.id}"},
            }
        ],
    )
    capture = Capture("dev", (STACK, network, endpoint), {})
    assert ("subnet endpoints 10.0.0.0/18", "#lt;b#gt;#quot;]; click") in _edges(capture)


def test_a_diagram_without_arrows_is_left_out() -> None:
    assert diagram(Capture("dev", (STACK,), {})) == ""


_TEXT = st.text(st.characters(codec="ascii", exclude_characters="$,"), min_size=1, max_size=9)
_DESTINATIONS = st.one_of(
    _TEXT,
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "serviceResourceId": _TEXT,
            "subresourceTarget": _TEXT,
            "serviceTag": _TEXT,
            "addressPrefixes": st.lists(_TEXT),
            "action": st.sampled_from(["Allow", "Deny"]),
        },
    ),
)
_RULES = st.dictionaries(
    _TEXT, st.fixed_dictionaries({"destination": _DESTINATIONS}, optional={"type": _TEXT})
)
_OPENING = st.fixed_dictionaries(
    {"direction": st.just("Outbound"), "access": st.just("Allow")},
    optional={"destinationAddressPrefix": _TEXT, "destinationAddressPrefixes": st.lists(_TEXT)},
)


@given(_RULES, st.lists(_OPENING), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_rule_of_a_network_is_drawn(
    rules: dict[str, Any], openings: list[Any], has_group: bool
) -> None:
    """Whatever of its optional fields it has: hosts, resources, service tags and addresses."""
    workspace = _resource(
        "w",
        "machinelearningservices:Workspace",
        managedNetwork={"isolationMode": "AllowOnlyApprovedOutbound", "outboundRules": rules},
    )
    group = _resource("g", "network:NetworkSecurityGroup", securityRules=openings)
    subnet: dict[str, Any] = {"name": "compute", "natGateway": {"id": "n"}}
    subnet |= {"networkSecurityGroup": {"id": "${NetworkSecurityGroup:g.id}"}} if has_group else {}
    network = _resource(
        "v",
        "network:VirtualNetwork",
        addressSpace={"addressPrefixes": ["10.0.0.0/16"]},
        subnets=[subnet],
    )
    compute = _resource(
        "c", "machinelearningservices:Compute", properties={"computeType": "Kubernetes"}
    )
    private = _resource(
        "p",
        "network:PrivateEndpoint",
        subnet={"id": "/subnets/of-another-network"},
        privateLinkServiceConnections=[{"privateLinkServiceId": "/x/y", "groupIds": ["blob"]}],
    )
    capture = Capture("dev", (STACK, workspace, group, network, compute, private), {})
    edges = _edges(capture)
    ends = {end for start, end in edges if start == "c"}
    for rule in rules.values():
        destination = rule["destination"]
        if isinstance(destination, dict) and destination.get("serviceResourceId"):
            continue
        if isinstance(destination, dict) and destination.get("serviceTag"):
            assert destination.get("action") == "Deny" or "allowed service tags" in ends
        elif not destination or isinstance(destination, str):
            assert "allowed hosts" in ends


def test_a_private_network_shows_endpoints_and_the_firewall() -> None:
    edges = _edges(own()["prod"])
    assert edges["subnet endpoints 10.62.0.0/18", "lake"] == {"blob", "dfs"}
    assert edges["people and machines", "subnet endpoints 10.62.0.0/18"] == {"private addresses"}
    assert edges["cpu-cluster", "workspace-storage"] == {"blob", "file", "queue", "table"}
    assert edges["cpu-cluster", "allowed hosts"] == {"firewall Standard"}
    assert not [edge for edge in edges if "Internet" in edge]


def test_a_starter_shows_its_public_addresses() -> None:
    edges = _edges(own()["dev"])
    assert edges["Internet", "lake"] == {"Entra sign-in"}
    assert edges["cpu-cluster", "Internet"] == {"outbound"}


@pytest.mark.slow
def test_our_own_network_shows_subnets_and_the_nat_gateway(tmp_path: Path) -> None:
    person = "6f8d2c1e-0000-4000-8000-000000000002"
    vm = {"name": "bob", "kind": "data-science-vm", "person": person, "ssh_key": "ssh-ed25519 A"}
    capture = changed(tmp_path, network={"isolation": "own"}, workstations=[vm])
    edges = _edges(capture)
    assert edges["subnet compute 10.60.64.0/18", "NAT gateway"] == {"10 Azure service tags"}
    assert "Internet" in edges["subnet workstations 10.60.128.0/18", "NAT gateway"]
    assert ("NAT gateway", "Internet") in edges


@pytest.mark.slow
def test_a_hub_shows_its_peering_and_the_next_hop(tmp_path: Path) -> None:
    """All that subnets let out goes to the hub's firewall."""
    hub = {"peer": f"{HUB}/providers/Microsoft.Network/virtualNetworks/vnet-hub"}
    network = {"isolation": "own", "hub_firewall": "10.0.0.4", **hub}
    edges = _edges(changed(tmp_path, network=network))
    assert "0.0.0.0/0" in str(edges["subnet compute 10.60.64.0/18", "next hop 10.0.0.4"])
    assert edges["peered network vnet-hub", "people and machines"] == {"peering"}
    assert not any("NAT gateway" in ends for ends in edges)


@pytest.mark.parametrize("stack", ["dev", "prod", "staging"])
def test_the_diagram_of_every_stack_is_small_enough_to_read(stack: str) -> None:
    assert 5 < len(_edges(own()[stack])) < 25
