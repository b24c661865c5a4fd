"""Programs to preview: the repository's own, once a session, and tiny ones written by a test."""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import cli
from infra.preview import runner as programs
from infra.preview.capture import Capture
from infra.preview.engine import RegistryLookup
from infra.preview.runner import Runner, runner
from ml.core.imports import ROOT
from policies.infra.pack import Context

_OF_AZURE = (
    "/subscriptions/6f8d2c1e-0000-4000-8000-000000000000/resourceGroups/azureml-rg-mlplat-shared_1/"
    "providers"
)
# What Azure makes for a registry, by the part of its endpoints.
ACCOUNTS = {
    "blob": f"{_OF_AZURE}/Microsoft.Storage/storageAccounts/stasshared",
    "registry": f"{_OF_AZURE}/Microsoft.ContainerRegistry/registries/crasshared",
}
HUB = "/subscriptions/22222222-2222-4222-8222-222222222222/resourceGroups/rg-hub"
SCOPE = f"{HUB}/providers/Microsoft.Insights/privateLinkScopes/ampls"
SPOKE = f"{HUB}/providers/Microsoft.Network/virtualNetworks/vnet-spoke"
# Settings of a stack that is given everything that it may be.
LANDING_ZONE: Mapping[str, Any] = {
    "network": {
        "virtual_network": SPOKE,
        "subnet": f"{SPOKE}/subnets/ml",
        "private_dns_zones": HUB,
    },
    "monitoring": {"workspace": f"{HUB}/providers/Microsoft.OperationalInsights/workspaces/log"},
    "images": {"registry": f"{HUB}/providers/Microsoft.ContainerRegistry/registries/CrCentral"},
    "vault": {"id": f"{HUB}/providers/Microsoft.KeyVault/vaults/kv-central", "key": "of-storage"},
    "resource_group": "rg-landing",
    "tags": {"DataClassification": "internal"},
}
# A registry that no stack here makes.
SHARED = {"mode": "use", "name": "other", "resource_group": "rg-other"}


@functools.cache
def _runner() -> Runner:
    """One for all tests of a worker: it has imported the SDK."""
    session = contextlib.ExitStack()
    atexit.register(session.close)
    return session.enter_context(runner())


def registry(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """A registry as Azure answers, with the accounts that it has made for it."""
    ids = {part: {"armResourceId": {"resourceId": id}} for part, id in ACCOUNTS.items()}
    region = {
        "location": "West Europe",
        "storageAccountDetails": [{"systemCreatedStorageAccount": ids["blob"]}],
        "acrDetails": [{"systemCreatedAcrAccount": ids["registry"]}],
    }
    return {"regionDetails": [{"location": "northeurope"}, region]}


def capture(
    stack: str,
    *,
    root: Path = ROOT,
    config: Mapping[str, str] | None = None,
    lookup_registry: RegistryLookup = registry,
    bare: bool = False,
) -> Capture:
    """One run of a program, without policies."""
    return _runner().capture(
        stack, root=root, config=config, lookup_registry=lookup_registry, bare=bare
    )


def captures(
    stacks: Sequence[str], *, root: Path = ROOT, context: Context | None = None
) -> list[Capture]:
    """A run of each stack's program, with the findings of the policies."""
    return programs.captures(_runner(), stacks, root=root, context=context)


@functools.cache
def own() -> dict[str, Capture]:
    """The stacks of this repository, without policies."""
    return {stack: capture(stack) for stack in ("dev", "prod", "shared", "staging")}


def tree(folder: Path, program: str) -> Path:
    """A tree with `program` as its infra/__main__.py."""
    (folder / "infra").mkdir(exist_ok=True)
    (folder / "infra" / "__main__.py").write_text(textwrap.dedent(program))
    return folder


def changed(tmp_path: Path, **changed: Any) -> Capture:
    """The program of this repository for a stack `test`: prod's settings with some changed."""
    shutil.copytree(
        ROOT / "infra", tmp_path / "infra", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "ml" / "core", tmp_path / "ml" / "core")
    document = yaml.safe_load((ROOT / "infra" / "Pulumi.prod.yaml").read_text())
    for key, value in changed.items():
        document["config"][f"platform:{key}"] = value
    (tmp_path / "infra" / "Pulumi.test.yaml").write_text(yaml.safe_dump(document))
    return capture("test", root=tmp_path)


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `infra …`."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err
