"""The workspace and the feature store, their network, the datastores and online endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pulumi
from pulumi_azure_native import machinelearningservices as ml
from pulumi_azure_native import managedidentity

from infra.program.monitoring import Monitoring
from infra.program.network import Network
from infra.program.registries import Assets, Registry
from infra.program.site import Component, Options, Site
from infra.program.storage import Storage, Vault
from infra.settings.azure import LAKE_PARTS, PARALLEL_PARTS
from infra.settings.model import FEATURES


@dataclass(frozen=True)
class WorkspaceArgs:
    """The arguments of `Workspace` and `FeatureStore`."""

    site: Site
    identity: managedidentity.UserAssignedIdentity
    # Roles that the identity needs before the workspace is created.
    granted: Sequence[pulumi.Resource]
    network: Network | None  # None if the environment is public
    storage: Storage
    vault: Vault
    registry: Registry
    assets: Assets | None  # None without a shared asset registry
    insights: pulumi.Input[str]  # id of Application Insights
    sas: pulumi.Output[str] | None  # token for the lake; None if datastores use identities
    redis: pulumi.Input[str] | None  # id of the online store; None without one


class Workspace(Component):
    """A workspace and its datastores, which use the workspace's user-assigned identity.

    If `args.sas` is given, the datastores use that SAS token instead.
    """

    def __init__(self, name: str, args: WorkspaceArgs, opts: Options = None) -> None:
        super().__init__("workspace:Workspace", name, opts, "workspace")
        settings = args.site.settings
        self.workspace = _workspace(
            self,
            self.child("workspace"),
            args,
            workspace_name=settings.workspace_name,
            kind="Default",
            # A registry without public addresses cannot build images.
            image_build_compute=settings.builder.name if settings.builder else None,
            # The first cluster creates the managed network, after the workspace's role assignments
            # (hashicorp/terraform-provider-azurerm#28650). Created with the workspace, its private
            # endpoints would need a role on the workspace, which cannot exist yet.
            provision_network_now=settings.network.isolation == "managed" and not settings.computes,
        )
        for name, container in args.storage.containers.items():
            self._datastore(args, name, container.name)
        self.register_outputs({"id": self.workspace.id, "name": self.workspace.name})

    def _datastore(self, args: WorkspaceArgs, name: str, container: pulumi.Input[str]) -> None:
        ml.Datastore(
            self.child(f"datastore-{name}"),
            # A datastore's name has no hyphens.
            name=name.replace("-", "_"),
            resource_group_name=args.site.group,
            workspace_name=self.workspace.name,
            properties=_by_sas(args, args.sas, container)
            if args.sas
            else _by_identity(args, container),
            # Azure ML would validate it from outside the lake's network.
            skip_validation=True,
            opts=pulumi.ResourceOptions(parent=self.workspace),
        )


class FeatureStore(Component):
    """A workspace of the kind FeatureStore; its offline store is the container `features`.

    It has no compute, because jobs of the workspace materialise, so its managed network is never
    created. Azure's own materialisation would need that network, and more roles of the identity.
    """

    def __init__(self, name: str, args: WorkspaceArgs, opts: Options = None) -> None:
        super().__init__("workspace:FeatureStore", name, opts, "features")
        # The name that azure-ai-ml uses (`OFFLINE_STORE_CONNECTION_NAME`).
        connection = "OfflineStoreConnectionName"
        self.workspace = _workspace(
            self,
            self.child("features"),
            replace(args, assets=None, redis=None),
            workspace_name=args.site.names.local("mlfs"),
            kind="FeatureStore",
            feature_store_settings=ml.FeatureStoreSettingsArgs(
                offline_store_connection_name=connection
            ),
        )
        ml.WorkspaceConnection(
            self.child("offline-store"),
            connection_name=connection,
            resource_group_name=args.site.group,
            workspace_name=self.workspace.name,
            properties=ml.ManagedIdentityAuthTypeWorkspaceConnectionPropertiesArgs(
                auth_type="ManagedIdentity",
                category="ADLSGen2",
                target=args.storage.containers[FEATURES].id,
                credentials=ml.WorkspaceConnectionManagedIdentityArgs(
                    client_id=args.identity.client_id, resource_id=args.identity.id
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self.workspace),
        )
        self.register_outputs({"id": self.workspace.id})


def _workspace(
    parent: pulumi.Resource, name: str, args: WorkspaceArgs, **kind: Any
) -> ml.Workspace:
    """Declare a workspace that uses its identity for all access, and its private endpoint."""
    site = args.site
    workspace = ml.Workspace(
        name,
        **site.place,
        **kind,
        sku=ml.SkuArgs(name="Basic", tier="Basic"),
        identity=ml.ManagedServiceIdentityArgs(
            type="UserAssigned", user_assigned_identities=[args.identity.id]
        ),
        primary_user_assigned_identity=args.identity.id,
        storage_account=args.storage.workspace.id,
        key_vault=args.vault.id,
        container_registry=args.registry.id,
        application_insights=args.insights,
        public_network_access=site.public_access,
        v1_legacy_mode=False,
        hbi_workspace=site.settings.workspace.high_business_impact or None,
        encryption=_encryption(args),
        enable_service_side_cmk_encryption=site.settings.workspace.customer_managed_key or None,
        system_datastores_auth_mode="Identity",
        managed_network=_managed_network(args),
        serverless_compute_settings=_serverless(args),
        # Wait for the stack's private endpoints: the managed network adds some to the same
        # resources, and concurrent writes fail.
        opts=pulumi.ResourceOptions(
            parent=parent,
            protect=site.protect,
            # A managed network may take longer than the provider waits: pulumi-azure-native#3212.
            custom_timeouts=pulumi.CustomTimeouts(create="2h", update="2h"),
            depends_on=[*args.granted, *(args.network.dns_records if args.network else ())],
        ),
    )
    if args.network:
        args.network.private_endpoint(name, workspace.id, "amlworkspace")
    return workspace


def _encryption(args: WorkspaceArgs) -> ml.EncryptionPropertyArgs | None:
    """Return the encryption by the stack's own vault key; None without a customer-managed key."""
    if not (args.site.settings.workspace.customer_managed_key and args.vault.key):
        return None
    return ml.EncryptionPropertyArgs(
        status="Enabled",
        identity=ml.IdentityForCmkArgs(user_assigned_identity=args.identity.id),
        key_vault_properties=ml.KeyVaultPropertiesArgs(
            key_vault_arm_id=args.vault.id, key_identifier=args.vault.key.key_uri_with_version
        ),
    )


def _by_identity(
    args: WorkspaceArgs, container: pulumi.Input[str]
) -> ml.AzureDataLakeGen2DatastoreArgs:
    return ml.AzureDataLakeGen2DatastoreArgs(
        datastore_type="AzureDataLakeGen2",
        filesystem=container,
        **_lake(args),
        credentials=ml.NoneDatastoreCredentialsArgs(credentials_type="None"),
        service_data_access_auth_identity="WorkspaceUserAssignedIdentity",
    )


def _by_sas(
    args: WorkspaceArgs, token: pulumi.Output[str], container: pulumi.Input[str]
) -> ml.AzureBlobDatastoreArgs:
    return ml.AzureBlobDatastoreArgs(
        datastore_type="AzureBlob",
        container_name=container,
        **_lake(args),
        credentials=ml.SasDatastoreCredentialsArgs(
            credentials_type="Sas",
            secrets=ml.SasDatastoreSecretsArgs(secrets_type="Sas", sas_token=token),
        ),
    )


def _lake(args: WorkspaceArgs) -> dict[str, Any]:
    """Return the location of the data lake for a datastore."""
    return {
        "account_name": args.storage.lake.name,
        "endpoint": "core.windows.net",
        "protocol": "https",
        "subscription_id": args.site.settings.subscription,
        "resource_group": args.site.names.group,
    }


def _rule_name(host: str) -> str:
    """Return the rule name of a host, unique also for a-b.org, a.b.org and *.b.org."""
    kind, name = ("hosts", host[2:]) if host.startswith("*.") else ("host", host)
    return f"{kind}-{name.replace('-', '--').replace('.', '-')}"


def _endpoint_rule(id: pulumi.Input[str], part: str) -> ml.PrivateEndpointOutboundRuleArgs:
    return ml.PrivateEndpointOutboundRuleArgs(
        type="PrivateEndpoint",
        category="UserDefined",
        destination=ml.PrivateEndpointDestinationArgs(
            service_resource_id=id, subresource_target=part
        ),
    )


def _serverless(args: WorkspaceArgs) -> ml.ServerlessComputeSettingsArgs | None:
    """Return settings that run serverless jobs in the virtual network; None if it is not used.

    A managed network contains serverless nodes by itself (how-to-use-serverless-compute).
    """
    if args.network is None or args.site.settings.network.isolation != "own":
        return None
    return ml.ServerlessComputeSettingsArgs(
        serverless_compute_custom_subnet=args.network.subnet("compute"),
        serverless_compute_no_public_ip=True,
    )


def _managed_network(args: WorkspaceArgs) -> ml.ManagedNetworkSettingsArgs:
    """Return the managed network: only approved outbound traffic if private, else any.

    It is disabled with `isolation: own`. A starter needs it: its nodes have no public addresses.
    """
    if args.site.settings.network.isolation == "own":
        return ml.ManagedNetworkSettingsArgs(isolation_mode="Disabled")
    rules: dict[str, ml.FqdnOutboundRuleArgs | ml.PrivateEndpointOutboundRuleArgs] = {}
    if args.assets:
        # The shared registry may have no public addresses.
        parts = args.assets.parts.items()
        rules |= {f"assets-{part}": _endpoint_rule(id, part) for part, id in parts}
    if args.redis:
        rules["redis"] = _endpoint_rule(args.redis, "redisEnterprise")
    if not args.network:
        return ml.ManagedNetworkSettingsArgs(
            isolation_mode="AllowInternetOutbound", outbound_rules=rules
        )
    lake, workspace_storage = args.storage.lake.id, args.storage.workspace.id
    rules |= {f"lake-{part}": _endpoint_rule(lake, part) for part in LAKE_PARTS}
    rules |= {
        f"workspace-{part}": _endpoint_rule(workspace_storage, part) for part in PARALLEL_PARTS
    }
    if args.storage.share:
        rules["share"] = _endpoint_rule(args.storage.share.id, "file")
    for host in args.site.settings.network.allowed_hosts:
        rules[_rule_name(host)] = ml.FqdnOutboundRuleArgs(
            type="FQDN", category="UserDefined", destination=host
        )
    return ml.ManagedNetworkSettingsArgs(
        isolation_mode="AllowOnlyApprovedOutbound",
        firewall_sku=args.site.settings.network.firewall,
        outbound_rules=rules,
    )


# Releases set these, so Pulumi ignores their changes. A PUT without `traffic` sets it to zero
# (Azure-Samples/openai-end-to-end-baseline, machinelearning.bicep; pulumi-azure-native#1280), so a
# change of the owner tag would stop every endpoint. `make deploy` uses `--refresh`, so that other
# updates send back the traffic that it read.
SET_BY_RELEASES = ["properties.traffic", "properties.mirrorTraffic", "tags"]


class Endpoints(Component):
    """Endpoints that only accept Entra tokens; releases set their traffic, not Pulumi.

    `granted` are role assignments that the identity needs before a deployment pulls its image.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        *,
        workspace: pulumi.Input[str],
        identity: managedidentity.UserAssignedIdentity,
        granted: Sequence[pulumi.Resource],
        monitoring: Monitoring,
        opts: Options = None,
    ) -> None:
        super().__init__("serving:Endpoints", name, opts, "endpoints")
        self.endpoints: dict[str, ml.OnlineEndpoint] = {}
        for endpoint in site.settings.endpoints:
            self.endpoints[endpoint.name] = resource = ml.OnlineEndpoint(
                self.child(endpoint.name),
                endpoint_name=site.names.regional(endpoint.name),
                **site.place,
                workspace_name=workspace,
                kind="Managed",
                identity=ml.ManagedServiceIdentityArgs(
                    type="UserAssigned", user_assigned_identities=[identity.id]
                ),
                properties=ml.OnlineEndpointPropertiesArgs(
                    auth_mode="AADToken", public_network_access=site.public_access
                ),
                opts=pulumi.ResourceOptions(
                    parent=self, depends_on=[*granted], ignore_changes=SET_BY_RELEASES
                ),
            )
            monitoring.diagnose(f"endpoint-{endpoint.name}", resource.id)
            monitoring.alert(
                f"{endpoint.name}-errors",
                resource.id,
                "RequestsPerMinute",
                endpoint.alert_errors,
                aggregation="Average",
                dimension=("statusCodeClass", "5xx"),
            )
        self.register_outputs({})
