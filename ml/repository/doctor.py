"""Check whether this machine, Azure and GitHub are set up as the repository expects.

Each problem has a fix; nothing is changed. Azure and GitHub are queried with their own programs,
`az` and `gh`, as the signed-in user.
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

from infra.settings.github import (
    ACTIONS,
    APP,
    BOT,
    MAIN,
    OF_MAIN,
    REQUIRED,
    REVIEW,
    RULESETS,
    bypassing,
    environment_differences,
    policy_differences,
)
from ml.core import repository
from ml.core.azure import PLACEHOLDERS
from ml.core.errors import UserError
from ml.core.imports import check_import_path

INSTALL = {
    "az": "https://learn.microsoft.com/cli/azure/install-azure-cli",
    "gh": "https://cli.github.com",
}
WORKSPACES = "providers/Microsoft.MachineLearningServices"
API = "api-version=2024-10-01"
# Field of a ruleset's rule → the name and description of the check for it.
REVIEWS = {
    "required_approving_review_count": ("review", f"an approval before a merge into {MAIN}"),
    "require_code_owner_review": ("code owners", "the approval of those in .github/CODEOWNERS"),
    "require_last_push_approval": (
        "last push",
        "an approval by somebody other than the last pusher",
    ),
    "dismiss_stale_reviews_on_push": ("stale reviews", "a new approval after a push"),
}
# Azure ML's name for the quota of all dedicated cores.
CORES = "TotalDedicatedCores"
# The secret with the private key of the team's GitHub App.
_KEY = "APP_PRIVATE_KEY"


@dataclass(frozen=True)
class Check:
    """The result of a check: one line of `ml doctor`."""

    name: str
    verdict: Literal["ok", "warning", "error"]
    actual: str
    fix: str = ""  # a command to run or an address to open


def _check(name: str, fault: str, fix: str, words: str, is_error: bool = True) -> Check:
    """Return a passed check with `words` if `fault` is "", else one that failed with `fault`."""
    if fault:
        return Check(name, "error" if is_error else "warning", fault, fix)
    return Check(name, "ok", words)


@dataclass(frozen=True)
class Stack:
    """Settings of an environment, from its stack file."""

    name: str
    subscription: str
    location: str
    group: str  # the resource group
    workspace: str  # "" if the stack creates a registry
    repository: str  # OWNER/NAME on GitHub
    github: Mapping[str, tuple[str, ...]]  # GitHub environment → required reviewers, () for none
    private: bool = False  # reachable only from inside its network


@dataclass(frozen=True)
class CommandResult:
    """The result of a program: the JSON that it printed, or an error."""

    json: Any = None
    error: str = ""


RunJson = Callable[[Sequence[str]], CommandResult]


def run_json(words: Sequence[str]) -> CommandResult:
    """Run a read-only command with a timeout of a minute; return its JSON or the error."""
    program = shutil.which(words[0])
    if program is None:
        return CommandResult(error=f"`{words[0]}` is not installed")
    try:
        process = subprocess.run(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return CommandResult(error=f"`{words[0]}` timed out after a minute")
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        return CommandResult(
            error=lines[-1].strip()[:200] if lines else f"exit {process.returncode}"
        )
    try:
        return CommandResult(json.loads(process.stdout) if process.stdout.strip() else {})
    except ValueError:
        return CommandResult(error=f"`{words[0]}` printed no JSON")


def machine(root: Path) -> Iterator[Check]:
    """Check Python's version, the installed packages against the lock, and the venv's isolation."""
    current = platform.python_version()
    fault = "" if current.startswith("3.11.") else f"{current}, not 3.11"
    yield _check("python", fault, "rm -rf .venv && make setup PYTHON=python3.11", current)
    lock = repository.lock(root).read_text()
    locked = re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.M)
    mismatches = [
        f"{name} {installed}, not {pin}"
        for name, pin in locked
        if (installed := _installed(name)) != pin
    ]
    try:
        check_import_path(Path(sys.executable))
    except UserError as refused:
        mismatches += [problem.actual for problem in refused.problems]
    more = f" and {len(mismatches) - 3} more" if len(mismatches) > 3 else ""
    words = f"all {len(locked)} as in {repository.LOCK}"
    yield _check("packages", "; ".join(mismatches[:3]) + more, "make setup", words)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def placeholders(root: Path) -> Iterator[Check]:
    """Check for placeholders of the template that a team has to replace."""
    files = [*sorted((root / "infra").glob("Pulumi.*.yaml")), root / ".github/CODEOWNERS"]
    remaining = [
        str(file.relative_to(root))
        for file in files
        if file.is_file() and any(word in file.read_text() for word in PLACEHOLDERS)
    ]
    fault = f"left in {', '.join(remaining)}" if remaining else ""
    fix = f"replace {' and '.join(PLACEHOLDERS)} there by yours"
    yield _check("placeholders", fault, fix, "none is left", is_error=False)


def azure(stacks: Sequence[Stack], run_json: RunJson = run_json) -> Iterator[Check]:
    """Check the sign-in, then each environment's workspace and free cores."""
    account = run_json(("az", "account", "show", "--output", "json", "--only-show-errors"))
    if account.error:
        yield Check("azure sign-in", "warning", account.error, _fix("az", account, "az login"))
        return
    user = (account.json.get("user") or {}).get("name") or "somebody"
    yield Check("azure sign-in", "ok", f"{user}, subscription {account.json.get('name')}")
    for stack in stacks:
        base = f"/subscriptions/{stack.subscription}"
        group = f"{base}/resourceGroups/{stack.group}/{WORKSPACES}"
        workspace = _rest(run_json, f"{group}/workspaces/{stack.workspace}")
        fix = f"infra doctor {stack.name}; pulumi up --stack {stack.name} creates it"
        name, words = f"workspace {stack.name}", stack.workspace
        yield _check(name, workspace.error, fix, words, is_error=False)
        usages = _rest(run_json, f"{base}/{WORKSPACES}/locations/{stack.location}/usages")
        yield _quota(stack, usages)


def _rest(run_json: RunJson, path: str) -> CommandResult:
    url = f"https://management.azure.com{path}?{API}"
    return run_json(("az", "rest", "--method", "get", "--url", url, "--only-show-errors"))


def _quota(stack: Stack, usages: CommandResult) -> Check:
    name, fix = f"quota {stack.name}", f"infra doctor {stack.name} says what each cluster needs"
    if usages.error:
        return Check(name, "warning", usages.error, fix)
    quotas = {
        (usage.get("name") or {}).get("value"): usage for usage in usages.json.get("value") or ()
    }
    cores = quotas.get(CORES)
    if cores is None:
        return Check(name, "warning", f"Azure names no quota in {stack.location}", fix)
    free = int(cores["limit"]) - int(cores["currentValue"])
    words = f"{free} of {cores['limit']} dedicated cores are free in {stack.location}"
    return Check(name, "ok", words) if free > 0 else Check(name, "warning", words, fix)


def github(
    repository: str, stacks: Sequence[Stack], run_json: RunJson = run_json
) -> Iterator[Check]:
    """Check the repository's settings on GitHub: permissions, rulesets, environments, the app."""
    settings = run_json(("gh", "api", f"repos/{repository}"))
    if settings.error:
        fix = _fix("gh", settings, f"gh auth login; or platform:repository is not {repository}")
        yield Check("github", "warning", settings.error, fix)
        return
    yield Check("github", "ok", repository)
    branch = settings.json.get("default_branch")
    if branch != MAIN:
        fix = f"gh api --method PATCH repos/{repository} -f default_branch={MAIN}"
        actual = f"it is {branch}, but the workflows and environments require {MAIN}"
        yield Check("default branch", "error", actual, fix)
    yield _rights(repository, run_json)
    yield (_forks if settings.json.get("private") is True else _fork_approval)(repository, run_json)
    apps = _apps(repository, run_json)
    yield from _protection(repository, apps, run_json)
    yield from _rulesets(repository, apps, run_json)
    for stack in stacks:
        for name, reviewers in stack.github.items():
            fix = f"infra bootstrap {stack.name} --run"
            yield _environment(repository, name, reviewers, fix, run_json)
    yield _environment(repository, BOT, (), "infra bootstrap --run", run_json)
    yield _app(repository, run_json)
    if private := [stack.name for stack in stacks if stack.private]:
        yield _runner(repository, private, run_json)


# Labels of GitHub-hosted runners, from
# docs.github.com/actions/reference/runners/github-hosted-runners
_HOSTED = re.compile(
    r"(ubuntu|windows|macos)-(latest|slim|[\d.]+)(-(arm|intel|large|xlarge))?", re.I
)


def _runner(repository: str, stacks: Sequence[str], run_json: RunJson) -> Check:
    """Check that the variable RUNNER names a self-hosted runner, which private stacks need."""
    label = ""
    for kind in ("variables", "organization-variables"):
        answer = run_json(("gh", "api", f"repos/{repository}/actions/{kind}?per_page=100"))
        named = [] if answer.error else answer.json.get("variables") or ()
        if label := next((item["value"] for item in named if item.get("name") == "RUNNER"), ""):
            if _HOSTED.fullmatch(label):
                break
            return Check("runner", "ok", f"{label}, for {', '.join(stacks)}")
    fix = "register a runner inside their network; then gh variable set RUNNER --body LABEL"
    actual = (
        f"RUNNER is {label or 'not set'}: GitHub's own runners cannot reach {', '.join(stacks)}"
    )
    return Check("runner", "warning", actual, fix)


def _rights(repository: str, run_json: RunJson) -> Check:
    path = f"repos/{repository}/actions/permissions/workflow"
    answer, name = run_json(("gh", "api", path)), "workflows' token"
    fix = (
        f"gh api --method PUT {path} -f default_workflow_permissions=read"
        " -F can_approve_pull_request_reviews=false"
    )
    if answer.error:
        return Check(name, "warning", answer.error, "ask an administrator of the repository")
    if answer.json.get("default_workflow_permissions") != "read":
        return Check(name, "error", "the default permission of GITHUB_TOKEN is write", fix)
    if answer.json.get("can_approve_pull_request_reviews"):
        return Check(name, "error", "may approve pull requests", fix)
    return Check(name, "ok", "reads, and approves nothing")


def _fork_approval(repository: str, run_json: RunJson) -> Check:
    """Check, for a public repository, that workflows of outside contributors need an approval."""
    path = f"repos/{repository}/actions/permissions/fork-pr-contributor-approval"
    answer, name, everybody = run_json(("gh", "api", path)), "forks", "all_external_contributors"
    if answer.error:
        return Check(name, "warning", answer.error, "ask an administrator of the repository")
    if answer.json.get("approval_policy") != everybody:
        fix = f"gh api --method PUT {path} -f approval_policy={everybody}"
        return Check(name, "error", "checks of some strangers run without an approval", fix)
    return Check(name, "ok", "checks of strangers wait for an approval")


def _forks(repository: str, run_json: RunJson) -> Check:
    """Check, for a private repository, that workflows of forks get no secrets or write token."""
    path = f"repos/{repository}/actions/permissions/fork-pr-workflows-private-repos"
    answer, name, runs = (
        run_json(("gh", "api", path)),
        "forks",
        "run_workflows_from_fork_pull_requests",
    )
    if answer.error:
        return Check(name, "warning", answer.error, "ask an administrator of the repository")
    gifts = ("send_write_tokens_to_workflows", "send_secrets_and_variables")
    enabled = [gift for gift in gifts if answer.json.get(gift)]
    if answer.json.get(runs) and enabled:
        off = "".join(f" -F {gift}=false" for gift in gifts)
        fix = f"gh api --method PUT {path} -F {runs}=true{off}"
        return Check(name, "error", f"checks of forks run with {' and '.join(enabled)}", fix)
    return Check(name, "ok", "checks of forks get no secret, and a token that reads")


def _protection(repository: str, apps: Mapping[str, Any], run_json: RunJson) -> Iterator[Check]:
    """Check the requirements of main's rulesets; ignore rulesets that somebody may bypass."""
    rules = run_json(("gh", "api", f"repos/{repository}/rules/branches/{MAIN}?per_page=100"))
    listed = rules.json if isinstance(rules.json, list) else []
    rulesets = {
        id: run_json(("gh", "api", f"repos/{repository}/rulesets/{id}"))
        for id in {rule.get("ruleset_id") for rule in listed}
    }
    bypassed = [
        str(answer.json.get("name", id)) if answer.json else str(id)
        for id, answer in rulesets.items()
        if answer.error or bypassing(answer.json) != []
    ]
    checks: set[tuple[Any, Any]] = set()
    reviews: dict[str, int] = dict.fromkeys(REVIEW, 0)
    kinds: set[str] = set()
    for rule in listed:
        answer = rulesets[rule.get("ruleset_id")]
        if answer.error or bypassing(answer.json) != []:
            continue
        options = rule.get("parameters") or {}
        kinds.add(rule.get("type", ""))
        for check in options.get("required_status_checks") or ():
            checks.add((check["context"], check.get("integration_id")))
        for name in REVIEW:
            reviews[name] = max(reviews[name], int(options.get(name) or 0))
    where = f"infra bootstrap --run; https://github.com/{repository}/settings/rules"
    if bypassed:
        yield Check(
            "bypass", "error", f"rulesets with bypass actors: {', '.join(sorted(bypassed))}", where
        )
    for name, holds, words in (
        (
            "required check",
            apps[ACTIONS] and (REQUIRED, apps[ACTIONS]) in checks,
            f"`{REQUIRED}`, of GitHub Actions, before a merge into {MAIN}",
        ),
        *((name, bool(reviews[field]), words) for field, (name, words) in REVIEWS.items()),
        (
            "history",
            {"deletion", "non_fast_forward"} <= kinds,
            f"{MAIN} cannot be deleted or force-pushed",
        ),
    ):
        yield _check(name, "" if holds else f"not required: {words}", where, words)


def _rulesets(repository: str, apps: Mapping[str, Any], run_json: RunJson) -> Iterator[Check]:
    """Check the rulesets that `infra bootstrap` creates for tags and for the app's branches."""
    path, fix = f"repos/{repository}/rulesets", "infra bootstrap --run"
    answer = run_json(("gh", "api", f"{path}?includes_parents=false&per_page=100"))
    ids = {ruleset.get("name"): ruleset.get("id") for ruleset in answer.json or ()}
    for ruleset in RULESETS:
        if ruleset == OF_MAIN:
            continue
        name = f"ruleset {ruleset.name}"
        if answer.error or ruleset.name not in ids:
            actual = answer.error or f"there is none for {', '.join(ruleset.names)}"
            yield Check(name, "error", actual, fix)
            continue
        details = run_json(("gh", "api", f"{path}/{ids[ruleset.name]}"))
        differences = [details.error] if details.error else ruleset.differences(details.json, apps)
        words = f"applies to {', '.join(ruleset.names)}"
        yield _check(name, "; ".join(differences), fix, words)


def _apps(repository: str, run_json: RunJson) -> dict[str, Any]:
    """Return the ids of the GitHub Actions app and of the team's app; None if unknown."""
    actions = run_json(("gh", "api", "apps/github-actions"))
    variables = run_json(("gh", "api", f"repos/{repository}/environments/{BOT}/variables"))
    values = {
        variable.get("name"): str(variable.get("value"))
        for variable in ([] if variables.error else variables.json.get("variables") or ())
    }
    number = values.get("APP_ID", "")
    return {
        ACTIONS: None if actions.error else actions.json.get("id"),
        APP: int(number) if number.isdecimal() else None,
    }


def _environment(
    repository: str, name: str, reviewers: tuple[str, ...], fix: str, run_json: RunJson
) -> Check:
    """Check that only main can use a GitHub environment, and that it has the declared reviewers."""
    path, label = f"repos/{repository}/environments/{name}", f"environment {name}"
    answer = run_json(("gh", "api", path))
    if answer.error:
        return Check(label, "error", answer.error, fix)
    policies = run_json(("gh", "api", f"{path}/deployment-branch-policies?per_page=100"))
    differences = [*environment_differences(answer.json, reviewers)]
    differences += [policies.error] if policies.error else policy_differences(policies.json)
    words = f"for {MAIN} alone{', with its reviewers' if reviewers else ''}"
    return _check(label, "; ".join(differences), fix, words)


def _app(repository: str, run_json: RunJson) -> Check:
    """Check the GitHub App that opens pull requests.

    Without the app there is a warning, since releases work without it. It is an error if workflows
    of every branch can read the app's key.
    """
    for kind in ("secrets", "organization-secrets"):
        answer = run_json(("gh", "api", f"repos/{repository}/actions/{kind}?per_page=100"))
        if answer.error:
            return Check("app", "warning", answer.error, "ask an administrator of the repository")
        if _KEY in (secret.get("name") for secret in answer.json.get("secrets") or ()):
            owner, option = ("organisation", " --org ORG") if "-" in kind else ("repository", "")
            fix = f"gh secret delete {_KEY}{option}; a new key of the app, only as --env {BOT}"
            return Check(
                "app",
                "error",
                f"{_KEY} is a secret of the {owner}, which workflows of every branch can read",
                fix,
            )
    where = f"repos/{repository}/environments/{BOT}"
    missing = []
    for kind, name in (("variables", "APP_ID"), ("secrets", _KEY)):
        answer = run_json(("gh", "api", f"{where}/{kind}"))
        names = [] if answer.error else [item.get("name") for item in answer.json.get(kind) or ()]
        if name not in names:
            missing.append(name)
    if missing:
        fix = (
            "a GitHub App with Contents, Pull requests and Workflows: write; then gh variable"
            f" set APP_ID --env {BOT} and gh secret set {_KEY} --env {BOT} < KEY.pem"
        )
        return Check(
            "app",
            "warning",
            f"{' and '.join(missing)} missing: rollbacks cannot open a revert",
            fix,
        )
    return Check("app", "ok", "opens pull requests that start checks")


def _fix(program: str, answer: CommandResult, otherwise: str) -> str:
    return INSTALL[program] if "not installed" in answer.error else otherwise
