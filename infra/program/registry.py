"""The container registry, and the Azure ML registry that environments share."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import containerregistry
from pulumi_azure_native import machinelearningservices as ml

from infra.program.network import Network
from infra.program.site import Site


class Registry(pulumi.ComponentResource):
    """A Premium container registry without an administrator's password.

    `network` is None with public addresses.

    Retention is on and soft delete off: Azure refuses both together. Quarantine is off: it would
    block every image until a scanner releases it.
    """

    def __init__(self, name: str, site: Site, network: Network | None) -> None:
        super().__init__("platform:registry:Registry", name)
        settings = site.settings.images
        self.registry = containerregistry.Registry(
            "images",
            registry_name=site.names.worldwide("cr"),
            **site.place,
            sku=containerregistry.SkuArgs(name="Premium"),
            admin_user_enabled=False,
            anonymous_pull_enabled=False,
            data_endpoint_enabled=True,
            public_network_access=site.public_access,
            network_rule_bypass_options="AzureServices",
            network_rule_set=containerregistry.NetworkRuleSetArgs(
                default_action="Deny" if network else "Allow"
            ),
            zone_redundancy="Enabled" if settings.zone_redundant else "Disabled",
            policies=containerregistry.PoliciesArgs(
                retention_policy=containerregistry.RetentionPolicyArgs(
                    status="enabled", days=settings.keep_untagged_days
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )
        if network:
            network.private_endpoint("images", self.registry.id, "registry")
        self.register_outputs({"id": self.registry.id})


class Assets(pulumi.ComponentResource):
    """The shared registry, created here (`registry`) or elsewhere; `id` is its resource id.

    `parts` are the ids that private endpoints lead to, by part.
    """

    def __init__(self, name: str, site: Site, network: Network | None) -> None:
        super().__init__("platform:registry:Assets", name)
        settings = site.settings.asset_registry
        self.registry = self._registry(site) if settings.mode == "create" else None
        self.id: pulumi.Input[str] = (
            self.registry.id
            if self.registry
            else f"/subscriptions/{site.settings.subscription}"
            f"/resourceGroups/{settings.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/registries/{settings.name}"
        )
        accounts = (("blob", settings.storage), ("registry", settings.images))
        # Its content is in accounts that Azure created for it, which need their own endpoints.
        self.parts = {"amlregistry": self.id, **{part: id for part, id in accounts if id}}
        for part, id in self.parts.items():
            if network:
                network.private_endpoint("assets", id, part)
        self.register_outputs({"id": self.id})

    def _registry(self, site: Site) -> ml.Registry:
        return ml.Registry(
            "assets",
            registry_name=site.settings.asset_registry.name,
            **site.place,
            identity=ml.ManagedServiceIdentityArgs(type="SystemAssigned"),
            public_network_access=site.public_access,
            region_details=[
                ml.RegistryRegionArmDetailsArgs(
                    location=site.settings.location,
                    acr_details=[
                        ml.AcrDetailsArgs(
                            system_created_acr_account=ml.SystemCreatedAcrAccountArgs(
                                acr_account_sku="Premium"
                            )
                        )
                    ],
                    storage_account_details=[
                        ml.StorageAccountDetailsArgs(
                            system_created_storage_account=ml.SystemCreatedStorageAccountArgs(
                                storage_account_type=f"Standard_{site.settings.storage.redundancy}",
                                storage_account_hns_enabled=False,
                                allow_blob_public_access=False,
                            )
                        )
                    ],
                )
            ],
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )
