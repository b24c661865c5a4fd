"""Who may do what where: role assignments, each to one identity on one resource."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pulumi
from pulumi_azure_native import authorization, managedidentity

from infra.components.site import Site

# learn.microsoft.com/azure/role-based-access-control/built-in-roles
ROLES: Mapping[str, str] = {
    "AcrPull": "7f951dda-4ed3-4680-a7ca-43fe172d538d",
    "AcrPush": "8311e382-0749-4cb8-b61a-304f252e45ec",
    "Azure AI Enterprise Network Connection Approver": "b556d68e-0be0-4f35-a333-ad7ee1ce17ea",
    "AzureML Data Scientist": "f6c7c914-8db3-469d-8ca1-694a8f32e121",
    "AzureML Metrics Writer (preview)": "635dd51f-9968-44d3-b7fb-6d9a6bd613ae",
    "AzureML Registry User": "1823dd4f-9b8c-4ab6-ab4e-7397a3684615",
    "Contributor": "b24988ac-6180-42a0-ab88-20f7382dd24c",
    "Key Vault Administrator": "00482a5a-887f-4fb3-b363-3b7fe8e74483",
    "Key Vault Crypto Service Encryption User": "e147488a-f6f5-4113-8e2d-b22465e65bf6",
    "Managed Identity Operator": "f1a07417-d97a-45cb-824c-7a7467783830",
    "Reader": "acdd72a7-3385-48ef-bd42-f606fba81ae7",
    "Storage Blob Data Contributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "Storage Blob Data Reader": "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
    "Storage File Data Privileged Contributor": "69566ab7-960f-475b-8e7c-b3118f30c6bd",
    "Storage Queue Data Contributor": "974c5e8b-45b9-4653-ba55-5f855dd0fb88",
    "Storage Table Data Contributor": "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3",
    "Virtual Machine User Login": "fb879df8-f326-4884-b1cf-06f3ad86be52",
}


@dataclass(frozen=True)
class Grant:
    """A role of `ROLES` for an identity, or for the person with that object id, on a scope."""

    name: str
    who: managedidentity.UserAssignedIdentity | str
    role: str
    scope: pulumi.Input[str]

    @property
    def kind(self) -> Literal["User", "ServicePrincipal"]:
        """What the principal is; stated, so that a new identity need not be found first."""
        return "User" if isinstance(self.who, str) else "ServicePrincipal"


@dataclass(frozen=True)
class GrantsArgs:
    """The grants of one part of the environment."""

    site: Site
    grants: Sequence[Grant]


class Grants(pulumi.ComponentResource):
    """Role assignments; others wait for `made` before they use what was granted."""

    def __init__(self, name: str, args: GrantsArgs) -> None:
        super().__init__("platform:identity:Grants", name)
        self.made = [self._assignment(name, args.site, grant) for grant in args.grants]
        self.register_outputs({})

    def _assignment(self, name: str, site: Site, grant: Grant) -> authorization.RoleAssignment:
        definition = f"providers/Microsoft.Authorization/roleDefinitions/{ROLES[grant.role]}"
        told = f"{site.subscription}/{site.names.group}/{name}/{grant.name}/{grant.role}"
        return authorization.RoleAssignment(
            grant.name,
            # A name that follows from what it grants is the same in every run, and another for
            # another role: Azure refuses to change that of an assignment.
            role_assignment_name=str(uuid.uuid5(uuid.NAMESPACE_URL, told)),
            principal_id=grant.who if isinstance(grant.who, str) else grant.who.principal_id,
            principal_type=grant.kind,
            role_definition_id=f"/subscriptions/{site.subscription}/{definition}",
            scope=grant.scope,
            description=f"{grant.role}: {grant.name}",
            opts=pulumi.ResourceOptions(parent=self),
        )
