"""Rules for storage accounts, the key vault, and the recovery of deleted data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta

from policies.infra.limits import Limits
from policies.infra.rule import Item, Kind, Rules, StackFindings, sources_of

FILE_STORAGE = "FileStorage"  # the `kind` of an account that holds NFS shares
_ACCOUNTS = "storageAccountDetails"
GEO_REDUNDANT = ("Standard_GRS", "Standard_RAGRS", "Standard_GZRS", "Standard_RAGZRS")
# DD.HH:MM:SS
_PERIOD = re.compile(r"(\d+)\.(\d+):(\d+):(\d+)")
# The largest value of the setting `storage.sas_hours`.
_LONGEST_SAS = timedelta(days=7)
# ISO 8601 unit → its longest duration in days.
_DAYS = {"D": 1, "M": 31, "Y": 366}


RULES = Rules()


@RULES.resource(
    "storage-redundancy",
    "Data survives the loss of a region.",
    "CKV_AZURE_206",
    Kind.ACCOUNT,
    Kind.ML_REGISTRY,
)
def _redundancy(item: Item, limits: Limits) -> Iterator[str]:
    """Premium file shares have no geo-redundancy (storage-files-planning, Redundancy)."""
    if item.kind == Kind.ML_REGISTRY:
        for account in (
            account
            for region in item.members("regionDetails")
            for account in region.members(_ACCOUNTS)
        ):
            stated = account.value("systemCreatedStorageAccount.storageAccountType")
            if stated not in GEO_REDUNDANT:
                yield f"`storageAccountType` is {stated}, not one of {', '.join(GEO_REDUNDANT)}"
        return
    allowed = ("Premium_ZRS",) if item.value("kind") == FILE_STORAGE else GEO_REDUNDANT
    sku = item.value("sku.name")
    if sku not in allowed:
        yield f"`sku.name` is {sku}, must be one of {', '.join(allowed)}"


@RULES.resource("storage-https", "Storage answers HTTPS only.", "CKV_AZURE_3", Kind.ACCOUNT)
def _https(item: Item, limits: Limits) -> Iterator[str]:
    """NFS does not use HTTPS, so an account for NFS is reached through private endpoints only."""
    private_share = (
        item.value("kind") == FILE_STORAGE and item.value("publicNetworkAccess") == "Disabled"
    )
    if item.value("enableHttpsTrafficOnly", True) is not True and not private_share:
        yield "`enableHttpsTrafficOnly` must be true, except for a private account of an NFS share"


@RULES.resource(
    "storage-azure-services", "Azure's own services reach storage.", "CKV_AZURE_36", Kind.ACCOUNT
)
def _azure_services(item: Item, limits: Limits) -> Iterator[str]:
    bypass = item.value("networkRuleSet.bypass", "AzureServices")
    if "AzureServices" not in str(bypass):
        yield f"`networkRuleSet.bypass` is {bypass}: Azure ML itself could not reach the account"


@RULES.resource("storage-sas-policy", "A SAS expires in time.", "CKV2_AZURE_41", Kind.ACCOUNT)
def _sas_policy(item: Item, limits: Limits) -> Iterator[str]:
    stated = item.value("sasPolicy.sasExpirationPeriod")
    period = _PERIOD.fullmatch(str(stated))
    days, hours, minutes, seconds = map(int, period.groups()) if period else (999, 0, 0, 0)
    if timedelta(days, seconds, hours=hours, minutes=minutes) > _LONGEST_SAS:
        yield f"`sasPolicy.sasExpirationPeriod` is {stated}, at most {_LONGEST_SAS.days} days"
    if item.value("sasPolicy.expirationAction") != "Block":
        yield "`sasPolicy.expirationAction` must be Block"


@RULES.resource(
    "storage-soft-delete", "A deletion can be undone.", "CKV2_AZURE_38", Kind.BLOB_SERVICE
)
def _soft_delete(item: Item, limits: Limits) -> Iterator[str]:
    for policy in ("deleteRetentionPolicy", "containerDeleteRetentionPolicy"):
        days = item.value(f"{policy}.days", 0)
        enough = isinstance(days, int) and days >= limits.min_restore_days
        if item.value(f"{policy}.enabled") is not True or not enough:
            yield f"`{policy}` must be enabled, for {limits.min_restore_days} days or more"
    if item.value("deleteRetentionPolicy.allowPermanentDelete", False) is not False:
        yield "`deleteRetentionPolicy.allowPermanentDelete` makes a deletion permanent"


@RULES.stack(
    "storage-recoverable", "Every account sets how long a deletion can be undone.", "CKV2_AZURE_38"
)
def _has_soft_delete(items: Sequence[Item], limits: Limits) -> StackFindings:
    accounts = sources_of(items, Kind.BLOB_SERVICE, "accountName")
    for item in items:
        if (
            item.kind == Kind.ACCOUNT
            and item.value("kind") != FILE_STORAGE
            and item.urn not in accounts
        ):
            yield item, "no `BlobServiceProperties` sets how long a deletion can be undone"


@RULES.stack("storage-defender", "Defender for Storage is on.", "AZR-000296")
def _defender(items: Sequence[Item], limits: Limits) -> StackFindings:
    protected = sources_of(
        items,
        Kind.DEFENDER,
        "resourceId",
        lambda defender: defender.value("properties.isEnabled") is True,
    )
    for item in items:
        if item.kind == Kind.ACCOUNT and item.urn not in protected:
            yield item, "Defender for Storage is not on"


@RULES.resource("key-rotation", "Keys are rotated.", "own", Kind.KEY)
def _rotation(item: Item, limits: Limits) -> Iterator[str]:
    actions = item.members("properties.rotationPolicy.lifetimeActions")
    rotations = [
        action for action in actions if str(action.value("action.type")).lower() == "rotate"
    ]
    if not rotations:
        yield "`properties.rotationPolicy` has no action `rotate`"
    for rotation in rotations:
        period = str(rotation.value("trigger.timeAfterCreate", "P1D"))
        match = re.fullmatch(r"P(\d+)([DMY])", period)
        if not match or int(match[1]) * _DAYS[match[2]] > limits.max_key_days:
            yield f"`timeAfterCreate` is {period}, at most {limits.max_key_days} days here"


@RULES.resource("key-strength", "Keys are in hardware, and long.", "own", Kind.KEY)
def _strength(item: Item, limits: Limits) -> Iterator[str]:
    kind, size = item.value("properties.kty"), item.value("properties.keySize", 2048)
    if kind != "RSA-HSM" or not isinstance(size, int) or size < 3072:
        yield f"the key is {kind} of {size} bits, must be RSA-HSM of 3072 or more"


@RULES.resource("data-lifetime", "Data is not deleted too early.", "own", Kind.LIFECYCLE)
def _lifetime(item: Item, limits: Limits) -> Iterator[str]:
    for rule in item.members("policy.rules"):
        for part in ("baseBlob", "snapshot", "version"):
            for days in (rule.value(f"definition.actions.{part}.delete") or {}).values():
                if not isinstance(days, int | float) or days < limits.min_data_days:
                    yield (
                        f"rule `{rule.value('name')}` deletes after {days} days, at least"
                        f" {limits.min_data_days} here"
                    )


@RULES.resource("vault-restorable", "A deleted secret can be restored.", "own", Kind.VAULT)
def _restorable(item: Item, limits: Limits) -> Iterator[str]:
    days = item.value("properties.softDeleteRetentionInDays", 90)
    if not isinstance(days, int) or days < limits.min_restore_days:
        yield f"`softDeleteRetentionInDays` is {days}, at least {limits.min_restore_days} here"


@RULES.resource(
    "data-exceptions",
    "The firewalls have no exceptions.",
    "own",
    Kind.ACCOUNT,
    Kind.VAULT,
    Kind.CONTAINER_REGISTRY,
)
def _firewall_exceptions(item: Item, limits: Limits) -> Iterator[str]:
    firewall = "properties.networkAcls" if item.kind == Kind.VAULT else "networkRuleSet"
    for name in ("ipRules", "resourceAccessRules"):
        if item.value(f"{firewall}.{name}"):
            yield f"`{firewall}.{name}` is an exception to the firewall"


@RULES.resource(
    "share-root",
    "NFS shares squash root: root in a job has no root rights there.",
    "own",
    Kind.SHARE,
)
def _share_root(item: Item, limits: Limits) -> Iterator[str]:
    squash = item.value("rootSquash", "NoRootSquash")
    if item.value("enabledProtocols") == "NFS" and squash == "NoRootSquash":
        yield "`rootSquash` is NoRootSquash: root in a job is root on the share"


@RULES.stack("data-kept", "Resources that hold data cannot be deleted by accident.", "own")
def _locked(items: Sequence[Item], limits: Limits) -> StackFindings:
    """A lock or `protect` is enough, since removing a cluster requires removing the locks."""
    locked = sources_of(items, Kind.LOCK, "scope")
    for item in items:
        holds_data = item.kind in (Kind.ACCOUNT, Kind.VAULT, Kind.CONTAINER_REGISTRY)
        if holds_data and not item.protected and item.urn not in locked:
            yield item, "has no lock, and Pulumi's `protect` is not set"


RULES.resource("storage-shared-key", "Shared keys are off.", "CKV2_AZURE_40", Kind.ACCOUNT).must(
    "allowSharedKeyAccess", False, default=True
)
RULES.resource(
    "storage-anonymous",
    "Blobs cannot be read without signing in.",
    "CKV2_AZURE_47 CKV_AZURE_190",
    Kind.ACCOUNT,
).must("allowBlobPublicAccess", False, default=False)
RULES.resource(
    "container-anonymous",
    "Containers cannot be read without signing in.",
    "CKV_AZURE_34",
    Kind.CONTAINER,
).must("publicAccess", "None", default="None")
RULES.resource("storage-tls", "TLS is 1.2 or newer.", "CKV_AZURE_44", Kind.ACCOUNT).must(
    "minimumTlsVersion", ("TLS1_2", "TLS1_3"), default="TLS1_0"
)
RULES.resource(
    "storage-default-deny", "The storage firewall denies by default.", "CKV_AZURE_35", Kind.ACCOUNT
).must("networkRuleSet.defaultAction", "Deny", default="Allow")
RULES.resource(
    "storage-cross-tenant", "Data is not copied to another tenant.", "own", Kind.ACCOUNT
).must("allowCrossTenantReplication", False, default=False)
RULES.resource(
    "storage-local-users", "Storage has no local users.", "CKV_AZURE_244", Kind.ACCOUNT
).must("isLocalUserEnabled", False, default=True)
RULES.resource("storage-sftp", "Blobs have no SFTP.", "own", Kind.ACCOUNT).must(
    "isSftpEnabled", False, default=False
)
RULES.resource("storage-nfsv3", "Blobs have no NfsV3.", "own", Kind.ACCOUNT).must(
    "enableNfsV3", False, default=False
)
RULES.resource(
    "storage-cors", "No web page reads blobs; the studio sets its own.", "own", Kind.BLOB_SERVICE
).must("cors", None)
RULES.resource("vault-soft-delete", "Secrets can be restored.", "CKV_AZURE_111", Kind.VAULT).must(
    "properties.enableSoftDelete", True, default=True
)
RULES.resource(
    "vault-purge-protection",
    "Secrets cannot be purged early.",
    "CKV_AZURE_110 CKV_AZURE_42",
    Kind.VAULT,
).must("properties.enablePurgeProtection", True, default=False)
RULES.resource(
    "vault-firewall", "The vault's firewall denies by default.", "CKV_AZURE_109", Kind.VAULT
).must("properties.networkAcls.defaultAction", "Deny", default="Allow")
RULES.resource("vault-roles", "Access to secrets is by role.", "own", Kind.VAULT).must(
    "properties.enableRbacAuthorization", True, default=False
)
