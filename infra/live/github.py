"""GitHub's part of the bootstrap: reviewers, deployment branches, variables and rulesets.

`infra.settings.github` has the required settings; this module has the steps that apply them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from infra.live.steps import Step, Words, cannot, referring
from infra.settings import github
from infra.settings.github import ACTIONS, APP, BOT, MAIN, RULESETS, Ruleset
from infra.settings.model import Settings
from infra.settings.workflows import REVIEWED, Purpose, github_environment

SUBJECT = "actions/oidc/customization/sub"
_ACTIONS = ("gh", "api", "apps/github-actions")


def token_subject(first: Settings) -> Step:
    """Return the step that compares the `sub` claim of GitHub's tokens with the stack files.

    Azure accepts no federated credential whose subject differs.
    """
    ask = ("gh", "api", f"repos/{first.github}/{SUBJECT}")
    return Step("subject", ask, ask, _matching_subject, f"repo:{first.repository}")


def _matching_subject(answer: Any, declared: str) -> Mapping[str, str]:
    answer = answer or {}
    keys = answer.get("include_claim_keys")
    if answer.get("use_default") is False and keys not in (None, [], ["repo", "context"]):
        raise cannot(
            f"the subject of the workflows' tokens consists of {', '.join(keys)}",
            f"GitHub's default: {declared}:environment:NAME",
            f"gh api --method PUT repos/OWNER/NAME/{SUBJECT} -F use_default=true",
        )
    # Since July 2026 the subject of new and renamed repositories contains the ids of owner and
    # repository (docs.github.com/actions/reference/security/oidc, "Immutable subject claims").
    prefix = str(answer.get("sub_claim_prefix") or declared)
    if prefix != declared:
        raise cannot(
            f"the subject of the workflows' tokens begins with {prefix}",
            f"{declared}, from platform:repository",
            f"platform:repository: {prefix.removeprefix('repo:')} in every stack file",
        )
    return {"prefix": prefix}


def reviewers(settings: Settings) -> Iterator[Step]:
    """Yield a step per reviewer that looks up its id; raise UserError if there is no reviewer."""
    if not settings.reviewers:
        raise cannot(
            f"{settings.environment} has no reviewers",
            "platform:reviewers in its stack file: a team or a user",
        )
    for reviewer in settings.reviewers:
        organisation, _, team = reviewer.partition("/")
        path = f"orgs/{organisation}/teams/{team}" if team else f"users/{reviewer}"
        yield Step(_reviewer(settings, reviewer), ("gh", "api", path), ("gh", "api", path))


def _reviewer(settings: Settings, reviewer: str) -> str:
    return f"{settings.environment}-reviewer-{reviewer.replace('/', '-')}"


def purpose_environment(settings: Settings, purpose: Purpose) -> Iterator[Step]:
    """Yield the steps of the GitHub environment of a purpose, with its required reviewers."""
    environment = github_environment(settings, purpose)
    if purpose not in REVIEWED:
        yield from protected_environment(environment, settings)
        return
    protection = tuple(
        word
        for reviewer in dict.fromkeys(settings.reviewers)
        for word in (
            *("-f", f"reviewers[][type]={'Team' if '/' in reviewer else 'User'}"),
            *("-F", f"reviewers[][id]={{{_reviewer(settings, reviewer)}.id}}"),
        )
    )
    more = ("-F", "prevent_self_review=true", *protection)
    yield from protected_environment(environment, settings, more, settings.reviewers)


def protected_environment(
    environment: str, settings: Settings, more: Words = (), reviewers: tuple[str, ...] = ()
) -> Iterator[Step]:
    """Yield the steps of a GitHub environment that only the branch main may use, without bypass.

    GitHub does not document `can_admins_bypass` for this request but accepts it
    (google/go-github#2725).
    """
    path = f"repos/{settings.github}/environments/{environment}"
    protection = (
        *("-F", "deployment_branch_policy[protected_branches]=false"),
        *("-F", "deployment_branch_policy[custom_branch_policies]=true"),
        *("-F", "can_admins_bypass=false"),
        *more,
    )
    yield Step(
        f"{environment}-environment",
        ("gh", "api", path),
        ("gh", "api", "--method", "PUT", path, *protection),
        value=", ".join(reviewers),
        differences=lambda answer, _: github.environment_differences(answer, reviewers),
    )
    policies = f"{path}/deployment-branch-policies"
    yield Step(
        f"{environment}-branches",
        ("gh", "api", f"{policies}?per_page=100"),
        ("gh", "api", "--method", "POST", policies, "-f", f"name={MAIN}", "-f", "type=branch"),
        differences=lambda answer, _: github.policy_differences(answer),
        undo=lambda answer: (
            ("gh", "api", "--method", "DELETE", f"{policies}/{policy['id']}")
            for policy in answer.get("branch_policies") or ()
        ),
    )


def rulesets(settings: Settings, keys: tuple[str, ...]) -> Iterator[Step]:
    """Yield the steps of the rulesets for main, release tags and proposal branches.

    Administrators may push to main until the steps `keys` have run; afterwards nobody may.
    """
    app = ("gh", "variable", "list", "--repo", settings.github, "--env", BOT)
    command = ("gh", "variable", "set", "APP_ID", "--repo", settings.github, "--env", BOT)
    yield Step("actions", _ACTIONS, _ACTIONS)
    yield Step(
        "app", (*app, "--json", "name,value"), (*command, "--body", "ID"), _app_id, by_hand=True
    )
    path = f"repos/{settings.github}/rulesets"
    apps = {ACTIONS: "{actions.id}", APP: "{app.id}"}
    for ruleset in RULESETS:
        step = f"ruleset-{ruleset.name}"
        is_of_main = MAIN in ruleset.names
        body = referring(ruleset.body(apps))
        first = replace(ruleset, bypass=("admin",)) if is_of_main else ruleset
        yield Step(
            step,
            ("gh", "api", f"{path}?includes_parents=false&per_page=100"),
            ("gh", "api", "--method", "POST", path, "--input", "-", referring(first.body(apps))),
            partial(_named, ruleset.name),
        )
        this = f"{path}/{{{step}.id}}"
        yield Step(
            f"{step}-rules",
            ("gh", "api", this),
            ("gh", "api", "--method", "PUT", this, "--input", "-", body),
            value=referring(apps if APP in ruleset.bypass else {ACTIONS: apps[ACTIONS]}),
            differences=partial(_ruleset_differences, ruleset),
            after=keys if is_of_main else (),
        )


def _ruleset_differences(ruleset: Ruleset, answer: Any, apps: str) -> Iterator[str]:
    return ruleset.differences(answer, json.loads(apps))


def _app_id(answer: Any, _: str) -> Mapping[str, int] | None:
    """Return the id of the team's GitHub App from the variable APP_ID; None if it is not set."""
    values = {item["name"]: item["value"] for item in answer or ()}
    return {"id": int(values["APP_ID"])} if values.get("APP_ID", "").isdecimal() else None


def _named(name: str, answer: Any, _: str) -> Any:
    return next((item for item in answer or () if item["name"] == name), None)


def variables(settings: Settings, purpose: Purpose, variables: Mapping[str, str]) -> Iterator[Step]:
    """Yield the steps that set a GitHub environment's variables: Azure sign-in and `variables`."""
    where = ("--repo", settings.github, "--env", github_environment(settings, purpose))
    prefix = f"{settings.environment}-{purpose}"
    values = {
        "AZURE_CLIENT_ID": f"{{{prefix}-identity.clientId}}",
        "AZURE_TENANT_ID": settings.tenant,
        "AZURE_SUBSCRIPTION_ID": settings.subscription,
        **variables,
    }
    for name, value in values.items():
        yield variable(f"{prefix}-{name}", name, value, where)


def variable(step: str, name: str, value: str, where: Words, after: Words = ()) -> Step:
    """Return the step that sets a variable of the repository or of one of its environments."""
    query = ("gh", "variable", "list", *where, "--json", "name,value")
    make = ("gh", "variable", "set", name, *where, "--body", value)
    return Step(step, query, make, partial(_has, name), value, after=after)


def _has(variable: str, answer: Any, value: str) -> bool:
    return {"name": variable, "value": value} in (answer or [])
