"""Settings that are each sound and do not go together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from infra import compute_agreement, naming, network_agreement, region_agreement
from infra.network_agreement import Found
from infra.settings import BUILDER, Settings
from infra.workloads import IDLE_MINUTES
from ml.core.documents import Document, Key
from ml.core.errors import Problem

Check = Callable[[Settings], Found]
# The longest name of an online endpoint (how-to-manage-quotas).
ENDPOINT = 32
# Datastores that every workspace has: how-to-datastore.
OF_AZURE_ML = frozenset(
    f"workspace{what}" for what in ("blobstore", "filestore", "artifactstore", "workingdirectory")
)


def problems(settings: Settings, document: Document) -> Iterator[Problem]:
    """Every disagreement, at the line of the setting to change."""
    for check in CHECKS:
        for code, found, expected, hint, keys in check(settings):
            place = document.place("config", *keys)
            yield Problem(code, found, expected, hint, place)


def _environment(settings: Settings) -> Found:
    """The environment is a part of names of at most 24 characters."""
    name = settings.environment
    if not (name.isascii() and name.isalnum() and name.islower() and len(name) <= 7):
        expected = "at most 7 lower-case letters and digits: it is a part of every name"
        yield "stack-name", f"the stack is called `{name}`", expected, "rename the file", ()


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def _names(settings: Settings) -> Found:
    """Clusters and compute instances share one name space, endpoints have another."""
    computes: list[tuple[str, int, _Named]] = [
        *(("platform:clusters", index, one) for index, one in enumerate(settings.clusters)),
        *(("platform:workstations", index, one) for index, one in enumerate(settings.workstations)),
    ]
    for key, index, one in computes:
        if one.name == BUILDER:
            found = f"`{BUILDER}` is the name of the cluster that builds images"
            yield "same-name", found, "another name", "rename it", (key, index, "name")
    for index, endpoint in enumerate(settings.endpoints):
        called = naming.names(settings).regional(endpoint.name)
        if len(called) > ENDPOINT:
            found = f"the endpoint would be called `{called}`: {len(called)} characters"
            expected = f"at most {ENDPOINT}, with the environment and what tells it from others"
            hint = f"{len(called) - ENDPOINT} fewer in `{endpoint.name}`"
            yield "endpoint-name", found, expected, hint, ("platform:endpoints", index, "name")
    yield from _twice(computes)
    yield from _twice(
        [("platform:endpoints", index, one) for index, one in enumerate(settings.endpoints)]
    )
    containers = settings.storage.containers
    for index, name in enumerate(containers):
        if name in containers[:index]:
            found = f"container `{name}` is there twice"
            keys: tuple[Key, ...] = ("platform:storage", "containers", index)
            yield "same-name", found, "names that differ", "delete one", keys
        if name in OF_AZURE_ML:
            found = f"`{name}` is a datastore that every workspace has"
            keys = ("platform:storage", "containers", index)
            yield "same-name", found, "another name", "rename it", keys


def _twice(things: Sequence[tuple[str, int, _Named]]) -> Found:
    met: set[str] = set()
    for key, index, thing in things:
        if thing.name in met:
            found = f"`{thing.name}` is there twice"
            yield "same-name", found, "names that differ", "rename one", (key, index, "name")
        met.add(thing.name)


def _asset_registry(settings: Settings) -> Found:
    shared = settings.asset_registry
    key = "platform:asset_registry"
    if shared.mode != "none" and not shared.name:
        yield "missing-setting", f"no `name` in `{key}`", "its name", "add `name:`", (key,)
    if shared.mode == "use" and not shared.resource_group:
        hint = "add `resource_group:`, that of the environment which creates it"
        yield "missing-setting", f"no `resource_group` in `{key}`", "its group", hint, (key,)
    if shared.mode == "none" and shared.name:
        hint = "add `mode: use` or `mode: create`, or delete it"
        yield "no-effect", f"a `name` in `{key}` with `mode: none`", "no name", hint, (key, "name")
    if shared.mode != "use" and shared.resource_group:
        found = f"a `resource_group` in `{key}` with `mode: {shared.mode}`"
        hint = "delete it, or set `mode: use`: a registry is made in the environment's own group"
        yield "no-effect", found, "no resource_group", hint, (key, "resource_group")
    given = [one for one in ("storage", "images") if getattr(shared, one)]
    if given and shared.mode == "none":
        found = f"`{given[0]}` in `{key}` with `mode: none`"
        yield "no-effect", found, "neither of the two", "delete it", (key, given[0])
    elif len(given) == 1:
        other = "images" if given == ["storage"] else "storage"
        found = f"`{given[0]}` in `{key}` without `{other}`"
        hint = f"add `{other}:`, from the group azureml-rg-{shared.name}_…"
        yield (
            "missing-setting",
            found,
            "both: models are in one, images in the other",
            hint,
            (
                key,
                given[0],
            ),
        )


def _share(settings: Settings) -> Found:
    if 0 < settings.storage.nfs_share_gib < 100:
        found = f"`platform:storage.nfs_share_gib` is {settings.storage.nfs_share_gib}"
        hint = "a premium share is billed from 100 GiB on"
        yield (
            "wrong-setting",
            found,
            "0, or 100 or more",
            hint,
            ("platform:storage", "nfs_share_gib"),
        )


def _machines(settings: Settings) -> Found:
    for index, workstation in enumerate(settings.workstations):
        if workstation.kind == "data-science-vm" and not workstation.ssh_key:
            found = f"`{workstation.name}` has no `ssh_key`"
            hint = "add the public key of its administrator; passwords are off"
            keys: tuple[Key, ...] = ("platform:workstations", index)
            yield "missing-setting", found, "a public key", hint, keys
        if workstation.kind == "compute-instance" and workstation.ssh_key:
            found = f"`{workstation.name}` is a compute instance, which nobody reaches by SSH"
            hint = "delete it, or set `kind: data-science-vm`"
            keys = ("platform:workstations", index, "ssh_key")
            yield "no-effect", found, "no ssh_key", hint, keys
        if workstation.kind == "data-science-vm" and workstation.idle_minutes != IDLE_MINUTES:
            found = f"`{workstation.name}` is a VM, which runs until its person stops it"
            hint = "delete it, or set `kind: compute-instance`"
            keys = ("platform:workstations", index, "idle_minutes")
            yield "no-effect", found, "no idle_minutes", hint, keys


def _sas(settings: Settings) -> Found:
    """A SAS that `infra sas` issues is for one path of one container, and there is one secret."""
    count = len(settings.storage.containers)
    if settings.storage.datastores == "sas" and count > 1:
        found = f"`datastores: sas` with {count} containers"
        hint = "leave one in `containers`, or set `datastores: identity`"
        expected = "one container: a SAS is for a path of one"
        yield "one-container", found, expected, hint, ("platform:storage", "datastores")


def _tiers(settings: Settings) -> Found:
    storage = settings.storage
    if 0 < storage.delete_after_days <= storage.cool_after_days:
        found = f"deleted after {storage.delete_after_days} days, cool after"
        keys: tuple[Key, ...] = ("platform:storage", "delete_after_days")
        expected = f"more than cool_after_days, {storage.cool_after_days}, or 0"
        yield "lifecycle", f"{found} {storage.cool_after_days}", expected, "0 never deletes", keys


CHECKS: tuple[Check, ...] = (
    *(_environment, *region_agreement.CHECKS, *compute_agreement.CHECKS, _names),
    *(_asset_registry, _share, _machines, _sas, _tiers),
    *network_agreement.CHECKS,
)
