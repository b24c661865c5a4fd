"""Pulumi's state: a blob container without shared keys, and a key of a vault for its secrets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from infra.live.addresses import version
from infra.live.roles import role
from infra.live.steps import Step
from infra.settings import Settings

CONTAINER = KEY = "pulumi"


@dataclass(frozen=True)
class Backend:
    """Where the state of all environments is."""

    group: str
    account: str
    vault: str

    @property
    def url(self) -> str:
        """Where Pulumi keeps its state."""
        return f"azblob://{CONTAINER}?storage_account={self.account}"

    @property
    def secrets(self) -> str:
        """What it keeps the secrets in it under."""
        return f"azurekeyvault://{self.vault}.vault.azure.net/keys/{KEY}"


def backend(first: Settings) -> Backend:
    """That of a platform: beside its first environment."""
    told = f"{first.subscription}/{first.name}/state"
    tail = hashlib.sha256(told.lower().encode()).hexdigest()[:5]
    return Backend(
        f"rg-{first.name}-state", f"st{first.name}state{tail}", f"kv{first.name}state{tail}"
    )


def steps(first: Settings) -> Iterator[Step]:
    """The container, and the key."""
    home, here = backend(first), ("--subscription", first.subscription)
    where = ("--resource-group", home.group, *here)
    yield Step("signed-in", ("az", "ad", "signed-in-user", "show"), ("az", "login"))
    yield Step(
        "group",
        ("az", "group", "show", "--name", home.group, *here),
        ("az", "group", "create", "--name", home.group, "--location", first.location, *here),
    )
    yield Step(
        "account",
        ("az", "storage", "account", "show", "--name", home.account, *where),
        (
            *("az", "storage", "account", "create", "--name", home.account, *where),
            *("--location", first.location, "--sku", "Standard_GRS", "--kind", "StorageV2"),
            *("--min-tls-version", "TLS1_2", "--allow-blob-public-access", "false"),
            *("--allow-shared-key-access", "false", "--https-only", "true"),
        ),
    )
    yield Step(
        "versions",
        ("az", "storage", "account", "blob-service-properties", "show",
         "--account-name", home.account, *where),
        ("az", "storage", "account", "blob-service-properties", "update",
         "--account-name", home.account, *where, "--enable-versioning", "true",
         "--enable-delete-retention", "true", "--delete-retention-days", "30"),
        lambda found, _: found if (found or {}).get("isVersioningEnabled") else None,
    )  # fmt: skip
    yield role(
        "state-writer", "Storage Blob Data Contributor", "{signed-in.id}", "{account.id}", "User"
    )
    yield Step(
        "container",
        ("az", "storage", "container-rm", "show", "--storage-account", home.account,
         "--name", CONTAINER, *where),
        ("az", "storage", "container-rm", "create", "--storage-account", home.account,
         "--name", CONTAINER, "--public-access", "off", *where),
    )  # fmt: skip
    yield Step(
        "vault",
        ("az", "keyvault", "show", "--name", home.vault, *where),
        ("az", "keyvault", "create", "--name", home.vault, "--location", first.location, *where,
         "--enable-rbac-authorization", "true", "--enable-purge-protection", "true",
         "--retention-days", "90"),
    )  # fmt: skip
    # By Azure Resource Manager: the vault itself would ask for a role that is not in force yet.
    key = ("--url", f"{{vault.id}}/keys/{KEY}?api-version={version('keyvault:Key')}")
    made = {"properties": {"kty": "RSA", "keySize": 3072, "keyOps": ["encrypt", "decrypt"]}}
    body = json.dumps(made).replace("{", "{{").replace("}", "}}")
    yield Step(
        "key",
        ("az", "rest", "--method", "get", *key),
        ("az", "rest", "--method", "put", *key, "--body", body),
    )
    yield role("key-user", "Key Vault Crypto User", "{signed-in.id}", "{vault.id}", "User")
