"""Rules of images: where they are, who builds them where that is private, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.infra.data import IMAGES
from policies.infra.limits import Limits
from policies.infra.rights import ASSIGNMENT, role
from policies.infra.rule import Item, Rule, must
from policies.infra.spend import GPU
from policies.infra.workspace import COMPUTE, ENDPOINT, WORKSPACE

Found = Iterator[tuple[Item, str]]


def _builder(items: Sequence[Item], limits: Limits) -> Found:
    """A private registry takes no builds: a CPU cluster of the workspace makes its images."""
    private = any(
        item.kind == IMAGES and item.at("publicNetworkAccess") == "Disabled" for item in items
    )
    computes = {item.called: item for item in items if item.kind == COMPUTE}
    for item in items:
        if item.kind != WORKSPACE or not private:
            continue
        name = item.at("imageBuildCompute")
        if not name:
            yield item, "`imageBuildCompute` is not set, and its registry is private"
        elif name not in computes:
            yield item, f"`imageBuildCompute` is {name}, which is no cluster of it"
        elif GPU.match(str(computes[name].at("properties.properties.vmSize", ""))):
            yield item, f"`imageBuildCompute` is {name}: images are built without a GPU"


def _push(items: Sequence[Item], limits: Limits) -> Found:
    """Who runs jobs or answers requests may not replace the image that others run."""
    builders = {item.at("imageBuildCompute") for item in items if item.kind == WORKSPACE}
    running = {
        urn: item.name
        for item in items
        if item.kind == ENDPOINT or (item.kind == COMPUTE and item.called not in builders)
        for urn in item.uses.get("identity", ())
    }
    for item in items:
        if item.kind == ASSIGNMENT and role(item) == "AcrPush":
            for urn in item.uses.get("principalId", ()):
                if urn in running:
                    yield item, f"lets `{running[urn]}`, which builds no images, replace them"


def _retention(item: Item, limits: Limits) -> Iterator[str]:
    if item.at("policies.retentionPolicy.status") != "enabled":
        yield "`policies.retentionPolicy.status` must be enabled"
    if item.at("policies.softDeletePolicy.status") == "enabled":
        yield "Azure refuses retention and soft delete together"


def _images_sku(item: Item, limits: Limits) -> Iterator[str]:
    if item.at("sku.name") != "Premium":
        yield "`sku.name` must be Premium: private endpoints, retention and scanning need it"


def _images(
    name: str, path: str, allowed: object, says: str, sources: str, default: object
) -> Rule:
    return must(f"registry-{name}", IMAGES, path, (allowed,), says, sources, default)


RULES: tuple[Rule, ...] = (
    Rule(
        "images-builder",
        "Custom images can be built where the registry is private.",
        "Azure ML, Configure image builds",
        whole=_builder,
    ),
    Rule("images-push", "Only what builds images puts them there.", "own", whole=_push),
    _images(
        "admin",
        "adminUserEnabled",
        False,
        "The registry has no administrator's password.",
        "CKV_AZURE_137",
        False,
    ),
    _images(
        "anonymous",
        "anonymousPullEnabled",
        False,
        "No image is pulled without signing in.",
        "CKV_AZURE_138",
        False,
    ),
    _images(
        "public-access",
        "publicNetworkAccess",
        "Disabled",
        "The registry does not answer on public addresses.",
        "CKV_AZURE_139",
        "Enabled",
    ),
    Rule(
        "registry-sku",
        "The registry can be private, and its images scanned.",
        "CKV_AZURE_163",
        (IMAGES,),
        _images_sku,
    ),
    Rule("registry-retention", "Untagged images go.", "CKV_AZURE_167", (IMAGES,), _retention),
    _images(
        "zones",
        "zoneRedundancy",
        "Enabled",
        "The registry outlives a zone.",
        "CKV_AZURE_233",
        "Disabled",
    ),
    _images(
        "data-endpoint",
        "dataEndpointEnabled",
        True,
        "Images come from an address of our own.",
        "CKV_AZURE_237",
        False,
    ),
)
