"""What a new fork needs before its first `pulumi up`, as repeatable steps.

Pulumi keeps its state in a blob container without shared keys and encrypts secrets with a key of a
vault (the backend `azblob://` and the secrets provider `azurekeyvault://` of its documentation).
Each environment has an identity that deploys it; GitHub's workflows sign in as that identity by
OIDC, without secrets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from infra.live.addresses import version
from infra.live.steps import Step, cannot
from infra.settings.model import Settings

CONTAINER = KEY = "pulumi"
ISSUER = "https://token.actions.githubusercontent.com"
AUDIENCE = "api://AzureADTokenExchange"
SUBJECT = "actions/oidc/customization/sub"
# The identity of workflows that train and release; the program creates it.
PIPELINE = "AZURE_PIPELINE_CLIENT_ID"
# The deployer creates resources and assigns roles, on the resource group and above it. Neither of
# these roles may set a lock (azure-resource-manager/management/lock-resources).
CONTRIBUTOR = "Contributor"
ADMINISTRATOR = "Role Based Access Control Administrator"
LOCKS = "Locks Contributor"
# The deployer may assign all roles but those that assign roles themselves: Owner, that
# administrator and User Access Administrator
# (role-based-access-control/delegate-role-assignments-examples).
_EXCEPT = (
    "{{8e3af657-a8ff-443c-a75c-2fe8c4bcb635, f58310d9-a9f6-439a-9e8d-f62e7b41a168,"
    " 18d7d88d-d35e-4fb5-a5c3-7773c20a72d9}}"
)
CONDITION = " AND ".join(
    f"((!(ActionMatches{{{{'Microsoft.Authorization/roleAssignments/{action}'}}}})) OR"
    f" (@{source}[Microsoft.Authorization/roleAssignments:RoleDefinitionId]"
    f" ForAnyOfAllValues:GuidNotEquals {_EXCEPT}))"
    for action, source in (("write", "Request"), ("delete", "Resource"))
)


@dataclass(frozen=True)
class State:
    """Where Pulumi keeps the state of all environments: beside the first one."""

    group: str
    account: str
    vault: str

    @property
    def url(self) -> str:
        """The backend's URL."""
        return f"azblob://{CONTAINER}?storage_account={self.account}"

    @property
    def secrets(self) -> str:
        """The secrets provider's URL."""
        return f"azurekeyvault://{self.vault}.vault.azure.net/keys/{KEY}"


def state(first: Settings) -> State:
    """The state of a platform whose first environment is `first`."""
    identity = f"{first.subscription}/{first.name}/state"
    suffix = hashlib.sha256(identity.lower().encode()).hexdigest()[:5]
    return State(
        f"rg-{first.name}-state", f"st{first.name}state{suffix}", f"kv{first.name}state{suffix}"
    )


def plan(environments: Sequence[Settings]) -> tuple[Step, ...]:
    """Every step, in order; Refused if the environments do not belong to one platform.

    The environment that creates the shared registry is deployed before those that use it: roles
    and endpoints for it can only be created once it exists.
    """
    if not environments:
        raise cannot("no environment", "at least one stack file")
    first = environments[0]
    for other in environments:
        if (other.name, other.repository) != (first.name, first.repository):
            message = f"{first.environment} and {other.environment} belong to different platforms"
            raise cannot(message, "one platform:name and platform:repository in every stack file")
    _check_registry(environments)
    ordered = sorted(environments, key=lambda settings: settings.asset_registry.mode != "create")
    return (
        _token_subject(first),
        *_state_steps(first),
        *(step for environment in ordered for step in _deployer(environment, first)),
    )


def shared_subscriptions(environments: Sequence[Settings]) -> Iterator[str]:
    """A warning for each subscription with several environments.

    Roles are assigned on the whole subscription, because a deployment creates its resource group.
    """
    for subscription in sorted({settings.subscription for settings in environments}):
        stacks = [
            settings.environment
            for settings in environments
            if settings.subscription == subscription
        ]
        if len(stacks) > 1:
            yield (
                f"{', '.join(stacks)} share a subscription: the deployer of one can change the"
                " others; a subscription for each separates them, but excludes a shared registry"
            )


def _check_registry(environments: Sequence[Settings]) -> None:
    """A shared registry must be in the subscription and region of the environments that use it.

    Source: how-to-share-models-pipelines-across-workspaces-with-registries.
    """
    creators = {
        settings.asset_registry.name: settings
        for settings in environments
        if settings.asset_registry.mode == "create"
    }
    for settings in environments:
        name, creator = settings.asset_registry.name, creators.get(settings.asset_registry.name)
        if creator is None or settings.asset_registry.mode != "use":
            continue
        if (settings.subscription, settings.location) != (creator.subscription, creator.location):
            message = (
                f"{settings.environment} uses the asset registry {name} of {creator.environment},"
                " which has another subscription or region"
            )
            raise cannot(message, "the same for both, or `asset_registry.mode: none` or `create`")


def _token_subject(first: Settings) -> Step:
    """Compares the subject of the workflows' tokens with the stack files.

    Without a match no federated credential would ever be accepted.
    """
    ask = ("gh", "api", f"repos/{first.github}/{SUBJECT}")
    return Step("subject", ask, ask, _matching_subject, f"repo:{first.repository}")


def _matching_subject(answer: Any, declared: str) -> Mapping[str, str]:
    answer = answer or {}
    keys = answer.get("include_claim_keys")
    if answer.get("use_default") is False and keys not in (None, [], ["repo", "context"]):
        raise cannot(
            f"the subject of the workflows' tokens consists of {', '.join(keys)}",
            f"GitHub's default: {declared}:environment:NAME",
            f"gh api --method PUT repos/OWNER/NAME/{SUBJECT} -F use_default=true",
        )
    # Since July 2026 the subject of new and renamed repositories contains the ids of owner and
    # repository (docs.github.com/actions/reference/security/oidc, "Immutable subject claims").
    prefix = str(answer.get("sub_claim_prefix") or declared)
    if prefix != declared:
        raise cannot(
            f"the subject of the workflows' tokens begins with {prefix}",
            f"{declared}, from platform:repository",
            f"platform:repository: {prefix.removeprefix('repo:')} in every stack file",
        )
    return {"prefix": prefix}


def _role(
    name: str,
    role: str,
    assignee: str,
    scope: str,
    kind: str = "ServicePrincipal",
    condition: str = "",
) -> Step:
    """Assigns a role by object id, since Entra may not find a new identity by name yet."""
    limited = ("--condition", condition, "--condition-version", "2.0") if condition else ()
    return Step(
        name,
        ("az", "role", "assignment", "list", "--assignee", assignee, "--role", role,
         "--scope", scope),
        ("az", "role", "assignment", "create", "--assignee-object-id", assignee,
         "--assignee-principal-type", kind, "--role", role, "--scope", scope, *limited),
    )  # fmt: skip


def _state_steps(first: Settings) -> Iterator[Step]:
    """The container of the state, and the key of its secrets."""
    home, here = state(first), ("--subscription", first.subscription)
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
        lambda answer, _: answer if (answer or {}).get("isVersioningEnabled") else None,
    )  # fmt: skip
    writer = "Storage Blob Data Contributor"
    yield _role("state-writer", writer, "{signed-in.id}", "{account.id}", "User")
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
    # Through Azure Resource Manager: the vault itself requires a role that is not effective yet.
    key = ("--url", f"{{vault.id}}/keys/{KEY}?api-version={version('keyvault:Key')}")
    properties = {"properties": {"kty": "RSA", "keySize": 3072, "keyOps": ["encrypt", "decrypt"]}}
    body = json.dumps(properties).replace("{", "{{").replace("}", "}}")
    yield Step(
        "key",
        ("az", "rest", "--method", "get", *key),
        ("az", "rest", "--method", "put", *key, "--body", body),
    )
    yield _role("key-user", "Key Vault Crypto User", "{signed-in.id}", "{vault.id}", "User")


def _deployer(settings: Settings, first: Settings) -> Iterator[Step]:
    """The identity that deploys an environment, with its roles, and GitHub's variables."""
    home, here = state(first), ("--subscription", first.subscription)
    where = ("--resource-group", home.group, *here)
    name, identity = settings.environment, f"id-{settings.name}-{settings.environment}-deploy"
    principal = f"{{{name}-identity.principalId}}"
    yield Step(
        f"{name}-identity",
        ("az", "identity", "show", "--name", identity, *where),
        ("az", "identity", "create", "--name", identity, "--location", first.location, *where),
    )
    subject = f"repo:{settings.repository}:environment:{name}"
    yield Step(
        f"{name}-credential",
        ("az", "identity", "federated-credential", "show", "--name", "github",
         "--identity-name", identity, *where),
        ("az", "identity", "federated-credential", "create", "--name", "github",
         "--identity-name", identity, *where, "--issuer", ISSUER, "--subject", subject,
         "--audiences", AUDIENCE),
        lambda answer, value: answer if (answer or {}).get("subject") == value else None,
        subject,
    )  # fmt: skip
    scope = f"/subscriptions/{settings.subscription}"
    yield _role(f"{name}-contributor", CONTRIBUTOR, principal, scope)
    yield _role(f"{name}-role", ADMINISTRATOR, principal, scope, condition=CONDITION)
    if settings.guardrails.locks:
        yield _role(f"{name}-locks", LOCKS, principal, scope)
    yield _role(f"{name}-state", "Storage Blob Data Contributor", principal, "{account.id}")
    yield _role(f"{name}-key", "Key Vault Crypto User", principal, "{vault.id}")
    yield Step(
        f"{name}-environment",
        ("gh", "api", f"repos/{settings.github}/environments/{name}"),
        ("gh", "api", "--method", "PUT", f"repos/{settings.github}/environments/{name}"),
    )
    # Variables that the workflows read; none is secret.
    for variable, value in (
        ("AZURE_CLIENT_ID", f"{{{name}-identity.clientId}}"),
        ("AZURE_TENANT_ID", settings.tenant),
        ("AZURE_SUBSCRIPTION_ID", settings.subscription),
        ("PULUMI_BACKEND_URL", home.url),
        ("PULUMI_SECRETS_PROVIDER", home.secrets),
    ):
        yield _variable(settings, variable, value)
    resources = settings.names
    group = ("--resource-group", resources.group, "--subscription", settings.subscription)
    look = ("az", "identity", "show", "--name", resources.local("id", "pipeline"), *group)
    # Makes Pulumi's client of the vault sign in as the Azure CLI's user.
    pulumi = ("env", f"PULUMI_BACKEND_URL={home.url}", "AZURE_KEYVAULT_AUTH_VIA_CLI=true", "pulumi")
    stack = ("--stack", name, "--cwd", "infra")
    secrets = ("--create", "--secrets-provider", home.secrets)
    yield Step(f"{name}-stack", look, (*pulumi, "stack", "select", *secrets, *stack), by_hand=True)
    yield Step(f"{name}-pipeline", look, (*pulumi, "up", *stack), by_hand=True)
    yield _variable(settings, PIPELINE, f"{{{name}-pipeline.clientId}}")


def _variable(settings: Settings, variable: str, value: str) -> Step:
    where = ("--repo", settings.github, "--env", settings.environment)
    return Step(
        f"{settings.environment}-{variable}",
        ("gh", "variable", "list", *where, "--json", "name,value"),
        ("gh", "variable", "set", variable, *where, "--body", value),
        partial(_has, variable),
        value,
    )


def _has(variable: str, answer: Any, value: str) -> bool:
    return {"name": variable, "value": value} in (answer or [])
