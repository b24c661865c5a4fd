"""What the rules have been written for: what they do not know, they could not refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from policies.infra.limits import Limits
from policies.infra.rule import Item, Rule
from policies.infra.workspace import ENDPOINT

# Nothing else passes: a rule or subnet declared apart from what it belongs to, another version of
# the API or another provider, a template or a command. A kind is added with the rules it needs.
KINDS = frozenset(
    {
        "applicationinsights:Component",
        "authorization:ManagementLockByScope",
        "authorization:RoleAssignment",
        "compute:VirtualMachine",
        "compute:VirtualMachineExtension",
        "consumption:Budget",
        "containerregistry:Registry",
        "keyvault:Key",
        "keyvault:Vault",
        "machinelearningservices:Compute",
        "machinelearningservices:Datastore",
        "machinelearningservices:OnlineEndpoint",
        "machinelearningservices:Registry",
        "machinelearningservices:Workspace",
        "managedidentity:FederatedIdentityCredential",
        "managedidentity:UserAssignedIdentity",
        "monitor:ActionGroup",
        "monitor:DiagnosticSetting",
        "monitor:MetricAlert",
        "network:NatGateway",
        "network:NetworkInterface",
        "network:NetworkSecurityGroup",
        "network:PrivateDnsZoneGroup",
        "network:PrivateEndpoint",
        "network:PublicIPAddress",
        "network:VirtualNetwork",
        "operationalinsights:Workspace",
        "privatedns:PrivateZone",
        "privatedns:VirtualNetworkLink",
        "resources:ResourceGroup",
        "security:DefenderForStorage",
        "storage:BlobContainer",
        "storage:BlobServiceProperties",
        "storage:FileShare",
        "storage:ManagementPolicy",
        "storage:StorageAccount",
    }
)
# Components are folders; what is in them comes by itself.
_COMPONENTS = ("platform:", "pulumi:pulumi:Stack")
# Pulumi makes this one from the stack's own settings; another would lead to another subscription.
_PROVIDER, _DEFAULT = "pulumi:providers:azure-native", "default"
# What a release writes, and not Pulumi.
_LEFT: Mapping[str, frozenset[str]] = {
    ENDPOINT: frozenset({"properties.traffic", "properties.mirrorTraffic", "tags"})
}


def _kind(item: Item, limits: Limits) -> Iterator[str]:
    if item.kind in KINDS or item.kind.startswith(_COMPONENTS):
        return
    if item.kind == _PROVIDER and item.name.startswith(_DEFAULT):
        return
    yield f"no rule is for `{item.kind}`: KINDS in policies/infra/known.py takes it with its rules"


def _heeded(item: Item, limits: Limits) -> Iterator[str]:
    for path in item.ignores:
        if path not in _LEFT.get(item.kind, frozenset()):
            yield f"`ignoreChanges` of `{path}`: what somebody changes by hand would stay"


RULES: tuple[Rule, ...] = (
    Rule("known-kind", "Only what the rules know is there.", "own", check=_kind),
    Rule("known-changes", "What is declared is what is there.", "own", check=_heeded),
)
