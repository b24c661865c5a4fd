"""What a new fork needs before its first `pulumi up`, as repeatable steps.

Pulumi keeps its state in a blob container without shared keys and encrypts secrets with a key of a
vault (the backend `azblob://` and the secrets provider `azurekeyvault://` of its documentation).
GitHub's workflows sign in by OIDC, without secrets, as an identity for each purpose:
`infra.settings.workflows`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from infra.live.addresses import version
from infra.live.steps import Step, Words, cannot
from infra.settings.model import Settings
from infra.settings.workflows import (
    BEFORE_THE_PROGRAM,
    BOT,
    CUSTOM_ROLES,
    OF_THE_PROGRAM,
    PURPOSES,
    REVIEWED,
    CustomRole,
    Purpose,
    github_environment,
    subject,
)

CONTAINER = KEY = "pulumi"
ISSUER = "https://token.actions.githubusercontent.com"
AUDIENCE = "api://AzureADTokenExchange"
SUBJECT = "actions/oidc/customization/sub"
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
        *(step for environment in ordered for step in _environment(environment, first)),
        _protected_environment(f"{BOT}-environment", first, BOT),
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
    yield Step(
        "key",
        ("az", "rest", "--method", "get", *key),
        ("az", "rest", "--method", "put", *key, "--body", _literal(properties)),
    )
    yield _role("key-user", "Key Vault Crypto User", "{signed-in.id}", "{vault.id}", "User")


def _role_definition(settings: Settings, role: CustomRole) -> Step:
    """Its id contains the subscription, so that every platform in it finds the same definition."""
    subscription = settings.subscription
    path = f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions"
    url = ("--url", f"{path}/{role.id(subscription)}?api-version=2022-04-01")
    return Step(
        f"{settings.environment}-{role.name.partition(' ')[2].lower().replace(' ', '-')}",
        ("az", "rest", "--method", "get", *url),
        ("az", "rest", "--method", "put", *url, "--body", _literal(role.definition(subscription))),
        _same_permissions,
        _literal(role.permissions),
    )


def _literal(value: object) -> str:
    """JSON as a word of a step, in which braces refer to another step."""
    return json.dumps(value).replace("{", "{{").replace("}", "}}")


def _same_permissions(answer: Any, value: str) -> Any:
    """The definition, if it still grants the same: a later template may take more away."""
    granted = ((answer or {}).get("properties") or {}).get("permissions") or [{}]
    is_same = all(
        sorted(granted[0].get(kind) or ()) == sorted(operations)
        for kind, operations in json.loads(value).items()
    )
    return answer if is_same else None


def _environment(settings: Settings, first: Settings) -> Iterator[Step]:
    """An environment's identities and roles, and its GitHub environments with their variables."""
    for purpose in BEFORE_THE_PROGRAM:
        yield from _identity(settings, first, purpose)
    for role in CUSTOM_ROLES:
        yield _role_definition(settings, role)
    for grant in grants(settings):
        principal = f"{{{settings.environment}-{grant.purpose}-identity.principalId}}"
        name = f"{settings.environment}-{grant.name}"
        yield _role(name, grant.role, principal, grant.scope, condition=grant.condition)
    yield from _reviewers(settings)
    for purpose in PURPOSES:
        yield _github_environment(settings, purpose)
    # Variables that the workflows read; none is secret.
    home = state(first)
    pulumi = {"PULUMI_BACKEND_URL": home.url, "PULUMI_SECRETS_PROVIDER": home.secrets}
    for purpose in BEFORE_THE_PROGRAM:
        yield from _variables(settings, purpose, pulumi)
    yield from _program(settings, home)
    names = settings.names
    workspace = {
        "AZUREML_RESOURCE_GROUP": names.group,
        "AZUREML_WORKSPACE_NAME": names.local("mlw"),
    }
    if settings.asset_registry.mode != "none":
        workspace["AZUREML_REGISTRY_NAME"] = settings.asset_registry.name
    for purpose in OF_THE_PROGRAM:
        yield from _variables(settings, purpose, workspace)


@dataclass(frozen=True)
class Grant:
    """A role of an identity that the bootstrap makes; `scope` may refer to an earlier step."""

    name: str
    purpose: Purpose
    role: str
    scope: str
    condition: str = ""


def grants(settings: Settings) -> Iterator[Grant]:
    """What the identities that read and that deploy an environment may do."""
    scope, blobs = f"/subscriptions/{settings.subscription}", "Storage Blob Data"
    yield Grant("preview-reader", "preview", "Reader", scope)
    yield Grant("preview-state", "preview", f"{blobs} Reader", "{account.id}")
    yield Grant("preview-key", "preview", "Key Vault Crypto User", "{vault.id}")
    yield Grant("contributor", "deploy", CONTRIBUTOR, scope)
    yield Grant("role", "deploy", ADMINISTRATOR, scope, CONDITION)
    if settings.guardrails.locks:
        yield Grant("locks", "deploy", LOCKS, scope)
    yield Grant("state", "deploy", f"{blobs} Contributor", "{account.id}")
    yield Grant("key", "deploy", "Key Vault Crypto User", "{vault.id}")


def _program(settings: Settings, home: State) -> Iterator[Step]:
    """What Pulumi does, started by a person: it makes the identities that train and release."""
    name, names = settings.environment, settings.names
    group = ("--resource-group", names.group, "--subscription", settings.subscription)
    identities = {
        purpose: ("az", "identity", "show", "--name", names.local("id", purpose), *group)
        for purpose in OF_THE_PROGRAM
    }
    # Makes Pulumi's client of the vault sign in as the Azure CLI's user.
    signed_in = (f"PULUMI_BACKEND_URL={home.url}", "AZURE_KEYVAULT_AUTH_VIA_CLI=true")
    program, stack = ("env", *signed_in, "pulumi"), ("--stack", name, "--cwd", "infra")
    select = ("stack", "select", "--create", "--secrets-provider", home.secrets)
    update = (*program, "up", "--policy-pack", "../policies/infra", *stack)
    yield Step(f"{name}-stack", identities["release"], (*program, *select, *stack), by_hand=True)
    for purpose, look in identities.items():
        yield Step(f"{name}-{purpose}-identity", look, update, by_hand=True)


def _identity(settings: Settings, first: Settings, purpose: Purpose) -> Iterator[Step]:
    """An identity beside the state, in which a job of one GitHub environment signs in."""
    where = ("--resource-group", state(first).group, "--subscription", first.subscription)
    prefix = f"{settings.environment}-{purpose}"
    identity = f"id-{settings.name}-{prefix}"
    yield Step(
        f"{prefix}-identity",
        ("az", "identity", "show", "--name", identity, *where),
        ("az", "identity", "create", "--name", identity, "--location", first.location, *where),
    )
    yield Step(
        f"{prefix}-credential",
        ("az", "identity", "federated-credential", "show", "--name", "github",
         "--identity-name", identity, *where),
        ("az", "identity", "federated-credential", "create", "--name", "github",
         "--identity-name", identity, *where, "--issuer", ISSUER,
         "--subject", subject(settings, purpose), "--audiences", AUDIENCE),
        lambda answer, value: answer if (answer or {}).get("subject") == value else None,
        subject(settings, purpose),
    )  # fmt: skip


def _reviewers(settings: Settings) -> Iterator[Step]:
    """Looks up the ids of those who approve; nothing creates a team or a user."""
    if not settings.reviewers and settings.exposure != "starter":
        raise cannot(
            f"nobody approves releases and deployments of {settings.environment}",
            "platform:reviewers in its stack file: a team or a user",
        )
    for reviewer in settings.reviewers:
        organisation, _, team = reviewer.partition("/")
        path = f"orgs/{organisation}/teams/{team}" if team else f"users/{reviewer}"
        yield Step(_reviewer(settings, reviewer), ("gh", "api", path), ("gh", "api", path))


def _reviewer(settings: Settings, reviewer: str) -> str:
    return f"{settings.environment}-reviewer-{reviewer.replace('/', '-')}"


def _github_environment(settings: Settings, purpose: Purpose) -> Step:
    """The GitHub environment of a purpose, with its required reviewers."""
    protection: Words = ()
    reviewers = []
    if purpose in REVIEWED and settings.reviewers:
        protection += ("-F", "prevent_self_review=true")
        for reviewer in settings.reviewers:
            kind = "Team" if "/" in reviewer else "User"
            id = f"{{{_reviewer(settings, reviewer)}.id}}"
            protection += ("-f", f"reviewers[][type]={kind}", "-F", f"reviewers[][id]={id}")
            reviewers.append(f"{kind} {id}")
    name = f"{settings.environment}-{purpose}-environment"
    environment = github_environment(settings, purpose)
    return _protected_environment(name, settings, environment, protection, ", ".join(reviewers))


def _protected_environment(
    step: str, settings: Settings, environment: str, more: Words = (), reviewers: str = ""
) -> Step:
    """A GitHub environment that only protected branches deploy to.

    docs.github.com/rest/deployments/environments, "Create or update an environment".
    """
    path = f"repos/{settings.github}/environments/{environment}"
    protection = (
        *("-F", "deployment_branch_policy[protected_branches]=true"),
        *("-F", "deployment_branch_policy[custom_branch_policies]=false"),
        *more,
    )
    make = ("gh", "api", "--method", "PUT", path, *protection)
    return Step(step, ("gh", "api", path), make, _protected, reviewers)


def _protected(answer: Any, reviewers: str) -> Any:
    """The environment, if it is protected as declared."""
    answer = answer or {}
    branches = answer.get("deployment_branch_policy") or {}
    asked = [
        f"{reviewer['type']} {reviewer['reviewer']['id']}"
        for rule in answer.get("protection_rules") or ()
        if rule["type"] == "required_reviewers" and rule.get("prevent_self_review")
        for reviewer in rule["reviewers"]
    ]
    is_protected = branches.get("protected_branches") and sorted(asked) == sorted(
        reviewers.split(", ") if reviewers else []
    )
    return answer if is_protected else None


def _variables(
    settings: Settings, purpose: Purpose, variables: Mapping[str, str]
) -> Iterator[Step]:
    """The variables of a GitHub environment: who signs in where, and these."""
    where = ("--repo", settings.github, "--env", github_environment(settings, purpose))
    prefix = f"{settings.environment}-{purpose}"
    values = {
        "AZURE_CLIENT_ID": f"{{{prefix}-identity.clientId}}",
        "AZURE_TENANT_ID": settings.tenant,
        "AZURE_SUBSCRIPTION_ID": settings.subscription,
        **variables,
    }
    for variable, value in values.items():
        yield Step(
            f"{prefix}-{variable}",
            ("gh", "variable", "list", *where, "--json", "name,value"),
            ("gh", "variable", "set", variable, *where, "--body", value),
            partial(_has, variable),
            value,
        )


def _has(variable: str, answer: Any, value: str) -> bool:
    return {"name": variable, "value": value} in (answer or [])
