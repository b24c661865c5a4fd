"""Azure Managed Redis, the online store of features."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
from pulumi_azure_native import managedidentity, redisenterprise

from infra.program.network import Network
from infra.program.site import Component, Options, Site


class OnlineStore(Component):
    """A Redis that accepts TLS and Entra tokens only; a materialisation can write it again.

    `network` is None with public addresses, `users` are the identities that read and write.
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
            # `ml.features.online.RedisStore` takes a client of one server.
            clustering_policy="NoCluster",
            # A full store refuses a write; it does not forget another entity.
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
