"""What who is signed in may do, by the rules of role definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from infra.live.addresses import version
from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.preview.captured import Resource

# What a deployment has to be allowed for a kind that it declares, and the role that allows it.
ACTIONS: Mapping[str, tuple[str, str]] = {
    "authorization:RoleAssignment": (
        "Microsoft.Authorization/roleAssignments/write",
        "Role Based Access Control Administrator",
    ),
    "authorization:ManagementLockByScope": (
        "Microsoft.Authorization/locks/write",
        "Locks Contributor",
    ),
    "managedidentity:FederatedIdentityCredential": (
        "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials/write",
        "Contributor",
    ),
    "machinelearningservices:Workspace": (
        "Microsoft.MachineLearningServices/workspaces/write",
        "Contributor",
    ),
}


def permissions(resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """What who is signed in may do on the subscription, by the rules of role definitions."""
    path = f"/subscriptions/{arm.subscription}/providers/Microsoft.Authorization/permissions"
    granted = list(arm.all(path, version("authorization:RoleAssignment")))
    declared = {one.kind for one in resources}
    needed = [asked for kind, asked in ACTIONS.items() if kind in declared]
    missing = [
        (action, role)
        for action, role in needed
        if not any(_allows(one, action) for one in granted)
    ]
    for action, role in missing:
        hint = f"Owner, or {role}: `infra bootstrap` grants it to who deploys"
        yield Check(f"permission {action}", "error", "not granted", hint)
    if not missing:
        yield Check("permissions", "ok", f"{len(needed)} actions that the deployment needs")


def _allows(permission: Mapping[str, Any], action: str) -> bool:
    def named(key: str) -> bool:
        patterns = [str(one).lower() for one in permission.get(key) or ()]
        return any(fnmatchcase(action.lower(), pattern) for pattern in patterns)

    return named("actions") and not named("notActions")
