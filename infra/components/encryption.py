"""How a storage account is encrypted, and whose key it is."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_azure_native import managedidentity, storage


@dataclass(frozen=True)
class EncryptionKey:
    """A key of our own vault, and the identity that may wrap with it.

    What is encrypted with it is made after `awaited`.
    """

    vault_uri: pulumi.Input[str]
    name: pulumi.Input[str]
    identity: managedidentity.UserAssignedIdentity
    awaited: list[pulumi.Resource]


def holder(key: EncryptionKey | None) -> storage.IdentityArgs | None:
    """The identity that an account has for its key."""
    if key is None:
        return None
    return storage.IdentityArgs(type="UserAssigned", user_assigned_identities=[key.identity.id])


def encryption(key: EncryptionKey | None, *, queues: bool) -> storage.EncryptionArgs:
    """Encrypted twice, by Azure's key or by ours; `queues` where an account has such, and tables.

    Queues and tables take our key only where that is asked as the account is made
    (storage/common/account-encryption-key-create).
    """
    service = storage.EncryptionServiceArgs(enabled=True, key_type="Account")
    more = service if key and queues else None
    services = storage.EncryptionServicesArgs(blob=service, file=service, queue=more, table=more)
    if key is None:
        return storage.EncryptionArgs(
            key_source="Microsoft.Storage",
            require_infrastructure_encryption=True,
            services=services,
        )
    return storage.EncryptionArgs(
        key_source="Microsoft.Keyvault",
        require_infrastructure_encryption=True,
        services=services,
        encryption_identity=storage.EncryptionIdentityArgs(
            encryption_user_assigned_identity=key.identity.id
        ),
        # Without a version the account follows the key as it is rotated.
        key_vault_properties=storage.KeyVaultPropertiesArgs(
            key_name=key.name, key_vault_uri=key.vault_uri
        ),
    )
