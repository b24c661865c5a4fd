"""The Azure ML registry through which environments share models, environments and components."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_azure_native import machinelearningservices as ml

from infra.components.network import Network
from infra.components.site import Site
from infra.foundations import AssetRegistry


@dataclass(frozen=True)
class AssetsArgs:
    """`redundancy` is that of its storage; `network` is None where public addresses answer."""

    site: Site
    settings: AssetRegistry
    redundancy: str
    network: Network | None


class Assets(pulumi.ComponentResource):
    """The shared registry: made here, or found by its name. `id` is its resource id.

    `reached` are the parts of it that private endpoints lead to, each with its id.
    """

    def __init__(self, name: str, args: AssetsArgs) -> None:
        super().__init__("platform:registry:Assets", name)
        self.made = self._registry(args) if args.settings.mode == "create" else None
        self.id: pulumi.Input[str] = (
            self.made.id
            if self.made
            else f"/subscriptions/{args.site.subscription}"
            f"/resourceGroups/{args.settings.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/registries/{args.settings.name}"
        )
        held = (("blob", args.settings.storage), ("registry", args.settings.images))
        # What it holds lies in accounts that Azure made for it, behind endpoints of their own.
        self.reached = {"amlregistry": self.id, **{what: id for what, id in held if id}}
        for what, id in self.reached.items():
            if args.network:
                args.network.private_endpoint("assets", id, what)
        self.register_outputs({"id": self.id})

    def _registry(self, args: AssetsArgs) -> ml.Registry:
        site = args.site
        return ml.Registry(
            "assets",
            registry_name=args.settings.name,
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            identity=ml.ManagedServiceIdentityArgs(type="SystemAssigned"),
            public_network_access=site.public_access,
            region_details=[
                ml.RegistryRegionArmDetailsArgs(
                    location=site.location,
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
                                storage_account_type=f"Standard_{args.redundancy}",
                                storage_account_hns_enabled=False,
                                allow_blob_public_access=False,
                            )
                        )
                    ],
                )
            ],
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )
