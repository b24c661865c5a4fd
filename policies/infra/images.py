"""Rules for the container registry, and for who may build and replace images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.infra.access import role
from policies.infra.cost import GPU
from policies.infra.limits import Limits
from policies.infra.rule import Item, Kind, Rules, StackFindings

RULES = Rules()


@RULES.stack(
    "images-builder",
    "A cluster builds images where the registry is private.",
    "Azure ML, Configure image builds",
)
def _builder(items: Sequence[Item], limits: Limits) -> StackFindings:
    """A private registry does not build images: a CPU cluster of the workspace does.

    A feature store needs no such cluster: it runs nothing that needs an image.
    """
    private = any(
        item.kind == Kind.CONTAINER_REGISTRY and item.value("publicNetworkAccess") == "Disabled"
        for item in items
    )
    clusters = {item.resource_name: item for item in items if item.kind == Kind.COMPUTE}
    for item in items:
        if item.kind != Kind.WORKSPACE or not private or item.value("kind") == "FeatureStore":
            continue
        name = item.value("imageBuildCompute")
        if not name:
            yield item, "`imageBuildCompute` is not set, and its registry is private"
        elif name not in clusters:
            yield item, f"`imageBuildCompute` is {name}, which is not one of its clusters"
        elif GPU.match(str(clusters[name].value("properties.properties.vmSize", ""))):
            yield item, f"`imageBuildCompute` is {name}: building images needs no GPU"


@RULES.stack("images-push", "Only what builds images may push them.", "own")
def _push(items: Sequence[Item], limits: Limits) -> StackFindings:
    """An identity that runs jobs or answers requests must not replace the images of others."""
    builders = {item.value("imageBuildCompute") for item in items if item.kind == Kind.WORKSPACE}
    consumers = {
        urn: item.name
        for item in items
        if item.kind == Kind.ENDPOINT
        or (item.kind == Kind.COMPUTE and item.resource_name not in builders)
        for urn in item.sources("identity")
    }
    for item in items:
        if item.kind == Kind.ROLE_ASSIGNMENT and role(item) == "AcrPush":
            for urn in item.uses.get("principalId", ()):
                if urn in consumers:
                    yield item, f"lets `{consumers[urn]}` replace images, and it builds none"


@RULES.resource(
    "registry-retention",
    "Untagged images are deleted after a time.",
    "CKV_AZURE_167",
    Kind.CONTAINER_REGISTRY,
)
def _retention(item: Item, limits: Limits) -> Iterator[str]:
    if item.value("policies.retentionPolicy.status") != "enabled":
        yield "`policies.retentionPolicy.status` must be enabled"
    days = item.value("policies.retentionPolicy.days", 7)
    if not isinstance(days, int) or not limits.min_image_days <= days <= 365:
        yield f"`policies.retentionPolicy.days` is {days}, from {limits.min_image_days} to 365 here"
    if item.value("policies.softDeletePolicy.status") == "enabled":
        yield "Azure rejects `retentionPolicy` together with `softDeletePolicy`"


# Private endpoints, retention and scanning need the SKU Premium.
RULES.resource(
    "registry-sku",
    "The registry is Premium, which private endpoints need.",
    "CKV_AZURE_163",
    Kind.CONTAINER_REGISTRY,
).must("sku.name", "Premium")
RULES.resource(
    "registry-admin",
    "The registry has no administrator's password.",
    "CKV_AZURE_137",
    Kind.CONTAINER_REGISTRY,
).must("adminUserEnabled", False, default=False)
RULES.resource(
    "registry-anonymous",
    "Images cannot be pulled without signing in.",
    "CKV_AZURE_138",
    Kind.CONTAINER_REGISTRY,
).must("anonymousPullEnabled", False, default=False)
RULES.resource(
    "registry-zones",
    "The registry survives the loss of a zone.",
    "CKV_AZURE_233",
    Kind.CONTAINER_REGISTRY,
).must("zoneRedundancy", "Enabled", default="Disabled")
RULES.resource(
    "registry-data-endpoint",
    "Images come from a data endpoint of this registry.",
    "CKV_AZURE_237",
    Kind.CONTAINER_REGISTRY,
).must("dataEndpointEnabled", True, default=False)
