"""Where images are: the registry of training and serving environments."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_azure_native import containerregistry

from infra.components.network import Network
from infra.components.site import Site
from infra.foundations import Images as Settings


@dataclass(frozen=True)
class RegistryArgs:
    """`network` is None where public addresses answer."""

    site: Site
    settings: Settings
    network: Network | None


class Registry(pulumi.ComponentResource):
    """A Premium container registry without an administrator's password.

    Retention is on and soft delete is not: Azure refuses the two together. Quarantine is off: with
    it an image cannot be pulled until a scanner has let it through.
    """

    def __init__(self, name: str, args: RegistryArgs) -> None:
        super().__init__("platform:registry:Registry", name)
        site = args.site
        self.registry = containerregistry.Registry(
            "images",
            registry_name=site.names.worldwide("cr"),
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            sku=containerregistry.SkuArgs(name="Premium"),
            admin_user_enabled=False,
            anonymous_pull_enabled=False,
            data_endpoint_enabled=True,
            public_network_access=site.public_access,
            network_rule_bypass_options="AzureServices",
            network_rule_set=containerregistry.NetworkRuleSetArgs(
                default_action="Deny" if args.network else "Allow"
            ),
            zone_redundancy="Enabled" if args.settings.zone_redundant else "Disabled",
            policies=containerregistry.PoliciesArgs(
                retention_policy=containerregistry.RetentionPolicyArgs(
                    status="enabled", days=args.settings.keep_untagged_days
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )
        if args.network:
            args.network.private_endpoint("images", self.registry.id, "registry")
        self.register_outputs({"id": self.registry.id})
