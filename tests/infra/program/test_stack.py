"""The program: every stack, and every option of the settings, against the stand-in engine."""

from __future__ import annotations

import asyncio
import fnmatch
import importlib
import inspect
import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi_azure_native import machinelearningservices

from infra.live.addresses import Addresses
from infra.preview.capture import SECRET, Capture, Resource, changes
from infra.preview.sdk_types import problems
from infra.program import access, registries
from infra.settings.loader import configuration, configured, environments, load, stacks
from infra.settings.workflows import BLOB_WRITER, ON_REGISTRY, RELEASES, role_name, writes_only
from ml.core.errors import UserError
from tests.conftest import ROOT
from tests.infra.programs import (
    ACCOUNTS,
    HUB,
    LANDING_ZONE,
    SCOPE,
    SHARED,
    SPOKE,
    capture,
    changed,
    own,
)
from tests.infra.programs import registry as answered

pytestmark = pytest.mark.slow


def _kinds(found: Capture, kind: str) -> dict[str, Resource]:
    return {one.name: one for one in found.provided if one.kind == kind}


def _sound(found: Capture) -> None:
    """No disorder, no input that the SDK's types refuse, and all of it can be found in Azure."""
    assert problems(found.provided) == [] and found.problems == ()
    addresses = Addresses(found.provided, "00000000-0000-0000-0000-000000000000")
    assert all(addresses.place(one).id for one in found.provided)


@pytest.mark.parametrize("stack", ["dev", "prod", "shared", "staging"])
def test_every_stack_is_valid(stack: str) -> None:
    """Every resource belongs to a component."""
    found = own()[stack]
    _sound(found)
    assert [one.name for one in found.provided if not found.component(one)] == ["group"]


def test_the_launchers_shortcut_changes_nothing() -> None:
    """For the whole program, with all its aliases."""
    assert own()["prod"] == capture("prod", bare=True)


OTHERS = """
import dataclasses
from infra.program import stack

def renamed(kind):
    return lambda name, *given, **options: kind(f"other-{name}", *given, **options)

for key, kind in list(vars(stack).items()):
    if isinstance(kind, type) and issubclass(kind, pulumi.ComponentResource):
        setattr(stack, key, renamed(kind))
provision(dataclasses.replace(settings, environment="other", resource_group="rg-other"), None)
"""


@pytest.mark.parametrize("isolation", ["managed", "own"])
def test_two_instances_of_a_component_do_not_collide(isolation: str, tmp_path: Path) -> None:
    """With every option: each component of the stack, and another one of it."""
    person = {"person": "6f8d2c1e-0000-4000-8000-000000000002"}
    vm = {"name": "bob", **person, "kind": "data-science-vm", "ssh_key": "ssh-ed25519 AAAA bob"}
    first = changed(
        tmp_path,
        network={"isolation": isolation, "runners": "ml-private"},
        storage={"nfs_share_gib": 100, "customer_managed_key": True, "delete_after_days": 90},
        feature_store={"mode": "create", "redis": "Balanced_B1"},
        workstations=[{"name": "ada", **person}, vm],
    )
    with (tmp_path / "infra" / "__main__.py").open("a") as program:
        program.write(OTHERS)
    both = capture("test", root=tmp_path)
    assert both.problems == ()
    assert {one.name for one in first.resources} < {one.name for one in both.resources}
    count = len([one for one in first.provided if one.kind != "resources:ResourceGroup"])
    assert len(both.provided) - len(first.provided) == count


def test_the_program_is_at_most_fifty_lines() -> None:
    assert len((ROOT / "infra" / "__main__.py").read_text().splitlines()) <= 50


def test_private_and_starter_differ_by_one_flag() -> None:
    assert _kinds(own()["staging"], "network:PrivateEndpoint").keys() == {
        *("images-registry", "lake-blob", "lake-dfs", "vault-vault", "workspace-amlworkspace"),
        *("workspace-storage-blob", "workspace-storage-file"),
        *("assets-amlregistry", "assets-blob", "assets-registry", "scope-azuremonitor"),
    }
    assert not [one for one in own()["dev"].provided if one.kind.startswith("network:")]
    workspaces = [
        _kinds(own()[stack], "machinelearningservices:Workspace")["workspace"].inputs
        for stack in ("dev", "staging")
    ]
    assert [one["publicNetworkAccess"] for one in workspaces] == ["Enabled", "Disabled"]
    assert [one["managedNetwork"]["isolationMode"] for one in workspaces] == [
        "AllowInternetOutbound",
        "AllowOnlyApprovedOutbound",
    ]


def test_private_endpoints_are_created_one_after_another() -> None:
    """Azure refuses some of several concurrent ones, and the provider does not retry."""
    endpoints = [*_kinds(own()["prod"], "network:PrivateEndpoint").values()]
    urns = {one.urn for one in endpoints}
    before = [len(urns & set(one.dependencies)) for one in endpoints]
    assert sorted(before) == [0, *[1] * (len(endpoints) - 1)], "one begins, each waits for another"
    assert len({one for each in endpoints for one in urns & set(each.dependencies)}) == sum(before)


def _in_between(found: Capture) -> list[tuple[str, str]]:
    """Private endpoints, each with a write of their account or vault that may come at a time."""
    return [
        (endpoint.name, one.name)
        for endpoint in _kinds(found, "network:PrivateEndpoint").values()
        for target in endpoint.uses.get("privateLinkServiceConnections", ())
        for one in found.provided
        if one.kind.startswith(("storage:", "keyvault:", "security:Defender"))
        and one.kind != "storage:StorageAccount"
        and target in one.dependencies
        and one.urn not in endpoint.dependencies
    ]


def test_a_private_endpoint_waits_for_other_writes_to_its_target() -> None:
    """They accept one write at a time, and an endpoint created in between fails for good."""
    assert _in_between(own()["prod"]) == []


@pytest.mark.parametrize("stack", ["prod", "staging"])
def test_the_workspace_and_its_clusters_wait_for_private_endpoints(stack: str) -> None:
    """The managed network adds endpoints to the same resources; clusters use the workspace's."""
    names = _kinds(own()[stack], "network:PrivateDnsZoneGroup")
    last = names.pop("workspace-amlworkspace-names").urn
    workspace = _kinds(own()[stack], "machinelearningservices:Workspace")["workspace"]
    assert names and {one.urn for one in names.values()} <= set(workspace.dependencies)
    for cluster in _kinds(own()[stack], "machinelearningservices:Compute").values():
        assert last in cluster.dependencies


def test_a_workspace_may_have_our_key_and_a_high_business_impact(tmp_path: Path) -> None:
    """The key is made for it alone, too; without the settings it has neither."""
    kind = "machinelearningservices:Workspace"
    plain = _kinds(own()["staging"], kind)["workspace"].inputs
    assert not {"encryption", "hbiWorkspace", "enableServiceSideCMKEncryption"} & plain.keys()
    both = {"customer_managed_key": True, "high_business_impact": True, "generation": 2}
    found = changed(tmp_path, workspace=both, storage={"redundancy": "GZRS"})
    _sound(found)
    inputs = _kinds(found, kind)["workspace"].inputs
    assert inputs["hbiWorkspace"] and inputs["enableServiceSideCMKEncryption"]
    assert inputs["workspaceName"] == "mlw-mlplat-test-2"
    assert inputs["encryption"] == {
        "status": "Enabled",
        "identity": {"userAssignedIdentity": "${UserAssignedIdentity:workspace.id}"},
        "keyVaultProperties": {
            "keyVaultArmId": "${Vault:vault.id}",
            "keyIdentifier": "${Key:storage-key.keyUriWithVersion}",
        },
    }


def test_accounts_with_a_customer_key_wait_for_its_role() -> None:
    """The role takes effect after minutes; other private endpoints fill the time."""
    names = _kinds(own()["prod"], "network:PrivateDnsZoneGroup")
    others = {names[f"{one}-names"].urn for one in ("vault-vault", "images-registry")}
    others.add(names["assets-amlregistry-names"].urn)
    right = _kinds(own()["prod"], "authorization:RoleAssignment")["encryption-vault"].urn
    for account in _kinds(own()["prod"], "storage:StorageAccount").values():
        assert {right, *others} <= set(account.dependencies)


def test_the_workspace_waits_for_the_roles_of_its_identity() -> None:
    found = own()["staging"]
    workspace = _kinds(found, "machinelearningservices:Workspace")["workspace"]
    rights = {
        one.urn
        for one in found.provided
        if one.kind == "authorization:RoleAssignment" and found.component(one) == "rights"
    }
    assert rights and rights <= set(workspace.dependencies)


@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_clusters_wait_for_the_workspaces_role_on_itself(stack: str) -> None:
    """The workspace's identity creates them; the role needs the workspace first."""
    right = _kinds(own()[stack], "authorization:RoleAssignment")["workspace-itself"]
    for cluster in _kinds(own()[stack], "machinelearningservices:Compute").values():
        assert right.urn in cluster.dependencies


def test_a_person_with_several_instances_has_each_role_once(tmp_path: Path) -> None:
    """Azure refuses a second assignment; a virtual machine is a scope of its own."""
    person = "6f8d2c1e-0000-4000-8000-00000000abcd"
    found = changed(
        tmp_path,
        workstations=[
            {"name": "ada-cpu", "person": person},
            {"name": "ada-gpu", "person": person.upper()},
            {"name": "bob", "person": "6f8d2c1e-0000-4000-8000-000000000002"},
        ],
    )
    granted = [
        (one.inputs["principalId"].lower(), one.inputs["roleDefinitionId"], one.inputs["scope"])
        for one in _kinds(found, "authorization:RoleAssignment").values()
    ]
    assert len(set(granted)) == len(granted)
    assert sum(principal == person for principal, _, _ in granted) == 4


def test_what_needs_a_role_waits_until_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure answers minutes before a new role counts; one that is there is not waited for."""
    for found in (own()["dev"], own()["prod"]):
        for one in _kinds(found, "authorization:RoleAssignment").values():
            assert one.hooks == (f"{found.component(one)}-count",), one.name
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    nothing: Any = None
    asyncio.run(access.wait_for_propagation(nothing))
    assert waits == [120]


@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_the_managed_network_comes_after_the_workspaces_roles(stack: str) -> None:
    """With the first cluster, which waits for the roles on the workspace; others wait for it."""
    found = own()[stack]
    workspace = _kinds(found, "machinelearningservices:Workspace")["workspace"].inputs
    assert workspace["provisionNetworkNow"] is False
    clusters = [*_kinds(found, "machinelearningservices:Compute").values()]
    urns = {one.urn for one in clusters}
    (first,) = (one for one in clusters if not urns & {*one.dependencies})
    assert first.options == {"customTimeouts": 'create: "100m"\n'}  # the workflow ends after 120
    others = [one for one in clusters if one is not first]
    rights = {
        one.urn
        for one in found.provided
        if one.kind == "authorization:RoleAssignment" and found.component(one) == "workspace-rights"
    }
    assert rights <= {*first.dependencies}
    assert others and all({first.urn, *rights} <= {*one.dependencies} for one in others)


def test_every_component_takes_options() -> None:
    """A fork's program may protect one, or give it another provider."""
    modules = [path.stem for path in (ROOT / "infra/program").glob("*.py")]
    found = [
        kind
        for name in modules
        for kind in vars(importlib.import_module(f"infra.program.{name}")).values()
        if isinstance(kind, type) and issubclass(kind, pulumi.ComponentResource)
    ]
    assert len(found) > 13
    assert all("opts" in inspect.signature(kind).parameters for kind in found)
    code = "".join((ROOT / f"infra/program/{name}.py").read_text() for name in modules)
    assert code.count("super().__init__(") == code.count(", name, opts, ") + 1  # and the base's
    assert 'super().__init__(f"platform:{kind}", name, props, opts)' in code


def test_each_cluster_has_an_identity_of_its_own() -> None:
    clusters = _kinds(own()["prod"], "machinelearningservices:Compute").values()
    held = [one.inputs["identity"]["userAssignedIdentities"][0] for one in clusters]
    assert len(set(held)) == len(held) == 5


def test_a_private_registry_has_a_cluster_that_builds_images() -> None:
    """Only it may push; it has the workspace's storage like any cluster, and not the lake."""
    found = own()["prod"]
    workspace = _kinds(found, "machinelearningservices:Workspace")["workspace"].inputs
    computes = _kinds(found, "machinelearningservices:Compute")
    assert workspace["imageBuildCompute"] == computes["image-builder"].inputs["computeName"]
    rights = {
        name: one.inputs["description"].partition(":")[0]
        for name, one in _kinds(found, "authorization:RoleAssignment").items()
    }
    assert [name for name, role in rights.items() if role == "AcrPush"] == [
        "cluster-image-builder-images"
    ]
    own_rights = {name: role for name, role in rights.items() if "image-builder" in name}
    assert own_rights == {
        "cluster-image-builder-images": "AcrPush",
        "cluster-image-builder-storage": "AzureML Blob Writer",
    }
    starter = _kinds(own()["dev"], "machinelearningservices:Workspace")["workspace"].inputs
    assert "imageBuildCompute" not in starter


def test_the_resource_group_has_no_lock() -> None:
    scopes = {
        one.inputs["scope"]
        for one in _kinds(own()["prod"], "authorization:ManagementLockByScope").values()
    }
    assert len(scopes) == 4 and not any("ResourceGroup" in one for one in scopes)


def test_a_budget_of_another_month_is_another_budget() -> None:
    """Azure refuses to change the start of an existing one."""
    budget = _kinds(own()["prod"], "consumption:Budget")["budget"].inputs
    assert budget["timePeriod"] == {"startDate": "2026-12-01T00:00:00Z"}
    assert budget["budgetName"] == "budget-mlplat-prod-2026-12"


def test_one_stack_creates_the_registry_and_environments_use_it() -> None:
    made = {
        stack: len(_kinds(found, "machinelearningservices:Registry"))
        for stack, found in own().items()
    }
    assert made == {"dev": 0, "prod": 0, "shared": 1, "staging": 0}
    (region,) = _kinds(own()["shared"], "machinelearningservices:Registry")["assets"].inputs[
        "regionDetails"
    ]
    # Azure names what is its own; where the region has no zones, its storage has none either.
    assert region["storageAccountDetails"] == [
        {
            "systemCreatedStorageAccount": {
                "storageAccountType": "Standard_GZRS",
                "storageAccountHnsEnabled": False,
                "allowBlobPublicAccess": False,
            }
        }
    ]
    assert region["acrDetails"] == [{"systemCreatedAcrAccount": {"acrAccountSku": "Premium"}}]
    scope = _kinds(own()["dev"], "authorization:RoleAssignment")[
        "cluster-cpu-cluster-assets"
    ].inputs
    assert scope["scope"].endswith("/registries/mlplat-shared")


def test_our_own_subnet_replaces_the_managed_network(tmp_path: Path) -> None:
    found = changed(tmp_path, network={"isolation": "own", "service_endpoints": True})
    _sound(found)
    cluster = _kinds(found, "machinelearningservices:Compute")["cpu-cluster"]
    assert cluster.inputs["properties"]["properties"]["subnet"]["id"].endswith("/subnets/compute")
    builder = _kinds(found, "machinelearningservices:Compute")["image-builder"]
    assert builder.inputs["properties"]["properties"]["subnet"]["id"].endswith("/subnets/builds")
    workspace = _kinds(found, "machinelearningservices:Workspace")["workspace"].inputs
    without = workspace["serverlessComputeSettings"]
    assert without["serverlessComputeCustomSubnet"].endswith("/subnets/compute"), "of no cluster"
    assert without["serverlessComputeNoPublicIP"] is True
    assert _ways_out(found) == {"compute", "workstations", "builds"}
    assert _ways_out(own()["prod"]) == set(), "the managed network has one of its own"
    subnets = _kinds(found, "network:VirtualNetwork")["virtual-network"].inputs["subnets"]
    reached = {each["service"] for one in subnets for each in one["serviceEndpoints"]}
    assert reached == {"Microsoft.Storage", "Microsoft.KeyVault"}, "no rule lets another in"
    assert _held_back(found) == {"endpoints"}, "nodes are refused a subnet with these policies"
    lake = _kinds(found, "storage:StorageAccount")["lake"].inputs
    assert len(lake["networkRuleSet"]["virtualNetworkRules"]) == 1
    names = ("network:PrivateDnsZoneGroup", "privatedns:VirtualNetworkLink")
    led = {one.urn for kind in names for one in _kinds(found, kind).values()}
    for one in (cluster, builder):
        assert led <= set(one.dependencies), "a node without an address needs the private ones"


def test_a_landing_zone_is_used_and_not_changed(tmp_path: Path) -> None:
    """Network, zones, logs, registry, vault and group: none is declared; roles alone are added."""
    found = changed(tmp_path, **LANDING_ZONE)
    given = (
        LANDING_ZONE["monitoring"]["workspace"],
        LANDING_ZONE["images"]["registry"],
        LANDING_ZONE["vault"]["id"],
    )
    _sound(found)
    ours = {one.kind for one in found.provided}
    kinds = {
        *("network:VirtualNetwork", "network:NetworkSecurityGroup", "privatedns:PrivateZone"),
        *("privatedns:VirtualNetworkLink", "operationalinsights:Workspace", "keyvault:Vault"),
        *("containerregistry:Registry", "keyvault:Key", "resources:ResourceGroup"),
    }
    assert not kinds & ours
    attached = [one for one in found.provided for value in one.inputs.values() if value in given]
    assert {one.kind for one in attached} == {
        *(
            "authorization:RoleAssignment",
            "monitor:DiagnosticSetting",
            "applicationinsights:Component",
        ),
        "machinelearningservices:Workspace",
    }
    endpoints = _kinds(found, "network:PrivateEndpoint").values()
    assert {one.inputs["subnet"]["id"] for one in endpoints} == {f"{SPOKE}/subnets/ml"}
    groups = _kinds(found, "network:PrivateDnsZoneGroup").values()
    zones = [zone for one in groups for zone in one.inputs["privateDnsZoneConfigs"]]
    assert all(zone["privateDnsZoneId"].startswith(f"{HUB}/providers/") for zone in zones)
    lake = _kinds(found, "storage:StorageAccount")["lake"].inputs
    key = lake["encryption"]["keyVaultProperties"]
    assert key["keyName"] == "of-storage"
    assert key["keyVaultUri"] == "https://kv-central.vault.azure.net/"
    assert (
        lake["tags"]["DataClassification"] == "internal" and lake["tags"]["managedBy"] == "pulumi"
    )
    assert lake["resourceGroupName"] == "rg-landing"
    assert found.outputs["registryServer"] == "crcentral.azurecr.io"


def _logs_access(found: Capture) -> dict[str, tuple[str, str]]:
    return {
        one.name: (
            one.inputs["publicNetworkAccessForIngestion"],
            one.inputs["publicNetworkAccessForQuery"],
        )
        for kind in ("applicationinsights:Component", "operationalinsights:Workspace")
        for one in _kinds(found, kind).values()
    }


def test_a_private_network_reaches_its_logs_and_no_others() -> None:
    """By a private link scope of its own; a registry alone has no network that could."""
    found = own()["prod"]
    closed, opened = ("Disabled", "Disabled"), ("Enabled", "Enabled")
    assert _logs_access(found) == {"insights": closed, "logs": closed}
    assert _logs_access(own()["dev"]) == {"insights": opened, "logs": opened}
    shared = {"insights": closed, "logs": ("Disabled", "Enabled")}
    assert _logs_access(own()["shared"]) == shared
    linked = _kinds(found, "monitor:PrivateLinkScopedResource")
    endpoint = _kinds(found, "network:PrivateEndpoint")["scope-azuremonitor"]
    assert {one.urn for one in linked.values()} < set(endpoint.dependencies)
    assert {one.inputs["linkedResourceId"] for one in linked.values()} == {
        *("${Workspace:logs.id}", "${Component:insights.id}"),
    }
    (scope,) = _kinds(found, "monitor:PrivateLinkScope").values()
    assert set(scope.inputs["accessModeSettings"].values()) == {"PrivateOnly"}
    names = _kinds(found, "network:PrivateDnsZoneGroup")["scope-azuremonitor-names"]
    assert len(names.inputs["privateDnsZoneConfigs"]) == 5


@pytest.mark.parametrize(
    ("settings", "query"),
    [
        ({"network": {"private_dns_zones": HUB}}, "Enabled"),
        ({"monitoring": {"private_link_scope": SCOPE}}, "Disabled"),
        (
            {
                "network": {"private_dns_zones": HUB},
                "monitoring": {"private_link_scope": SCOPE},
            },
            "Disabled",
        ),
    ],
)
def test_a_scope_of_the_hub_is_not_made_again(
    settings: dict[str, Any], query: str, tmp_path: Path
) -> None:
    """A second one would override its names; its owner adds the logs."""
    found = changed(tmp_path, **settings)
    _sound(found)
    assert not [one for one in found.provided if "PrivateLinkScope" in one.kind]
    assert _logs_access(found)["logs"] == ("Disabled", query)


def test_a_workspace_of_another_name_is_adopted(tmp_path: Path) -> None:
    """With its account, which no workspace changes; the lake is the stack's own."""
    names = {"name": "Team_Workspace-1", "storage_account": "teamstore"}
    found = changed(tmp_path, workspace=names)
    _sound(found)
    workspace = _kinds(found, "machinelearningservices:Workspace")["workspace"].inputs
    assert workspace["workspaceName"] == "Team_Workspace-1"
    accounts = _kinds(found, "storage:StorageAccount")
    assert accounts["workspace-storage"].inputs["accountName"] == "teamstore"
    before = _kinds(own()["prod"], "storage:StorageAccount")["lake"].inputs["accountName"]
    assert accounts["lake"].inputs["accountName"][:4] == before[:4] == "stlk"


def test_runners_have_a_subnet_with_a_way_out(tmp_path: Path) -> None:
    """The last quarter is theirs and that of builds; the other ranges stay."""
    found = changed(tmp_path, network={"runners": "ml-private"})
    _sound(found)
    subnets = _kinds(found, "network:VirtualNetwork")["virtual-network"].inputs["subnets"]
    before = _kinds(own()["prod"], "network:VirtualNetwork")["virtual-network"].inputs["subnets"]
    assert [one["name"] for one in subnets] == [*(one["name"] for one in before), "runners"]
    ranges = [ipaddress.ip_network(one["addressPrefix"]) for one in subnets]
    quarters = [ipaddress.ip_network(one["addressPrefix"]) for one in before]
    assert [ranges[:3], [*ipaddress.collapse_addresses(ranges[3:])]] != [quarters[:3], quarters[3:]]
    assert "runners" in _ways_out(found)
    assert _openings(found, "runners", "Inbound", "Allow") == {"VirtualNetwork": {"22"}}
    assert _openings(found, "runners", "Outbound", "Allow") == {"Internet": {"80", "443"}}


def test_a_hub_has_the_peering_and_the_way_out(tmp_path: Path) -> None:
    hub = f"{HUB}/providers/Microsoft.Network/virtualNetworks/vnet-hub"
    network = {
        "isolation": "own",
        "peer": hub,
        "hub_firewall": "10.0.0.4",
        "private_dns_zones": "none",
    }
    found = changed(tmp_path, network=network)
    _sound(found)
    virtual = _kinds(found, "network:VirtualNetwork")["virtual-network"].inputs
    (peering,) = virtual["virtualNetworkPeerings"]
    assert peering["remoteVirtualNetwork"]["id"] == hub
    routed = {one["name"] for one in virtual["subnets"] if one.get("routeTable")}
    assert routed == {"compute", "workstations", "builds"}
    (route,) = _kinds(found, "network:RouteTable")["routes"].inputs["routes"]
    assert (route["addressPrefix"], route["nextHopIpAddress"]) == ("0.0.0.0/0", "10.0.0.4")
    assert not _kinds(found, "network:NatGateway") and not _kinds(found, "privatedns:PrivateZone")
    assert not _kinds(found, "network:PrivateDnsZoneGroup"), "Azure Policy registers the names"


def test_each_allowed_host_has_a_rule_of_its_own(tmp_path: Path) -> None:
    hosts = ["a-b.org", "a.b.org", "*.b.org", "any.b.org"]
    found = changed(tmp_path, network={"allowed_hosts": hosts})
    workspace = _kinds(found, "machinelearningservices:Workspace")["workspace"].inputs
    rules = workspace["managedNetwork"]["outboundRules"].values()
    assert {one["destination"] for one in rules if one["type"] == "FQDN"} == set(hosts)


def test_tags_that_others_set_are_kept(tmp_path: Path) -> None:
    """Of every resource that has tags; those of the stack are still written."""
    kept = ("Data Classification", "application")
    plain, found = changed(tmp_path / "a"), changed(tmp_path / "b", kept_tags=[*kept])
    ignored = {f'tags["{name}"]' for name in kept}
    tagged = [resource for resource in found.provided if resource.inputs.get("tags")]
    assert len(tagged) > 10
    for resource in found.provided:
        expected = (
            ignored if resource in tagged and "tags" not in resource.ignore_changes else set()
        )
        assert {*resource.ignore_changes} & ignored == expected, resource.name
    assert not any('tags["' in path for each in plain.provided for path in each.ignore_changes)


def test_a_share_machines_and_a_sas(tmp_path: Path) -> None:
    person = "6f8d2c1e-0000-4000-8000-000000000002"
    key = "ssh-ed25519 AAAA operator"
    found = changed(
        tmp_path,
        storage={
            "nfs_share_gib": 100,
            "datastores": "sas",
            "containers": ["raw"],
            "delete_after_days": 400,
        },
        workstations=[
            {"name": "ada", "person": person},
            {"name": "bob", "person": person, "kind": "data-science-vm", "ssh_key": key},
            {
                **{"name": "eve", "person": person, "kind": "data-science-vm", "ssh_key": key},
                "size": "Standard_NC4as_T4_v3",
            },
        ],
    )
    _sound(found)
    assert _in_between(found) == []
    share = _kinds(found, "storage:FileShare")["share"]
    assert share.inputs["enabledProtocols"] == "NFS"
    assert share.ignore_changes == ("enabledProtocols",), "a refresh would replace the share"
    for blobs in _kinds(found, "storage:BlobServiceProperties").values():
        assert blobs.ignore_changes == ("cors",), "an update would remove the studio's rules"
    assert ("${StorageAccount:share-storage.id}", "file") in _led_to(found), "jobs mount it"
    locks = _kinds(found, "authorization:ManagementLockByScope")
    assert locks["lock-share"].inputs["scope"] == "${StorageAccount:share-storage.id}"
    store = _kinds(found, "machinelearningservices:Datastore")["datastore-raw"].inputs
    assert store["properties"]["credentials"]["secrets"]["sasToken"] == SECRET
    assert store["skipValidation"] is True, "Azure ML itself is outside of the lake's network"
    machines = _kinds(found, "compute:VirtualMachine")
    assert "securityType" in machines["bob"].inputs["securityProfile"]
    assert "securityType" not in machines["eve"].inputs["securityProfile"], "its driver is unsigned"
    disk = machines["bob"].inputs["storageProfile"]["osDisk"]["managedDisk"]
    assert disk == {"storageAccountType": "StandardSSD_LRS"}
    instance = _kinds(found, "machinelearningservices:Compute")["ada"].inputs["properties"]
    assert instance["computeType"] == "ComputeInstance"
    called = _kinds(found, "machinelearningservices:Compute")["ada"].inputs["computeName"]
    assert called.startswith("ada-ci") and len(called) <= 24, "all of a region shares these names"
    assert "workstations" in _ways_out(found), "its sign-in is installed from outside"
    system = machines["bob"].inputs["osProfile"]
    assert system["adminUsername"] != "operator", "Ubuntu has a group of that name already"


def _rights(found: Capture) -> dict[str, str]:
    """The roles that were granted, by the name of the grant."""
    return {
        name: one.inputs["description"].partition(":")[0]
        for name, one in _kinds(found, "authorization:RoleAssignment").items()
    }


def test_the_workflows_have_the_roles_that_they_need() -> None:
    """Uploads to the workspace's storage use its identity, and a SAS grants no more than its roles.
    A release writes the endpoint, whose identity it must be allowed to assign.
    """
    granted = _rights(own()["dev"])
    assert granted["train-storage"] == granted["release-storage"] == "AzureML Blob Writer"
    assert granted["train-lake"] == "Storage Blob Data Reader"
    assert granted["release-endpoints"] == "Managed Identity Operator"
    assigned = _kinds(own()["dev"], "authorization:RoleAssignment")["release-endpoints"].inputs
    assert assigned["scope"] == "${UserAssignedIdentity:endpoints.id}"


def test_the_workspace_sees_the_private_endpoints_of_its_storage() -> None:
    """Without it the studio shows none of their data."""
    granted = _rights(own()["staging"])
    seen = {name for name, role in granted.items() if name.startswith("workspace-sees")}
    assert {granted[name] for name in seen} == {"Reader"}
    assert seen == {
        *("workspace-sees-workspace-storage-blob", "workspace-sees-workspace-storage-file"),
        *("workspace-sees-lake-blob", "workspace-sees-lake-dfs"),
    }
    assert not [name for name in _rights(own()["dev"]) if name.startswith("workspace-sees")]


def test_parallel_steps_have_queues_and_tables(tmp_path: Path) -> None:
    """Their nodes coordinate through a queue and a table of the workspace's storage."""
    granted = _rights(own()["dev"])
    for cluster in ("cpu-cluster", "gpu-spot"):
        assert granted[f"cluster-{cluster}-queues"] == "Storage Queue Data Contributor"
        assert granted[f"cluster-{cluster}-tables"] == "Storage Table Data Contributor"
    shared = {("${StorageAccount:workspace-storage.id}", what) for what in ("queue", "table")}
    assert shared <= _led_to(own()["prod"])
    assert not shared & _led_to(own()["dev"]), "it answers on public addresses there"
    ours = _kinds(changed(tmp_path, network={"isolation": "own"}), "network:PrivateEndpoint")
    assert {"workspace-storage-queue", "workspace-storage-table"} <= ours.keys()


def test_an_endpoint_may_record_requests() -> None:
    """A `data_collector` writes to the workspace's storage as the endpoint."""
    assigned = _kinds(own()["dev"], "authorization:RoleAssignment")["endpoints-storage"].inputs
    assert assigned["scope"] == "${StorageAccount:workspace-storage.id}"
    # And nothing else: training data and models lie in the same container.
    path = "@Resource[Microsoft.Storage/storageAccounts/blobServices/containers/blobs:path]"
    below = f" AND ({path} StringLike 'modelDataCollector/*')))"
    assert assigned["condition"].endswith(below)
    assert _rights(own()["dev"])["endpoints-storage"] == "AzureML Blob Writer"


CONTAINERS = {
    "jobs": ("azureml", "azureml-blobstore-6f8d2c1e-0000-4000-8000-000000000000"),
    "uploads": ("6f8d2c1e-0000-4000-8000-000000000000",),
    "releases": ("releases",),
    # Of diagnostics, and whatever else comes to lie in the account.
    "others": ("insights-logs-audit", "azureml2", "azureml-else", "$logs", "release", "releases2"),
}


def _may_write(assignment: Resource, container: str) -> bool:
    """Whether the assignment's condition lets blobs of a container be written."""
    condition = assignment.inputs.get("condition")
    assert condition is None or assignment.inputs["conditionVersion"] == "2.0"
    names = re.findall(r"blobServices/containers:name\] StringLike '([^']+)'", condition or "")
    return condition is None or any(fnmatch.fnmatchcase(container, name) for name in names)


@pytest.mark.attack("a job, an endpoint or who trains rewrites the audit log")
@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_who_writes_where_in_the_workspaces_storage(stack: str) -> None:
    """Beside the workspace itself, which Azure ML acts as, only releases write what they note."""
    writers = {"Storage Blob Data Contributor", BLOB_WRITER.name}
    written = {
        name: {
            kind
            for kind, containers in CONTAINERS.items()
            for container in containers
            if _may_write(one, container)
        }
        for name, one in _kinds(own()[stack], "authorization:RoleAssignment").items()
        if one.inputs["scope"] == "${StorageAccount:workspace-storage.id}"
        and role_name(one.inputs["roleDefinitionId"]) in writers
    }
    clusters = [cluster.name for cluster in load(stack).computes]
    assert written == {
        "workspace-storage-blobs": {*CONTAINERS},
        "release-storage": {"jobs", "uploads", "releases"},
        "train-storage": {"jobs", "uploads"},
        "endpoints-storage": {"jobs"},
        **{f"cluster-{name}-storage": {"jobs"} for name in clusters},
    }
    (container,) = (
        one
        for one in _kinds(own()[stack], "storage:BlobContainer").values()
        if one.inputs["accountName"] == "${StorageAccount:workspace-storage.name}"
    )
    assert container.inputs["containerName"] == RELEASES


@pytest.mark.attack("a job of one project reads or forges what callers of another asked")
@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_jobs_neither_read_nor_write_what_endpoints_collect(stack: str) -> None:
    """Those of all projects share a container, and a cluster has one identity. Who watches, who
    releases and the workspace itself read it.
    """
    blobs = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
    beside = f"(@Resource[{blobs}:path] StringNotLike 'modelDataCollector/*')"
    granted = _kinds(own()[stack], "authorization:RoleAssignment")
    clusters = [f"cluster-{cluster.name}-storage" for cluster in load(stack).computes]
    for name in (*clusters, "train-storage"):
        condition = granted[name].inputs["condition"]
        assert f" AND {beside})) AND ((!(ActionMatches{{'{blobs}/read'}}" in condition
        assert condition.endswith(f" OR {beside})") and condition.count("(") == condition.count(")")
    readers = {"Storage Blob Data Reader", "Storage Blob Data Contributor", BLOB_WRITER.name}
    unlimited = {
        name
        for name, one in granted.items()
        if one.inputs["scope"] == "${StorageAccount:workspace-storage.id}"
        and role_name(one.inputs["roleDefinitionId"]) in readers
        and beside not in (one.inputs.get("condition") or "")
    }
    assert unlimited == {
        *("workspace-storage-blobs", "watch-storage", "release-storage", "endpoints-storage")
    }


def test_a_condition_covers_every_write_of_its_role() -> None:
    """An action that it does not name would be allowed everywhere."""
    condition = writes_only("a", "b-*")
    actions = re.findall(r"!\(ActionMatches\{'([^']+)'\}\)", condition)
    assert {*BLOB_WRITER.data_actions} - {*actions} == {
        "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read"
    }
    assert not any("containers/write" in one or "delete" in one for one in BLOB_WRITER.actions)
    name = "@Resource[Microsoft.Storage/storageAccounts/blobServices/containers:name]"
    assert condition.endswith(f" OR (({name} StringLike 'a' OR {name} StringLike 'b-*')))")
    assert condition.count("(") == condition.count(")")


def test_the_lake_is_read_unless_a_stack_says_write(tmp_path: Path) -> None:
    """No identity of a stack that says nothing writes it."""
    for stack in ("dev", "prod"):
        lake = {
            one.inputs["description"].partition(":")[0]
            for one in _kinds(own()[stack], "authorization:RoleAssignment").values()
            if one.inputs["scope"] == "${StorageAccount:lake.id}"
        }
        approver = "Azure AI Enterprise Network Connection Approver"
        assert lake == {"Storage Blob Data Reader", approver}
    found = changed(tmp_path, clusters=[{"name": "cpu", "preset": "cpu", "lake": "write"}])
    assert _rights(found)["cluster-cpu-lake"] == "AzureML Blob Writer"


def test_a_vault_declares_empty_access_policies() -> None:
    """Azure requires the list ("The parameter accessPolicies is not specified"); only roles grant
    access.
    """
    for stack in environments():
        found = own()[stack]
        properties = _kinds(found, "keyvault:Vault")["vault"].inputs["properties"]
        assert properties["accessPolicies"] == [] and properties["enableRbacAuthorization"] is True


def test_a_vault_of_another_generation_has_another_name(tmp_path: Path) -> None:
    """After a destroyed stack, whose deleted vault holds its name."""
    names = {
        str(_kinds(found, "keyvault:Vault")["vault"].inputs["vaultName"])
        for found in (
            changed(_folder(tmp_path, "a"), vault={"generation": 1}),
            changed(_folder(tmp_path, "b"), vault={"generation": 2}),
        )
    }
    first, second = sorted(names)
    assert second == f"{first}2" and len(second) <= 24


def test_a_customer_key_encrypts_every_service_of_an_account() -> None:
    """Queues and tables only if the account is created so."""
    for stack, holds in (("prod", True), ("dev", False)):
        for account in _kinds(own()[stack], "storage:StorageAccount").values():
            services = account.inputs["encryption"]["services"]
            kinds = {name for name, one in services.items() if one["keyType"] == "Account"}
            assert kinds == {"blob", "file", *(("queue", "table") if holds else ())}


def test_jobs_and_endpoints_read_the_shared_registry_and_a_release_writes_it() -> None:
    """prod may serve what a job of dev writes there."""
    granted = _rights(own()["dev"])
    roles = {name: role for name, role in granted.items() if name.endswith("-assets")}
    assert roles == {
        "release-assets": "AzureML Registry Publisher",
        "train-assets": "Reader",
        "watch-assets": "Reader",
        "endpoints-assets": "Reader",
        "cluster-cpu-cluster-assets": "Reader",
        "cluster-cpu-large-assets": "Reader",
        "cluster-gpu-spot-assets": "Reader",
    }


def test_another_role_is_another_assignment(tmp_path: Path) -> None:
    """Azure refuses to change the role of an assignment (RoleAssignmentUpdateNotPermitted)."""
    clusters = [{"name": "cpu", "preset": "cpu", "lake": lake} for lake in ("read", "write")]
    names = {
        _kinds(changed(tmp_path / one["lake"], clusters=[one]), "authorization:RoleAssignment")[
            "cluster-cpu-lake"
        ].inputs["roleAssignmentName"]
        for one in clusters
    }
    assert len(names) == 2


def _openings(found: Capture, part: str, direction: str, access: str) -> dict[str, set[str]]:
    """What may pass, or may not: destination → ports."""
    passing: dict[str, set[str]] = {}
    group = _kinds(found, "network:NetworkSecurityGroup")[f"security-{part}"].inputs
    for rule in group["securityRules"]:
        if (rule["direction"], rule["access"]) == (direction, access):
            ports = rule.get("destinationPortRanges") or [rule["destinationPortRange"]]
            passing.setdefault(rule["destinationAddressPrefix"], set()).update(ports)
    return passing


@pytest.mark.parametrize(
    ("part", "ports"),
    [
        ("endpoints", {"443", "445", "2049"}),
        ("compute", {"*"}),
        ("workstations", {"22"}),
        ("builds", {"443"}),
    ],
)
def test_the_security_groups_open_the_ports_of_their_subnets(part: str, ports: set[str]) -> None:
    """Files use SMB or NFS, not HTTPS; machines use SSH."""
    assert _openings(own()["prod"], part, "Inbound", "Allow") == {"VirtualNetwork": ports}


def test_a_node_in_our_own_network_only_reaches_azure() -> None:
    """Without these it never starts; only the image builder fetches packages."""
    found = own()["prod"]
    for part in ("compute", "builds", "workstations", "endpoints"):
        assert _openings(found, part, "Outbound", "Deny") == {"Internet": {"*"}}
    out = _openings(found, "compute", "Outbound", "Allow")
    assert out["BatchNodeManagement.westeurope"] == {"443"}
    assert out["Storage.westeurope"] == {"443", "445"}, "Azure ML refuses a subnet without the two"
    assert out["MicrosoftContainerRegistry"] == {"443"}, "an image may come from another region"
    assert out["AzureMachineLearning"] == {"443", "8787", "18881", "5831"}
    assert "Internet" not in out
    assert _openings(found, "builds", "Outbound", "Allow") == {**out, "Internet": {"80", "443"}}


def _ways_out(found: Capture) -> set[str]:
    """The subnets with a way out of the network."""
    subnets = _kinds(found, "network:VirtualNetwork")["virtual-network"].inputs["subnets"]
    return {one["name"] for one in subnets if one.get("natGateway")}


def _held_back(found: Capture) -> set[str]:
    """The subnets whose private endpoints or link services obey the security group."""
    subnets = _kinds(found, "network:VirtualNetwork")["virtual-network"].inputs["subnets"]
    kinds = ("privateEndpointNetworkPolicies", "privateLinkServiceNetworkPolicies")
    return {one["name"] for one in subnets for kind in kinds if one.get(kind) != "Disabled"}


def _led_to(found: Capture) -> set[tuple[str, str]]:
    """What the managed network reaches by private endpoints of our making."""
    workspace = _kinds(found, "machinelearningservices:Workspace")["workspace"].inputs
    rules = workspace["managedNetwork"].get("outboundRules", {}).values()
    return {
        (one["destination"]["serviceResourceId"], one["destination"]["subresourceTarget"])
        for one in rules
        if one["type"] == "PrivateEndpoint"
    }


def test_jobs_reach_the_shared_registry_wherever_it_is() -> None:
    """It only has private addresses, also for environments that use it, including starters."""
    group = f"/subscriptions/{load('dev').subscription}/resourceGroups/rg-mlplat-shared"
    shared = f"{group}/providers/Microsoft.MachineLearningServices/registries/mlplat-shared"
    for stack, id in (("dev", shared), ("staging", shared), ("prod", shared)):
        assert (id, "amlregistry") in _led_to(own()[stack])
        approves = _kinds(own()[stack], "authorization:RoleAssignment")[
            "workspace-approves-assets-amlregistry"
        ]
        assert approves.inputs["scope"] == id


@pytest.mark.parametrize("isolation", ["managed", "own"])
def test_the_content_of_the_shared_registry_is_reachable(isolation: str, tmp_path: Path) -> None:
    """An endpoint of the registry leads to neither its models nor its images."""
    found = changed(tmp_path, asset_registry=SHARED, network={"isolation": isolation})
    _sound(found)
    ids = (ACCOUNTS["blob"], ACCOUNTS["registry"])
    endpoints = _kinds(found, "network:PrivateEndpoint")
    for name, id in zip(("assets-blob", "assets-registry"), ids, strict=True):
        (led,) = endpoints[name].inputs["privateLinkServiceConnections"]
        assert (led["privateLinkServiceId"], led["groupIds"]) == (id, [name.split("-")[1]])
    managed = isolation == "managed"
    assert {(ids[0], "blob"), (ids[1], "registry")} <= _led_to(found) or not managed
    granted = _kinds(found, "authorization:RoleAssignment").values()
    approved = {one.inputs["scope"] for one in granted if "Approver" in one.inputs["description"]}
    assert set(ids) <= approved or not managed


def test_the_user_of_a_compute_instance_has_its_roles(tmp_path: Path) -> None:
    """Its files are a share mounted as the user, who also reads data."""
    person = "6f8d2c1e-0000-4000-8000-000000000002"
    found = changed(tmp_path, workstations=[{"name": "ada", "person": person}])
    granted = _kinds(found, "authorization:RoleAssignment")
    held = {
        (granted[name].inputs["scope"], granted[name].inputs["description"].partition(":")[0])
        for name in granted
        if granted[name].inputs["principalId"] == person
    }
    assert held == {
        ("${Workspace:workspace.id}", "AzureML Data Scientist"),
        ("${StorageAccount:workspace-storage.id}", "AzureML Blob Writer"),
        ("${StorageAccount:workspace-storage.id}", "Storage File Data Privileged Contributor"),
        ("${StorageAccount:lake.id}", "Storage Blob Data Reader"),
    }


def test_groups_of_people_have_roles(tmp_path: Path) -> None:
    """Data scientists those of an instance's user, the others only read; each as a group."""
    ids = [f"6f8d2c1e-0000-4000-8000-00000000000{number}" for number in (2, 3, 5)]
    person = {"name": "ada", "person": "6f8d2c1e-0000-4000-8000-000000000004"}
    found = changed(
        tmp_path,
        groups={"data_scientists": ids[0], "operators": ids[1], "reviewers": ids[2]},
        workstations=[person],
    )
    _sound(found)
    granted: dict[str, list[tuple[Any, ...]]] = {}
    for one in _kinds(found, "authorization:RoleAssignment").values():
        inputs = one.inputs
        right = (inputs["roleDefinitionId"], inputs["scope"], inputs.get("condition"))
        granted.setdefault(f"{inputs['principalType']} {inputs['principalId']}", []).append(right)
    assert sorted(granted[f"Group {ids[0]}"]) == sorted(granted[f"User {person['person']}"])
    assert len(granted[f"Group {ids[1]}"]) == 2
    held = {(role_name(role), scope): limit for role, scope, limit in granted[f"Group {ids[2]}"]}
    blobs = ("Storage Blob Data Reader", "${StorageAccount:workspace-storage.id}")
    assert "modelDataCollector/*" in held.pop(blobs), "what callers sent is not theirs to read"
    registry = load("test", tmp_path / "infra").registry_id
    assert held == {("Reader", "${Workspace:workspace.id}"): None, ("Reader", registry): None}


def test_a_change_of_settings_keeps_an_endpoints_traffic(tmp_path: Path) -> None:
    """An update without the traffic would remove it."""
    before, after = (
        changed(_folder(tmp_path, owner), owner=owner)
        for owner in ("a@example.com", "b@example.com")
    )
    found = changes(before, after)
    assert {one.kind for one in found} >= {"resources:ResourceGroup", "keyvault:Vault"}
    assert not [one for one in found if one.kind.endswith(":OnlineEndpoint")]


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def test_diagnostics_use_metrics_of_their_resource() -> None:
    """Azure refuses categories that a type lacks: azure-monitor/reference/supported-metrics.

    A storage service has its own two; a security group and an asset registry have no metrics.
    """
    found = own()["prod"]
    kinds = {one.urn: one.kind for one in found.provided}
    asked = {
        (kinds[urn], one["category"])
        for setting in _kinds(found, "monitor:DiagnosticSetting").values()
        for urn in setting.uses["resourceUri"]
        for one in setting.inputs.get("metrics", [])
    }
    assert asked == {
        ("storage:BlobServiceProperties", "Capacity"),
        ("storage:BlobServiceProperties", "Transaction"),
        *(
            (kind, "AllMetrics")
            for kind in (
                *("keyvault:Vault", "containerregistry:Registry", "network:VirtualNetwork"),
                *("machinelearningservices:Workspace", "machinelearningservices:OnlineEndpoint"),
                "operationalinsights:Workspace",
            )
        ),
    }


def test_names_may_equal_those_of_the_program(tmp_path: Path) -> None:
    """A cluster, an instance and an endpoint named like one of the program's identities."""
    person = "6f8d2c1e-0000-4000-8000-000000000000"
    found = changed(
        tmp_path,
        clusters=[{"name": name, "preset": "cpu"} for name in ("workspace", "endpoints")],
        workstations=[{"name": name, "person": person} for name in ("train", "encryption")],
        endpoints=[{"name": name} for name in ("workspace", "release")],
    )
    _sound(found)


def test_without_any_optional_setting(tmp_path: Path) -> None:
    found = changed(tmp_path, clusters=[], endpoints=[], asset_registry={"mode": "none"})
    _sound(found)
    assert _kinds(found, "machinelearningservices:Compute").keys() == {"image-builder"}
    bare = changed(
        tmp_path / "bare",
        **{"clusters": [], "asset_registry": {"mode": "none"}, "exposure": "starter"},
        network={},
    )
    workspace = _kinds(bare, "machinelearningservices:Workspace")["workspace"].inputs
    assert workspace["provisionNetworkNow"] is True, "no cluster brings the network about"


def test_an_environment_works_without_a_registry(tmp_path: Path) -> None:
    """Nothing of it leads to one, and its stack refers to no other."""
    alone = capture("dev", config={"platform:asset_registry": '{"mode": "none"}'})
    _sound(alone)
    assert "mlplat-shared" not in str(alone.resources) and "assetRegistry" not in alone.outputs


def test_the_stack_of_the_registry_holds_it_alone() -> None:
    """Kept by `protect`, watched, in a budget; nothing in it waits for an environment."""
    shared = own()["shared"]
    kinds = {one.kind for one in shared.provided}
    assert not kinds & {"machinelearningservices:Workspace", "storage:StorageAccount"}
    (registry,) = _kinds(shared, "machinelearningservices:Registry").values()
    assert registry.protect and registry.inputs["publicNetworkAccess"] == "Disabled"
    assert shared.outputs["assetRegistryId"] == "${Registry:assets.id}"
    assert load("shared").registry_id == load("prod").registry_id
    locked = capture(
        "shared",
        config={"platform:guardrails": '{"monthly_budget": 5, "budget_from": "2026-12"}'},
    )
    (lock,) = _kinds(locked, "authorization:ManagementLockByScope").values()
    assert lock.inputs["scope"] == "${Registry:assets.id}"


def test_pulumis_configuration_decides_and_not_the_file() -> None:
    """What `pulumi config set`, `-c` and environments of ESC say, whole or in part."""
    plain = capture("dev")
    changed = capture(
        "dev",
        config={
            "platform:owner": "else@example.com",
            "platform:clusters": '[{"name": "other", "preset": "cpu", "max_nodes": 1}]',
        },
    )
    assert (
        _kinds(plain, "resources:ResourceGroup")["group"].inputs["tags"]["owner"]
        != (_kinds(changed, "resources:ResourceGroup")["group"].inputs["tags"]["owner"])
    )
    assert [one for one in changed.outputs if one.startswith("cluster:")] == ["cluster:other"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("platform:exposur", "private", "unknown-field"),
        ("platform:exposure", "open", "wrong-value"),
        ("platform:clusters", "[{", "a list"),
        ("platform:guardrails", '{"monthly_budget": "much"}', "a whole number"),
        ("platform:name", "", "2 to 8 lower-case letters"),
        ("platform:asset_registry", '{"mode": "use", "name": "shared"}', "missing-field"),
    ],
)
def test_a_wrong_configuration_is_refused_by_the_same_model(
    key: str, value: str, words: str
) -> None:
    """Named by its key, without a traceback."""
    with pytest.raises(UserError) as refused:
        configured("dev", {**configuration("dev"), key: value})
    assert words in str(refused.value) and "the configuration of dev" in str(refused.value)
    if key == "platform:exposure":
        with pytest.raises(UserError, match="the configuration of dev"):
            capture("dev", config={key: value})


def test_other_settings_of_the_provider_are_not_ours() -> None:
    assert capture("dev", config={"azure-native:useOidc": "true"}) == own()["dev"]


@pytest.mark.parametrize("stack", stacks())
def test_the_configuration_is_what_the_file_says(stack: str) -> None:
    """The offline tools read the file, the program reads what Pulumi makes of it."""
    assert configured(stack, configuration(stack)) == load(stack)


def test_the_outputs_that_others_read() -> None:
    """Who signs in, where images and secrets are, what serves."""
    outputs = own()["staging"].outputs
    assert outputs["watchClientId"] == "${UserAssignedIdentity:watch.clientId}"
    assert outputs["registryServer"] == "${Registry:images.loginServer}"
    assert outputs["vault"] == "${Vault:vault.name}"
    assert outputs["workspace"] == "${Workspace:workspace.name}"
    assert outputs["assetRegistry"] == "mlplat-shared"
    endpoints = {name for name in outputs if name.startswith("endpoint:")}
    assert endpoints == {f"endpoint:{one.name}" for one in load("staging").endpoints}


def _absent(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    raise LookupError('Status=404 Code="ResourceNotFound"')


def test_an_update_before_the_registry_names_the_stack_to_deploy() -> None:
    with pytest.raises(UserError, match="mlplat-shared in rg-mlplat-shared does not exist"):
        capture("dev", lookup_registry=_absent)


def test_a_preview_before_the_registry_lacks_its_accounts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pulumi previews every stack before it changes the first; another failure is one."""
    monkeypatch.setattr("pulumi.runtime.is_dry_run", lambda: True)
    monkeypatch.setattr(machinelearningservices, "get_registry", lambda **names: _absent(names))
    assert registries._accounts(load("dev")) == {}
    monkeypatch.setattr("pulumi.runtime.is_dry_run", lambda: False)
    with pytest.raises(UserError, match="make deploy ENV=shared"):
        registries._accounts(load("dev"))
    assert "mlplat-shared in rg-mlplat-shared does not exist yet" in capsys.readouterr().err

    def forbidden(**names: str) -> None:
        raise PermissionError("AuthorizationFailed")

    monkeypatch.setattr(machinelearningservices, "get_registry", forbidden)
    with pytest.raises(PermissionError):
        registries._accounts(load("dev"))


ELSEWHERE = "6f8d2c1e-9999-4000-8000-000000000000"


@pytest.mark.parametrize("isolation", ["managed", "own"])
def test_a_registry_may_be_in_another_subscription(isolation: str, tmp_path: Path) -> None:
    """Azure is asked there; roles are granted there by the definitions of that subscription, and
    private endpoints lead there. Nothing is made in it.
    """
    asked: list[Mapping[str, Any]] = []
    config = {
        "platform:asset_registry": json.dumps({**SHARED, "subscription": ELSEWHERE}),
        "platform:network": json.dumps({"isolation": isolation}),
    }

    def lookup_registry(question: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(question)
        return answered(question)

    found = capture("prod", config=config, lookup_registry=lookup_registry)
    _sound(found)
    (question,) = asked
    assert question["subscriptionId"] == ELSEWHERE and question["registryName"] == "other"
    assert {one.provider for one in found.resources} == {""}
    assert not [one for one in found.resources if one.type.startswith("pulumi:providers")]
    id = f"/subscriptions/{ELSEWHERE}/resourceGroups/rg-other/providers/"
    id += "Microsoft.MachineLearningServices/registries/other"
    endpoint = _kinds(found, "network:PrivateEndpoint")["assets-amlregistry"].inputs
    (led,) = endpoint["privateLinkServiceConnections"]
    assert led["privateLinkServiceId"] == id
    assert endpoint["location"] == load("prod").location
    on_it = {
        name: one.inputs
        for name, one in _kinds(found, "authorization:RoleAssignment").items()
        if one.inputs["scope"] == id
    }
    assert {"release-assets", "train-assets", "watch-assets", "endpoints-assets"} <= {*on_it}
    names = {role_name(one["roleDefinitionId"]) for one in on_it.values()}
    assert names <= {*ON_REGISTRY} and "AzureML Registry Publisher" in names
    for inputs in on_it.values():
        assert inputs["roleDefinitionId"].startswith(f"/subscriptions/{ELSEWHERE}/")


def test_a_registry_has_accounts_in_each_of_its_regions() -> None:
    """An environment of another region reaches those of its own."""
    registry = {"mode": "create", "name": "mlplat-shared", "regions": ["northeurope"]}
    shared = capture("shared", config={"platform:asset_registry": json.dumps(registry)})
    (made,) = _kinds(shared, "machinelearningservices:Registry").values()
    regions = {each["location"]: each for each in made.inputs["regionDetails"]}
    assert {*regions} == {"westeurope", "northeurope"}
    assert regions["northeurope"]["storageAccountDetails"]
    accounts = answered({})["regionDetails"]
    there = {"regionDetails": [{**accounts[1], "location": "northeurope"}]}
    config = {"azure-native:location": "northeurope"}
    prod = capture("prod", config=config, lookup_registry=lambda _: there)
    assert ACCOUNTS["blob"] in str(_kinds(prod, "network:PrivateEndpoint")["assets-blob"].inputs)


def test_a_registry_of_another_region_is_refused() -> None:
    with pytest.raises(UserError, match="no accounts in westeurope"):
        capture("dev", lookup_registry=lambda _: {"regionDetails": [{"location": "northeurope"}]})


FEATURES = {
    "feature_store": {"mode": "create", "redis": "Balanced_B1"},
    "clusters": [
        {"name": "cpu-cluster", "preset": "cpu"},
        {"name": "writer", "preset": "cpu", "lake": "write"},
    ],
}


@pytest.mark.parametrize("isolation", ["managed", "own"])
def test_a_feature_store(isolation: str, tmp_path: Path) -> None:
    """A workspace of its own kind, whose offline store is a container that jobs reach as well."""
    found = changed(tmp_path, **FEATURES, network={"isolation": isolation})
    _sound(found)
    features = _kinds(found, "machinelearningservices:Workspace")["features"].inputs
    connection = _kinds(found, "machinelearningservices:WorkspaceConnection")["offline-store"]
    assert features["kind"] == "FeatureStore" and features["publicNetworkAccess"] == "Disabled"
    assert not features.get("provisionNetworkNow")
    stated = features["featureStoreSettings"]["offlineStoreConnectionName"]
    assert stated == connection.inputs["connectionName"]
    assert connection.inputs["properties"]["target"] == "${BlobContainer:container-features.id}"
    datastore = _kinds(found, "machinelearningservices:Datastore")["datastore-features"]
    assert (
        datastore.inputs["properties"]["filesystem"] == "${BlobContainer:container-features.name}"
    )
    assert features["identity"]["userAssignedIdentities"] == ["${UserAssignedIdentity:features.id}"]


def test_the_identity_of_a_feature_store_reads_its_container_alone(tmp_path: Path) -> None:
    """Beside the roles without which Azure makes no workspace; of the lake nothing else."""
    found = changed(tmp_path, **FEATURES)
    own = {
        name: one.inputs
        for name, one in _kinds(found, "authorization:RoleAssignment").items()
        if one.inputs["principalId"] == "${UserAssignedIdentity:features.principalId}"
    }
    scopes = {inputs["scope"] for inputs in own.values()}
    assert "${StorageAccount:lake.id}" not in scopes
    assert own["features-offline-store"]["scope"] == "${BlobContainer:container-features.id}"
    assert _rights(found)["features-offline-store"] == "Storage Blob Data Reader"
    assert own["features-itself"]["scope"] == "${Workspace:features.id}"


def test_redis_is_reached_by_endpoints_and_by_what_materialises(tmp_path: Path) -> None:
    """By an identity, TLS and a private endpoint; other clusters are no users."""
    found = changed(tmp_path, **FEATURES)
    redis = _kinds(found, "redisenterprise:RedisEnterprise")["redis"].inputs
    database = _kinds(found, "redisenterprise:Database")["redis-database"].inputs
    assert (redis["publicNetworkAccess"], redis["minimumTlsVersion"]) == ("Disabled", "1.2")
    assert redis["highAvailability"] == "Enabled"
    assert (database["accessKeysAuthentication"], database["clientProtocol"]) == (
        *("Disabled", "Encrypted"),
    )
    users = _kinds(found, "redisenterprise:AccessPolicyAssignment")
    assert users.keys() == {"redis-endpoints", "redis-cluster-writer"}
    assert all(one.inputs["accessPolicyAssignmentName"].isalnum() for one in users.values())
    assert ("${RedisEnterprise:redis.id}", "redisEnterprise") in _led_to(found)
    assert _rights(found)["workspace-approves-redis"] in ON_REGISTRY
    (led,) = _kinds(found, "network:PrivateEndpoint")["redis-redisEnterprise"].inputs[
        "privateLinkServiceConnections"
    ]
    assert led["groupIds"] == ["redisEnterprise"]
    assert _openings(found, "endpoints", "Inbound", "Allow")["VirtualNetwork"] >= {"443", "10000"}


def test_a_feature_store_of_a_starter(tmp_path: Path) -> None:
    """Public addresses, still without keys."""
    found = changed(tmp_path, **FEATURES, exposure="starter", network={})
    _sound(found)
    redis = _kinds(found, "redisenterprise:RedisEnterprise")["redis"].inputs
    assert redis["publicNetworkAccess"] == "Enabled"
    database = _kinds(found, "redisenterprise:Database")["redis-database"].inputs
    assert database["accessKeysAuthentication"] == "Disabled"


@pytest.mark.parametrize("stack", ["dev", "prod", "staging"])
def test_no_stack_has_a_feature_store_unless_it_says_so(stack: str) -> None:
    """It costs by the hour."""
    kinds = {one.kind for one in own()[stack].provided}
    assert not any(kind.startswith("redisenterprise:") for kind in kinds)
    assert "machinelearningservices:WorkspaceConnection" not in kinds
    assert "features" not in _kinds(own()[stack], "machinelearningservices:Workspace")
