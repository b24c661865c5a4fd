"""Rules of rights: what may be granted, where, to whom, and who may sign in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from policies.infra.limits import Limits, environment
from policies.infra.rule import UNKNOWN, Item, Rule
from policies.infra.workspace import COMPUTE, ENDPOINT, WORKSPACE

ASSIGNMENT = "authorization:RoleAssignment"
LOCK = "authorization:ManagementLockByScope"
FEDERATED = "managedidentity:FederatedIdentityCredential"
GROUP = "resources:ResourceGroup"
# Every role that may be granted: learn.microsoft.com/azure/role-based-access-control/built-in-roles
# A role of one's own, or another one, is added here with who may have it.
ROLES: Mapping[str, str] = {
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "8311e382-0749-4cb8-b61a-304f252e45ec": "AcrPush",
    "b556d68e-0be0-4f35-a333-ad7ee1ce17ea": "Azure AI Enterprise Network Connection Approver",
    "f6c7c914-8db3-469d-8ca1-694a8f32e121": "AzureML Data Scientist",
    "635dd51f-9968-44d3-b7fb-6d9a6bd613ae": "AzureML Metrics Writer (preview)",
    "1823dd4f-9b8c-4ab6-ab4e-7397a3684615": "AzureML Registry User",
    "b24988ac-6180-42a0-ab88-20f7382dd24c": "Contributor",
    "00482a5a-887f-4fb3-b363-3b7fe8e74483": "Key Vault Administrator",
    "e147488a-f6f5-4113-8e2d-b22465e65bf6": "Key Vault Crypto Service Encryption User",
    "f1a07417-d97a-45cb-824c-7a7467783830": "Managed Identity Operator",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": "Reader",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
    "69566ab7-960f-475b-8e7c-b3118f30c6bd": "Storage File Data Privileged Contributor",
    "974c5e8b-45b9-4653-ba55-5f855dd0fb88": "Storage Queue Data Contributor",
    "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3": "Storage Table Data Contributor",
    "fb879df8-f326-4884-b1cf-06f3ad86be52": "Virtual Machine User Login",
}
# Those that change or open what they are granted on: for the workspace alone, which needs them.
MANAGING = (
    "Contributor",
    "Key Vault Administrator",
    "Azure AI Enterprise Network Connection Approver",
)
LENDING = "Managed Identity Operator"
ISSUER = "https://token.actions.githubusercontent.com"
# /subscriptions/S/resourceGroups/G/providers/NAMESPACE/TYPE/NAME: role-based-access-control/
# scope-overview. What is shorter is a group, a subscription or a management group.
_PARTS = 8
Found = Iterator[tuple[Item, str]]


def role(assignment: Item) -> str:
    """The name of the role that an assignment grants, its id where it is none of `ROLES`."""
    granted = str(assignment.at("roleDefinitionId", "")).rsplit("/", 1)[-1]
    return ROLES.get(granted.lower(), granted)


def _least(item: Item, limits: Limits) -> Iterator[str]:
    if role(item) not in ROLES.values():
        yield f"grants `{role(item)}`, which is none of the roles in policies/infra/rights.py"
    scope = str(item.at("scope", ""))
    if scope != UNKNOWN and len(scope.strip("/").split("/")) < _PARTS:
        yield f"is granted on `{scope}`: a group of resources or more, not one"


def _on_group(items: Sequence[Item], limits: Limits) -> Found:
    """Before the update a scope is not known: what it was made from is."""
    groups = {item.urn for item in items if item.kind == GROUP}
    for item in items:
        if item.kind == ASSIGNMENT and groups & {*item.uses.get("scope", ())}:
            yield item, "is granted on the resource group, not on one resource"


def _managing(items: Sequence[Item], limits: Limits) -> Found:
    acting = {
        urn for item in items if item.kind == WORKSPACE for urn in item.uses.get("identity", ())
    }
    for item in items:
        granted = role(item) if item.kind == ASSIGNMENT else ""
        who = {*item.uses.get("principalId", ())}
        if granted in MANAGING and (not who or not who <= acting):
            yield item, f"grants {granted} to another than the workspace's own identity"
        if granted == LENDING and acting & {*item.uses.get("scope", ())}:
            yield item, f"grants {granted} on the workspace's identity: who has it acts as it"


def _lock(items: Sequence[Item], limits: Limits) -> Found:
    groups = {item.urn for item in items if item.kind == GROUP}
    for item in items:
        if item.kind != LOCK:
            continue
        made_from = {*item.uses.get("scope", ())}
        if not made_from or made_from & groups:
            yield item, "a lock on the resource group keeps clusters from giving nodes back"
        if item.at("level") != "CanNotDelete":
            yield item, f"`level` is {item.at('level')}: who only reads cannot use what is locked"


def _own(items: Sequence[Item], limits: Limits) -> Found:
    """What a job may do follows from its cluster, and from nothing else that has its identity."""
    for sharing in _acting(items).values():
        for item in sharing if len(sharing) > 1 else ():
            if item.kind == COMPUTE:
                others = ", ".join(f"`{one.name}`" for one in sharing if one is not item)
                yield item, f"acts by the identity of {others} too"


def _acting(items: Sequence[Item]) -> Mapping[str, list[Item]]:
    """URN of an identity → what acts by it."""
    found: dict[str, list[Item]] = {}
    for item in items:
        if item.kind in (WORKSPACE, COMPUTE, ENDPOINT):
            for urn in item.uses.get("identity", ()):
                found.setdefault(urn, []).append(item)
    return found


def _federated(items: Sequence[Item], limits: Limits) -> Found:
    """A workflow has an identity for itself; whose it is, its tag says."""
    by_urn, acting = {item.urn: item for item in items}, _acting(items)
    for item in items:
        if item.kind != FEDERATED:
            continue
        held = [by_urn[urn] for urn in item.uses.get("resourceName", ()) if urn in by_urn]
        ours = {f"repo:{one.at('tags.repository')}" for one in held}
        if ours != {str(item.at("subject", "")).split(":environment:")[0]}:
            yield item, "signs in another repository than the one of its identity's tag"
        for one in held:
            for other in acting.get(one.urn, ()):
                yield item, f"lets a workflow act as `{other.name}`"


def _signs_in(item: Item, limits: Limits) -> Iterator[str]:
    """A credential of another environment would pass by the reviewers of this one."""
    place, subject = environment(item.urn), str(item.at("subject", ""))
    if not re.fullmatch(rf"repo:[^:*]+:environment:{re.escape(place)}", subject):
        yield f"`subject` is {subject}, must be repo:OWNER/NAME:environment:{place}"
    issuer = str(item.at("issuer", ""))
    # An enterprise may have an issuer of its own, below GitHub's.
    if issuer != ISSUER and not issuer.startswith(f"{ISSUER}/"):
        yield f"`issuer` is {issuer}, must be {ISSUER}"
    if item.at("claimsMatchingExpression"):
        yield "`claimsMatchingExpression` lets in more than one subject"


RULES: tuple[Rule, ...] = (
    Rule("role-least", "A right is a known one, on one resource.", "own", (ASSIGNMENT,), _least),
    Rule("role-not-on-group", "A right is on one resource.", "own", whole=_on_group),
    Rule(
        "role-managing",
        "Only the workspace manages what it stands on.",
        "own",
        whole=_managing,
    ),
    Rule(
        "compute-own-identity",
        "No two clusters act by one identity.",
        "own",
        whole=_own,
    ),
    Rule(
        "lock-not-on-group",
        "Locks stand on what holds data, not on the resource group.",
        "azure-resource-manager/management/lock-resources",
        whole=_lock,
    ),
    Rule(
        "federation-one-environment",
        "A workflow signs in from one environment of the repository.",
        "own",
        (FEDERATED,),
        _signs_in,
    ),
    Rule(
        "federation-own-identity",
        "A workflow acts as itself, of the repository that the environment is of.",
        "own",
        whole=_federated,
    ),
)
