"""The rules that every workflow keeps, read off its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

# What a step may type: one command of the repository, whose output may go to the summary. Make
# would read a GNUmakefile or makefile before the Makefile.
COMMAND = re.compile(
    r'(make -f Makefile [a-z-]+|\.venv/bin/(ml|infra) [a-z ]+)( [A-Z]+=("\$[A-Z_]+"|[\w^/.-]+))*'
    r'( >> "\$GITHUB_STEP_SUMMARY")?'
)
# The one check that branch protection names compares the others' results.
RESULTS = re.compile(
    r'\[ "\$[A-Z]+" = success \]( && (\[ "\$[A-Z]+" = success \]'
    r'|\[\[ "\$[A-Z]+" = @\(success\|skipped\) \]\]))+'
)
ACTION = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
# Events that outsiders cause; their workflows have no secret and write nothing.
UNTRUSTED = {"pull_request"}
# What a job of ours may write to, by workflow; all others read.
WRITES = {
    "comment": {"comment": {"pull-requests"}},
    "train": {
        "request": {"pull-requests"},
        "train": {"id-token"},
        "comment": {"pull-requests"},
    },
    "merge": {
        "candidate": {"id-token"},
        "continuation": {"actions"},
        "evidence": {"attestations", "id-token"},
    },
    "promote": {"gates": {"id-token"}},
    "infra": {"plan": {"id-token"}, "deploy": {"id-token"}},
    "drift": {
        "drift": {"id-token", "issues"},
        "watch": {"id-token", "issues"},
        "gates": {"id-token"},
    },
    "release": {"release": {"id-token", "issues"}},
    "security": {"codeql": {"security-events"}, "sbom": {"attestations", "id-token"}},
    "wheel": {"wheel": {"attestations", "contents", "id-token"}},
}
# The GitHub environment with the key of the team's app, for jobs that open pull requests.
BOT = "bot"
KEY = "${{ secrets.APP_PRIVATE_KEY }}"
# What the jobs that sign in to Azure may do, by workflow: the ends of their GitHub environments.
PURPOSES = {
    "infra": {"plan": "preview", "deploy": "deploy"},
    "drift": {"drift": "preview", "watch": "watch", "gates": "watch"},
    "release": {"release": "release", "revert": BOT},
    "template-update": {"update": BOT},
    "train": {"train": "train"},
    "merge": {"candidate": "train", "evidence": "release", "promotion": BOT},
    "promote": {"gates": "release", "promotion": BOT},
}
# A workflow that may write after an untrusted one has run: it takes the default branch's code.
PRIVILEGED = {"workflow_run", "pull_request_target", "issue_comment"}


def faults(text: str) -> Iterator[str]:
    """A sentence for each rule that a workflow breaks."""
    workflow = yaml.safe_load(text)
    name, events = str(workflow.get("name")), _events(workflow)
    if workflow.get("permissions") != {}:
        yield "`permissions: {}` is missing at the top"
    if workflow.get("defaults") != {"run": {"shell": "bash"}}:
        yield "not every command is run by bash, with pipefail"
    groups = [job.get("concurrency") for job in workflow["jobs"].values()]
    if not (workflow.get("concurrency") or all(groups)):
        yield "no concurrency group"
    if "pull_request_target" in events:
        yield "pull_request_target"
    if events & UNTRUSTED and re.search(r"\bsecrets\b|id-token", text):
        yield "a secret or a token of OIDC for a pull request"
    for line in re.findall(r"uses:\s*(.+)", text):
        if not line.startswith("./") and not ACTION.fullmatch(line.strip()):
            yield f"not pinned by a SHA with its version: {line}"
    for key, job in workflow["jobs"].items():
        yield from (f"{key}: {fault}" for fault in _job(name, key, job, events))


def _events(workflow: Mapping[Any, Any]) -> set[str]:
    on = workflow[True]  # YAML reads `on` so
    return {on} if isinstance(on, str) else {*on}


def _job(workflow: str, key: str, job: Mapping[str, Any], events: set[str]) -> Iterator[str]:
    if not isinstance(job.get("timeout-minutes"), int):
        yield "no timeout"
    if not re.fullmatch(r"\$\{\{ vars\.\w*RUNNER \|\| '[\w.-]+' \}\}", str(job.get("runs-on"))):
        yield "its runner is not chosen by a variable"
    if (job.get("runs-on") or "").startswith("${{ vars.CHECK_") is not bool(events & UNTRUSTED):
        yield "code of strangers has a runner of its own"
    rights = job.get("permissions")
    if not isinstance(rights, Mapping):
        yield "no permissions of its own"
    else:
        allowed = WRITES.get(workflow, {}).get(key, set())
        for scope, level in rights.items():
            if level == "write" and scope not in allowed:
                yield f"it may write: {scope}"
    purpose = str(job.get("environment") or "").rpartition("-")[2]
    if purpose != PURPOSES.get(workflow, {}).get(key, ""):
        yield f"it may not sign in for {purpose or 'nothing'}"
    # No cloud trusts the subject of a job without a GitHub environment; Sigstore signs for any.
    signs = "attestations" in (rights or ())
    if ("id-token" in (rights or ())) is not (signs or purpose not in ("", BOT)):
        yield "a token of OIDC goes with a GitHub environment or a signature, and only with one"
    if "secrets." in str(job).replace(KEY, "" if purpose == BOT else KEY):
        yield "a secret other than the app's key, or outside the environment that holds it"
    for step in job["steps"]:
        yield from _step(step, events)


def _step(step: Mapping[str, Any], events: set[str]) -> Iterator[str]:
    options = step.get("with") or {}
    if str(step.get("uses", "")).startswith("actions/checkout@"):
        if options.get("persist-credentials") is not False:
            yield "checkout leaves its token behind"
        default = "${{ github.event.repository.default_branch }}"
        if events & PRIVILEGED and options.get("ref") != default:
            yield "a workflow with rights checks out something else than the default branch"
    command = str(step.get("run") or "")
    if "${{" in command:
        yield "an expression in `run`"
    if command and not (COMMAND.fullmatch(command) or RESULTS.fullmatch(command)):
        yield f"not one command: {command}"
    if step.get("shell") or step.get("continue-on-error"):
        yield "a shell of its own, or a failure that does not count"
