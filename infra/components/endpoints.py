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

# What a release writes, and the tags. An update is a PUT of what the program declares, and Azure
# takes one without traffic for no traffic at all (Azure-Samples/openai-end-to-end-baseline,
# machinelearning.bicep): a new owner in the tags would silence every endpoint. What has to be
# updated nevertheless goes with `pulumi up --refresh`, which sends back the traffic that it read.
RELEASES = ["properties.traffic", "properties.mirrorTraffic", "tags"]


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
                    parent=self, depends_on=[*args.granted], ignore_changes=RELEASES
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
