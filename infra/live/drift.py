"""Drift: resources in Azure that are missing, changed or undeclared by the program.

Only declared inputs are compared; values that Azure fills in are not drift. `drift_ignore.yml`
lists harmless differences, each with its reason.

Undeclared resources are found in the list of the resource group. It lacks role assignments, locks
and diagnostic settings, so undeclared ones are not detected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from infra.live.addresses import Addresses, Unplaced, own_names, version
from infra.live.arm import Arm, Denied
from infra.preview.capture import REFERENCE, SECRET, Resource

IGNORE_FILE = Path(__file__).with_name("drift_ignore.yml")
Kind = Literal["missing", "changed", "undeclared", "not-comparable"]
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
RULES = "managedNetwork.outboundRules"
ABSENT = object()
PROPERTIES = "properties"
# Top-level keys of a resource in Azure's response.
_OUTSIDE = frozenset(
    {"location", "tags", "sku", "kind", "identity", "zones", "plan", "extendedLocation", PROPERTIES}
)
# Kind → input name of the SDK (x-ms-client-name in azure-rest-api-specs) → name in the response.
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
    }
}


@dataclass(frozen=True)
class Difference:
    """One difference between the program and Azure."""

    kind: Kind
    resource: str
    id: str
    # Path of the input; "" for the whole resource; the reason if `kind` is not-comparable.
    path: str = ""
    declared: object = None
    actual: object = None

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"{self.resource}: {self.path} is {self.actual!r}, declared {self.declared!r}"
        if self.kind == "missing" and "/containers/" in self.id:
            # It aborts a refresh: pulumi-azure-native#4841.
            return f"{self.resource}: missing; `pulumi state delete` its URN before a refresh"
        return f"{self.resource}: {self.kind}{f' ({self.path})' if self.path else ''}"


@dataclass(frozen=True)
class IgnoredDifferences:
    """Harmless differences: (kind, path) of inputs, and patterns of undeclared resource ids."""

    inputs: frozenset[tuple[str, str]]
    resources: tuple[re.Pattern[str], ...]

    def ignores(self, kind: str, path: str) -> bool:
        """Return whether a difference at `path` of a resource of `kind` is ignored."""
        plain = re.sub(r"\[\d+\]", "[]", path)
        return (kind, plain) in self.inputs or ("*", plain) in self.inputs

    def created_by_azure(self, id: str) -> bool:
        """Return whether Azure creates an undeclared resource by itself."""
        return any(pattern.search(id) for pattern in self.resources)


def read_ignored(path: Path = IGNORE_FILE) -> IgnoredDifferences:
    """Read the ignored differences from a file; raise ValueError for an entry without a reason."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for entry in (*document["inputs"], *document["resources"]):
        if not str(entry.get("reason", "")).strip():
            raise ValueError(f"{path.name}: no reason for {entry}")
    return IgnoredDifferences(
        frozenset((entry["kind"], entry["input"]) for entry in document["inputs"]),
        tuple(re.compile(entry["id"], re.IGNORECASE) for entry in document["resources"]),
    )


def drift(
    resources: Sequence[Resource], arm: Arm, ignored: IgnoredDifferences
) -> Iterator[Difference]:
    """Yield all differences of declared resources, then undeclared resources of their groups."""
    addresses = Addresses(resources, arm.subscription)
    declared: set[str] = set()
    groups: set[str] = set()
    for resource in resources:
        if not resource.custom:
            continue
        try:
            place = addresses.place(resource)
            declared.add(place.id.lower())
            actual = arm.get(*place)
        except (Unplaced, Denied) as error:
            yield Difference("not-comparable", resource.name, "", str(error))
            continue
        if resource.kind == "resources:ResourceGroup":
            groups.add(place.id)
        if actual is None:
            yield Difference("missing", resource.name, place.id)
            continue
        yield from _changes(resource, place.id, actual, addresses, ignored)
    for group in sorted(groups):
        for item in arm.all(f"{group}/resources", version("resources:ResourceGroup")):
            id = str(item["id"])
            if id.lower() not in declared and not ignored.created_by_azure(id):
                yield Difference("undeclared", id.rpartition("/")[2], id)


def _changes(
    resource: Resource,
    id: str,
    actual: Mapping[str, Any],
    addresses: Addresses,
    ignored: IgnoredDifferences,
) -> Iterator[Difference]:
    comparison = _Comparison(resource.kind, addresses)
    for name, declared in resource.inputs.items():
        if name in own_names(resource.kind):
            continue
        answer = _value(resource.kind, actual, name, outermost=True)
        for path, wanted, value in comparison.compared(name, declared, answer):
            if not ignored.ignores(resource.kind, path):
                reported = None if value is ABSENT else value
                yield Difference("changed", resource.name, id, path, wanted, reported)
    for path, destination in _undeclared_rules(resource.inputs, actual):
        yield Difference("undeclared", resource.name, id, path, None, destination)


@dataclass(frozen=True)
class _Comparison:
    """Comparison of the inputs of one kind of resource with Azure's response."""

    kind: str
    addresses: Addresses

    def compared(self, path: str, declared: Any, actual: Any) -> Iterator[tuple[str, Any, Any]]:
        """Yield (path, declared, actual) of each difference; skip secrets and unknown outputs."""
        actual = _enabled(self.kind, actual)
        if declared in (None, {}, []) and actual in (ABSENT, None, {}, []):
            return
        if isinstance(declared, str):
            if SECRET in declared:
                return  # Azure does not return it
            try:
                declared = self.addresses.resolved(declared)
            except Unplaced:
                return
            if REFERENCE.search(declared):
                return
        if isinstance(declared, Mapping) and isinstance(actual, Mapping):
            for key, value in declared.items():
                actual_value = _value(self.kind, actual, key)
                yield from self.compared(f"{path}.{key}", value, actual_value)
        elif (
            isinstance(declared, list) and isinstance(actual, list) and len(declared) == len(actual)
        ):
            yield from self._lists(path, declared, actual)
        elif isinstance(declared, list) and isinstance(actual, Mapping):
            # Identities are declared as a list of ids and reported as a mapping by id.
            ids = {self.addresses.resolved(str(item)).lower() for item in declared}
            if ids != {str(item).lower() for item in actual}:
                yield path, sorted(ids), sorted(actual)
        elif not _same(declared, actual):
            yield path, declared, actual

    def _lists(
        self, path: str, declared: list[Any], actual: list[Any]
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yield the differences of each declared item from the most similar actual one."""
        candidates = list(actual)
        for number, value in enumerate(declared):
            differences = [
                [*self.compared(f"{path}[{number}]", value, candidate)] for candidate in candidates
            ]
            nearest = min(range(len(candidates)), key=lambda index: len(differences[index]))
            yield from differences[nearest]
            del candidates[nearest]


def _same(declared: Any, actual: Any) -> bool:
    if isinstance(declared, bool) or isinstance(actual, bool):
        return declared is actual
    if isinstance(declared, int | float) and isinstance(actual, int | float):
        return float(declared) == float(actual)
    if isinstance(declared, str) and isinstance(actual, str):
        if _seconds(declared) is not None:
            return _seconds(declared) == _seconds(actual)
        return _plain_value(declared) == _plain_value(actual)
    return bool(declared == actual)


def _plain_value(text: str) -> str:
    """Normalise a value, because Azure changes the case of ids and returns display names."""
    lowercase = text.strip().lower()
    return lowercase if "/" in lowercase else lowercase.replace(" ", "")


def _seconds(text: str) -> int | None:
    """Return the seconds of an ISO 8601 duration; None for other strings."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _value(kind: str, answer: Mapping[str, Any], name: str, *, outermost: bool = False) -> Any:
    """Return the value of the input `name` in Azure's response; ABSENT if it has none.

    The SDK flattens `properties` and renames some inputs. The value is therefore looked up in
    `answer` and in its `properties`, at every depth, ignoring case, `_` and `.`
    (`Application_Type`). `outermost` is True if `answer` is a whole resource.
    """
    inner = answer.get(PROPERTIES)
    inner = inner if isinstance(inner, Mapping) else {}
    # An input may share its name with a top-level key of every resource.
    first, second = (inner, answer) if outermost and name not in _OUTSIDE else (answer, inner)
    value = _named(kind, first, name)
    is_other = outermost and name == PROPERTIES and not isinstance(value, Mapping)
    return _named(kind, second, name) if value is ABSENT or is_other else value


def _enabled(kind: str, answer: Any) -> Any:
    """Return a diagnostic setting's list without disabled items, which Azure lists too."""
    if kind != "monitor:DiagnosticSetting" or not isinstance(answer, list):
        return answer
    return [
        item for item in answer if not (isinstance(item, Mapping) and item.get("enabled") is False)
    ]


def _named(kind: str, answer: Mapping[str, Any], name: str) -> Any:
    wanted = _RENAMED.get(kind, {}).get(name, name)
    if wanted in answer:
        return answer[wanted]
    plain = _plain(wanted)
    return next((value for key, value in answer.items() if _plain(str(key)) == plain), ABSENT)


def _plain(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower()


def _undeclared_rules(
    declared: Mapping[str, Any], actual: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield (path, destination) of each undeclared outbound rule of a managed network.

    Somebody approved it, or an update of the workspace, which may keep unnamed rules, left it.
    Azure's own rules have categories other than UserDefined.
    """
    names = {name.lower() for name in _mapping_at(declared, RULES)}
    for name, rule in _mapping_at(actual, f"properties.{RULES}").items():
        if not isinstance(rule, Mapping) or rule.get("category") != "UserDefined":
            continue
        if name.lower() not in names:
            yield f"{RULES}.{name}", rule.get("destination")


def _mapping_at(value: Any, path: str) -> Mapping[str, Any]:
    """Return the mapping at a dotted path; empty if there is none."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
