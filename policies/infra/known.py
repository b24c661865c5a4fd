"""Rules for references: a referenced resource belongs to the stack or is listed in limits.yml.

In a preview the ids of the stack's own resources are unknown, so a known id was written by a
person. In an update all ids are known: those in the stack's own resource group are its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ml.core import documents
from policies.infra.limits import Limits
from policies.infra.rule import UNKNOWN, Item, Kind, Rules, StackFindings

_GROUP = re.compile("/subscriptions/([^/]+)/resourcegroups/([^/]+)", re.I)
_REGISTRY = re.compile(
    "/subscriptions/([^/]+)/.*/providers/microsoft.machinelearningservices/registries/([^/]+)", re.I
)
# Outputs in which Azure lists resources of others or of its own services: the first ones at the top
# level, the second at any depth (a vault has its connections in `properties`).
_OUTPUTS = frozenset({"id", "networkInterfaces", "privateLinkScopedResources", "flowLogs"})
_CONNECTED = frozenset(
    (
        *("privateEndpointConnections", "registryPrivateEndpointConnections", "privateEndpoints"),
        *("ipConfigurations", "resourceNavigationLinks", "serviceAssociationLinks"),
    )
)
# Kind → input that may contain hosts, e-mail addresses or phone numbers; "" means every input.
_CONTACT_INPUTS: Mapping[str, str] = {
    Kind.ACTION_GROUP: "",
    Kind.BUDGET: "notifications",
    Kind.PRIVATE_ENDPOINT: "",
    Kind.CONNECTION: "properties",
    Kind.ACCOUNT: "encryption",
    Kind.WORKSPACE: "encryption",
}
# Keys of texts without a URL scheme: a host, and the alias of a private link service.
_SCHEMELESS_KEYS = (("target",), ("privateLinkServiceId",))
_CLOUD = "core.windows.net"
_USER = "properties.properties.personalComputeInstanceSettings.assignedUser.objectId"
# The component whose inputs are settings that no Azure resource contains.
_GUARDRAILS = "platform:guardrails:Guardrails"
# The kind that the preview records for a `get`, an invoke or a StackReference.
_READ = "platform:read:Read"


RULES = Rules()


@RULES.stack("known-resources", "Resources of others are listed in limits.yml.", "own")
def _resources(items: Sequence[Item], limits: Limits) -> StackFindings:
    """Registries of `registries` must be in a subscription where the stack assigns roles on its own
    resources; the groups that Azure creates for their accounts are allowed too.
    """
    roles = [item for item in items if item.kind == Kind.ROLE_ASSIGNMENT]
    subscriptions = {
        str(item.value("roleDefinitionId", "")).lower().split("/")[2:3][0]
        for item in roles
        if item.sources("scope") and str(item.value("roleDefinitionId", "")).count("/") > 2
    }
    used = [match for item in roles if (match := _REGISTRY.match(str(item.value("scope", ""))))]
    registries = {
        match[2].lower() for match in used if not subscriptions or match[1].lower() in subscriptions
    }
    listed = {name.lower() for name in limits.registries}
    registries &= listed
    parts = tuple(f"azureml-rg-{name}_" for name in registries)
    groups = {str(item.value("name", "")) for item in items if item.kind == Kind.RESOURCE_GROUP}
    groups |= {match[2] for item in items if (match := _GROUP.match(str(item.value("id", ""))))}
    mine = {group.lower() for group in groups - {UNKNOWN, ""}}
    # True in an update. With an existing resource group the outputs may contain no id of it, so
    # inputs that derive from other resources are trusted.
    is_made = any(
        item.kind == Kind.ACTION_GROUP and item.value("name", UNKNOWN) != UNKNOWN for item in items
    )

    def is_known(id: str, group: str) -> bool:
        registry = _REGISTRY.match(id)
        is_shared = group.startswith(parts) or bool(registry and registry[2].lower() in registries)
        return group in mine or is_shared or limits.allows_id(id)

    for item in items:
        for name in sorted(item.props.keys() - _OUTPUTS):
            if is_made and not mine and item.sources(name):
                continue
            for id in _texts(name, item.props[name]):
                match = _GROUP.match(id)
                if match and not is_known(id, match[2].lower()):
                    registry = _REGISTRY.match(id)
                    field = (
                        "registries" if registry and registry[2].lower() not in listed else "given"
                    )
                    yield item, f"names {id}: add it to `{field}` in limits.yml"


def _texts(name: str, value: Any) -> Iterator[str]:
    """Yield every text of an input, and keys of mappings, by which Azure lists identities."""
    is_card = name == "ipConfigurations"  # an input of a network card, an output elsewhere
    for keys, inner in documents.walk(value):
        if not is_card and _CONNECTED.intersection((name, *keys)):
            continue
        if isinstance(inner, str):
            yield inner
        elif keys and isinstance(keys[-1], str):
            yield keys[-1]


@RULES.resource("known-reads", "What a program reads is listed in limits.yml.", "own", _READ)
def _reads(item: Item, limits: Limits) -> Iterator[str]:
    """Reads are a `get`, an invoke or a StackReference, whose values a preview does not know."""
    if not limits.allows_id(str(item.value("id", ""))):
        yield f"reads {item.value('id')}: add it to `given` in limits.yml, or waive it"


@RULES.stack("known-principals", "Roles are of identities of the stack, or listed people.", "own")
def _principals(items: Sequence[Item], limits: Limits) -> StackFindings:
    identities = {item.urn for item in items if item.kind == Kind.IDENTITY}
    listed = {principal.lower() for principal in limits.principals}
    created = {
        str(item.value("principalId")).lower() for item in items if item.kind == Kind.IDENTITY
    }

    for item in items:
        user = str(item.value(_USER, "")) if item.kind == Kind.COMPUTE else ""
        if user and user.lower() not in listed:
            yield item, f"belongs to {user}, which is not in `principals` of limits.yml"
        principal = str(item.value("principalId", UNKNOWN))
        sources = item.sources("principalId")
        is_made = principal == UNKNOWN or principal.lower() in created
        if item.kind != Kind.ROLE_ASSIGNMENT or principal.lower() in listed:
            continue
        if not (is_made and sources and sources <= identities):
            yield item, f"grants a role to {principal}, which is not in `principals` of limits.yml"


@RULES.stack("known-tenants", "Everything belongs to one tenant and subscription.", "own")
def _tenants(items: Sequence[Item], limits: Limits) -> StackFindings:
    """limits.yml lists the allowed ones; without a list, the whole stack must use the same one."""
    for field, listed in (("tenant", limits.tenants), ("subscription", limits.subscriptions)):
        named = [
            (text.lower(), item)
            for item in items
            for keys, text in documents.strings(item.props)
            if keys[-1] == f"{field}Id" and text not in (UNKNOWN, "")
        ]
        allowed = {id.lower() for id in listed} or {id for id, _ in named}
        for id, item in named:
            if id not in allowed or not (listed or len(allowed) == 1):
                yield item, f"`{field}Id` is {id}, not the one {field} of the stack or limits.yml"


@RULES.stack("known-hosts", "Hosts and people outside are listed in limits.yml.", "own")
def _hosts(items: Sequence[Item], limits: Limits) -> StackFindings:
    """Hosts, e-mail addresses and phone numbers must be in `hosts` of limits.yml.

    The stack's own vaults are allowed too, and existing ones that limits.yml lists.
    """
    uris = [item.value("properties.vaultUri") for item in items if item.kind == Kind.VAULT]
    used = [str(item.value("keyVault", "")) for item in items if item.kind == Kind.WORKSPACE]
    existing = {id.rpartition("/")[2].lower() for id in used if limits.allows_id(id)}
    listed = {name.lower() for name in limits.hosts}
    listed |= {urlsplit(str(uri)).hostname or "" for uri in uris}

    def is_known(name: str) -> bool:
        vault = name.removesuffix(".vault.azure.net")
        return name in listed or (vault != name and vault in existing)

    for item in items:
        named = _CONTACT_INPUTS.get(item.kind)
        value = None if named is None else item.value(named) if named else item.props
        for keys, text in documents.strings(value):
            host = urlsplit(text).hostname or (keys[-1:] in _SCHEMELESS_KEYS and text) or ""
            is_person = "@" in text or keys[-1:] == ("phoneNumber",)
            name = (text if is_person else host).lower()
            is_own = text == UNKNOWN or text.startswith("/subscriptions/")
            if name and not is_own and keys[0] != "tags" and not is_known(name):
                yield item, f"names {name}, which is not in `hosts` of limits.yml"


@RULES.stack("known-accounts", "Datastores use accounts of this stack or of limits.yml.", "own")
def _accounts(items: Sequence[Item], limits: Limits) -> StackFindings:
    accounts = {item.urn for item in items if item.kind == Kind.ACCOUNT}
    names = {item.value("name") for item in items if item.kind == Kind.ACCOUNT} | {UNKNOWN}
    names |= {id.rpartition("/")[2] for id in limits.given}
    for item in items:
        if item.kind != Kind.DATASTORE:
            continue
        account, cloud = (
            item.value("properties.accountName"),
            item.value("properties.endpoint", _CLOUD),
        )
        is_own = account != UNKNOWN or accounts & item.sources("properties")
        if account not in names or not is_own or cloud != _CLOUD:
            yield item, f"uses the account {account} in {cloud}, which is not this stack's"


@RULES.resource(
    "known-repositories",
    "The repository whose workflows sign in is listed in limits.yml.",
    "own",
    Kind.CREDENTIAL,
    _GUARDRAILS,
)
def _repository(item: Item, limits: Limits) -> Iterator[str]:
    """limits.yml lists the repository with or without its `@id` parts."""
    subject = str(item.value("subject", "")).removeprefix("repo:").partition(":environment:")[0]
    name = str(item.value("repository", subject))
    if name not in limits.repositories and re.sub(r"@\d+", "", name) not in limits.repositories:
        yield f"{name} is not in `repositories` of limits.yml"


@RULES.resource(
    "known-reviewers", "Deployments have reviewers, listed in limits.yml.", "own", _GUARDRAILS
)
def _reviewers(item: Item, limits: Limits) -> Iterator[str]:
    """An environment without reviewers has `reviewers: []` in limits.yml."""
    reviewers = item.value("reviewers", ())
    for reviewer in [reviewers] if reviewers == UNKNOWN else reviewers:
        if reviewer not in limits.reviewers:
            yield f"{reviewer} is not in `reviewers` of limits.yml"
    if limits.reviewers and not reviewers:
        yield f"has no reviewers, must have one of {', '.join(limits.reviewers)}"


@RULES.resource(
    "alert-receivers", "Alerts go to addresses and hosts alone.", "own", Kind.ACTION_GROUP
)
def _receivers(item: Item, limits: Limits) -> Iterator[str]:
    """Other receivers name a namespace, a connection or a role, which `hosts` cannot list."""
    for name in ("eventHubReceivers", "itsmReceivers", "incidentReceivers", "armRoleReceivers"):
        if item.value(name):
            yield f"has `{name}`: use a webhook"


RULES.resource("compute-extras", "Instances run no services of others.", "own", Kind.COMPUTE).must(
    "properties.properties.customServices", None
)
RULES.resource(
    "compute-scripts", "Instances run no scripts at their start.", "own", Kind.COMPUTE
).must("properties.properties.setupScripts", None)
