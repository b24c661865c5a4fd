"""Resources that a stack is given: there, large enough, linked, and allowed; and each fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.live.arm import Arm
from infra.live.given import given
from infra.preview.capture import Resource
from infra.settings.model import Images, Monitoring, Network, Settings, Vault
from tests.infra.live.declared import resource
from tests.stand_ins.arm_server import State

HUB = "/subscriptions/22222222-2222-4222-8222-222222222222/resourceGroups/rg-hub"
SPOKE = f"{HUB}/providers/Microsoft.Network/virtualNetworks/vnet-spoke"
PEER = f"{HUB}/providers/Microsoft.Network/virtualNetworks/vnet-hub"
LOGS = f"{HUB}/providers/Microsoft.OperationalInsights/workspaces/log-central"
IMAGES = f"{HUB}/providers/Microsoft.ContainerRegistry/registries/crcentral"
VAULT = f"{HUB}/providers/Microsoft.KeyVault/vaults/kv-central"
ZONE = f"{HUB}/providers/Microsoft.Network/privateDnsZones/privatelink.blob.core.windows.net"
DECLARED = [
    resource("network:PrivateEndpoint", "lake-blob"),
    resource(
        "network:PrivateDnsZoneGroup", "names", privateDnsZoneConfigs=[{"privateDnsZoneId": ZONE}]
    ),
]


def subnet(name: str, **properties: Any) -> dict[str, Any]:
    fine = {"addressPrefix": "10.9.0.0/27", "networkSecurityGroup": {"id": "nsg"}}
    return {"id": f"{SPOKE}/subnets/{name}", "properties": {**fine, **properties}}


@pytest.fixture
def landing(settings: Settings, state: State) -> Settings:
    """A stack of a landing zone that is ready for it."""
    peering = {"remoteVirtualNetwork": {"id": PEER.upper()}, "peeringState": "Connected"}
    subnets = [subnet("ml"), subnet("nodes")]
    state.resources[SPOKE] = {
        "location": "West Europe",
        "properties": {"subnets": subnets, "virtualNetworkPeerings": [{"properties": peering}]},
    }
    group = f"/subscriptions/{settings.subscription}/resourceGroups/rg-landing"
    for id in (group, LOGS, IMAGES, VAULT, f"{VAULT}/keys/of-storage", ZONE):
        state.resources[id] = {"id": id}
    link = {"properties": {"virtualNetwork": {"id": PEER}}}
    state.lists[f"{ZONE}/virtualNetworkLinks"] = [link]
    state.lists[
        f"{HUB.partition('/resourceGroups')[0]}/providers/Microsoft.Authorization/permissions"
    ] = [{"actions": ["*"]}]
    return replace(
        settings,
        exposure="private",
        resource_group="rg-landing",
        network=Network(
            isolation="own",
            virtual_network=SPOKE,
            subnet=f"{SPOKE}/subnets/ml",
            compute_subnet=f"{SPOKE}/subnets/nodes",
            private_dns_zones=HUB,
            peer=PEER,
        ),
        monitoring=Monitoring(workspace=LOGS),
        images=Images(registry=IMAGES),
        vault=Vault(id=VAULT, key="of-storage"),
        storage=replace(settings.storage, customer_managed_key=True),
    )


def faults(landing: Settings, arm: Arm, declared: list[Resource] | None = None) -> dict[str, str]:
    found = given(landing, DECLARED if declared is None else declared, arm)
    return {one.name: one.message for one in found if one.verdict != "ok"}


def test_what_is_ready_passes(landing: Settings, arm: Arm, state: State) -> None:
    assert faults(landing, arm) == {}
    assert all(method == "GET" for method, *_ in state.asked), "nothing is changed"


def test_a_stack_of_its_own_asks_nothing(settings: Settings, arm: Arm, state: State) -> None:
    assert list(given(settings, DECLARED, arm)) == [] and state.asked == []


def _without(id: str) -> Callable[[State], object]:
    return lambda state: state.resources.pop(id)


def _with(name: str, **properties: Any) -> Callable[[State], object]:
    def change(state: State) -> None:
        listed = state.resources[SPOKE]["properties"]["subnets"]
        listed[:] = [one for one in listed if not one["id"].endswith(name)]
        listed.append(subnet(name, **properties))

    return change


def _peered(state: State) -> None:
    peerings = state.resources[SPOKE]["properties"]["virtualNetworkPeerings"]
    peerings[0]["properties"]["peeringState"] = "Disconnected"


NODES = "platform:network.compute_subnet"


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        (_without(SPOKE), "network", "does not exist"),
        (_without(LOGS), "log workspace", "does not exist"),
        (_without(IMAGES), "container registry", "does not exist"),
        (_without(VAULT), "vault", "does not exist"),
        (_without(f"{VAULT}/keys/of-storage"), "key of-storage", "does not exist"),
        (_without(ZONE), "zone privatelink.blob.core.windows.net", "does not exist"),
        (
            lambda state: state.lists[f"{ZONE}/virtualNetworkLinks"].clear(),
            *("zone privatelink.blob.core.windows.net", "linked neither to the network"),
        ),
        (_peered, "peering with the hub", "its state is Disconnected"),
        (
            lambda state: state.resources[SPOKE]["properties"]["virtualNetworkPeerings"].clear(),
            *("peering with the hub", "the network has none"),
        ),
        (
            lambda state: state.resources[SPOKE].update(location="northeurope"),
            *("network", "the network is in northeurope"),
        ),
        (_with("nodes", addressPrefix="10.9.0.0/29"), NODES, "3 free addresses, 7 are needed"),
        (_with("nodes", ipConfigurations=[{}] * 25), NODES, "2 free addresses, 7 are needed"),
        (
            _with("nodes", delegations=[{"properties": {"serviceName": "Microsoft.Web"}}]),
            *(NODES, "it is delegated to Microsoft.Web"),
        ),
        (_with("nodes", networkSecurityGroup=None), NODES, "it has no security group"),
        (
            lambda state: state.resources[SPOKE]["properties"]["subnets"].pop(),
            *(NODES, "the network has no such subnet"),
        ),
    ],
)
def test_what_does_not_fit_is_named(
    change: Callable[[State], object],
    name: str,
    message: str,
    landing: Settings,
    arm: Arm,
    state: State,
) -> None:
    change(state)
    found = faults(landing, arm)
    assert list(found) == [name] and message in found[name]


def test_a_right_that_is_missing_is_named(landing: Settings, arm: Arm, state: State) -> None:
    (permissions,) = (
        path for path in state.lists if "22222222" in path and "Authorization" in path
    )
    state.lists[permissions] = [{"actions": ["*/read"]}]
    hints = {one.hint for one in given(landing, DECLARED, arm) if "permission" in one.name}
    assert all("ask the owner of the subscription" in hint for hint in hints), "no bootstrap's"
    assert {name.rpartition("/")[0] for name in faults(landing, arm)} == {
        "permission Microsoft.Network/virtualNetworks/subnets/join",
        "permission Microsoft.Network/privateDnsZones/join",
        "permission Microsoft.Authorization/roleAssignments",
    }
