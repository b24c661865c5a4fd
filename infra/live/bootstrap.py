"""Idempotent steps that prepare a new fork for its first `pulumi up`.

Pulumi keeps its state in a blob container without shared keys and encrypts secrets with a key of a
vault (the backend `azblob://` and the secrets provider `azurekeyvault://` of its documentation).
GitHub's workflows sign in by OIDC, without secrets. Each purpose has its own identity
(`infra.settings.workflows`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from infra.live import github
from infra.live.addresses import version
from infra.live.steps import Step, cannot, literal, referring
from infra.settings import loader
from infra.settings.azure import NO_PAIR, PROVIDERS
from infra.settings.github import BOT, MAIN
from infra.settings.model import Settings
from infra.settings.workflows import (
    BEFORE_THE_PROGRAM,
    CUSTOM_ROLES,
    OF_THE_PROGRAM,
    ON_REGISTRY,
    REGISTRY_PUBLISHER,
    CustomRole,
    Purpose,
    purposes,
    role_id,
    subject,
)
from ml.core.azure import APPROVER, AUDIENCE, ISSUER, ROLES

CONTAINER = KEY = "pulumi"
MACHINE_LEARNING = "Microsoft.MachineLearningServices"
# Roles of the deployer: the first creates resources, the second assigns roles. Neither may set a
# lock (azure-resource-manager/management/lock-resources), which needs the third.
CONTRIBUTOR = "Contributor"
ADMINISTRATOR = "Role Based Access Control Administrator"
LOCKS = "Locks Contributor"


@dataclass(frozen=True)
class State:
    """The storage of one environment's Pulumi state, and the key of its secrets.

    Whoever can write the state controls the next update. Each environment therefore has its own
    storage account in its subscription, in a separate resource group: the program may delete the
    environment's own group.
    """

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


def state(settings: Settings) -> State:
    """Return the names of an environment's state group, storage account and key vault."""
    names = settings.names
    return State(names.local("rg", "state"), names.worldwide("stpu"), names.worldwide("kvpu"))


def plan(environments: Sequence[Settings]) -> tuple[Step, ...]:
    """Return all steps, for stacks in the order of deployment; raise UserError if there are none or
    they belong to different platforms.
    """
    if not environments:
        raise cannot("no environment", "at least one stack file")
    first = environments[0]
    for environment in environments:
        if (environment.name, environment.repository) != (first.name, first.repository):
            message = (
                f"{first.environment} and {environment.environment} belong to different platforms"
            )
            raise cannot(message, "one platform:name and platform:repository in every stack file")
    return (
        github.token_subject(first),
        Step("signed-in", ("az", "ad", "signed-in-user", "show"), ("az", "login")),
        *(step for environment in environments for step in _providers(environment)),
        _operations(),
        *(step for environment in environments for step in _environment(environment)),
        # Late, because the user's roles on the state and its key take minutes to propagate.
        *(step for environment in environments for step in _stack(environment, state(environment))),
        *github.protected_environment(BOT, first),
        *github.rulesets(
            first,
            tuple(f"{environment.environment}-stack-key-on-main" for environment in environments),
        ),
        *_runner(environments),
    )


def _runner(environments: Sequence[Settings]) -> Iterator[Step]:
    """Yield the step that sets the variable RUNNER to the label of self-hosted runners, once their
    environments are deployed; until then workflows use GitHub-hosted runners.
    """
    with_runners = [environment for environment in environments if environment.network.runners]
    labels = {environment.network.runners for environment in with_runners}
    if len(labels) > 1:
        expected = "the same label in every stack: workflows read one variable, RUNNER"
        raise cannot(f"runners are labelled {', '.join(sorted(labels))}", expected)
    where = ("--repo", environments[0].github)
    for label in labels:
        deployed = tuple(
            f"{environment.environment}-train-identity" for environment in with_runners
        )
        yield github.variable("RUNNER", "RUNNER", label, where, after=deployed)


def shared_subscriptions(environments: Sequence[Settings]) -> Iterator[str]:
    """Yield a warning for each subscription with several environments.

    Roles are assigned on the whole subscription, because a deployment creates its resource group. A
    Contributor may also enable key access on storage accounts, including that of another state.
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
                " others and their state; a subscription for each separates them"
            )


def _role(
    name: str,
    role: str,
    assignee: str,
    scope: str,
    kind: str = "ServicePrincipal",
    condition: str = "",
) -> Step:
    """Return a step that assigns a role by object id: Entra may not know a new name yet."""
    limited = ("--condition", condition, "--condition-version", "2.0") if condition else ()
    return Step(
        name,
        ("az", "role", "assignment", "list", "--assignee", assignee, "--role", role,
         "--scope", scope),
        ("az", "role", "assignment", "create", "--assignee-object-id", assignee,
         "--assignee-principal-type", kind, "--role", role, "--scope", scope, *limited),
        value=condition,
        differences=_condition_differences,
        undo=lambda answer: (
            ("az", "role", "assignment", "delete", "--ids", item["id"]) for item in answer
        ),
    )  # fmt: skip


def _condition_differences(assignments: Any, condition: str) -> Iterator[str]:
    if any((assignment.get("condition") or "") != condition for assignment in assignments):
        yield "its condition differs" if condition else "it has a condition"


# Properties of a storage account that must be false → what they would allow.
_OPENINGS = {
    "allowSharedKeyAccess": "account keys bypass role assignments",
    "allowBlobPublicAccess": "its containers may be public",
}


def _state_steps(settings: Settings) -> Iterator[Step]:
    """Yield the steps that create the container of the state and the key of its secrets."""
    home, subscription = state(settings), ("--subscription", settings.subscription)
    prefix, location = settings.environment, settings.location
    where = ("--resource-group", home.group, *subscription)
    # Azure rejects geo-redundant storage in a region without a paired region:
    # RedundancyConfigurationNotAvailableInRegion (Azure/Azure-Landing-Zones#2437).
    copies = "Standard_ZRS" if location in NO_PAIR else "Standard_GRS"
    yield Step(
        f"{prefix}-group",
        ("az", "group", "show", "--name", home.group, *subscription),
        ("az", "group", "create", "--name", home.group, "--location", location, *subscription),
    )
    yield Step(
        f"{prefix}-account",
        ("az", "storage", "account", "show", "--name", home.account, *where),
        (
            *("az", "storage", "account", "create", "--name", home.account, *where),
            *("--location", location, "--sku", copies, "--kind", "StorageV2"),
            *("--min-tls-version", "TLS1_2", "--allow-blob-public-access", "false"),
            *("--allow-shared-key-access", "false", "--https-only", "true"),
        ),
        # `create` also updates an existing account.
        differences=lambda answer, _: (
            text for name, text in _OPENINGS.items() if answer.get(name) is not False
        ),
    )
    yield Step(
        f"{prefix}-versions",
        ("az", "storage", "account", "blob-service-properties", "show",
         "--account-name", home.account, *where),
        ("az", "storage", "account", "blob-service-properties", "update",
         "--account-name", home.account, *where, "--enable-versioning", "true",
         "--enable-delete-retention", "true", "--delete-retention-days", "30"),
        lambda answer, _: answer if (answer or {}).get("isVersioningEnabled") else None,
    )  # fmt: skip
    writer, account = "Storage Blob Data Contributor", f"{{{prefix}-account.id}}"
    yield _role(f"{prefix}-state-writer", writer, "{signed-in.id}", account, "User")
    yield Step(
        f"{prefix}-container",
        ("az", "storage", "container-rm", "show", "--storage-account", home.account,
         "--name", CONTAINER, *where),
        ("az", "storage", "container-rm", "create", "--storage-account", home.account,
         "--name", CONTAINER, "--public-access", "off", *where),
    )  # fmt: skip
    # A soft-deleted vault keeps its name and cannot be purged; recovery restores it and its key:
    # "A vault with the same name already exists in deleted state" (Azure/azure-cli#29115).
    yield Step(
        f"{prefix}-deleted-vault",
        ("az", "keyvault", "list-deleted", "--resource-type", "vault", *subscription),
        ("az", "keyvault", "recover", "--name", home.vault, "--location", location, *where),
        partial(_not_deleted, home.vault),
    )
    yield Step(
        f"{prefix}-vault",
        ("az", "keyvault", "show", "--name", home.vault, *where),
        ("az", "keyvault", "create", "--name", home.vault, "--location", location, *where,
         "--enable-rbac-authorization", "true", "--enable-purge-protection", "true",
         "--retention-days", "90"),
    )  # fmt: skip
    # Through Azure Resource Manager: the vault's own API needs a role that has not propagated yet.
    vault = f"{{{prefix}-vault.id}}"
    key = ("--url", f"{vault}/keys/{KEY}?api-version={version('keyvault:Key')}")
    properties = {"properties": {"kty": "RSA", "keySize": 3072, "keyOps": ["encrypt", "decrypt"]}}
    yield Step(
        f"{prefix}-key",
        ("az", "rest", "--method", "get", *key),
        ("az", "rest", "--method", "put", *key, "--body", literal(properties)),
    )
    yield _role(f"{prefix}-key-user", "Key Vault Crypto User", "{signed-in.id}", vault, "User")


def _not_deleted(vault: str, answer: Any, _: str) -> Any:
    """Return a mapping if no deleted vault has the name; else None, so that it is recovered."""
    names = {str(item["name"]).lower() for item in answer or ()}
    return None if vault.lower() in names else {"deleted": False}


def _operations() -> Step:
    """Return the step that lists the actions of Azure ML, and the known ones of each custom role.

    Azure rejects a role definition with an unknown action (InvalidActionOrNotAction).
    """
    ask = ("az", "provider", "operation", "show", "--namespace", MACHINE_LEARNING)
    return Step("operations", ask, ask, _offered)


def _offered(answer: Any, _: str) -> Mapping[str, str]:
    kinds = [answer or {}, *((answer or {}).get("resourceTypes") or ())]
    names = {item["name"].lower() for kind in kinds for item in kind.get("operations") or ()}
    return {
        _slug(role): json.dumps(
            [
                action
                for action in role.actions
                if action.lower() in names or not action.startswith(f"{MACHINE_LEARNING}/")
            ]
        )
        for role in CUSTOM_ROLES
    }


def _slug(role: CustomRole) -> str:
    return role.name.partition(" ")[2].lower().replace(" ", "-")


def _role_definition(settings: Settings, role: CustomRole) -> Step:
    """Return the step that defines a custom role in the subscription where it is granted.

    The role's id is derived from the subscription, so all its platforms share one definition.
    """
    is_in_subscription = role != REGISTRY_PUBLISHER
    subscription = settings.subscription if is_in_subscription else settings.registry_subscription
    path = f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions"
    url = ("--url", f"{path}/{role.id(subscription)}?api-version=2022-04-01")
    offered = f"{{operations.{_slug(role)}}}"
    return Step(
        f"{settings.environment}-{_slug(role)}",
        ("az", "rest", "--method", "get", *url),
        ("az", "rest", "--method", "put", *url, "--body",
         referring(role.definition(subscription, offered))),
        _same_permissions,
        referring(role.permissions(offered)),
    )  # fmt: skip


def _same_permissions(answer: Any, value: str) -> Any:
    """Return the role definition if its permissions equal `value`; else None, so it is updated."""
    granted = ((answer or {}).get("properties") or {}).get("permissions") or []
    is_same = len(granted) == 1 and all(
        sorted(granted[0].get(kind) or ()) == sorted(operations)
        for kind, operations in json.loads(value).items()
    )
    return answer if is_same else None


def _environment(settings: Settings) -> Iterator[Step]:
    """Yield the steps of one stack: its state, identities, roles and GitHub environments."""
    home = state(settings)
    yield from _state_steps(settings)
    for purpose in BEFORE_THE_PROGRAM:
        yield from _identity(settings, purpose)
    for role in () if settings.makes_registry else CUSTOM_ROLES:
        yield _role_definition(settings, role)
    for grant in grants(settings):
        principal = f"{{{settings.environment}-{grant.purpose}-identity.principalId}}"
        name = f"{settings.environment}-{grant.name}"
        yield _role(name, grant.role, principal, grant.scope, condition=grant.condition)
    yield from github.reviewers(settings)
    for purpose in purposes(settings):
        yield from github.purpose_environment(settings, purpose)
    # Variables that the workflows read; none is secret.
    pulumi = {"PULUMI_BACKEND_URL": home.url, "PULUMI_SECRETS_PROVIDER": home.secrets}
    for purpose in BEFORE_THE_PROGRAM:
        yield from github.variables(settings, purpose, pulumi)
    if settings.makes_registry:
        return
    yield from _identities(settings)
    workspace = {
        "AZUREML_RESOURCE_GROUP": settings.names.group,
        "AZUREML_WORKSPACE_NAME": settings.workspace_name,
    }
    if settings.asset_registry.mode != "none":
        workspace["AZUREML_REGISTRY_NAME"] = settings.asset_registry.name
    for purpose in OF_THE_PROGRAM:
        yield from github.variables(settings, purpose, workspace)


@dataclass(frozen=True)
class Grant:
    """A role assignment to an identity that the bootstrap creates."""

    name: str
    purpose: Purpose
    role: str
    scope: str  # a resource id; may contain `{name.output}` of an earlier step
    condition: str = ""  # limits the role; "" for none


def grants(settings: Settings) -> Iterator[Grant]:
    """Yield the role assignments of an environment's `preview` and `deploy` identities."""
    scope, blobs = f"/subscriptions/{settings.subscription}", "Storage Blob Data"
    account, vault = (f"{{{settings.environment}-{part}.id}}" for part in ("account", "vault"))
    yield Grant("preview-reader", "preview", "Reader", scope)
    yield Grant("preview-state", "preview", f"{blobs} Reader", account)
    yield Grant("preview-key", "preview", "Key Vault Crypto User", vault)
    yield Grant("contributor", "deploy", CONTRIBUTOR, scope)
    granted = (*ROLES, *(role.name for role in CUSTOM_ROLES))
    yield Grant("role", "deploy", ADMINISTRATOR, scope, _condition(granted, settings.subscription))
    if settings.guardrails.locks:
        yield Grant("locks", "deploy", LOCKS, scope)
    yield Grant("state", "deploy", f"{blobs} Contributor", account)
    yield Grant("key", "deploy", "Key Vault Crypto User", vault)
    registry_subscription = settings.registry_subscription
    if settings.asset_registry.mode != "use" or registry_subscription == settings.subscription:
        return
    # On the subscription: the resource groups of the registry may not exist yet.
    scope, condition = (
        f"/subscriptions/{registry_subscription}",
        _condition(ON_REGISTRY, registry_subscription),
    )
    yield Grant("preview-registry", "preview", "Reader", scope)
    yield Grant("registry", "deploy", "Reader", scope)
    yield Grant("registry-connections", "deploy", APPROVER, scope)
    yield Grant("registry-role", "deploy", ADMINISTRATOR, scope, condition)


def _condition(names: Iterable[str], subscription: str) -> str:
    """Return the condition by which the deployer may assign and remove only these roles.

    (role-based-access-control/delegate-role-assignments-examples, "Constrain roles")
    """
    roles = f"{{{{{', '.join(role_id(name, subscription) for name in names)}}}}}"
    return " AND ".join(
        f"((!(ActionMatches{{{{'Microsoft.Authorization/roleAssignments/{action}'}}}})) OR"
        f" (@{source}[Microsoft.Authorization/roleAssignments:RoleDefinitionId]"
        f" ForAnyOfAnyValues:GuidEquals {roles}))"
        for action, source in (("write", "Request"), ("delete", "Resource"))
    )


def _providers(settings: Settings) -> Iterator[Step]:
    """Yield the step that registers resource providers in the subscription; Pulumi's provider
    registers none (pulumi/pulumi-azure-native#3479).
    """
    where = ("--subscription", settings.subscription)
    ask = ("az", "provider", "list", *where)
    yield Step(
        f"{settings.environment}-providers",
        ask,
        ask,
        differences=lambda answer, _: (f"{name} is not registered" for name in _missing(answer)),
        undo=lambda answer: (
            ("az", "provider", "register", "--namespace", name, *where) for name in _missing(answer)
        ),
    )


def _stack(settings: Settings, home: State) -> Iterator[Step]:
    """Yield the steps that create the stack, write the key of its secrets into the stack file, and
    push the file to main, where workflows read it.

    `pulumi stack init` writes the key (pulumi/pulumi#5650). If it was interrupted before that,
    `change-secrets-provider` writes it.
    """
    name = settings.environment
    # Makes Pulumi's client of the vault sign in as the Azure CLI's user.
    signed_in = (f"PULUMI_BACKEND_URL={home.url}", "AZURE_KEYVAULT_AUTH_VIA_CLI=true")
    program = ("env", *signed_in, "pulumi", "stack")
    list_stacks, this = (
        (*program, "ls", "--json", "--cwd", "infra"),
        ("--stack", name, "--cwd", "infra"),
    )
    yield Step(
        f"{name}-stack",
        list_stacks,
        (*program, "init", name, "--secrets-provider", home.secrets, "--cwd", "infra"),
        partial(_listed, name),
    )
    yield Step(
        f"{name}-stack-key",
        list_stacks,
        (*program, "change-secrets-provider", home.secrets, *this),
        partial(_keyed, name),
        home.secrets,
        after=(f"{name}-stack",),
    )
    file = f"infra/Pulumi.{name}.yaml"
    commit = f"git commit -qm 'The key of {name}' {file} && git push -q"
    yield Step(
        f"{name}-stack-key-on-main",
        ("gh", "api", f"repos/{settings.github}/contents/{file}?ref={MAIN}"),
        ("sh", "-c", commit),
        partial(_on_main, name),
        by_hand=True,
    )


def _missing(answer: Any) -> list[str]:
    """Return the resource providers of PROVIDERS that are neither registered nor registering."""
    registered = {
        item["namespace"].lower()
        for item in answer
        if item["registrationState"] in ("Registered", "Registering")
    }
    return [name for name in PROVIDERS if name.lower() not in registered]


def _listed(name: str, answer: Any, _: str) -> Any:
    """Return the listed stack `name`, None if absent; Pulumi may print `ORG/PROJECT/` before it."""
    return next((item for item in answer or () if item["name"].rpartition("/")[2] == name), None)


def _keyed(name: str, answer: Any, secrets: str) -> Any:
    """Return the stack if its file has a key encrypted by this secrets provider, else None."""
    key = loader.encryption(name, loader.FOLDER)
    return _listed(name, answer, "") if key and key[0] == secrets else None


def _on_main(name: str, answer: Any, _: str) -> Any:
    """Return the stack file on main if it has the key of the checkout's file, else None."""
    content = base64.b64decode((answer or {}).get("content") or "").decode(errors="replace")
    key = loader.encryption(name, loader.FOLDER)
    return answer if key and all(word in content.split() for word in key) else None


def _identities(settings: Settings) -> Iterator[Step]:
    """Yield a step per identity of the program; a person creates them by deploying the program."""
    names = settings.names
    group = ("--resource-group", names.group, "--subscription", settings.subscription)
    deploy = ("gh", "workflow", "run", "infra.yml", "--repo", settings.github)
    for purpose in OF_THE_PROGRAM:
        query = ("az", "identity", "show", "--name", names.local("id", purpose), *group)
        yield Step(f"{settings.environment}-{purpose}-identity", query, deploy, by_hand=True)


def _identity(settings: Settings, purpose: Purpose) -> Iterator[Step]:
    """Yield the steps that create an identity and its credential for one GitHub environment."""
    where = ("--resource-group", state(settings).group, "--subscription", settings.subscription)
    prefix = f"{settings.environment}-{purpose}"
    identity = f"id-{settings.name}-{prefix}"
    yield Step(
        f"{prefix}-identity",
        ("az", "identity", "show", "--name", identity, *where),
        ("az", "identity", "create", "--name", identity, "--location", settings.location, *where),
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
