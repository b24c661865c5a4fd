"""Roles that the bootstrap gives, and the one condition among them."""

from __future__ import annotations

from infra.live.steps import Step

# Who deploys creates resources and assigns roles, at the resource group's level and above it.
# Neither of the two may set a lock (azure-resource-manager/management/lock-resources).
CONTRIBUTES = "Contributor"
ASSIGNS = "Role Based Access Control Administrator"
LOCKS = "Locks Contributor"
# All roles but those that assign roles themselves: Owner, that administrator and User Access
# Administrator (role-based-access-control/delegate-role-assignments-examples).
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


def role(
    name: str,
    called: str,
    who: str,
    scope: str,
    kind: str = "ServicePrincipal",
    condition: str = "",
) -> Step:
    """A role of somebody by object id, which may be so new that Entra does not find it yet."""
    limited = ("--condition", condition, "--condition-version", "2.0") if condition else ()
    return Step(
        name,
        ("az", "role", "assignment", "list", "--assignee", who, "--role", called, "--scope", scope),
        ("az", "role", "assignment", "create", "--assignee-object-id", who,
         "--assignee-principal-type", kind, "--role", called, "--scope", scope, *limited),
    )  # fmt: skip
