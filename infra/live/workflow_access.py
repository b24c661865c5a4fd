"""The roles of each workflow, cluster and endpoint, as a table (`infra access`).

It is computed from the role assignments of the stack's program and of `infra bootstrap`, and from
the workflow files. Role names are derived from ids, and an identity is shown by its users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.live import bootstrap
from infra.live.existing import required_permissions
from infra.preview.capture import Resource, logical_name
from infra.settings import environments
from infra.settings.model import Settings
from infra.settings.workflows import (
    PURPOSES,
    REVIEWED,
    Purpose,
    github_environment,
    purposes,
    role_name,
    subject,
)


@dataclass(frozen=True)
class Access:
    """The permissions of the jobs of one GitHub environment, or of another holder of roles."""

    # The GitHub environment, or `STACK: HOLDER`; a holder is a resource or a person's id.
    environment: str
    purpose: Purpose | None  # None if no workflow signs in
    jobs: tuple[str, ...]  # as `FILE: JOB`
    grants: tuple[tuple[str, str], ...]  # (role, scope)
    reviewers: tuple[str, ...]  # who must approve its jobs; () for nobody


def table(settings: Settings, declared: Sequence[Resource], root: Path) -> Iterator[Access]:
    """Yield a row for each purpose, then one for each other holder of a role.

    `declared` are the resources that the stack's program declares.
    """
    jobs = [*environments.of_workflows(root)]
    granted = _of_program(settings, declared)
    for grant in bootstrap.grants(settings):
        row = granted.setdefault(github_environment(settings, grant.purpose), set())
        row.add(_bootstrap_role(settings, grant))
    on_hub = granted.setdefault(github_environment(settings, "deploy"), set())
    for (_, role), id in required_permissions(settings):
        name = id.partition("/virtualNetworks/")[2] or id.rpartition("/")[2]
        on_hub.add((f"{role}, from its owner", name))
    for purpose in purposes(settings):
        environment = github_environment(settings, purpose)
        yield Access(
            environment,
            purpose,
            tuple(job.job for job in jobs if _may_be(job.name, settings, purpose)),
            tuple(sorted(granted.pop(environment, ()))),
            settings.reviewers if purpose in REVIEWED else (),
        )
    for holder, grants in sorted(granted.items()):
        yield Access(f"{settings.environment}: {holder}", None, (), tuple(sorted(grants)), ())


def _bootstrap_role(settings: Settings, grant: bootstrap.Grant) -> tuple[str, str]:
    """Return (role, scope) of a grant of the bootstrap, as text for the table."""
    words = {"account": "its state", "vault": "the key of its state"}
    part = re.fullmatch(r"\{.*-(\w+)\.id\}", grant.scope)
    limited = ", only roles that the program grants" if grant.condition else ""
    if part:
        return f"{grant.role}{limited}", words[part[1]]
    is_own = grant.scope.endswith(f"/{settings.subscription}")
    return f"{grant.role}{limited}", f"the subscription{'' if is_own else ' of the registry'}"


def _of_program(
    settings: Settings, declared: Sequence[Resource]
) -> dict[str, set[tuple[str, str]]]:
    """Map each holder (GitHub environment, resource or person's id) to its (role, scope) pairs."""
    holders = _holders(settings, declared)
    grants: dict[str, set[tuple[str, str]]] = {}
    for resource in declared:
        if resource.kind == "authorization:RoleAssignment":
            principal = logical_name(str(resource.inputs["principalId"]))
            role = role_name(str(resource.inputs["roleDefinitionId"]))
            written = re.findall(r"StringLike '([^']*)'", resource.inputs.get("condition") or "")
            limited = f", writing {' '.join(written)}" if written else ""
            scope = logical_name(str(resource.inputs["scope"])).rpartition("/")[2]
            names = holders.get(principal, {principal})
            grants.setdefault(", ".join(sorted(names)), set()).add((f"{role}{limited}", scope))
    return grants


def _holders(settings: Settings, declared: Sequence[Resource]) -> dict[str, set[str]]:
    """Map each identity to the GitHub environments and resources that use it."""
    environments = {
        subject(settings, purpose): github_environment(settings, purpose) for purpose in PURPOSES
    }
    holders: dict[str, set[str]] = {}
    for resource in declared:
        if resource.kind == "managedidentity:FederatedIdentityCredential":
            identities = [resource.inputs["resourceName"]]
            signed_in = str(resource.inputs["subject"])
            name = environments.get(signed_in, signed_in)
        else:
            identity = resource.inputs.get("identity") or {}
            identities = identity.get("userAssignedIdentities") or []
            name = f"{resource.kind.partition(':')[2]} {resource.name}"
        for identity_id in identities:
            holders.setdefault(logical_name(str(identity_id)), set()).add(name)
    return holders


def _may_be(environment: str, settings: Settings, purpose: Purpose) -> bool:
    """Return whether `environment` of a workflow may be the GitHub environment of a purpose.

    Names are case-insensitive; an expression `${{ … }}` matches any text.
    """
    literals = re.split(r"\$\{\{.*?\}\}", environment)
    pattern = ".*".join(map(re.escape, literals))
    name = github_environment(settings, purpose)
    return re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL) is not None
