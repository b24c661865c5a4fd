"""GitHub settings that no file in the repository declares: environments with their reviewers and
branch policies, and rulesets. `infra bootstrap` creates them, `ml doctor github` checks them.

docs.github.com/rest: deployments/environments, deployments/branch-policies, repos/rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# The branch whose workflows sign in and release.
MAIN = "main"
# The check that a merge waits for (.github/workflows/check.yml).
REQUIRED = "required"
# The GitHub environment of jobs that open pull requests: it holds the key of the team's app.
BOT = "bot"
# The only deployment policy of an environment, as (type, name). GitHub's "Protected branches" would
# allow every branch if none is protected. Without the type, a tag named `main` would match.
POLICIES = (("branch", MAIN),)
# Names of apps; GitHub's API identifies them by ids, which are queried.
APP, ACTIONS = "the team's app", "GitHub Actions"
# GitHub's role ids.
_ROLES = {"maintain": 2, "admin": 5}


@dataclass(frozen=True)
class Ruleset:
    """A ruleset for branches or tags."""

    name: str
    target: Literal["branch", "tag"]
    names: tuple[str, ...]  # patterns of branches or tags, such as `promote/**/*`
    # GitHub's rule type → the parameters that are compared.
    rules: Mapping[str, Mapping[str, object]]
    bypass: tuple[str, ...] = ()  # exempt actors: repository roles, or APP

    @property
    def refs(self) -> list[str]:
        """The ref patterns; GitHub's `*` does not match a slash, `**/*` does."""
        return [f"refs/{'tags' if self.target == 'tag' else 'heads'}/{name}" for name in self.names]

    def actors(self, apps: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return (actor type, actor id) of each bypass actor; `apps` maps app names to ids."""
        return [
            ("RepositoryRole", _ROLES[actor]) if actor in _ROLES else ("Integration", apps[actor])
            for actor in self.bypass
        ]

    def body(self, apps: Mapping[str, Any]) -> dict[str, object]:
        """Return the request body that creates the ruleset."""
        return {
            "name": self.name,
            "target": self.target,
            "enforcement": "active",
            "conditions": {"ref_name": {"include": self.refs, "exclude": []}},
            "bypass_actors": [
                {"actor_type": kind, "actor_id": number, "bypass_mode": "always"}
                for kind, number in self.actors(apps)
            ],
            "rules": [
                {
                    "type": kind,
                    "parameters": {**_DEMANDED.get(kind, {}), **_numbered(parameters, apps)},
                }
                if parameters
                else {"type": kind}
                for kind, parameters in self.rules.items()
            ],
        }

    def differences(self, answer: Mapping[str, Any], apps: Mapping[str, Any]) -> Iterator[str]:
        """Yield how GitHub's ruleset `answer` is looser than this one; it may be stricter."""
        conditions = (answer.get("conditions") or {}).get("ref_name") or {}
        if answer.get("enforcement") != "active":
            yield "it is not enforced"
        if (answer.get("target"), conditions.get("exclude") or []) != (self.target, []) or not {
            *self.refs
        } <= {*(conditions.get("include") or ())}:
            yield f"it does not apply to {' and '.join(self.refs)}"
        allowed, actual = self.actors(apps), bypassing(answer)
        if actual is None:
            yield "GitHub shows its bypass list only to administrators"
        else:
            for kind, number in actual:
                if (kind, number) not in allowed:
                    yield f"{kind} {number} may bypass it"
            for kind, number in allowed:
                if (kind, number) not in actual:
                    yield f"{kind} {number} may not bypass it"
        rules = {rule["type"]: rule.get("parameters") or {} for rule in answer.get("rules") or ()}
        for kind, parameters in self.rules.items():
            if kind not in rules:
                yield f"it has no rule `{kind}`"
                continue
            for name, value in _numbered(parameters, apps).items():
                if not _is_as_strict(rules[kind].get(name), value):
                    yield f"`{name}` of `{kind}` is {rules[kind].get(name)}"


def bypassing(answer: Mapping[str, Any]) -> list[tuple[str, Any]] | None:
    """Return the bypass actors of a ruleset; None if GitHub does not show them."""
    actors = answer.get("bypass_actors")
    if not isinstance(actors, list):
        return None
    return [(str(actor.get("actor_type")), actor.get("actor_id")) for actor in actors]


def _numbered(parameters: Mapping[str, object], apps: Mapping[str, Any]) -> dict[str, object]:
    """Return the parameters with the app id of each check: without it, anybody with write access
    could report a check by that name.
    """
    return {
        name: [{"context": check, "integration_id": apps[ACTIONS]} for check in value]
        if isinstance(value, tuple)
        else value
        for name, value in parameters.items()
    }


def _is_as_strict(value: Any, required: Any) -> bool:
    if isinstance(required, list):
        return all(item in (value or []) for item in required)
    if isinstance(required, bool):
        return bool(value) is required
    return isinstance(value, int) and value >= required


# Parameters that GitHub's API requires in a request; `differences` ignores them.
_DEMANDED: Mapping[str, Mapping[str, object]] = {
    "pull_request": {"required_review_thread_resolution": False},
    "required_status_checks": {"strict_required_status_checks_policy": False},
}


REVIEW = {
    "required_approving_review_count": 1,
    "dismiss_stale_reviews_on_push": True,
    "require_code_owner_review": True,
    # The last pusher cannot approve: otherwise one person could add a commit to a reviewed change.
    "require_last_push_approval": True,
}
_UPDATE = {"update_allows_fetch_and_merge": False}
OF_MAIN = Ruleset(
    "main",
    "branch",
    (MAIN,),
    {
        "deletion": {},
        "non_fast_forward": {},
        "pull_request": REVIEW,
        "required_status_checks": {"required_status_checks": (REQUIRED,)},
    },
)
RULESETS = (
    OF_MAIN,
    Ruleset("release-tags", "tag", ("v*",), {"creation": {}}, ("maintain", "admin")),
    Ruleset("release-tags-stay", "tag", ("v*",), {"update": _UPDATE, "deletion": {}}),
    # Only the app writes proposals, so their content is from a workflow.
    Ruleset(
        "proposals",
        "branch",
        # A branch named `promote` would block all branches `promote/…`.
        ("promote", "promote/**/*", "revert", "revert/**/*"),
        {"creation": {}, "update": _UPDATE, "deletion": {}},
        (APP,),
    ),
)


def environment_differences(answer: Mapping[str, Any], reviewers: Collection[str]) -> Iterator[str]:
    """Yield how GitHub's response on an environment differs from the declaration.

    `reviewers` are users and teams (organisation/team); without any, no approval is required.
    """
    policy = answer.get("deployment_branch_policy") or {}
    if policy.get("protected_branches") or not policy.get("custom_branch_policies"):
        yield f"branches other than {MAIN} may deploy"
    if answer.get("can_admins_bypass") is not False:
        yield "administrators may bypass it"
    rules = [
        rule
        for rule in answer.get("protection_rules") or ()
        if rule.get("type") == "required_reviewers" and rule.get("reviewers")
    ]
    actual = {_reviewer(reviewer) for rule in rules for reviewer in rule["reviewers"]}
    # GitHub returns a team's slug without its organisation. Names are case-insensitive.
    declared = {
        f"{name.rpartition('/')[2]}{_TEAM if '/' in name else ''}".lower() for name in reviewers
    }
    if reviewers and not rules:
        yield "it has no required reviewers"
    elif actual != declared:
        names = ", ".join(reviewers) or "nobody"
        yield f"its reviewers are {', '.join(sorted(actual))}, not {names} (platform:reviewers)"
    if reviewers and not all(rule.get("prevent_self_review") for rule in rules):
        yield "who starts a job may approve it"


_TEAM = " (a team)"


def _reviewer(answer: Mapping[str, Any]) -> str:
    """Return a user's login, or a team's slug with _TEAM, in lower case."""
    reviewer = answer.get("reviewer") or {}
    is_team = answer.get("type") == "Team"
    name = reviewer.get("slug" if is_team else "login") or "somebody"
    return f"{name}{_TEAM if is_team else ''}".lower()


def policy_differences(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the refs that may deploy to an environment differ from main."""
    policies = [
        (str(policy.get("type") or "branch"), str(policy.get("name")))
        for policy in answer.get("branch_policies") or ()
    ]
    if int(answer.get("total_count", len(policies))) != len(policies):
        yield f"it has {answer['total_count']} policies, which are too many to read"
    for kind, name in policies:
        if (kind, name) not in POLICIES:
            yield f"the {kind} `{name}` may deploy"
    if not {*POLICIES} <= {*policies}:
        yield f"the branch {MAIN} may not deploy"
