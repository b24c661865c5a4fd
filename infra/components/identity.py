"""Who acts: user-assigned identities, and GitHub's workflows by OIDC; no secret anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import managedidentity

from infra.components.site import Site


@dataclass(frozen=True)
class IdentityArgs:
    """`clusters` and `repository` (as in the settings): who gets an identity of their own."""

    site: Site
    repository: str
    clusters: Sequence[str]
    encryption: bool


class Identity(pulumi.ComponentResource):
    """Identities of the workspace, of each cluster, of endpoints and of the repository."""

    def __init__(self, name: str, args: IdentityArgs) -> None:
        super().__init__("platform:identity:Identity", name)
        self._site = args.site
        self.workspace = self._identity("workspace")
        self.endpoints = self._identity("endpoints")
        self.pipeline = self._identity("pipeline")
        self.encryption = self._identity("encryption") if args.encryption else None
        self.clusters = {one: self._identity(f"cluster-{one}") for one in args.clusters}
        # One credential an identity: Azure refuses two that are written at the same time.
        managedidentity.FederatedIdentityCredential(
            "github",
            resource_group_name=args.site.group,
            resource_name_=self.pipeline.name,
            federated_identity_credential_resource_name="github-environment",
            issuer="https://token.actions.githubusercontent.com",
            subject=f"repo:{args.repository}:environment:{args.site.names.environment}",
            audiences=["api://AzureADTokenExchange"],
            opts=pulumi.ResourceOptions(parent=self.pipeline),
        )
        self.register_outputs({"pipelineClientId": self.pipeline.client_id})

    def _identity(self, what: str) -> managedidentity.UserAssignedIdentity:
        return managedidentity.UserAssignedIdentity(
            what,
            resource_group_name=self._site.group,
            resource_name_=self._site.names.local("id", what),
            location=self._site.location,
            tags=self._site.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
