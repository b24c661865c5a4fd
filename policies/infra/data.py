"""Rules of storage and vault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from policies.infra.limits import Limits
from policies.infra.rule import Item, Rule, must

ACCOUNT = "storage:StorageAccount"
CONTAINER = "storage:BlobContainer"
BLOBS = "storage:BlobServiceProperties"
VAULT = "keyvault:Vault"
IMAGES = "containerregistry:Registry"
FILES = "FileStorage"
# DD.HH:MM:SS, and the longest that `storage.sas_hours` of the settings may ask for.
_PERIOD = re.compile(r"(\d+)\.(\d+):(\d+):(\d+)")
_SAS = timedelta(days=7)
COPIES = tuple(f"Standard_{kind}" for kind in ("GRS", "RAGRS", "GZRS", "RAGZRS"))


def _redundancy(item: Item, limits: Limits) -> Iterator[str]:
    """Premium files are copied within their region alone (storage-files-planning, Redundancy)."""
    allowed = ("Premium_ZRS",) if item.at("kind") == FILES else COPIES
    found = item.at("sku.name")
    if found not in allowed:
        yield f"`sku.name` is {found}, must be one of {', '.join(allowed)}"


def _https(item: Item, limits: Limits) -> Iterator[str]:
    """NFS is no HTTPS: its account is reached through private endpoints alone."""
    share = item.at("kind") == FILES and item.at("publicNetworkAccess") == "Disabled"
    if item.at("enableHttpsTrafficOnly", True) is not True and not share:
        yield "`enableHttpsTrafficOnly` must be true, but for a private account of an NFS share"


def _bypass(item: Item, limits: Limits) -> Iterator[str]:
    found = item.at("networkRuleSet.bypass", "AzureServices")
    if "AzureServices" not in str(found):
        yield f"`networkRuleSet.bypass` is {found}: Azure ML itself could not reach it"


def _sas(item: Item, limits: Limits) -> Iterator[str]:
    stated = item.at("sasPolicy.sasExpirationPeriod")
    found = _PERIOD.fullmatch(str(stated))
    days, hours, minutes, seconds = map(int, found.groups()) if found else (999, 0, 0, 0)
    if timedelta(days, seconds, hours=hours, minutes=minutes) > _SAS:
        yield f"`sasPolicy.sasExpirationPeriod` is {stated}, at most {_SAS.days} days"
    if item.at("sasPolicy.expirationAction") != "Block":
        yield "`sasPolicy.expirationAction` must be Block"


def _soft_delete(item: Item, limits: Limits) -> Iterator[str]:
    for what in ("deleteRetentionPolicy", "containerDeleteRetentionPolicy"):
        days = item.at(f"{what}.days", 0)
        if item.at(f"{what}.enabled") is not True or not isinstance(days, int) or days < 7:
            yield f"`{what}` must be enabled, for 7 days or more"
    if item.at("deleteRetentionPolicy.allowPermanentDelete", False) is not False:
        yield "`deleteRetentionPolicy.allowPermanentDelete` lets a delete be for good"


def _rotation(item: Item, limits: Limits) -> Iterator[str]:
    actions = item.each("properties.rotationPolicy.lifetimeActions")
    if not any(str(one.at("action.type")).lower() == "rotate" for one in actions):
        yield "`properties.rotationPolicy` makes no new version of it"


def _exceptions(item: Item, limits: Limits) -> Iterator[str]:
    where = "properties.networkAcls" if item.kind == VAULT else "networkRuleSet"
    for what in ("ipRules", "resourceAccessRules"):
        if item.at(f"{where}.{what}"):
            yield f"`{where}.{what}` lets in what the firewall keeps out"


def _root(item: Item, limits: Limits) -> Iterator[str]:
    found = item.at("rootSquash", "NoRootSquash")
    if item.at("enabledProtocols") == "NFS" and found == "NoRootSquash":
        yield "`rootSquash` is NoRootSquash: who is root in a job is root on the share"


def _account(
    name: str, path: str, allowed: object, says: str, sources: str, default: object
) -> Rule:
    return must(f"storage-{name}", ACCOUNT, path, (allowed,), says, sources, default)


def _vault(name: str, path: str, allowed: object, says: str, sources: str, default: object) -> Rule:
    return must(f"vault-{name}", VAULT, f"properties.{path}", (allowed,), says, sources, default)


# What Azure takes when a property is left out is its documented default.
RULES: tuple[Rule, ...] = (
    _account(
        "shared-key", "allowSharedKeyAccess", False, "Shared keys are off.", "CKV2_AZURE_40", True
    ),
    Rule("storage-sas-policy", "A SAS has an upper limit.", "CKV2_AZURE_41", (ACCOUNT,), _sas),
    _account(
        "anonymous",
        "allowBlobPublicAccess",
        False,
        "No blob is read without signing in.",
        "CKV2_AZURE_47 CKV_AZURE_190",
        False,
    ),
    must(
        "container-anonymous",
        CONTAINER,
        "publicAccess",
        ("None",),
        "No container is read without signing in.",
        "CKV_AZURE_34",
        "None",
    ),
    Rule("storage-https", "Only HTTPS is answered.", "CKV_AZURE_3", (ACCOUNT,), _https),
    must(
        "storage-tls",
        ACCOUNT,
        "minimumTlsVersion",
        ("TLS1_2", "TLS1_3"),
        "TLS is 1.2 or newer.",
        "CKV_AZURE_44",
        "TLS1_0",
    ),
    _account(
        "default-deny",
        "networkRuleSet.defaultAction",
        "Deny",
        "What no rule lets in stays out.",
        "CKV_AZURE_35",
        "Allow",
    ),
    Rule(
        "storage-azure-services",
        "Azure's own services come through.",
        "CKV_AZURE_36",
        (ACCOUNT,),
        _bypass,
    ),
    _account(
        "public-access",
        "publicNetworkAccess",
        "Disabled",
        "Storage does not answer on public addresses.",
        "CKV_AZURE_59",
        "Enabled",
    ),
    _account(
        "cross-tenant",
        "allowCrossTenantReplication",
        False,
        "Data is not copied to another tenant.",
        "own",
        False,
    ),
    _account(
        "local-users",
        "isLocalUserEnabled",
        False,
        "Storage has no users of its own.",
        "CKV_AZURE_244",
        True,
    ),
    Rule("storage-redundancy", "Data outlives a region.", "CKV_AZURE_206", (ACCOUNT,), _redundancy),
    Rule(
        "data-exceptions",
        "The firewall has no exceptions.",
        "own",
        (ACCOUNT, VAULT, IMAGES),
        _exceptions,
    ),
    Rule("share-root", "Nobody is root on a share.", "own", ("storage:FileShare",), _root),
    Rule("storage-soft-delete", "A delete can be undone.", "CKV2_AZURE_38", (BLOBS,), _soft_delete),
    _vault(
        "soft-delete", "enableSoftDelete", True, "Secrets can be recovered.", "CKV_AZURE_111", True
    ),
    _vault(
        "purge-protection",
        "enablePurgeProtection",
        True,
        "Nobody purges before the time.",
        "CKV_AZURE_110 CKV_AZURE_42",
        False,
    ),
    _vault(
        "firewall",
        "networkAcls.defaultAction",
        "Deny",
        "What no rule lets in stays out.",
        "CKV_AZURE_109",
        "Allow",
    ),
    _vault(
        "public-access",
        "publicNetworkAccess",
        "Disabled",
        "The vault does not answer on public addresses.",
        "CKV_AZURE_189",
        "Enabled",
    ),
    _vault("roles", "enableRbacAuthorization", True, "Access to secrets is by role.", "own", False),
    Rule("key-rotation", "A key is made new in time.", "own", ("keyvault:Key",), _rotation),
)
