"""What a new fork needs before its first `pulumi up`, as repeatable steps.

Pulumi keeps its state in a blob container without shared keys and encrypts secrets with a key of a
vault (the backend `azblob://` and the secrets provider `azurekeyvault://` of its documentation).
GitHub's workflows sign in by OIDC, without secrets, as an identity for each purpose:
`infra.settings.workflows`.
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
# The deployer creates resources and assigns roles, on the resource group and above it. Neither of
# these roles may set a lock (azure-resource-manager/management/lock-resources).
CONTRIBUTOR = "Contributor"
ADMINISTRATOR = "Role Based Access Control Administrator"
LOCKS = "Locks Contributor"


@dataclass(frozen=True)
class State:
    """The storage of one environment's Pulumi state, and the key of its secrets.

    Whoever can write the state controls the next update. Each environment therefore has its own
    storage account in its subscription, in a separate resource group: the program creates and
    deletes another one.
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
    """Return the state of an environment."""
    names = settings.names
    return State(names.local("rg", "state"), names.worldwide("stpu"), names.worldwide("kvpu"))


def plan(environments: Sequence[Settings]) -> tuple[Step, ...]:
    """Return every step, for the stacks in the order of their deployment; raise UserError if they
    do not belong to one platform.
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
        # Late: the person's roles on the state and its key take effect after minutes.
        *(step for environment in environments for step in _stack(environment, state(environment))),
        *github.protected_environment(BOT, first),
        *github.rulesets(
            first,
            tuple(f"{environment.environment}-stack-key-on-main" for environment in environments),
        ),
        *_runner(environments),
    )


def _runner(environments: Sequence[Settings]) -> Iterator[Step]:
    """Yield the label of self-hosted runners, once their networks are there: until then workflows
    run on GitHub's own.
    """
    with_runners = [environment for environment in environments if environment.network.runners]
    labels = {environment.network.runners for environment in with_runners}
    if len(labels) > 1:
        expected = "one label: workflows read one variable"
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
    """Assigns a role by object id, since Entra may not find a new identity by name yet."""
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
        yield "its condition is another one" if condition else "it has a condition"


# Settings of a storage account in Azure's response that open it → what they mean.
_OPENINGS = {
    "allowSharedKeyAccess": "account keys bypass role assignments",
    "allowBlobPublicAccess": "a container of it may be public",
}


def _state_steps(settings: Settings) -> Iterator[Step]:
    """Yield the container of an environment's state, and the key of its secrets."""
    home, subscription = state(settings), ("--subscription", settings.subscription)
    prefix, location = settings.environment, settings.location
    where = ("--resource-group", home.group, *subscription)
    # Azure refuses copies in another region where there is no paired one:
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
        # `create` sets an account that is there, too.
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
    # A deleted vault holds its name, and nobody may purge it; it comes back with its key:
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
    # Through Azure Resource Manager: the vault itself requires a role that is not effective yet.
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
    """Return a value if no deleted vault has the name, else None (see `Step.existing`)."""
    names = {str(item["name"]).lower() for item in answer or ()}
    return None if vault.lower() in names else {"deleted": False}


def _operations() -> Step:
    """Return the step that lists the actions of all Azure roles.

    Azure rejects a role definition with an unknown action (InvalidActionOrNotAction), and only this
    response has their names.
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
    """Return the step that defines a custom role where it is granted.

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
    """Return the definition, if it still grants the same: a later template may take more away."""
    granted = ((answer or {}).get("properties") or {}).get("permissions") or []
    is_same = len(granted) == 1 and all(
        sorted(granted[0].get(kind) or ()) == sorted(operations)
        for kind, operations in json.loads(value).items()
    )
    return answer if is_same else None


def _environment(settings: Settings) -> Iterator[Step]:
    """Yield the state of a stack, its identities and roles, and its GitHub environments."""
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
    """A role of an identity that the bootstrap makes."""

    name: str
    purpose: Purpose
    role: str
    scope: str  # a resource id; may contain `{name.output}` of an earlier step
    condition: str = ""  # limits the role; "" for none


def grants(settings: Settings) -> Iterator[Grant]:
    """Yield the role assignments of the identities that preview and that deploy an environment."""
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
    # Its group, and those that Azure makes for its accounts, may not be there yet.
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
    """Azure's resource providers in the subscription: Pulumi's provider registers none
    (pulumi/pulumi-azure-native#3479).
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
    """Yield the stack in the state, and the key of its secrets in its file, which is on main where
    workflows read it.

    `pulumi stack init` writes the key into the file (pulumi/pulumi#5650). Where it was ended before
    that, `change-secrets-provider` does.
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
    """The providers that are not registered, and not about to be in the regions that are left."""
    registered = {
        item["namespace"].lower()
        for item in answer
        if item["registrationState"] in ("Registered", "Registering")
    }
    return [name for name in PROVIDERS if name.lower() not in registered]


def _listed(name: str, answer: Any, _: str) -> Any:
    """A stack of the state; a name may come with the organisation and the project before it."""
    return next((item for item in answer or () if item["name"].rpartition("/")[2] == name), None)


def _keyed(name: str, answer: Any, secrets: str) -> Any:
    """Return the stack, if its file holds a key that this provider has encrypted."""
    key = loader.encryption(name, loader.FOLDER)
    return _listed(name, answer, "") if key and key[0] == secrets else None


def _on_main(name: str, answer: Any, _: str) -> Any:
    """Return the file, if main's has the key of this checkout's."""
    content = base64.b64decode((answer or {}).get("content") or "").decode(errors="replace")
    key = loader.encryption(name, loader.FOLDER)
    return answer if key and all(word in content.split() for word in key) else None


def _identities(settings: Settings) -> Iterator[Step]:
    """Yield the steps for the identities that the program creates, once a person deploys it."""
    names = settings.names
    group = ("--resource-group", names.group, "--subscription", settings.subscription)
    deploy = ("gh", "workflow", "run", "infra.yml", "--repo", settings.github)
    for purpose in OF_THE_PROGRAM:
        query = ("az", "identity", "show", "--name", names.local("id", purpose), *group)
        yield Step(f"{settings.environment}-{purpose}-identity", query, deploy, by_hand=True)


def _identity(settings: Settings, purpose: Purpose) -> Iterator[Step]:
    """Yield the steps of an identity, in the state's group, for jobs of one GitHub environment."""
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
