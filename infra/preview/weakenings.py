"""Finds changes in a preview that weaken a safeguard or grant more rights.

Policies reject changes that are never allowed. These may be right, so the report lists them first,
for the reviewer to approve.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from infra.preview.capture import (
    ABSENT,
    ADDED,
    REMOVED,
    Property,
    ResourceChange,
    differences,
    logical_name,
)
from infra.settings.workflows import role_name
from ml.core import documents, plug_ins, repository
from ml.core.markdown import truncate

ROLE = "authorization:RoleAssignment"
LONGEST = 120  # characters of a value
MAKE = ("Makefile", "framework.mk")
LIMITS, WAIVERS = "policies/infra/limits.yml", "policies/infra/waivers.yml"
# Code of the rules, roles, GitHub settings and cost. No resource, or not every one, shows a change
# of it, so each changed file is listed.
CODE: tuple[str, ...] = ("policies/infra/*.py", "policies/own/*.py", "policies/waivers.py")
CODE += ("infra/*.py", "infra/settings/*.py", "infra/program/*.py", "infra/preview/*.py")
CODE += ("infra/live/*", "infra/cost/*", "ml/core/*.py", *MAKE)
# Code that declares resources. No resource shows its other side effects, so `_reached` lists them.
PROGRAM = "infra/program"
PROGRAMS = ("infra/__main__.py", "infra/program/*.py", "infra/settings/*.py")
# Modules without side effects, and builtins that reach any module or file by a string.
_DECLARING = ("infra", "pulumi_azure_native", "typing", "collections", "dataclasses", "__future__")
_REACHING = frozenset({"__import__", "compile", "eval", "exec", "getattr", "globals", "open"})


@dataclass(frozen=True)
class Weakening:
    """A pattern of changes that weaken a safeguard, given by regular expressions."""

    kind: str  # of the resource, or the path of a file
    path: str  # of the property
    words: str  # the effect, for the reviewer
    # Matches `before → after`; "more" matches a number that rises, "less" one that falls.
    when: str | Literal["more", "less"] = ".*"

    def matches(self, kind: str, difference: Property) -> bool:
        """Return whether the pattern matches a changed property of a resource or file of `kind`."""
        before, after = difference.before, difference.after
        if not (re.fullmatch(self.kind, kind) and re.fullmatch(self.path, difference.path)):
            return False
        if self.when not in ("more", "less"):
            return re.fullmatch(self.when, f"{before} → {after}", re.DOTALL) is not None
        numbers = [value for value in (before, after) if isinstance(value, int | float)]
        if len(numbers) < 2:  # an unset number falls back to a default, which may be looser
            return bool(numbers) or after != ABSENT
        return numbers[0] < numbers[1] if self.when == "more" else numbers[0] > numbers[1]


_FILE, _RESOURCE = r"infra/Pulumi\.\w+\.yaml", r"\w+:\w+"
_SET, _ON = r".* → (?!\(not set).*", ".* → (True|Enabled)"
_OFF = r".* → (False|Disabled|\(not set\))"
_LESS = r"(?!\(not set\)).* → .*"
# A newly set value, except references to names, ids and login servers, which are not secret.
_EXPOSED = r".* → (?!\(not set|\$\{[^}]+\.(name|id|clientId|loginServer)\}$).*"
_SAFEGUARDS = (
    "authorization:ManagementLockByScope|monitor:.*|consumption:Budget|security:.*"
    "|network:(PrivateEndpoint|PrivateDnsZoneGroup|NetworkSecurityGroup|RouteTable)|privatedns:.*"
    "|storage:(BlobServiceProperties|ManagementPolicy)|keyvault:Key"
)
_ACCESS_PATHS = (
    "managedidentity:FederatedIdentityCredential|network:PrivateEndpoint|compute:.*"
    "|network:(PublicIPAddress|NatGateway)"
    "|machinelearningservices:(WorkspaceConnection|Datastore)|redisenterprise:AccessPolicyAssignment"
)
_ALERTING = (
    "enabled|operator|windowSize|contact|Receivers|actions|logs|categor|metricName|dimensions"
)
_ALERTING += "|evaluationFrequency|timeAggregation|scopes|filter|time[GP]"
_RETENTION = r"s\w+RetentionInDays|retentionInDays|\w+Policy\.days|keySize"
_OPENS = "allow(?!ed)|public|anonymous|admin|v1|registration"
_PROTECTS = r"require|hbi|encrypt|default[TO]|private\w+Policies"
# Switches whose names do not say which value is safe.
_SWITCHES = "enable|disable|is[A-Z]"
# Properties that refer to an identity, a resource or a network destination.
_TRUST = (
    "identity|primaryUserAssignedIdentity|principalId|tenantId|objectId|encryption|keyVaultUri"
    "|keyVault|containerRegistry|storageAccount|accountName|subscriptionId|serviceResourceId"
    "|endpoint|target|destination|workspaceId|storageAccountId|eventHub|marketplacePartnerId"
    r"|imageReference|customServices|setupScripts|privateLinkServiceId|\w*[sS]ubnet|natGateway"
    "|virtualNetworkPeerings|networkSecurityGroup|routeTable|securityRules|routes|networkRuleSet"
    "|networkAcls|networkRuleBypassOptions|policies|cors|serviceEndpoint|delegations"
    "|dhcpOptions"
)
# Kinds that hold or reach data, and their properties that need no pattern: other patterns cover
# them by direction, or they are harmless.
_HOLDS = (
    "storage:.*|keyvault:Vault|containerregistry:.*|network:(VirtualNetwork|NetworkInterface)"
    "|machinelearningservices:.*|compute:.*|redis.*|security:.*|.*insights:.*|privatedns:.*"
    "|monitor:DiagnosticSetting"
)
_LISTED = rf"(.*\.)?({_OPENS}|{_PROTECTS}|{_RETENTION}|description|friendlyName|outboundRules)"
_LISTED += r"|tags|\(|.*NodeCount"
# The first pattern that matches a changed property describes it.
WEAKENINGS: tuple[Weakening, ...] = (
    Weakening(".*", r"\(protect\)", "Pulumi no longer protects it", "True → .*"),
    Weakening(".*", r"\(ignoreChanges\)", "changes made by hand may stay"),
    Weakening(".*", r"\(provider\)", "another provider makes it, maybe in another subscription"),
    Weakening(".*", r"\(hooks\)", "code runs when it is made or changed", _SET),
    Weakening(".*", r"\((dependsOn|hooks)\)", "it no longer waits for others"),
    Weakening(".*", r"\((?!protect).+\)", "Pulumi makes or deletes it in another way"),
    Weakening("pulumi:outputs", ".*", "others may read it", _EXPOSED),
    Weakening(_SAFEGUARDS, REMOVED, "a safeguard is removed"),
    Weakening(_ACCESS_PATHS, ADDED, "a new way in or out"),
    Weakening(ROLE, ".*Id|.*Type|scope|condition.*", "other rights"),
    Weakening("managed.*Credential", "subject|issuer|audiences.*|claims.*", "others may sign in"),
    Weakening(LIMITS, r".*\.min_\w+", "a limit is loosened", "less"),
    Weakening(LIMITS, r".*\.tags.*", "required tags change"),
    Weakening(LIMITS, ".*", "a limit is loosened", "more"),
    Weakening(WAIVERS, ".*", "a rule is waived", _SET),
    Weakening(".*", "code", "the code of rules, roles, checks or the program changes"),
    Weakening(r".*\.toml", ".*", "other plug-ins judge", _LESS),
    Weakening(_FILE, r"platform:reviewers.*", "other people approve"),
    Weakening(_FILE, "platform:repository", "workflows of another repository sign in"),
    Weakening(_FILE, "azure-native:.*Id", "another subscription or tenant"),
    Weakening(_FILE, r"(secretsp|encr|environment).*", "another key, or settings of others"),
    Weakening(PROGRAM, ".*", "the program may do more than it declares", _SET),
    Weakening(_FILE, "platform:owner", "alerts go to somebody else"),
    Weakening(_FILE, r"platform:training\..*", "jobs of pull requests may take more", "more"),
    Weakening(_FILE, r"platform:guardrails\.(locks|protect)", "data may be deleted", ".* → False"),
    Weakening(_FILE, r"platform:network\.allowed_hosts.*", "compute reaches another host", _SET),
    Weakening(_FILE, r"platform:network\.(?!allowed_hosts|firewall).*", "another network"),
    Weakening(_FILE, r"platform:(asset_registry|groups)\..*|.*\.person",
              "another registry or person"),
    Weakening(_RESOURCE, rf"(.*\.)?({_RETENTION})", "kept or protected for less", "less"),
    Weakening("keyvault:Key", "properties.*", "another key, or rotated at another time"),
    Weakening("storage:ManagementPolicy", r".*\.delete\..*", "data is deleted sooner", _SET),
    Weakening("consumption:Budget", r"amount|.*\.threshold", "it warns later", "more"),
    Weakening("monitor:MetricAlert", r"(.*\.)?(threshold|severity)", "it fires later", "more"),
    Weakening("consumption:Budget|monitor:(?!D).*", rf".*({_ALERTING}).*",
              "others hear of it, or nobody"),
    Weakening("operationalinsights:Workspace", ".*dailyQuotaGb",
              "logs may cost more, or have no cap"),
    Weakening(".*:Compute", r".*\.m\w\wNodeCount", "more nodes", "more"),
    Weakening(".*:Compute", r".*(vmPriority|vmSize|dleTime\w*)", "other machines, or for longer"),
    Weakening(_RESOURCE, rf"(.*\.)?({_TRUST})([.\[A-Z].*)?", "it trusts or reaches something else"),
    Weakening(_RESOURCE, rf"(.*\.)?({_OPENS})\w*", "a protection ends", _ON),
    Weakening(_RESOURCE, rf"(.*\.)?({_PROTECTS})\w*", "a protection ends", _OFF),
    Weakening(_RESOURCE, rf"(.*\.)?({_SWITCHES})\w*", "something is turned on or off"),
    Weakening(_HOLDS, rf"(?!{_LISTED}).*", "another setting of what holds or reaches data"),
)  # fmt: skip


def weakenings(changes: Iterable[ResourceChange]) -> Iterator[str]:
    """Yield a line per matched pattern with its resources, and one per principal with new roles."""
    grants: dict[str, dict[str, None]] = {}
    weaker: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        if change.kind == ROLE and change.what == "added":
            principal, role, scope = (str(value.after) for value in change.properties)
            right = f"{role_name(role)} on {logical_name(scope).rpartition('/')[2]}"
            grants.setdefault(logical_name(principal), {})[right] = None
            continue
        texts: dict[str, list[str]] = {}
        for difference in _differences(change):
            pattern = next(
                (pattern for pattern in WEAKENINGS if pattern.matches(change.kind, difference)),
                None,
            )
            if pattern:
                texts.setdefault(pattern.words, []).append(_shown(difference))
        for words, values in texts.items():
            weaker.setdefault((words, "; ".join(filter(None, values))), []).append(change.name)
    for (words, listed), names in weaker.items():
        yield ": ".join(filter(None, (", ".join(names), words, listed)))
    yield from (f"{principal} gets {', '.join(rights)}" for principal, rights in grants.items())


def _differences(change: ResourceChange) -> tuple[Property, ...]:
    """Return the changed properties; the same role in another subscription is no change."""
    if change.what == "changed":
        return tuple(
            difference
            for difference in change.properties
            if difference.path != "roleDefinitionId"
            or role_name(str(difference.before)) != role_name(str(difference.after))
        )
    return (Property(ADDED if change.what == "added" else REMOVED, "", ""),)


def _shown(difference: Property) -> str:
    """Return the property with both values; "" for a whole resource."""
    before, after = str(difference.before), str(difference.after)
    if difference.path in (ADDED, REMOVED):
        return ""
    if difference.path == "roleDefinitionId":
        before, after = role_name(before), role_name(after)
    return f"{difference.path} {truncate(before, LONGEST)} → {truncate(after, LONGEST)}"


def edits(stack: str, before: Path, after: Path) -> tuple[ResourceChange, ...]:
    """Return the changes of the files that define a stack between two trees.

    The files are the stack file, limits and waivers, the plug-ins, and the code of CODE. Raise
    UserError if a file is not YAML.
    """
    names = [f"infra/Pulumi.{stack}.yaml", LIMITS, WAIVERS]
    pairs = [(name, _read(before / name, after / name)) for name in names]
    trees = (before, after)
    pairs.append((repository.MARK, differences(*map(plug_ins.named, trees))))
    pairs.append((PROGRAM, differences(*map(_reached, trees))))
    code = {
        str(path.relative_to(tree)) for tree in trees for glob in CODE for path in tree.glob(glob)
    }
    for name in sorted(code):
        old, new = (
            (tree / name).read_bytes() if (tree / name).is_file() else b"" for tree in trees
        )
        if old != new:
            pairs.append((name, (Property("code", len(old), len(new)),)))
    return tuple(
        ResourceChange("changed", name, Path(name).name, "", changed)
        for name, changed in pairs
        if changed
    )


def _reached(tree: Path) -> dict[str, str]:
    """Return `FOLDER: NAME` → file of each use of other modules, such as `os.system`.

    Such a call may run a command, or behave differently in a preview and a deployment.
    """
    reached: dict[str, str] = {}
    for path in (path for glob in PROGRAMS for path in sorted(tree.glob(glob))):
        try:
            nodes = [*ast.walk(ast.parse(path.read_bytes()))]
        except (SyntaxError, ValueError):  # the run of the program reports the line
            continue
        names = {name: name for name in _REACHING}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                for alias in node.names:
                    names[alias.asname or alias.name.partition(".")[0]] = above + alias.name
        for node in nodes:
            text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            first, dot, attribute = text.partition(".")
            if first in names and not names[first].startswith(_DECLARING):
                reached[f"{path.parent.name}: {names[first]}{dot}{attribute}"] = path.name
    return reached


def _read(before: Path, after: Path) -> tuple[Property, ...]:
    """Return the differences of two YAML files, without those from or to an empty mapping."""
    return tuple(
        difference
        for difference in differences(_data(before), _data(after))
        if {} not in (difference.before, difference.after)
    )


def _data(file: Path) -> Any:
    """Return a YAML file as a mapping without the level `config`; a list is under `waived`."""
    is_there = file.is_file() and re.search(r"(?m)^[^#\s]", file.read_text(errors="replace"))
    data = documents.read(file).data if is_there else {}
    if not isinstance(data, dict):
        return {"waived": data}
    return {key: value for key, value in data.items() if key != "config"} | data.get("config", {})
