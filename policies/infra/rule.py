"""The classes of rules, and of the resources that they check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from policies.infra.limits import Limits

AZURE = "azure-native"
UNKNOWN = "(not known before the update)"


class Kind(StrEnum):
    """The types of resources that the rules cover, without the provider; others are rejected.

    Examples of rejected types are a subnet declared outside its network, another API version,
    another provider, a template or a command. To use a new kind, add it here with its rules.
    """

    APPLICATION_INSIGHTS = "applicationinsights:Component"
    LOCK = "authorization:ManagementLockByScope"
    ROLE_ASSIGNMENT = "authorization:RoleAssignment"
    MACHINE = "compute:VirtualMachine"
    MACHINE_EXTENSION = "compute:VirtualMachineExtension"
    BUDGET = "consumption:Budget"
    CONTAINER_REGISTRY = "containerregistry:Registry"
    KEY = "keyvault:Key"
    VAULT = "keyvault:Vault"
    COMPUTE = "machinelearningservices:Compute"
    DATASTORE = "machinelearningservices:Datastore"
    ENDPOINT = "machinelearningservices:OnlineEndpoint"
    ML_REGISTRY = "machinelearningservices:Registry"
    WORKSPACE = "machinelearningservices:Workspace"
    CONNECTION = "machinelearningservices:WorkspaceConnection"
    CREDENTIAL = "managedidentity:FederatedIdentityCredential"
    IDENTITY = "managedidentity:UserAssignedIdentity"
    ACTION_GROUP = "monitor:ActionGroup"
    DIAGNOSTICS = "monitor:DiagnosticSetting"
    ALERT = "monitor:MetricAlert"
    SCOPE = "monitor:PrivateLinkScope"
    SCOPED_RESOURCE = "monitor:PrivateLinkScopedResource"
    NAT_GATEWAY = "network:NatGateway"
    NETWORK_CARD = "network:NetworkInterface"
    SECURITY_GROUP = "network:NetworkSecurityGroup"
    DNS_GROUP = "network:PrivateDnsZoneGroup"
    PRIVATE_ENDPOINT = "network:PrivateEndpoint"
    PUBLIC_ADDRESS = "network:PublicIPAddress"
    ROUTE_TABLE = "network:RouteTable"
    NETWORK = "network:VirtualNetwork"
    LOGS = "operationalinsights:Workspace"
    DNS_ZONE = "privatedns:PrivateZone"
    DNS_LINK = "privatedns:VirtualNetworkLink"
    REDIS_USER = "redisenterprise:AccessPolicyAssignment"
    REDIS_DATABASE = "redisenterprise:Database"
    REDIS = "redisenterprise:RedisEnterprise"
    RESOURCE_GROUP = "resources:ResourceGroup"
    DEFENDER = "security:DefenderForStorage"
    CONTAINER = "storage:BlobContainer"
    BLOB_SERVICE = "storage:BlobServiceProperties"
    SHARE = "storage:FileShare"
    LIFECYCLE = "storage:ManagementPolicy"
    ACCOUNT = "storage:StorageAccount"


@dataclass(frozen=True)
class Item:
    """A resource to check: with its inputs, or for a rule of the whole stack with its outputs.

    Outputs lack names that are only inputs (`computeName`, `privateZoneName`). A rule of the whole
    stack therefore reads `resource_name`.
    """

    kind: str  # such as `storage:StorageAccount`; the whole type if not of azure-native
    name: str  # logical name in the program
    urn: str
    # A value that only Azure knows is `UNKNOWN`, which may stand for a whole list or object.
    props: Mapping[str, Any]
    # Input → URNs of the resources that it derives from; {} in a rule of single resources.
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignores: tuple[str, ...] = ()  # Pulumi's `ignoreChanges`
    protected: bool = False  # Pulumi's `protect`
    provider: str = ""  # the Pulumi provider's name; for rules of single resources only

    def value(self, path: str, default: Any = None) -> Any:
        """Return the value at a dotted path; `default` if it is missing, UNKNOWN below UNKNOWN."""
        value: Any = self.props
        for key in path.split("."):
            if value == UNKNOWN:
                return UNKNOWN
            if not isinstance(value, Mapping) or value.get(key) is None:
                return default
            value = value[key]
        return value

    def members(self, path: str) -> list[Item]:
        """Return the members of the list, or the values of the mapping, at a path, each as an item.

        An unknown list has one member, whose values are all `UNKNOWN`.
        """
        members = self.value(path, ())
        if isinstance(members, Mapping):
            members = list(members.values())
        if members == UNKNOWN:
            members = [UNKNOWN]
        return [replace(self, props=member) for member in members]

    def sources(self, *inputs: str) -> set[str]:
        """Return the URNs of the resources that these inputs derive from."""
        return {urn for name in inputs for urn in self.uses.get(name, ())}

    @property
    def resource_name(self) -> str:
        """The name in Azure; if it is unknown (in a preview), the logical name."""
        name = self.value("name", UNKNOWN)
        return self.name if name == UNKNOWN else str(name)


def sources_of(
    items: Iterable[Item], kind: str, name: str, where: Callable[[Item], object] = lambda _: True
) -> set[str]:
    """Return the URNs that the input `name` of the items of a kind derives from.

    `where` selects among the items.
    """
    selected = [item for item in items if item.kind == kind and where(item)]
    return {urn for item in selected for urn in item.sources(name)}


def users_of(items: Iterable[Item], kinds: Collection[str], name: str) -> dict[str, list[Item]]:
    """Return URN → items of `kinds` whose input `name` derives from it."""
    users: dict[str, list[Item]] = {}
    for item in items:
        for urn in item.uses.get(name, ()) if item.kind in kinds else ():
            users.setdefault(urn, []).append(item)
    return users


def is_cluster(item: Item) -> bool:
    """Return whether a compute resource is a cluster, not an instance."""
    return bool(item.value("properties.computeType") == "AmlCompute")


Check = Callable[[Item, Limits], Iterator[str]]
StackFindings = Iterator[tuple[Item, str]]
StackCheck = Callable[[Sequence[Item], Limits], StackFindings]


@dataclass(frozen=True)
class Rule:
    """A rule with one check, of single resources or of the whole stack."""

    name: str
    title: str
    sources: str  # ids of the rule in public catalogues; "own" if it is in none
    kinds: tuple[str, ...] = ()  # kinds of resources to check; () means every kind
    check: Check | None = None  # gets one resource
    stack_check: StackCheck | None = None  # gets all resources of a stack


class Rules(list[Rule]):
    """The rules of a module, in the order of their declaration.

    `@RULES.resource(…)` declares a rule of single resources, `@RULES.stack(…)` one of the whole
    stack; the decorated function is the check. `.must(…)` replaces a check of a single value.
    """

    def resource(self, name: str, title: str, sources: str, *kinds: str) -> Declaration:
        """Return a decorator for the check of a rule of single resources; no `kinds` means all."""
        return Declaration(self, Rule(name, title, sources, kinds))

    def stack(self, name: str, title: str, sources: str) -> Callable[[StackCheck], StackCheck]:
        """Return a decorator for the check of a rule of the whole stack."""

        def declare(check: StackCheck) -> StackCheck:
            self.append(Rule(name, title, sources, stack_check=check))
            return check

        return declare


@dataclass(frozen=True)
class Declaration:
    """A rule of single resources that has no check yet."""

    rules: Rules
    rule: Rule

    def __call__(self, check: Check) -> Check:
        """Declare the rule with this check."""
        self.rules.append(replace(self.rule, check=check))
        return check

    def must(self, path: str, allowed: object, default: object = None) -> None:
        """Declare the rule: the value at `path` is `allowed`, or one of them if it is a tuple.

        `default` is the value that Azure uses if none is set.
        """
        choices = allowed if isinstance(allowed, tuple) else (allowed,)

        def check(item: Item, limits: Limits) -> Iterator[str]:
            value = item.value(path, default)
            # Compare types too: 1 == True in Python, but maybe not in Azure.
            if not any(type(value) is type(choice) and value == choice for choice in choices):
                yield f"`{path}` is {_shown(value)}, must be {' or '.join(map(_shown, choices))}"

        self(check)


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
