"""The key vault: access only by role, no early purge."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_azure_native import keyvault

from infra.program.network import Network
from infra.program.site import Site
from infra.settings.model import Vault as Settings


@dataclass(frozen=True)
class VaultArgs:
    """`network` is None with public addresses; `key` asks for a key for storage."""

    site: Site
    settings: Settings
    network: Network | None
    key: bool


class Vault(pulumi.ComponentResource):
    """A key vault, and the customer-managed key of storage."""

    def __init__(self, name: str, args: VaultArgs) -> None:
        super().__init__("platform:vault:Vault", name)
        site, subnet = args.site, None
        if args.network and args.network.service_endpoints:
            subnet = args.network.subnet("compute")
        self.vault = keyvault.Vault(
            "vault",
            vault_name=site.names.worldwide("kv"),
            **site.place,
            properties=keyvault.VaultPropertiesArgs(
                tenant_id=site.tenant,
                sku=keyvault.SkuArgs(family="A", name=keyvault.SkuName.PREMIUM),
                enable_rbac_authorization=True,
                # Azure requires the list, even empty.
                access_policies=[],
                enable_soft_delete=True,
                enable_purge_protection=True,
                soft_delete_retention_in_days=args.settings.soft_delete_days,
                public_network_access="Enabled" if subnet else site.public_access,
                network_acls=keyvault.NetworkRuleSetArgs(
                    bypass="AzureServices",
                    default_action="Deny" if args.network else "Allow",
                    virtual_network_rules=[keyvault.VirtualNetworkRuleArgs(id=subnet)]
                    if subnet
                    else [],
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )
        self.key = self._key(site) if args.key else None
        if args.network:
            written = [self.key] if self.key else []
            args.network.private_endpoint("vault", self.vault.id, "vault", after=written)
        self.register_outputs({"id": self.vault.id})

    def _key(self, site: Site) -> keyvault.Key:
        ninety_days = keyvault.LifetimeActionArgs(
            action=keyvault.ActionArgs(type=keyvault.KeyRotationPolicyActionType.ROTATE),
            trigger=keyvault.TriggerArgs(time_after_create="P90D"),
        )
        return keyvault.Key(
            "storage-key",
            key_name="storage",
            vault_name=self.vault.name,
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
