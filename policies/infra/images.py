"""Rules of custom images: somebody builds them where the registry is private, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.infra.data import IMAGES
from policies.infra.limits import Limits
from policies.infra.rights import ASSIGNMENT, role
from policies.infra.rule import Item, Rule
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


RULES: tuple[Rule, ...] = (
    Rule(
        "images-builder",
        "Custom images can be built where the registry is private.",
        "Azure ML, Configure image builds",
        whole=_builder,
    ),
    Rule("images-push", "Only what builds images puts them there.", "own", whole=_push),
)
