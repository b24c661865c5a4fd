"""User-assigned identities, and federated sign-in of GitHub's workflows; no secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import managedidentity

from infra.program.site import Site


@dataclass(frozen=True)
class IdentityArgs:
    """`clusters` and `repository` get identities; `encryption` asks for one for storage's key."""

    site: Site
    repository: str
    clusters: Sequence[str]
    encryption: bool


class Identity(pulumi.ComponentResource):
    """Identities of the workspace, each cluster, the endpoints and the repository."""

    def __init__(self, name: str, args: IdentityArgs) -> None:
        super().__init__("platform:identity:Identity", name)
        self._site = args.site
        self.workspace = self._identity("workspace")
        self.endpoints = self._identity("endpoints")
        self.pipeline = self._identity("pipeline")
        self.encryption = self._identity("encryption") if args.encryption else None
        self.clusters = {name: self._identity(f"cluster-{name}") for name in args.clusters}
        # One credential an identity: Azure refuses two concurrent writes.
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

    def _identity(self, name: str) -> managedidentity.UserAssignedIdentity:
        return managedidentity.UserAssignedIdentity(
            name,
            resource_group_name=self._site.group,
            resource_name_=self._site.names.local("id", name),
            location=self._site.location,
            tags=self._site.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
