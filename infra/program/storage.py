"""The key vault, the online store (Redis), and storage: the account, the data lake, an NFS share.

Shared keys are off, so a SAS can only be a user-delegation SAS. Azure's SAS policy does not apply
to those; `infra sas`, which issues them, enforces the same limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import keyvault, managedidentity, redisenterprise, security, storage
from pulumi_azure_native.network import PrivateEndpoint

from infra.program.network import Network
from infra.program.site import Component, Options, Site
from infra.settings import model
from infra.settings.azure import LAKE_PARTS, PARALLEL_PARTS
from infra.settings.workflows import RELEASES


class Vault(Component):
    """The key vault: a new one with the key that encrypts storage, or an existing one.

    `network` is None if the environment is public. `created` is None for an existing vault.
    """

    def __init__(
        self, name: str, site: Site, network: Network | None, opts: Options = None
    ) -> None:
        super().__init__("vault:Vault", name, opts, "vault")
        self.created: keyvault.Vault | None = None
        self.key: keyvault.Key | None = None
        self.id: pulumi.Input[str] = site.settings.vault.id
        self.name: pulumi.Input[str] = site.settings.vault.id.rpartition("/")[2]
        self.key_name: pulumi.Input[str] = site.settings.vault.key
        self.uri: pulumi.Input[str] = f"https://{self.name}.vault.azure.net/"
        if site.settings.vault.id:
            self.register_outputs({"id": self.id})
            return
        subnet = None
        if network and network.service_endpoints:
            subnet = network.subnet("compute")
        self.created = keyvault.Vault(
            self.child("vault"),
            vault_name=f"{site.names.worldwide('kv')}{site.settings.vault.generation}"
            if site.settings.vault.generation > 1
            else site.names.worldwide("kv"),
            **site.place,
            properties=keyvault.VaultPropertiesArgs(
                tenant_id=site.settings.tenant,
                sku=keyvault.SkuArgs(family="A", name=keyvault.SkuName.PREMIUM),
                enable_rbac_authorization=True,
                # Azure requires the list, even empty.
                access_policies=[],
                enable_soft_delete=True,
                enable_purge_protection=True,
                soft_delete_retention_in_days=site.settings.vault.soft_delete_days,
                public_network_access="Enabled" if subnet else site.public_access,
                network_acls=keyvault.NetworkRuleSetArgs(
                    bypass="AzureServices",
                    default_action="Deny" if network else "Allow",
                    virtual_network_rules=[keyvault.VirtualNetworkRuleArgs(id=subnet)]
                    if subnet
                    else [],
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )
        self.id, self.name = self.created.id, self.created.name
        self.uri = self.created.properties.vault_uri
        if site.settings.has_key:
            self.key = self._key(site)
            self.key_name = self.key.name
        if network:
            written = [self.key] if self.key else []
            network.private_endpoint(self.child("vault"), self.id, "vault", after=written)
        self.register_outputs({"id": self.id})

    def _key(self, site: Site) -> keyvault.Key:
        ninety_days = keyvault.LifetimeActionArgs(
            action=keyvault.ActionArgs(type=keyvault.KeyRotationPolicyActionType.ROTATE),
            trigger=keyvault.TriggerArgs(time_after_create="P90D"),
        )
        return keyvault.Key(
            self.child("storage-key"),
            key_name="storage",
            vault_name=self.name,
            resource_group_name=site.group,
            tags=site.tags,
            properties=keyvault.KeyPropertiesArgs(
                kty="RSA-HSM",
                key_size=3072,
                key_ops=["wrapKey", "unwrapKey"],
                attributes=keyvault.KeyAttributesArgs(enabled=True),
                rotation_policy=keyvault.RotationPolicyArgs(lifetime_actions=[ninety_days]),
            ),
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )


@dataclass(frozen=True)
class EncryptionKey:
    """The customer-managed key of storage, and the identity that may wrap keys with it."""

    vault_uri: pulumi.Input[str]
    name: pulumi.Input[str]
    identity: managedidentity.UserAssignedIdentity
    awaited: list[pulumi.Resource]  # resources that are encrypted with the key depend on these


def _encryption(key: EncryptionKey | None, *, queues: bool) -> storage.EncryptionArgs:
    """Return the double encryption of an account, by `key` or, if it is None, by Microsoft's key.

    `queues` is True if the account has queues and tables. They can use `key` only if the account is
    created so (storage/common/account-encryption-key-create).
    """
    service = storage.EncryptionServiceArgs(enabled=True, key_type="Account")
    ours = service if key and queues else None
    services = storage.EncryptionServicesArgs(blob=service, file=service, queue=ours, table=ours)
    identity = vault = None
    if key:
        identity = storage.EncryptionIdentityArgs(encryption_user_assigned_identity=key.identity.id)
        # Without a version the account follows the key's rotation.
        vault = storage.KeyVaultPropertiesArgs(key_name=key.name, key_vault_uri=key.vault_uri)
    return storage.EncryptionArgs(
        key_source="Microsoft.Keyvault" if key else "Microsoft.Storage",
        require_infrastructure_encryption=True,
        services=services,
        encryption_identity=identity,
        key_vault_properties=vault,
    )


def _lifecycle(
    name: str, site: Site, account: storage.StorageAccount, settings: model.Storage
) -> storage.ManagementPolicy:
    """Declare the lake's lifecycle: all blobs become cool; the first container's may be deleted."""
    cool = storage.DateAfterModificationArgs(
        days_after_modification_greater_than=settings.cool_after_days
    )
    rules = [_rule("cool", [], storage.ManagementPolicyBaseBlobArgs(tier_to_cool=cool))]
    if settings.delete_after_days:
        expired = storage.DateAfterModificationArgs(
            days_after_modification_greater_than=settings.delete_after_days
        )
        first = f"{settings.containers[0]}/"
        rules.append(_rule("expire", [first], storage.ManagementPolicyBaseBlobArgs(delete=expired)))
    return storage.ManagementPolicy(
        f"{name}-lifecycle",
        management_policy_name="default",
        account_name=account.name,
        resource_group_name=site.group,
        policy=storage.ManagementPolicySchemaArgs(rules=rules),
        opts=pulumi.ResourceOptions(parent=account),
    )


def _rule(
    name: str, prefixes: list[str], actions: storage.ManagementPolicyBaseBlobArgs
) -> storage.ManagementPolicyRuleArgs:
    return storage.ManagementPolicyRuleArgs(
        name=name,
        type="Lifecycle",
        enabled=True,
        definition=storage.ManagementPolicyDefinitionArgs(
            filters=storage.ManagementPolicyFilterArgs(
                blob_types=["blockBlob"], prefix_match=prefixes
            ),
            actions=storage.ManagementPolicyActionArgs(base_blob=actions),
        ),
    )


class Storage(Component):
    """The workspace's storage account, which must not be hierarchical, the lake and the NFS share.

    `network` is None if the environment is public, `key` is None if Microsoft's key encrypts.
    `share` is the account of the NFS share, None without one.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        network: Network | None,
        key: EncryptionKey | None,
        opts: Options = None,
    ) -> None:
        super().__init__("storage:Storage", name, opts, "storage")
        self._site, self._network, self._key = site, network, key
        settings = site.settings.storage
        # Account → resources that write to it, for which its private endpoints must wait.
        self._written: dict[str, list[pulumi.Resource]] = {}
        adopted = site.settings.workspace.storage_account
        account_name = adopted or site.names.worldwide("stws")
        self.workspace = self._account("workspace-storage", account_name, lake=False)
        self.lake = self._account("lake", site.names.worldwide("stlk"), lake=True)
        self.services = {
            "workspace-storage": self._blobs("workspace-storage", self.workspace),
            "lake": self._blobs("lake", self.lake),
        }
        self.containers = {
            name: self._container(f"container-{name}", name, self.lake)
            for name in site.settings.containers
        }
        rules = _lifecycle(self.child("lake"), site, self.lake, settings)
        self._written["lake"] += [*self.containers.values(), rules]
        # A container that jobs cannot write (infra.settings.workflows.writes_only).
        releases = self._container("releases", RELEASES, self.workspace)
        self._written["workspace-storage"].append(releases)
        self.share = self._share(settings.nfs_share_gib) if settings.nfs_share_gib else None
        self.endpoints = {
            f"{name}-{part}": self._endpoint(network, name, account, part)
            for name, account, parts in (
                ("workspace-storage", self.workspace, ("blob", "file")),
                ("lake", self.lake, LAKE_PARTS),
            )
            for part in parts
            if network
        }
        for part in PARALLEL_PARTS:
            if network and site.settings.network.isolation == "own":
                self._endpoint(network, "workspace-storage", self.workspace, part)
        self.register_outputs({"lake": self.lake.id})

    def _endpoint(
        self, network: Network, name: str, account: storage.StorageAccount, part: str
    ) -> PrivateEndpoint:
        return network.private_endpoint(
            self.child(name), account.id, part, after=self._written[name]
        )

    def _account(
        self, name: str, account_name: str, *, lake: bool, nfs: bool = False
    ) -> storage.StorageAccount:
        site, network, key = self._site, self._network, self._key
        settings = site.settings.storage
        subnets = [network.subnet("compute")] if network and network.service_endpoints else []
        account = storage.StorageAccount(
            self.child(name),
            account_name=account_name,
            **site.place,
            kind="FileStorage" if nfs else "StorageV2",
            sku=storage.SkuArgs(name="Premium_ZRS" if nfs else f"Standard_{settings.redundancy}"),
            is_hns_enabled=lake,
            allow_blob_public_access=False,
            allow_shared_key_access=False,
            allow_cross_tenant_replication=False,
            default_to_o_auth_authentication=True,
            is_local_user_enabled=False,
            # NFS has no TLS; its account is only reachable through a private endpoint.
            enable_https_traffic_only=not nfs,
            minimum_tls_version="TLS1_2",
            public_network_access="Enabled" if subnets and not nfs else site.public_access,
            network_rule_set=storage.NetworkRuleSetArgs(
                default_action=storage.DefaultAction.DENY
                if network
                else storage.DefaultAction.ALLOW,
                bypass="AzureServices",
                virtual_network_rules=[
                    storage.VirtualNetworkRuleArgs(virtual_network_resource_id=subnet)
                    for subnet in subnets
                ],
            ),
            sas_policy=storage.SasPolicyArgs(
                expiration_action="Block",
                sas_expiration_period=f"00.{settings.sas_hours:02}:00:00"
                if settings.sas_hours < 24
                else f"{settings.sas_hours // 24:02}.{settings.sas_hours % 24:02}:00:00",
            ),
            identity=storage.IdentityArgs(
                type="UserAssigned", user_assigned_identities=[key.identity.id]
            )
            if key
            else None,
            encryption=_encryption(key, queues=not nfs),
            opts=pulumi.ResourceOptions(
                parent=self, protect=site.protect, depends_on=key.awaited if key else []
            ),
        )
        defender = security.DefenderForStorage(
            self.child(f"{name}-defender"),
            setting_name="current",
            resource_id=account.id,
            properties=security.DefenderForStorageSettingPropertiesArgs(
                is_enabled=True, override_subscription_level_settings=True
            ),
            opts=pulumi.ResourceOptions(parent=account),
        )
        self._written[name] = [defender]
        return account

    def _container(
        self, name: str, container: str, account: storage.StorageAccount
    ) -> storage.BlobContainer:
        return storage.BlobContainer(
            self.child(name),
            container_name=container,
            account_name=account.name,
            resource_group_name=self._site.group,
            public_access=storage.PublicAccess.NONE,
            opts=pulumi.ResourceOptions(parent=account, protect=self._site.protect),
        )

    def _blobs(self, name: str, account: storage.StorageAccount) -> storage.BlobServiceProperties:
        retention = storage.DeleteRetentionPolicyArgs(
            enabled=True, days=self._site.settings.storage.soft_delete_days
        )
        blobs = storage.BlobServiceProperties(
            self.child(f"{name}-blobs"),
            blob_services_name="default",
            account_name=account.name,
            resource_group_name=self._site.group,
            delete_retention_policy=retention,
            container_delete_retention_policy=retention,
            # Azure ML's studio adds its own rules, which an update without them would remove.
            opts=pulumi.ResourceOptions(parent=account, ignore_changes=["cors"]),
        )
        self._written[name].append(blobs)
        return blobs

    def _share(self, gib: int) -> storage.StorageAccount:
        account_name = self._site.names.worldwide("stnf")
        account = self._account("share-storage", account_name, lake=False, nfs=True)
        share = storage.FileShare(
            self.child("share"),
            share_name="shared",
            account_name=account.name,
            resource_group_name=self._site.group,
            enabled_protocols="NFS",
            root_squash="RootSquash",
            share_quota=gib,
            # A refresh drops `enabledProtocols` from the state. Without this the next update would
            # replace the share and lose its files (pulumi/pulumi-azure-native#1751).
            opts=pulumi.ResourceOptions(
                parent=account, protect=self._site.protect, ignore_changes=["enabledProtocols"]
            ),
        )
        assert self._network, "settings refuse a share without a network"
        self._written["share-storage"].append(share)
        self._endpoint(self._network, "share-storage", account, "file")
        return account


class OnlineStore(Component):
    """A Redis that accepts only TLS and Entra tokens; after a loss, a materialisation refills it.

    `network` is None if the environment is public; `users` are identities that read and write.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        network: Network | None,
        users: Mapping[str, managedidentity.UserAssignedIdentity],
        opts: Options = None,
    ) -> None:
        super().__init__("features:OnlineStore", name, opts, "online-store")
        settings = site.settings.feature_store
        self.cluster = redisenterprise.RedisEnterprise(
            self.child("redis"),
            cluster_name=site.names.worldwide("redis"),
            **site.place,
            sku=redisenterprise.SkuArgs(name=settings.redis),
            public_network_access=site.public_access,
            minimum_tls_version="1.2",
            high_availability="Enabled" if settings.replicated else "Disabled",
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.database = redisenterprise.Database(
            self.child("redis-database"),
            # Azure accepts no other name.
            database_name="default",
            cluster_name=self.cluster.name,
            resource_group_name=site.group,
            access_keys_authentication="Disabled",
            client_protocol="Encrypted",
            # `ml.features.online.RedisStore` uses a client for a single server.
            clustering_policy="NoCluster",
            # A full store rejects writes instead of evicting other entities.
            eviction_policy="NoEviction",
            port=10000,
            opts=pulumi.ResourceOptions(parent=self.cluster),
        )
        # One after another: the cluster accepts one write at a time.
        written: list[pulumi.Resource] = [self.database]
        for user, identity in users.items():
            assignment = redisenterprise.AccessPolicyAssignment(
                self.child(f"redis-{user}"),
                # Letters and digits only.
                access_policy_assignment_name=user.replace("-", ""),
                access_policy_name="default",
                cluster_name=self.cluster.name,
                database_name=self.database.name,
                resource_group_name=site.group,
                user=redisenterprise.AccessPolicyAssignmentPropertiesUserArgs(
                    object_id=identity.principal_id
                ),
                opts=pulumi.ResourceOptions(parent=self.database, depends_on=written[-1:]),
            )
            written.append(assignment)
        if network:
            network.private_endpoint(
                self.child("redis"), self.cluster.id, "redisEnterprise", after=written
            )
        self.register_outputs({"id": self.cluster.id})
