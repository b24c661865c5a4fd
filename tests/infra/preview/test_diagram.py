"""The Mermaid diagrams: every node is declared once, every arrow leads from a node to a node."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.preview.capture import Capture, Resource
from infra.preview.diagram import markdown, page
from infra.settings.workflows import OF_THE_PROGRAM, ROLE_MANAGERS
from tests.infra.programs import changed, own

STACK = Resource("urn:stack", "pulumi:pulumi:Stack", "platform-dev", "", {}, custom=False)
NODE = re.compile(r'(n\d+)\["([^"]*)"\]')
EDGE = re.compile(r'(n\d+) -->(?:\|"([^"]*)"\|)? (n\d+)')
GROUP = re.compile(r'subgraph g\d+\["([^"]*)"\]')
OWNER = ROLE_MANAGERS["Owner"]
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
    prod = _graphs(own()["prod"])
    access = next(text for title, text in prod.items() if title.startswith(ACCESS))
    starts = [edge[1] for edge in EDGE.finditer(access) if edge[2] == "OIDC"]
    environments = [node[2] for node in NODE.finditer(access) if node[1] in starts]
    assert [text.rpartition("<br/>")[2] for text in environments] == [
        f"prod-{purpose}" for purpose in ("release", "train", "watch")
    ]
    assert len(starts) == len({*starts})
    assert edges["train", "workspace"] == {"Job Submitter"}
    assert edges["release", "workspace"] == {"Releaser", "Monitoring Reader"}
    assert edges["cluster-image-builder", "images"] == {"AcrPush"}
    # Three clusters with equal roles share a node.
    storage = {"Blob Writer", "Queue Data Contributor", "Table Data Contributor"}
    assert edges["cluster-cpu-cluster", "workspace-storage"] == storage
    assert not [edge for edge in edges if edge[0] in ("cluster-gpu-spot", "workspace")]
    services = _edges(own()["prod"], SERVICES)
    assert services["encryption", "vault"] == {"Key Vault Crypto Service Encryption User"}
    assert "Contributor" in services["workspace", "images"]


def test_a_description_does_not_name_the_role() -> None:
    """The id of the role does: Azure grants that one."""
    capture = own()["dev"]
    owner = "/subscriptions/x/providers/Microsoft.Authorization/roleDefinitions"
    resources = tuple(
        replace(one, inputs={**one.inputs, "roleDefinitionId": f"{owner}/{OWNER.upper()}"})
        if one.name == "train-workspace"
        else one
        for one in capture.resources
    )
    assert _edges(replace(capture, resources=resources), ACCESS)["train", "workspace"] == {"Owner"}


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
    edges = _edges(capture, NETWORK)
    ends = {end for start, end in edges if start == "c"}
    for rule in rules.values():
        destination = rule["destination"]
        if isinstance(destination, dict) and destination.get("serviceResourceId"):
            continue
        if isinstance(destination, dict) and destination.get("serviceTag"):
            assert destination.get("action") == "Deny" or "allowed service tags" in ends
        elif not destination or isinstance(destination, str):
            assert "allowed hosts" in ends


def test_every_role_assignment_is_in_a_diagram() -> None:
    """Each is one label, or shares it with those of identities with equal roles."""
    roles = {
        (one.inputs["roleDefinitionId"], one.inputs["scope"])
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
