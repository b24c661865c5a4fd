"""Generate the reference of the GitHub workflows: triggers, jobs, permissions, secrets."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from docs.generate.markdown import anchor, code, escape, paragraphs, table
from ml.core.imports import ROOT

FOLDER = ROOT / ".github/workflows"
CI_MINUTES = """Sums of `timeout-minutes`: waiting for Azure counts, waiting for approvals does not.
After 330 minutes the next run of `merge.yml`, or your next `/train`, waits for the training."""
# Event → the jobs whose minutes it costs.
EVENTS = {
    "pull request: documents": "check.yml: affected, links, required; comment.yml: comment",
    "pull request: project, stack, policy": (
        "check.yml: affected, links, change, required; comment.yml: comment"
    ),
    "pull request: framework": (
        "check.yml: affected, links, change, framework, required; comment.yml: comment"
    ),
    "`/train`": "train.yml: request, train, comment",
    "every merge": (
        "check.yml: affected, links, framework, required; "
        "infra.yml: stacks; "
        "merge.yml: projects; "
        "security.yml: vulnerabilities, sbom"
    ),
    "per changed stack": "infra.yml: plan, deploy",
    "per trained project": "merge.yml: candidate, evidence",
    "a merge that trains": "merge.yml: promotion",
    "a training failed or goes on": "merge.yml: continuation",
    "promotion to staging, prod": "promote.yml: gates, promotion",
    "a changed release.yml": "release.yml: environments",
    "per released environment": "release.yml: release",
    "a rollback": "release.yml: revert",
    "daily, `DRIFT`": "drift.yml: stacks",
    "a changed gate policy, per environment": "drift.yml: gates",
    "daily per stack": "drift.yml: drift",
    "daily per environment": "drift.yml: watch",
    "weekly": "security.yml: vulnerabilities",
    "weekly, `TEMPLATE_UPDATE`": "template-update.yml: update",
    "nightly, `NIGHTLY`": "nightly.yml: torture",
    "merge and weekly, `CODE_SECURITY`, two jobs": "security.yml: codeql",
}
_READ = re.compile(r"\b(secrets|vars)\.([A-Z][A-Z0-9_]*)")


def page() -> str:
    """Return the page: workflows, variables and secrets with their jobs, and CI minutes."""
    parts: list[str] = []
    readers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file in sorted(FOLDER.glob("*.yml")):
        text = file.read_text(encoding="utf-8")
        workflow = yaml.load(text, Loader=yaml.BaseLoader)
        parts += _workflow(file, text, workflow)
        for job, settings in workflow["jobs"].items():
            for kind, name in sorted(read_by(settings)):
                readers[kind, name].append(code(f"{file.name}: {job}"))
    rows = [
        [code(name), "secret" if kind == "secrets" else "variable", ", ".join(jobs)]
        for (kind, name), jobs in sorted(readers.items())
    ]
    head = ["name", "kind", "read by"]
    variables = ["## Variables and secrets", table(head, rows)]
    minutes = [[event, str(most)] for event, most in minutes_of_events().items()]
    return "\n\n".join(
        [
            *parts,
            *variables,
            "## CI minutes",
            CI_MINUTES,
            table(["event", "minutes at most"], minutes),
        ]
    )


def jobs_of(event: str) -> list[tuple[str, str]]:
    """Return (file, name) of each job whose minutes an event costs."""
    return [
        (file, job)
        for file, names in re.findall(r"([\w-]+\.yml): ([\w, -]+)", EVENTS[event])
        for job in names.split(", ")
    ]


def minutes_of_events() -> dict[str, int]:
    """Return each event → the sum of its jobs' `timeout-minutes`."""
    jobs = {
        file.name: yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)["jobs"]
        for file in FOLDER.glob("*.yml")
    }
    return {
        event: sum(int(jobs[file][job]["timeout-minutes"]) for file, job in jobs_of(event))
        for event in EVENTS
    }


def read_by(job: Any) -> set[tuple[str, str]]:
    """Return (`vars` or `secrets`, name) of the variables and secrets that a job reads."""
    return names_in(yaml.safe_dump(job, width=10_000))


def names_in(text: str) -> set[tuple[str, str]]:
    """Return (`vars` or `secrets`, name) of the variables and secrets in a text."""
    return set(_READ.findall(text))


def _workflow(file: Path, text: str, workflow: Mapping[str, Any]) -> list[str]:
    comment = re.match(r"((?:#.*\n)+)", text)
    about = re.sub(r"^# ?", "", comment[1], flags=re.M) if comment else ""
    rows = [_job(name, job, workflow) for name, job in workflow["jobs"].items()]
    head = ["job", "GitHub environment", "permissions", "secrets and variables"]
    return [
        f"{anchor('workflow', file.stem)}\n## {file.name}",
        paragraphs(about),
        f"Triggers: {'; '.join(_triggers(workflow['on']))}.",
        table(head, rows),
    ]


def _triggers(on: Any) -> list[str]:
    events = on if isinstance(on, Mapping) else dict.fromkeys([on] if isinstance(on, str) else on)
    return [_trigger(name, filters) for name, filters in events.items()]


def _trigger(name: str, filters: Any) -> str:
    if isinstance(filters, list):  # schedule
        return f"{code(name)} {', '.join(code(entry['cron']) for entry in filters)} (UTC)"
    limits = [
        f"{word} {', '.join(map(code, values if isinstance(values, list) else [values]))}"
        for word, values in (filters or {}).items()
        if word != "inputs"
    ]
    return f"{code(name)} ({'; '.join(limits)})" if limits else code(name)


def _job(name: str, job: Mapping[str, Any], workflow: Mapping[str, Any]) -> list[str]:
    environment = job.get("environment", "")
    stated = environment["name"] if isinstance(environment, Mapping) else environment
    permissions = job.get("permissions", workflow.get("permissions", {}))
    if isinstance(permissions, Mapping):
        granted = [escape(f"{scope}: {level}") for scope, level in permissions.items()]
    else:
        granted = [escape(str(permissions))]
    reads = [code(f"{kind}.{variable}") for kind, variable in sorted(read_by(job))]
    return [code(name), code(stated), ", ".join(granted) or "none", ", ".join(reads)]
