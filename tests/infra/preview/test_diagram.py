"""The Mermaid diagrams: every node is declared once, every arrow leads from a node to a node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from infra.preview.capture import Capture, Resource
from infra.preview.diagram import markdown, page
from infra.settings.workflows import OF_THE_PROGRAM
from tests.infra.programs import changed, own

STACK = Resource("urn:stack", "pulumi:pulumi:Stack", "platform-dev", "", {}, custom=False)
NODE = re.compile(r'(n\d+)\["([^"]*)"\]')
EDGE = re.compile(r'(n\d+) -->(?:\|"([^"]*)"\|)? (n\d+)')
GROUP = re.compile(r'subgraph g\d+\["([^"]*)"\]')
ACCESS, SERVICES, NETWORK = "Access: roles of people", "Access: roles of Azure", "Network:"


def _resource(name: str, kind: str, **inputs: Any) -> Resource:
    return Resource(f"urn:{name}", f"azure-native:{kind}", name, STACK.urn, inputs)


def _graphs(capture: Capture) -> dict[str, str]:
    """The Mermaid text of each diagram, by its title."""
    text = "\n".join(markdown(capture))
    return dict(re.findall(r"\*\*(.+?)\*\*\n+```mermaid\n(.*?)\n```", text, re.S))


def _edges(capture: Capture, title: str) -> dict[tuple[str, str], set[str]]:
    """Labels by the first lines of both nodes; fails on a line that is not Mermaid's."""
    graph = next(text for name, text in _graphs(capture).items() if name.startswith(title))
    nodes, edges = {}, {}
    head, *lines = graph.splitlines()
    assert head == "flowchart LR"
    for line in map(str.strip, lines):
        if node := NODE.fullmatch(line):
            assert node[1] not in nodes
            nodes[node[1]] = node[2].split("<br/>")[0]
        elif edge := EDGE.fullmatch(line):
            labels = set(re.split(r"<br/>|, ", edge[2] or ""))
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
    assert ("subnet endpoints 10.0.0.0/18", "#lt;b#gt;#quot;]; click") in _edges(capture, NETWORK)


def test_a_diagram_without_arrows_is_left_out() -> None:
    assert _graphs(Capture("dev", (STACK,), {})) == {}
    assert page(Capture("dev", (STACK,), {})) == "# dev\n"


def test_role_assignments_show_who_has_which_roles() -> None:
    edges = _edges(own()["prod"], ACCESS)
    for purpose in OF_THE_PROGRAM:
        assert edges["GitHub Actions", purpose] == {"OIDC"}
    assert edges["train", "workspace"] == {"Job Submitter"}
    assert edges["release", "workspace"] == {"Releaser", "Monitoring Reader"}
    assert edges["cluster-image-builder", "images"] == {"AcrPush"}
    # Three clusters with equal roles share a node.
    storage = {"Blob Data Contributor", "Queue Data Contributor", "Table Data Contributor"}
    assert edges["cluster-cpu-cluster", "workspace-storage"] == storage
    assert not [edge for edge in edges if edge[0] in ("cluster-gpu-spot", "workspace")]
    services = _edges(own()["prod"], SERVICES)
    assert services["encryption", "vault"] == {"Key Vault Crypto Service Encryption User"}
    assert "Contributor" in services["workspace", "images"]


def test_every_role_assignment_is_in_a_diagram() -> None:
    """Each is one label, or shares it with those of identities with equal roles."""
    roles = {
        (str(one.inputs["description"]).partition(":")[0], one.inputs["scope"])
        for one in own()["prod"].provided
        if one.kind == "authorization:RoleAssignment"
    }
    capture = own()["prod"]
    labels = {
        (label, end)
        for title in (ACCESS, SERVICES)
        for (_, end), texts in _edges(capture, title).items()
        for label in texts
        if label != "OIDC"
    }
    endpoints = [scope for _, scope in roles if "PrivateEndpoint:" in str(scope)]
    assert len(labels) == len(roles) - len(endpoints) + 1


def test_a_private_network_shows_endpoints_and_the_firewall() -> None:
    edges = _edges(own()["prod"], NETWORK)
    assert edges["subnet endpoints 10.62.0.0/18", "lake"] == {"blob", "dfs"}
    assert edges["people and machines", "subnet endpoints 10.62.0.0/18"] == {"private addresses"}
    assert edges["cpu-cluster", "workspace-storage"] == {"blob", "file", "queue", "table"}
    assert edges["cpu-cluster", "allowed hosts"] == {"firewall Standard"}
    assert not [edge for edge in edges if "Internet" in edge]


def test_a_starter_shows_its_public_addresses() -> None:
    edges = _edges(own()["dev"], NETWORK)
    assert edges["Internet", "lake"] == {"Entra sign-in"}
    assert edges["cpu-cluster", "Internet"] == {"outbound"}


@pytest.mark.slow
def test_our_own_network_shows_subnets_and_the_nat_gateway(tmp_path: Path) -> None:
    person = "6f8d2c1e-0000-4000-8000-000000000002"
    vm = {"name": "bob", "kind": "data-science-vm", "person": person, "ssh_key": "ssh-ed25519 A"}
    capture = changed(tmp_path, network={"isolation": "own"}, workstations=[vm])
    edges = _edges(capture, NETWORK)
    assert edges["subnet compute 10.60.64.0/18", "NAT gateway"] == {"10 Azure service tags"}
    assert "Internet" in edges["subnet workstations 10.60.128.0/18", "NAT gateway"]
    assert ("NAT gateway", "Internet") in edges
    assert _edges(capture, ACCESS)["person 6f8d2c1e…", "bob"] == {"Virtual Machine User Login"}


@pytest.mark.parametrize("stack", ["dev", "prod", "staging"])
def test_the_diagrams_of_every_stack_are_small_enough_to_read(stack: str) -> None:
    for title in _graphs(own()[stack]):
        assert 5 < len(_edges(own()[stack], title)) < 25
