"""Online endpoints, which may exist before their first model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import machinelearningservices as ml
from pulumi_azure_native import managedidentity

from infra.program.monitoring import Monitoring
from infra.program.site import Site
from infra.settings.model import Endpoint

# Releases set the traffic. An update is a PUT of the declared properties, and Azure reads a missing
# traffic as no traffic (Azure-Samples/openai-end-to-end-baseline, machinelearning.bicep): a new
# owner in the tags would stop every endpoint. Use `pulumi up --refresh` to update an endpoint: it
# sends back the traffic that it read.
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
    """Endpoints that only accept Entra tokens; releases set their traffic, not Pulumi."""

    def __init__(self, name: str, args: EndpointsArgs) -> None:
        super().__init__("platform:serving:Endpoints", name)
        site = args.site
        for endpoint in args.endpoints:
            resource = ml.OnlineEndpoint(
                endpoint.name,
                endpoint_name=site.names.regional(endpoint.name),
                **site.place,
                workspace_name=args.workspace,
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
            args.monitoring.diagnose(f"endpoint-{endpoint.name}", resource.id)
            args.monitoring.alert(
                f"{endpoint.name}-errors",
                resource.id,
                "RequestsPerMinute",
                endpoint.alert_errors,
                aggregation="Average",
                dimension=("statusCodeClass", "5xx"),
            )
        self.register_outputs({})
