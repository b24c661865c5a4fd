"""Resources that a stack is given: there, large enough, linked, and allowed; and each fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.live.arm import Arm
from infra.live.existing import check_existing, required_permissions
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
RUNNERS = f"{PEER}/subnets/runners"
SCOPE = f"{HUB}/providers/Microsoft.Insights/privateLinkScopes/ampls"
INSIGHTS = "/subscriptions/{}/resourceGroups/rg/providers/Microsoft.Insights/components/appi"
PERMISSIONS = "providers/Microsoft.Authorization/permissions"
DECLARED = [
    resource("network:PrivateEndpoint", "lake-blob"),
    resource(
        "network:PrivateDnsZoneGroup", "names", privateDnsZoneConfigs=[{"privateDnsZoneId": ZONE}]
    ),
    resource(
        "applicationinsights:Component", "insights", resourceGroupName="rg", resourceName="appi"
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
    # As GitHub sets it up for the runners that it hosts.
    delegated = [{"properties": {"serviceName": "GitHub.Network/networkSettings"}}]
    state.resources[RUNNERS] = subnet("runners", addressPrefix="10.9.1.0/28", delegations=delegated)
    state.resources[SPOKE] = {
        "location": "West Europe",
        "properties": {"subnets": subnets, "virtualNetworkPeerings": [{"properties": peering}]},
    }
    group = f"/subscriptions/{settings.subscription}/resourceGroups/rg-landing"
    for id in (group, LOGS, IMAGES, VAULT, f"{VAULT}/keys/of-storage", ZONE, SCOPE):
        state.resources[id] = {"id": id}
    link = {"properties": {"virtualNetwork": {"id": PEER}}}
    state.lists[f"{ZONE}/virtualNetworkLinks"] = [link]
    linked = {"linkedResourceId": INSIGHTS.format(settings.subscription).upper()}
    state.lists[f"{SCOPE}/scopedResources"] = [{"properties": linked}]
    ready = replace(
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
            runners="ml-private",
            runners_subnet=RUNNERS,
        ),
        monitoring=Monitoring(workspace=LOGS, private_link_scope=SCOPE),
        images=Images(registry=IMAGES),
        vault=Vault(id=VAULT, key="of-storage"),
        storage=replace(settings.storage, customer_managed_key=True),
    )
    for _, id in required_permissions(ready):
        state.lists[f"{id}/{PERMISSIONS}"] = [{"actions": ["*"]}]
    return ready


def faults(landing: Settings, arm: Arm, declared: list[Resource] | None = None) -> dict[str, str]:
    found = check_existing(landing, DECLARED if declared is None else declared, arm)
    return {one.name: one.message for one in found if one.verdict != "ok"}


def test_what_is_ready_passes(landing: Settings, arm: Arm, state: State) -> None:
    assert faults(landing, arm) == {}
    assert all(method == "GET" for method, *_ in state.asked), "nothing is changed"


def test_a_stack_of_its_own_asks_nothing(settings: Settings, arm: Arm, state: State) -> None:
    assert list(check_existing(settings, DECLARED, arm)) == [] and state.asked == []


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


def _with_runners(**properties: Any) -> Callable[[State], object]:
    return lambda state: state.resources[RUNNERS]["properties"].update(properties)


NODES = "platform:network.compute_subnet"
OF_RUNNERS = "platform:network.runners_subnet"


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        (_without(SPOKE), "network", "does not exist"),
        (_without(LOGS), "log workspace", "does not exist"),
        (_without(IMAGES), "container registry", "does not exist"),
        (_without(VAULT), "vault", "does not exist"),
        (_without(SCOPE), "private link scope", "does not exist"),
        (
            lambda state: state.lists[f"{SCOPE}/scopedResources"].clear(),
            *("private link to insights", "does not contain /subscriptions/"),
        ),
        (_without(f"{VAULT}/keys/of-storage"), "key of-storage", "does not exist"),
        (_without(ZONE), "zone privatelink.blob.core.windows.net", "does not exist"),
        (
            lambda state: state.lists[f"{ZONE}/virtualNetworkLinks"].clear(),
            *("zone privatelink.blob.core.windows.net", "linked neither to the network"),
        ),
        (_peered, "peering with the hub", "its state is Disconnected"),
        (
            lambda state: state.resources[SPOKE]["properties"]["virtualNetworkPeerings"].clear(),
            *("peering with the hub", "the network has no peering with the hub"),
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
        (_without(RUNNERS), OF_RUNNERS, "the network has no such subnet"),
        (
            _with_runners(addressPrefix="10.9.1.0/29"),
            *(OF_RUNNERS, "3 free addresses, 11 are needed"),
        ),
        (
            _with_runners(delegations=[{"properties": {"serviceName": "Microsoft.Web"}}]),
            *(OF_RUNNERS, "it is delegated to Microsoft.Web"),
        ),
        (_with_runners(networkSecurityGroup=None), OF_RUNNERS, "it has no security group"),
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


def test_runners_in_their_subnet_take_no_address_from_others(
    landing: Settings, arm: Arm, state: State
) -> None:
    _with_runners(delegations=None, ipConfigurations=[{}] * 9)(state)
    assert faults(landing, arm) == {}


def test_a_right_that_is_missing_is_named(landing: Settings, arm: Arm, state: State) -> None:
    for path in [path for path in state.lists if path.endswith(PERMISSIONS)]:
        state.lists[path] = [{"actions": ["*/read"]}]
    hints = {one.hint for one in check_existing(landing, DECLARED, arm) if "permission" in one.name}
    assert all("ask its owner" in hint for hint in hints), "no bootstrap's"
    assert {name.rpartition("/")[0] for name in faults(landing, arm)} == {
        "permission Microsoft.Network/virtualNetworks/subnets/join",
        "permission Microsoft.Network/privateDnsZones/join",
        "permission Microsoft.Authorization/roleAssignments",
        "permission Microsoft.OperationalInsights/workspaces/sharedKeys",
    }


@pytest.mark.parametrize("of", ["subnet", "compute_subnet", "runners_subnet"])
def test_a_right_on_another_resource_does_not_count(
    of: str, landing: Settings, arm: Arm, state: State
) -> None:
    """The owner of a hub grants a role on a subnet, and none on the subscription."""
    id = getattr(landing.network, of)
    state.lists[f"{id}/{PERMISSIONS}"] = []
    join = "permission Microsoft.Network/virtualNetworks/subnets/join/action"
    assert faults(landing, arm) == {join: f"not granted on {id.rpartition('/')[2]}"}
