"""What answers: online endpoints, which may be there before their first model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import machinelearningservices as ml
from pulumi_azure_native import managedidentity

from infra.components.monitoring import Monitoring
from infra.components.site import Site
from infra.workloads import Endpoint


@dataclass(frozen=True)
class EndpointsArgs:
    """`granted` are the roles that the identity needs before a deployment pulls its image."""

    site: Site
    workspace: pulumi.Input[str]
    endpoints: Sequence[Endpoint]
    identity: managedidentity.UserAssignedIdentity
    granted: Sequence[pulumi.Resource]
    monitoring: Monitoring


class Endpoints(pulumi.ComponentResource):
    """Endpoints that take Entra tokens alone; releases move their traffic, not Pulumi."""

    def __init__(self, name: str, args: EndpointsArgs) -> None:
        super().__init__("platform:serving:Endpoints", name)
        site = args.site
        for endpoint in args.endpoints:
            made = ml.OnlineEndpoint(
                endpoint.name,
                endpoint_name=site.names.regional(endpoint.name),
                resource_group_name=site.group,
                workspace_name=args.workspace,
                location=site.location,
                tags=site.tags,
                kind="Managed",
                identity=ml.ManagedServiceIdentityArgs(
                    type="UserAssigned", user_assigned_identities=[args.identity.id]
                ),
                properties=ml.OnlineEndpointPropertiesArgs(
                    auth_mode="AADToken", public_network_access=site.public_access
                ),
                opts=pulumi.ResourceOptions(
                    parent=self,
                    depends_on=[*args.granted],
                    ignore_changes=["properties.traffic", "properties.mirrorTraffic"],
                ),
            )
            args.monitoring.diagnose(f"endpoint-{endpoint.name}", made.id)
            args.monitoring.alert(
                f"{endpoint.name}-errors",
                made.id,
                "RequestsPerMinute",
                endpoint.alert_errors,
                aggregation="Average",
                dimension=("statusCodeClass", "5xx"),
            )
        self.register_outputs({})
