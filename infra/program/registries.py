"""The container registry, and the Azure ML registry that environments share."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
from pulumi_azure_native import containerregistry
from pulumi_azure_native import machinelearningservices as ml
from pulumi_azure_native.provider import Provider

from infra.program.network import Network
from infra.program.site import Component, Options, Site
from infra.settings.model import Settings
from ml.core.errors import Problem, UserError


class Registry(Component):
    """The container registry: a new Premium one without admin user, or an existing one.

    `network` is None if the environment is public. For an existing registry nothing is declared and
    `created` is None; its owner provides network access and DNS.

    Retention is on and soft delete off, because Azure rejects both together. Quarantine is off,
    because it would block every image until a scanner releases it.
    """

    def __init__(
        self, name: str, site: Site, network: Network | None, opts: Options = None
    ) -> None:
        super().__init__("registry:Registry", name, opts, "registry")
        settings = site.settings.images
        self.created: containerregistry.Registry | None = None
        self.id: pulumi.Input[str] = settings.registry
        self.server: pulumi.Input[str] = (
            f"{settings.registry.rpartition('/')[2].lower()}.azurecr.io"
        )
        if settings.registry:
            self.register_outputs({"id": self.id})
            return
        self.created = containerregistry.Registry(
            self.child("images"),
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
                )
            ),
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )
        self.id, self.server = self.created.id, self.created.login_server
        if network:
            network.private_endpoint(self.child("images"), self.id, "registry")
        self.register_outputs({"id": self.id})


class Assets(Component):
    """A shared asset registry that another stack creates, with private endpoints to it.

    `id` is its resource id. `parts` maps each sub-resource with a private endpoint to its id: the
    registry, and the accounts of its models and images, which Azure creates
    (learn.microsoft.com/azure/machine-learning/how-to-registry-network-isolation, "Use assets from
    registry in workspace"). The account ids are read from Azure. A StackReference cannot read them,
    because each environment has its own state backend (pulumi/pulumi#3395).
    """

    def __init__(
        self, name: str, site: Site, network: Network | None, opts: Options = None
    ) -> None:
        super().__init__("registry:Assets", name, opts, "assets")
        self.id = site.settings.registry_id
        self.parts = {"amlregistry": self.id, **_accounts(site.settings)}
        for part, id in self.parts.items():
            if network:
                network.private_endpoint(self.child("assets"), id, part)
        self.register_outputs({"id": self.id})


def _accounts(settings: Settings) -> Mapping[str, str]:
    """Return the ids of the registry's storage account ("blob") and image registry ("registry").

    If the registry does not exist, return {} in a preview and raise UserError in an update. Raise
    UserError if it has no accounts in the stack's region.
    """
    name, group = settings.asset_registry.name, settings.registry_group
    elsewhere = settings.registry_subscription
    # An invoke uses the subscription of its provider; this extra provider creates nothing.
    provider = (
        None
        if elsewhere == settings.subscription
        else Provider("registry", subscription_id=elsewhere, tenant_id=settings.tenant)
    )
    try:
        registry = ml.get_registry(
            registry_name=name,
            resource_group_name=group,
            opts=pulumi.InvokeOptions(provider=provider),
        )
    except Exception as error:  # the SDK has no narrower class for a provider error
        if "NotFound" not in str(error):
            raise
        message = f"the asset registry {name} in {group} does not exist"
        if pulumi.runtime.is_dry_run():
            pulumi.log.warn(f"{message} yet: this preview omits its private endpoints")
            return {}
        stack = settings.asset_registry.stack
        hint = f"make deploy ENV={stack}" if stack else "create it, or set `mode: none`"
        raise UserError(Problem("no-registry", message, "an existing registry", hint)) from None
    for region in registry.region_details:
        if str(region.location).replace(" ", "").lower() == settings.location:
            storage = region.storage_account_details[0].system_created_storage_account
            images = region.acr_details[0].system_created_acr_account
            ids = storage.arm_resource_id.resource_id, images.arm_resource_id.resource_id
            return dict(zip(("blob", "registry"), ids, strict=True))
    message = f"the asset registry {name} has no accounts in {settings.location}"
    expected = f"a registry with the region {settings.location}"
    hint = (
        "add the region to `regions` of `platform:asset_registry` in the stack that creates it, or "
        "set `mode: none` in this stack"
    )
    raise UserError(Problem("no-registry", message, expected, hint))


class SharedRegistry(Component):
    """The Azure ML registry that environments share, with the accounts of its models and images."""

    def __init__(self, name: str, site: Site, opts: Options = None) -> None:
        super().__init__("registry:SharedRegistry", name, opts, "assets")
        self.registry = ml.Registry(
            self.child("assets"),
            registry_name=site.settings.asset_registry.name,
            **site.place,
            identity=ml.ManagedServiceIdentityArgs(type="SystemAssigned"),
            public_network_access=site.public_access,
            region_details=[
                ml.RegistryRegionArmDetailsArgs(
                    location=location,
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
                for location in (site.settings.location, *site.settings.asset_registry.regions)
            ],
            opts=pulumi.ResourceOptions(parent=self, protect=site.protect),
        )
        self.register_outputs({"id": self.registry.id})
