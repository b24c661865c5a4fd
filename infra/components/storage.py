"""Where data is: the workspace's own account, the lake, and an NFS share where one is asked for.

Shared keys are off, so a SAS can only be a user-delegation SAS. Azure's SAS policy does not bind
those; `infra sas`, which issues them, keeps to the same limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_azure_native import security, storage
from pulumi_azure_native.network import PrivateEndpoint

from infra.components.encryption import EncryptionKey, encryption, holder
from infra.components.lifecycle import lifecycle
from infra.components.network import Network
from infra.components.site import Site
from infra.foundations import Storage as Settings
from infra.inventory import LAKE_PARTS, PARALLEL_PARTS


@dataclass(frozen=True)
class StorageArgs:
    """`network` is None where public addresses answer, `key` where Azure's key encrypts.

    `nodes` says whether nodes of clusters stand in `network`.
    """

    site: Site
    settings: Settings
    network: Network | None
    nodes: bool
    key: EncryptionKey | None


class Storage(pulumi.ComponentResource):
    """Two accounts: the workspace's, which may have no hierarchical names, and the lake.

    `share` is the account of the NFS share, None without one.
    """

    def __init__(self, name: str, args: StorageArgs) -> None:
        super().__init__("platform:storage:Storage", name)
        self._args = args
        site, settings = args.site, args.settings
        # By account: what is written to it besides private endpoints, which come after.
        self._written: dict[str, list[pulumi.Resource]] = {}
        self.workspace = self._account("workspace-storage", "stws", lake=False)
        self.lake = self._account("lake", "stlk", lake=True)
        self.services = {
            "workspace-storage": self._blobs("workspace-storage", self.workspace),
            "lake": self._blobs("lake", self.lake),
        }
        self.containers = {
            one: storage.BlobContainer(
                f"container-{one}",
                container_name=one,
                account_name=self.lake.name,
                resource_group_name=site.group,
                public_access=storage.PublicAccess.NONE,
                opts=pulumi.ResourceOptions(parent=self.lake, protect=site.protect),
            )
            for one in settings.containers
        }
        rules = lifecycle("lake", site, self.lake, settings)
        self._written["lake"] += [*self.containers.values(), rules]
        self.share = self._share(settings.nfs_share_gib) if settings.nfs_share_gib else None
        self.endpoints = {
            f"{name}-{what}": self._endpoint(args.network, name, account, what)
            for name, account, parts in (
                ("workspace-storage", self.workspace, ("blob", "file")),
                ("lake", self.lake, LAKE_PARTS),
            )
            for what in parts
            if args.network
        }
        for what in PARALLEL_PARTS:
            if args.network and args.nodes:
                self._endpoint(args.network, "workspace-storage", self.workspace, what)
        self.register_outputs({"lake": self.lake.id})

    def _endpoint(
        self, network: Network, name: str, account: storage.StorageAccount, what: str
    ) -> PrivateEndpoint:
        return network.private_endpoint(name, account.id, what, after=self._written[name])

    def _account(
        self, name: str, kind: str, *, lake: bool, nfs: bool = False
    ) -> storage.StorageAccount:
        site, settings, key = self._args.site, self._args.settings, self._args.key
        network = self._args.network
        subnets = [network.subnet("compute")] if network and network.service_endpoints else []
        account = storage.StorageAccount(
            name,
            account_name=site.names.worldwide(kind),
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            kind="FileStorage" if nfs else "StorageV2",
            sku=storage.SkuArgs(name="Premium_ZRS" if nfs else f"Standard_{settings.redundancy}"),
            is_hns_enabled=lake,
            allow_blob_public_access=False,
            allow_shared_key_access=False,
            allow_cross_tenant_replication=False,
            default_to_o_auth_authentication=True,
            is_local_user_enabled=False,
            # NFS has no TLS of its own: its account is reached through a private endpoint alone.
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
            identity=holder(key),
            encryption=encryption(key, queues=not nfs),
            opts=pulumi.ResourceOptions(
                parent=self, protect=site.protect, depends_on=key.awaited if key else []
            ),
        )
        defender = security.DefenderForStorage(
            f"{name}-defender",
            setting_name="current",
            resource_id=account.id,
            properties=security.DefenderForStorageSettingPropertiesArgs(
                is_enabled=True, override_subscription_level_settings=True
            ),
            opts=pulumi.ResourceOptions(parent=account),
        )
        self._written[name] = [defender]
        return account

    def _blobs(self, name: str, account: storage.StorageAccount) -> storage.BlobServiceProperties:
        kept = storage.DeleteRetentionPolicyArgs(
            enabled=True, days=self._args.settings.soft_delete_days
        )
        blobs = storage.BlobServiceProperties(
            f"{name}-blobs",
            blob_services_name="default",
            account_name=account.name,
            resource_group_name=self._args.site.group,
            delete_retention_policy=kept,
            container_delete_retention_policy=kept,
            opts=pulumi.ResourceOptions(parent=account),
        )
        self._written[name].append(blobs)
        return blobs

    def _share(self, gib: int) -> storage.StorageAccount:
        account = self._account("share-storage", "stnf", lake=False, nfs=True)
        share = storage.FileShare(
            "share",
            share_name="shared",
            account_name=account.name,
            resource_group_name=self._args.site.group,
            enabled_protocols="NFS",
            root_squash="RootSquash",
            share_quota=gib,
            opts=pulumi.ResourceOptions(parent=account, protect=self._args.site.protect),
        )
        assert self._args.network, "settings refuse a share without a network"
        self._written["share-storage"].append(share)
        self._endpoint(self._args.network, "share-storage", account, "file")
        return account
