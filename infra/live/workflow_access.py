"""What each workflow may do, as a table of workflow, role and environment.

It is computed from the stack's program, the steps of `infra bootstrap` and the workflow files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.live import bootstrap
from infra.preview.capture import Resource, logical_name
from infra.settings.model import Settings
from infra.settings.workflows import PURPOSES, REVIEWED, Purpose, github_environment
from ml.core import documents

WORKFLOWS = Path(".github") / "workflows"


@dataclass(frozen=True)
class Access:
    """What jobs of one GitHub environment may do.

    `grants` are pairs of a role and the resource it is on; `jobs` are `FILE: JOB`.
    """

    environment: str
    purpose: Purpose
    jobs: tuple[str, ...]
    grants: tuple[tuple[str, str], ...]
    reviewers: tuple[str, ...]


def table(settings: Settings, declared: Sequence[Resource], root: Path) -> Iterator[Access]:
    """One row for each purpose. `declared` are the resources that the stack's program declares."""
    jobs = _jobs(root)
    granted = {**_of_bootstrap(settings), **_of_program(settings, declared)}
    for purpose in PURPOSES:
        yield Access(
            github_environment(settings, purpose),
            purpose,
            tuple(name for name, environment in jobs if _may_be(environment, settings, purpose)),
            tuple(sorted(granted.get(purpose, ()))),
            settings.reviewers if purpose in REVIEWED else (),
        )


def markdown(rows: Sequence[Access]) -> str:
    """The rows as a table, which GitHub draws."""
    lines = ["| environment | workflows | may | approved by |", "|---|---|---|---|"]
    for row in rows:
        may = "<br>".join(f"{role} on {scope}" for role, scope in row.grants)
        jobs, approved = ", ".join(row.jobs) or "none", ", ".join(row.reviewers) or "nobody"
        lines.append(f"| {row.environment} | {jobs} | {may} | {approved} |")
    return "\n".join(lines)


def _of_bootstrap(settings: Settings) -> dict[Purpose, set[tuple[str, str]]]:
    grants: dict[Purpose, set[tuple[str, str]]] = {}
    for grant in bootstrap.grants(settings):
        scope = {"{account.id}": "the state", "{vault.id}": "the key of the state"}
        where = scope.get(grant.scope, "the subscription")
        limited = ", except roles that assign roles" if grant.condition else ""
        grants.setdefault(grant.purpose, set()).add((f"{grant.role}{limited}", where))
    return grants


def _of_program(
    settings: Settings, declared: Sequence[Resource]
) -> dict[Purpose, set[tuple[str, str]]]:
    purposes: dict[str, Purpose] = {}
    for resource in declared:
        if resource.kind == "managedidentity:FederatedIdentityCredential":
            for purpose in PURPOSES:
                environment = f":environment:{github_environment(settings, purpose)}"
                if str(resource.inputs["subject"]).endswith(environment):
                    purposes[logical_name(str(resource.inputs["resourceName"]))] = purpose
    grants: dict[Purpose, set[tuple[str, str]]] = {}
    for resource in declared:
        principal = logical_name(str(resource.inputs.get("principalId", "")))
        if resource.kind == "authorization:RoleAssignment" and principal in purposes:
            role = str(resource.inputs["description"]).partition(":")[0]
            scope = logical_name(str(resource.inputs["scope"])).rpartition("/")[2]
            grants.setdefault(purposes[principal], set()).add((role, scope))
    return grants


def _jobs(root: Path) -> list[tuple[str, str]]:
    """`FILE: JOB` and the environment of each job that names one."""
    jobs = []
    for path in sorted((root / WORKFLOWS).glob("*.yml")):
        document = documents.read(path, path.name).data
        for name, job in (document.get("jobs") or {}).items():
            environment = job.get("environment") or ""
            if isinstance(environment, Mapping):
                environment = environment.get("name", "")
            if environment:
                jobs.append((f"{path.name}: {name}", str(environment)))
    return jobs


def _may_be(environment: str, settings: Settings, purpose: Purpose) -> bool:
    """Whether the text may be that GitHub environment; an expression may stand for any text."""
    literals = re.split(r"\$\{\{.*?\}\}", environment)
    pattern = ".*".join(map(re.escape, literals))
    return re.fullmatch(pattern, github_environment(settings, purpose)) is not None
