"""Where Azure's answer holds an input: the SDK flattens `properties` and gives some another name.

At every depth what is not in the answer itself is in its `properties`, as the subnets of a network
and the rules of a security group are; names differ in case, `_` and `.` (`Application_Type`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABSENT = object()
PROPERTIES = "properties"
# What a resource has beside its `properties`; there, `type` and `name` are the resource's own.
_OUTSIDE = frozenset(
    {"location", "tags", "sku", "kind", "identity", "zones", "plan", "extendedLocation", PROPERTIES}
)
# Names that the SDK gives (x-ms-client-name in azure-rest-api-specs) and Azure does not know.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    "storage:StorageAccount": {
        "enableHttpsTrafficOnly": "supportsHttpsTrafficOnly",
        "enableNfsV3": "isNfsV3Enabled",
        "networkRuleSet": "networkAcls",
        "virtualNetworkResourceId": "id",
        "iPAddressOrRange": "value",
        "encryptionIdentity": "identity",
        "encryptionUserAssignedIdentity": "userAssignedIdentity",
        "encryptionFederatedIdentityClientId": "federatedIdentityClientId",
    },
}


def at_top(kind: str, answer: Mapping[str, Any], name: str) -> Any:
    """The value of an input of a resource in what Azure says of it; ABSENT where it says none."""
    inner = answer.get(PROPERTIES)
    inner = inner if isinstance(inner, Mapping) else {}
    # A kind may have an input of that name beside the one of every resource.
    first, then = (answer, inner) if name in _OUTSIDE else (inner, answer)
    found = _named(kind, first, name)
    if found is ABSENT or (name == PROPERTIES and not isinstance(found, Mapping)):
        found = _named(kind, then, name)
    return found


def within(kind: str, found: Mapping[str, Any], name: str) -> Any:
    """The same for an input within another, or of an item of a list."""
    value = _named(kind, found, name)
    inner = found.get(PROPERTIES)
    return _named(kind, inner, name) if value is ABSENT and isinstance(inner, Mapping) else value


def in_force(kind: str, found: Any) -> Any:
    """A list without what is off: Azure lists categories of a diagnostic setting that nobody asked
    for, and they are not enabled.
    """
    if kind != "monitor:DiagnosticSetting" or not isinstance(found, list):
        return found
    return [one for one in found if not (isinstance(one, Mapping) and one.get("enabled") is False)]


def _named(kind: str, found: Mapping[str, Any], name: str) -> Any:
    wanted = _RENAMED.get(kind, {}).get(name, name)
    if wanted in found:
        return found[wanted]
    plain = _plain(wanted)
    return next((one for key, one in found.items() if _plain(str(key)) == plain), ABSENT)


def _plain(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower()
