"""What a new fork needs before its first `pulumi up`, as commands that may be run again.

State is kept in a blob container without shared keys, its secrets under a key of a vault (the state
backend `azblob://` and the secrets provider `azurekeyvault://` of Pulumi's documentation). Each
environment has an identity that deploys it, which GitHub's workflows take on by OIDC: there is no
secret anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from infra.live.steps import Step, cannot
from infra.settings import Settings

ISSUER = "https://token.actions.githubusercontent.com"
AUDIENCE = "api://AzureADTokenExchange"
CONTAINER = KEY = "pulumi"
# Who deploys creates resources and assigns roles, at the resource group's level and above it.
# Neither of the two may set a lock (azure-resource-manager/management/lock-resources).
DEPLOYS = ("Contributor", "Role Based Access Control Administrator")
LOCKS = "Locks Contributor"


def steps(environments: Sequence[Settings]) -> tuple[Step, ...]:
    """Every step, in order, for environments of one platform; Refused when they are not of one."""
    if not environments:
        raise cannot("no environment", "at least one stack file")
    first = environments[0]
    for other in environments:
        same = (other.name, other.repository) == (first.name, first.repository)
        if not same:
            found = f"{first.environment} and {other.environment} are of different platforms"
            raise cannot(found, "one platform:name and platform:repository in every stack file")
    return (*_state(first), *(step for one in environments for step in _environment(one, first)))


def shared(environments: Sequence[Settings]) -> Iterator[str]:
    """What is to be said of environments in one subscription: roles are given on the whole of it,
    since a deployment makes its resource group.
    """
    for held in sorted({one.subscription for one in environments}):
        names = [one.environment for one in environments if one.subscription == held]
        if len(names) > 1:
            yield (
                f"{', '.join(names)} are in one subscription: who deploys one of them may change "
                "the others; a subscription each keeps them apart"
            )


@dataclass(frozen=True)
class _Home:
    """Where the state of all environments is."""

    group: str
    account: str
    vault: str


def _home(first: Settings) -> _Home:
    told = f"{first.subscription}/{first.name}/state"
    tail = hashlib.sha256(told.lower().encode()).hexdigest()[:5]
    return _Home(
        f"rg-{first.name}-state", f"st{first.name}state{tail}", f"kv{first.name}state{tail}"
    )


def _state(first: Settings) -> Iterator[Step]:
    home, here = _home(first), ("--subscription", first.subscription)
    where = ("--resource-group", home.group, *here)
    yield Step("signed-in", ("az", "ad", "signed-in-user", "show"), ("az", "login"))
    yield Step(
        "group",
        ("az", "group", "show", "--name", home.group, *here),
        ("az", "group", "create", "--name", home.group, "--location", first.location, *here),
    )
    yield Step(
        "account",
        ("az", "storage", "account", "show", "--name", home.account, *where),
        (
            *("az", "storage", "account", "create", "--name", home.account, *where),
            *("--location", first.location, "--sku", "Standard_GRS", "--kind", "StorageV2"),
            *("--min-tls-version", "TLS1_2", "--allow-blob-public-access", "false"),
            *("--allow-shared-key-access", "false", "--https-only", "true"),
        ),
    )
    yield Step(
        "versions",
        ("az", "storage", "account", "blob-service-properties", "show",
         "--account-name", home.account, *where),
        ("az", "storage", "account", "blob-service-properties", "update",
         "--account-name", home.account, *where, "--enable-versioning", "true",
         "--enable-delete-retention", "true", "--delete-retention-days", "30"),
        lambda found, _: found if (found or {}).get("isVersioningEnabled") else None,
    )  # fmt: skip
    yield _role(
        "state-writer", "Storage Blob Data Contributor", "{signed-in.id}", "{account.id}", "User"
    )
    yield Step(
        "container",
        ("az", "storage", "container-rm", "show", "--storage-account", home.account,
         "--name", CONTAINER, *where),
        ("az", "storage", "container-rm", "create", "--storage-account", home.account,
         "--name", CONTAINER, "--public-access", "off", *where),
    )  # fmt: skip
    yield Step(
        "vault",
        ("az", "keyvault", "show", "--name", home.vault, *where),
        ("az", "keyvault", "create", "--name", home.vault, "--location", first.location, *where,
         "--enable-rbac-authorization", "true", "--enable-purge-protection", "true",
         "--retention-days", "90"),
    )  # fmt: skip
    yield _role("key-maker", "Key Vault Crypto Officer", "{signed-in.id}", "{vault.id}", "User")
    yield Step(
        "key",
        ("az", "keyvault", "key", "show", "--vault-name", home.vault, "--name", KEY),
        ("az", "keyvault", "key", "create", "--vault-name", home.vault, "--name", KEY,
         "--kty", "RSA", "--size", "3072", "--ops", "encrypt", "decrypt"),
    )  # fmt: skip


def _environment(one: Settings, first: Settings) -> Iterator[Step]:
    home, here = _home(first), ("--subscription", first.subscription)
    where = ("--resource-group", home.group, *here)
    name, identity = one.environment, f"id-{one.name}-{one.environment}-deploy"
    principal = f"{{{name}-identity.principalId}}"
    yield Step(
        f"{name}-identity",
        ("az", "identity", "show", "--name", identity, *where),
        ("az", "identity", "create", "--name", identity, "--location", first.location, *where),
    )
    subject = f"repo:{one.repository}:environment:{name}"
    yield Step(
        f"{name}-credential",
        ("az", "identity", "federated-credential", "show", "--name", "github",
         "--identity-name", identity, *where),
        ("az", "identity", "federated-credential", "create", "--name", "github",
         "--identity-name", identity, *where, "--issuer", ISSUER, "--subject", subject,
         "--audiences", AUDIENCE),
        lambda found, value: found if (found or {}).get("subject") == value else None,
        subject,
    )  # fmt: skip
    scope = f"/subscriptions/{one.subscription}"
    for role in (*DEPLOYS, *([LOCKS] if one.guardrails.locks else [])):
        kind = role.split(" ")[0].lower()
        yield _role(f"{name}-{kind}", role, principal, scope)
    yield _role(f"{name}-state", "Storage Blob Data Contributor", principal, "{account.id}")
    yield _role(f"{name}-key", "Key Vault Crypto User", principal, "{vault.id}")
    yield Step(
        f"{name}-environment",
        ("gh", "api", f"repos/{one.repository}/environments/{name}"),
        ("gh", "api", "--method", "PUT", f"repos/{one.repository}/environments/{name}"),
    )
    for variable, value in _variables(one, home).items():
        yield Step(
            f"{name}-{variable}",
            ("gh", "variable", "list", "--repo", one.repository, "--env", name,
             "--json", "name,value"),
            ("gh", "variable", "set", variable, "--repo", one.repository, "--env", name,
             "--body", value),
            partial(_has, variable),
            value,
        )  # fmt: skip


def _variables(one: Settings, home: _Home) -> Mapping[str, str]:
    """What the workflows read; none of it is secret."""
    return {
        "AZURE_CLIENT_ID": f"{{{one.environment}-identity.clientId}}",
        "AZURE_TENANT_ID": one.tenant,
        "AZURE_SUBSCRIPTION_ID": one.subscription,
        "PULUMI_BACKEND_URL": f"azblob://{CONTAINER}?storage_account={home.account}",
        "PULUMI_SECRETS_PROVIDER": f"azurekeyvault://{home.vault}.vault.azure.net/keys/{KEY}",
    }


def _has(variable: str, found: Any, value: str) -> bool:
    return {"name": variable, "value": value} in (found or [])


def _role(name: str, role: str, who: str, scope: str, kind: str = "ServicePrincipal") -> Step:
    return Step(
        name,
        ("az", "role", "assignment", "list", "--assignee", who, "--role", role, "--scope", scope),
        ("az", "role", "assignment", "create", "--assignee-object-id", who,
         "--assignee-principal-type", kind, "--role", role, "--scope", scope),
    )  # fmt: skip
