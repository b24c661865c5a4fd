"""Whether this machine, Azure and GitHub are as the repository expects; each problem with its fix.

Nothing is changed. Azure and GitHub are asked by their own programs, `az` and `gh`, as the person
who is signed in.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from ml.core import repository
from ml.core.errors import Refused
from ml.core.imports import demand_packages_alone

# The check that branch protection names (.github/workflows/check.yml).
REQUIRED = "required"
PLACEHOLDERS = ("your-organisation", "00000000-0000-0000-0000-000000000000")
INSTALL = {
    "az": "https://learn.microsoft.com/cli/azure/install-azure-cli",
    "gh": "https://cli.github.com",
}
WORKSPACES = "providers/Microsoft.MachineLearningServices"
API = "api-version=2024-10-01"
# The GitHub environment with the key of the app that opens pull requests.
BOT = "bot"
# Azure ML's name of the quota of all dedicated machines.
CORES = "TotalDedicatedCores"


@dataclass(frozen=True)
class Check:
    """One line of the screen; `fix` is what to type or where to look."""

    name: str
    verdict: Literal["ok", "warning", "error"]
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Stack:
    """What a stack file says of an environment.

    `github` are its GitHub environments, and whether jobs of each need an approval.
    """

    name: str
    subscription: str
    location: str
    group: str
    workspace: str
    repository: str
    github: Mapping[str, bool]


@dataclass(frozen=True)
class Answer:
    """What a program answered: the JSON that it printed, or the reason why there is none."""

    json: Any = None
    error: str = ""


Ask = Callable[[Sequence[str]], Answer]


def ask(words: Sequence[str]) -> Answer:
    """Run a program that asks; at most a minute."""
    program = shutil.which(words[0])
    if program is None:
        return Answer(error=f"`{words[0]}` is not installed")
    try:
        process = subprocess.run(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return Answer(error=f"`{words[0]}` did not answer within a minute")
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        return Answer(error=lines[-1].strip()[:200] if lines else f"exit {process.returncode}")
    try:
        return Answer(json.loads(process.stdout) if process.stdout.strip() else {})
    except ValueError:
        return Answer(error=f"`{words[0]}` printed no JSON")


def machine() -> Iterator[Check]:
    """Python, the installed packages against the lock, and whether they are alone."""
    current = platform.python_version()
    if current.startswith("3.11."):
        yield Check("python", "ok", current)
    else:
        fix = "rm -rf .venv && make setup PYTHON=python3.11"
        yield Check("python", "error", f"{current}, not 3.11", fix)
    lock = repository.lock().read_text()
    locked = re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.M)
    other = [
        f"{name} {installed}, not {pin}"
        for name, pin in locked
        if (installed := _installed(name)) != pin
    ]
    try:
        demand_packages_alone(Path(sys.executable))
    except Refused as refused:
        other += [problem.found for problem in refused.problems]
    if other:
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        yield Check("packages", "error", "; ".join(other[:3]) + more, "make setup")
    else:
        yield Check("packages", "ok", f"all {len(locked)} as in {repository.LOCK}")


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def placeholders(root: Path) -> Iterator[Check]:
    """Names that the template brings and a team replaces."""
    files = [*sorted((root / "infra").glob("Pulumi.*.yaml")), root / ".github/CODEOWNERS"]
    left = [
        str(file.relative_to(root))
        for file in files
        if file.is_file() and any(word in file.read_text() for word in PLACEHOLDERS)
    ]
    if left:
        fix = f"replace {' and '.join(PLACEHOLDERS)} there by yours"
        yield Check("placeholders", "warning", f"left in {', '.join(left)}", fix)
    else:
        yield Check("placeholders", "ok", "none is left")


def azure(stacks: Sequence[Stack], ask: Ask = ask) -> Iterator[Check]:
    """The sign-in, then each environment's workspace and the cores that it may use."""
    account = ask(("az", "account", "show", "--output", "json", "--only-show-errors"))
    if account.error:
        yield Check("azure sign-in", "warning", account.error, _fix("az", account, "az login"))
        return
    user = (account.json.get("user") or {}).get("name") or "somebody"
    yield Check("azure sign-in", "ok", f"{user}, subscription {account.json.get('name')}")
    for stack in stacks:
        base = f"/subscriptions/{stack.subscription}"
        group = f"{base}/resourceGroups/{stack.group}/{WORKSPACES}"
        workspace = _rest(ask, f"{group}/workspaces/{stack.workspace}")
        name = f"workspace {stack.name}"
        if workspace.error:
            fix = f"infra doctor {stack.name}; pulumi up --stack {stack.name} creates it"
            yield Check(name, "warning", workspace.error, fix)
        else:
            yield Check(name, "ok", stack.workspace)
        usages = _rest(ask, f"{base}/{WORKSPACES}/locations/{stack.location}/usages")
        yield _quota(stack, usages)


def _rest(ask: Ask, path: str) -> Answer:
    url = f"https://management.azure.com{path}?{API}"
    return ask(("az", "rest", "--method", "get", "--url", url, "--only-show-errors"))


def _quota(stack: Stack, usages: Answer) -> Check:
    name, fix = f"quota {stack.name}", f"infra doctor {stack.name} says what each cluster needs"
    if usages.error:
        return Check(name, "warning", usages.error, fix)
    quotas = {(one.get("name") or {}).get("value"): one for one in usages.json.get("value") or ()}
    cores = quotas.get(CORES)
    if cores is None:
        return Check(name, "warning", f"Azure names no quota in {stack.location}", fix)
    free = int(cores["limit"]) - int(cores["currentValue"])
    words = f"{free} of {cores['limit']} dedicated cores are free in {stack.location}"
    return Check(name, "ok", words) if free > 0 else Check(name, "warning", words, fix)


def github(repository: str, stacks: Sequence[Stack], ask: Ask = ask) -> Iterator[Check]:
    """Settings that no file of the repository can hold: rights, protection, environments."""
    settings = ask(("gh", "api", f"repos/{repository}"))
    if settings.error:
        fix = _fix("gh", settings, f"gh auth login; or platform:repository is not {repository}")
        yield Check("github", "warning", settings.error, fix)
        return
    yield Check("github", "ok", repository)
    branch = str(settings.json.get("default_branch") or "main")
    yield _rights(repository, ask)
    yield from _protection(repository, branch, ask)
    for stack in stacks:
        for name, reviewed in stack.github.items():
            fix = f"infra bootstrap {stack.name} --run"
            yield _environment(repository, name, reviewed, fix, ask)
    yield _environment(repository, BOT, False, "infra bootstrap --run", ask)
    yield _app(repository, ask)


def _rights(repository: str, ask: Ask) -> Check:
    path = f"repos/{repository}/actions/permissions/workflow"
    answer, name = ask(("gh", "api", path)), "workflows' token"
    fix = (
        f"gh api --method PUT {path} -f default_workflow_permissions=read"
        " -F can_approve_pull_request_reviews=false"
    )
    if answer.error:
        return Check(name, "warning", answer.error, "ask an administrator of the repository")
    if answer.json.get("default_workflow_permissions") != "read":
        return Check(name, "error", "may write unless a workflow says otherwise", fix)
    if answer.json.get("can_approve_pull_request_reviews"):
        return Check(name, "error", "may approve pull requests", fix)
    return Check(name, "ok", "reads, and approves nothing")


def _protection(repository: str, branch: str, ask: Ask) -> Iterator[Check]:
    """Rulesets and the older protection of branches count alike; what is asked for is on either."""
    rules = ask(("gh", "api", f"repos/{repository}/rules/branches/{branch}"))
    protection = ask(("gh", "api", f"repos/{repository}/branches/{branch}/protection"))
    checks: set[str] = set()
    reviews = {"owners": False, "approvals": False}
    for rule in rules.json if isinstance(rules.json, list) else []:
        options = rule.get("parameters") or {}
        checks |= {one["context"] for one in options.get("required_status_checks") or ()}
        reviews["owners"] |= bool(options.get("require_code_owner_review"))
        reviews["approvals"] |= bool(options.get("required_approving_review_count"))
    older: Mapping[str, Any] = protection.json if isinstance(protection.json, Mapping) else {}
    checks |= {*((older.get("required_status_checks") or {}).get("contexts") or ())}
    asked = older.get("required_pull_request_reviews") or {}
    reviews["owners"] |= bool(asked.get("require_code_owner_reviews"))
    reviews["approvals"] |= bool(asked.get("required_approving_review_count"))
    where = f"https://github.com/{repository}/settings/rules"
    for name, holds, words in (
        ("required check", REQUIRED in checks, f"`{REQUIRED}` before a merge into {branch}"),
        ("review", reviews["approvals"], f"an approval before a merge into {branch}"),
        ("code owners", reviews["owners"], "the approval of those in .github/CODEOWNERS"),
    ):
        if holds:
            yield Check(name, "ok", words)
        else:
            yield Check(name, "error", f"not asked for: {words}", where)


def _environment(repository: str, name: str, reviewed: bool, fix: str, ask: Ask) -> Check:
    """Jobs of protected branches alone use it, and those that change Azure have a reviewer."""
    answer = ask(("gh", "api", f"repos/{repository}/environments/{name}"))
    label = f"environment {name}"
    if answer.error:
        return Check(label, "error", answer.error, fix)
    kinds = {rule.get("type") for rule in answer.json.get("protection_rules") or ()}
    branches = answer.json.get("deployment_branch_policy") or {}
    missing = [] if branches.get("protected_branches") else ["protected branches alone"]
    missing += ["required reviewers"] if reviewed and "required_reviewers" not in kinds else []
    if missing:
        return Check(label, "error", f"without {' and '.join(missing)}", fix)
    return Check(label, "ok", "protected")


def _app(repository: str, ask: Ask) -> Check:
    """The app that opens pull requests; a warning, since releases do without it."""
    where = f"repos/{repository}/environments/{BOT}"
    missing = []
    for kind, name in (("variables", "APP_ID"), ("secrets", "APP_PRIVATE_KEY")):
        answer = ask(("gh", "api", f"{where}/{kind}"))
        names = [] if answer.error else [each.get("name") for each in answer.json.get(kind) or ()]
        if name not in names:
            missing.append(name)
    if missing:
        fix = (
            "a GitHub App with Contents and Pull requests: write, installed here; then gh variable"
            f" set APP_ID --env {BOT} and gh secret set APP_PRIVATE_KEY --env {BOT} < KEY.pem"
        )
        return Check("app", "warning", f"without {' and '.join(missing)}: no revert opens", fix)
    return Check("app", "ok", "opens pull requests that start checks")


def _fix(program: str, answer: Answer, otherwise: str) -> str:
    return INSTALL[program] if "not installed" in answer.error else otherwise
