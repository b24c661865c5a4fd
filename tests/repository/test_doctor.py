"""`ml doctor`: what it finds in this machine, Azure and GitHub, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.settings import github, loader
from infra.settings.github import ACTIONS, APP
from ml.cli.app import main
from ml.cli.commands.doctor import _stacks as stacks_of_the_repository
from ml.repository import doctor
from ml.repository.doctor import Check, CommandResult, Stack
from tests.conftest import ROOT

REPOSITORY = "team/models"
STACKS = [
    Stack(
        *(name, "s", "westeurope", f"rg-{name}", f"mlw-{name}", REPOSITORY),
        {f"{name}-preview": (), f"{name}-release": ("Ann", "team/ml-platform")},
    )
    for name in ("dev", "prod")
]
UNREVIEWED = {
    "can_admins_bypass": False,
    "deployment_branch_policy": {"protected_branches": False, "custom_branch_policies": True},
}
REVIEWED = {
    **UNREVIEWED,
    "protection_rules": [
        {
            "type": "required_reviewers",
            "prevent_self_review": True,
            "reviewers": [
                {"type": "User", "reviewer": {"id": 1, "login": "ann"}},
                {"type": "Team", "reviewer": {"id": 2, "slug": "ml-platform"}},
            ],
        }
    ],
}
MAIN_ALONE = {"total_count": 1, "branch_policies": [{"id": 1, "name": "main", "type": "branch"}]}
APPS = {ACTIONS: 15368, APP: 77}
# What `infra bootstrap` makes, as GitHub answers with it.
RULESETS = {40 + at: {"id": 40 + at, **one.body(APPS)} for at, one in enumerate(github.RULESETS)}
RULES = [{"ruleset_id": 40, **rule} for rule in github.OF_MAIN.body(APPS)["rules"]]  # type: ignore[attr-defined]
CORES = {"name": {"value": "TotalDedicatedCores"}, "limit": 100, "currentValue": 4}
# The end of a question → the answer of a platform that is ready.
READY: dict[str, Any] = {
    "account show": {"user": {"name": "ann@example.org"}, "name": "models"},
    "workspaces/mlw-dev": {"id": "x"},
    "workspaces/mlw-prod": {"id": "x"},
    "usages": {"value": [CORES]},
    f"repos/{REPOSITORY}": {"default_branch": "main"},
    "permissions/workflow": {
        "default_workflow_permissions": "read",
        "can_approve_pull_request_reviews": False,
    },
    "fork-pr-contributor-approval": {"approval_policy": "all_external_contributors"},
    "rules/branches/main": RULES,
    **dict.fromkeys(("environments/dev-preview", "environments/prod-preview"), UNREVIEWED),
    **dict.fromkeys(("environments/dev-release", "environments/prod-release"), REVIEWED),
    "environments/bot": UNREVIEWED,
    **{
        f"environments/{name}/deployment-branch-policies": MAIN_ALONE
        for name in ("dev-preview", "dev-release", "prod-preview", "prod-release", "bot")
    },
    "apps/github-actions": {"id": 15368},
    "rulesets": [{"id": one["id"], "name": one["name"]} for one in RULESETS.values()],
    **{f"rulesets/{id}": one for id, one in RULESETS.items()},
    "environments/bot/variables": {"variables": [{"name": "APP_ID", "value": "77"}]},
    "environments/bot/secrets": {"secrets": [{"name": "APP_PRIVATE_KEY"}]},
    "actions/secrets": {"secrets": [{"name": "OTHER"}]},
    "actions/organization-secrets": {"secrets": []},
}


EVERYTHING = [
    *("required check", "review", "code owners", "last push", "stale reviews", "history"),
]
LAST_PUSH = {"require_last_push_approval": False}


def asking(**changes: Any) -> doctor.RunJson:
    answers = {**READY, **changes}

    def run_json(words: Sequence[str]) -> CommandResult:
        asked = " ".join(words).partition("?")[0].partition(" --output")[0]
        key = max((key for key in answers if asked.endswith(key)), key=len)
        answer = answers[key]
        return answer if isinstance(answer, CommandResult) else CommandResult(answer)

    return run_json


def faults(checks: Sequence[Check]) -> list[tuple[str, str]]:
    assert all(check.fix for check in checks if check.verdict != "ok")
    return [(check.name, check.verdict) for check in checks if check.verdict != "ok"]


def test_a_platform_that_is_ready() -> None:
    azure = [*doctor.azure(STACKS, asking())]
    assert faults(azure) == [] and len(azure) == 5
    assert "ann@example.org" in azure[0].actual
    assert azure[2].actual == "96 of 100 dedicated cores are free in westeurope"
    checks = [*doctor.github(REPOSITORY, STACKS, asking())]
    assert faults(checks) == [] and len(checks) == 18


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (
            "account show",
            CommandResult(error="Please run 'az login'"),
            [("azure sign-in", "warning")],
        ),
        (
            "workspaces/mlw-prod",
            CommandResult(error="ResourceNotFound"),
            [("workspace prod", "warning")],
        ),
        (
            "usages",
            {"value": [{**CORES, "currentValue": 100}]},
            [("quota dev", "warning"), ("quota prod", "warning")],
        ),
        ("usages", {"value": []}, [("quota dev", "warning"), ("quota prod", "warning")]),
        (
            "usages",
            CommandResult(error="denied"),
            [("quota dev", "warning"), ("quota prod", "warning")],
        ),
    ],
)
def test_faults_of_azure(question: str, answer: Any, expected: list[tuple[str, str]]) -> None:
    assert faults([*doctor.azure(STACKS, asking(**{question: answer}))]) == expected


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (f"repos/{REPOSITORY}", CommandResult(error="HTTP 404"), ["github"]),
        (
            "permissions/workflow",
            {"default_workflow_permissions": "write"},
            ["workflows' token"],
        ),
        (
            "permissions/workflow",
            {"default_workflow_permissions": "read", "can_approve_pull_request_reviews": True},
            ["workflows' token"],
        ),
        ("permissions/workflow", CommandResult(error="HTTP 403"), ["workflows' token"]),
        ("fork-pr-contributor-approval", {"approval_policy": "first_time_contributors"}, ["forks"]),
        ("fork-pr-contributor-approval", CommandResult(error="HTTP 403"), ["forks"]),
        ("rules/branches/main", [], EVERYTHING),
        ("rules/branches/main", CommandResult(error="HTTP 403"), EVERYTHING),
        ("rules/branches/main", RULES[2:], ["history"]),
        ("rules/branches/main", RULES[:3], ["required check"]),
        ("rules/branches/main", [*RULES[:2], RULES[3]], EVERYTHING[1:5]),
        (
            "rules/branches/main",
            [{**rule, "parameters": {**rule.get("parameters", {}), **LAST_PUSH}} for rule in RULES],
            ["last push"],
        ),
        (f"repos/{REPOSITORY}", {"default_branch": "trunk"}, ["default branch"]),
        ("rulesets/40", {**RULESETS[40], "bypass_actors": [{}]}, ["bypass", *EVERYTHING]),
        ("rulesets/40", CommandResult(error="HTTP 404"), ["bypass", *EVERYTHING]),
        ("apps/github-actions", {"id": 2}, ["required check"]),
        ("apps/github-actions", CommandResult(error="HTTP 404"), ["required check"]),
        ("rulesets", [], [f"ruleset {one.name}" for one in github.RULESETS[1:]]),
        (
            "rulesets",
            CommandResult(error="Upgrade to GitHub Pro (HTTP 403)"),
            [f"ruleset {one.name}" for one in github.RULESETS[1:]],
        ),
        ("rulesets/41", {**RULESETS[41], "enforcement": "disabled"}, ["ruleset release-tags"]),
        ("rulesets/43", CommandResult(error="HTTP 404"), ["ruleset proposals"]),
        (
            "environments/prod-release",
            CommandResult(error="HTTP 404"),
            ["environment prod-release"],
        ),
        ("environments/prod-release", UNREVIEWED, ["environment prod-release"]),
        ("environments/dev-release", UNREVIEWED, ["environment dev-release"]),
        ("environments/dev-release", {}, ["environment dev-release"]),
        (
            "environments/dev-preview",
            {**UNREVIEWED, "deployment_branch_policy": {"protected_branches": True}},
            ["environment dev-preview"],
        ),
        (
            "environments/dev-preview",
            {**UNREVIEWED, "can_admins_bypass": True},
            ["environment dev-preview"],
        ),
        *(
            (
                "environments/dev-preview/deployment-branch-policies",
                answer,
                ["environment dev-preview"],
            )
            for answer in (
                CommandResult(error="HTTP 404"),
                {"total_count": 0, "branch_policies": []},
                {"total_count": 31, "branch_policies": MAIN_ALONE["branch_policies"]},
                {"branch_policies": [{"name": "*", "type": "branch"}]},
                {"branch_policies": [{"name": "main", "type": "tag"}]},
            )
        ),
        ("environments/bot", {"deployment_branch_policy": None}, ["environment bot"]),
        ("environments/bot/secrets", {"secrets": []}, ["app"]),
        (
            "environments/bot/variables",
            CommandResult(error="HTTP 404"),
            ["ruleset proposals", "app"],
        ),
    ],
)
def test_faults_of_github(question: str, answer: Any, expected: list[str]) -> None:
    checks = [*doctor.github(REPOSITORY, STACKS, asking(**{question: answer}))]
    assert [name for name, _ in faults(checks)] == expected


@pytest.mark.parametrize(
    ("own", "of_organisation", "verdict"),
    [
        ([], [], "warning"),
        (["RUNNER"], [], "ok"),
        ([], ["RUNNER"], "ok"),
        (["CHECK_RUNNER"], [], "warning"),
    ],
)
def test_a_private_stack_needs_a_runner_in_its_network(
    own: list[str], of_organisation: list[str], verdict: str
) -> None:
    """A variable of the repository or of its organisation names it; others need none."""
    answers = {
        place: {"variables": [{"name": name, "value": "inside"} for name in names]}
        for place, names in (
            ("actions/variables", own),
            ("actions/organization-variables", of_organisation),
        )
    }
    stacks = [STACKS[0], replace(STACKS[1], private=True)]
    checks = [*doctor.github(REPOSITORY, stacks, asking(**answers))]
    (check,) = [check for check in checks if check.name == "runner"]
    assert check.verdict == verdict and "prod" in check.actual and "dev" not in check.actual
    assert "runner" not in {each.name for each in doctor.github(REPOSITORY, STACKS, asking())}


@pytest.mark.parametrize(
    ("label", "verdict"),
    [
        ("ubuntu-latest", "warning"),
        ("ubuntu-24.04-arm", "warning"),
        ("Windows-2025", "warning"),
        ("macos-15-xlarge", "warning"),
        ("ubuntu-24.04-inside", "ok"),
        ("self-hosted", "ok"),
    ],
)
def test_a_runner_that_github_hosts_is_outside_the_network(label: str, verdict: str) -> None:
    """By its label; the repository's variable overrides the organisation's."""
    answers = {
        "actions/variables": {"variables": [{"name": "RUNNER", "value": label}]},
        "actions/organization-variables": {"variables": [{"name": "RUNNER", "value": "inside"}]},
    }
    stacks = [STACKS[0], replace(STACKS[1], private=True)]
    checks = [*doctor.github(REPOSITORY, stacks, asking(**answers))]
    (check,) = [check for check in checks if check.name == "runner"]
    assert check.verdict == verdict and label in check.actual


FORKS = "fork-pr-workflows-private-repos"
PRIVATE = {"default_branch": "main", "private": True}
RUNS = {"run_workflows_from_fork_pull_requests": True}


@pytest.mark.attack("a fork of a private repository gets secrets, or a token that writes")
@pytest.mark.parametrize(
    "setting", ["send_secrets_and_variables", "send_write_tokens_to_workflows"]
)
def test_a_private_fork_gets_a_token_that_reads(setting: str) -> None:
    """Where checks of forks run at all; so GitHub is asked in a private repository."""

    def github(answer: Any) -> list[tuple[str, str]]:
        changes = {f"repos/{REPOSITORY}": PRIVATE, FORKS: answer}
        return faults([*doctor.github(REPOSITORY, STACKS, asking(**changes))])

    assert github(RUNS) == github({}) == github({setting: True}) == []
    assert github({**RUNS, setting: True}) == [("forks", "error")]
    assert github(CommandResult(error="HTTP 403")) == [("forks", "warning")]


@pytest.mark.attack("the app's key is a secret of the repository, which every branch reads")
@pytest.mark.parametrize("place", ["actions/secrets", "actions/organization-secrets"])
def test_the_key_is_of_its_environment_alone(place: str) -> None:
    def github(answer: Any) -> list[tuple[str, str]]:
        return faults([*doctor.github(REPOSITORY, STACKS, asking(**{place: answer}))])

    assert github({"secrets": [{"name": "APP_PRIVATE_KEY"}]}) == [("app", "error")]
    assert github(CommandResult(error="HTTP 403")) == [("app", "warning")]


def test_the_doctor_asks_for_what_the_bootstrap_makes() -> None:
    """Every environment of every stack by its name, each with the same reviewers."""
    from infra.live import bootstrap

    stacks = stacks_of_the_repository()
    steps = {
        step.name.removesuffix("-environment"): step
        for step in bootstrap.plan([loader.load(name) for name in loader.select(None)])
        if step.name.endswith("-environment")
    }
    asked = {name: ", ".join(who) for stack in stacks for name, who in stack.github.items()}
    assert {**asked, "bot": ""} == {name: step.value for name, step in steps.items()}


MALLORY = {"type": "User", "reviewer": {"id": 3, "login": "mallory"}}
ANN, TEAM = REVIEWED["protection_rules"][0]["reviewers"]


@pytest.mark.parametrize(
    ("reviewers", "found"),
    [
        ([MALLORY], "its reviewers are mallory, not Ann, team/ml-platform"),
        ([ANN, TEAM, MALLORY], "its reviewers are ann, mallory, ml-platform (a team), not"),
        ([ANN], "its reviewers are ann, not"),
        # A person with the name of the team.
        (
            [ANN, {"type": "User", "reviewer": {"id": 4, "login": "ml-platform"}}],
            "its reviewers are ann, ml-platform, not",
        ),
        # An account that GitHub does not show any more.
        ([ANN, TEAM, {"type": "User", "reviewer": None}], "somebody, not"),
    ],
)
def test_replaced_reviewers(reviewers: list[dict[str, Any]], found: str) -> None:
    """An administrator named others than those of the stack file."""
    rule = {**REVIEWED["protection_rules"][0], "reviewers": reviewers}
    run_json = asking(**{"environments/dev-release": {**UNREVIEWED, "protection_rules": [rule]}})
    checks = [*doctor.github(REPOSITORY, STACKS, run_json)]
    assert faults(checks) == [("environment dev-release", "error")]
    (check,) = (check for check in checks if check.verdict == "error")
    assert found in check.actual and check.fix == "infra bootstrap dev --run"


def test_packages_that_differ_from_the_lock(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    lock = tmp_path / "requirements/main.lock"
    lock.write_text("pyyaml==0.1 \\\n    --hash=sha256:00\nno-such-package==1.0 \\\n")
    python, packages = doctor.machine(tmp_path)
    assert (python.verdict, packages.verdict, packages.fix) == ("ok", "error", "make setup")
    assert "pyyaml " in packages.actual and "no-such-package missing, not 1.0" in packages.actual
    assert [check.verdict for check in doctor.machine(ROOT)] == ["ok", "ok"]


def test_an_environment_with_the_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an older `make setup` left it."""
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "ours.pth").write_text(f"{ROOT}\n")
    monkeypatch.setattr("sys.executable", str(tmp_path / "venv/bin/python"))
    _, check = doctor.machine(ROOT)
    assert (check.verdict, check.fix) == ("error", "make setup") and str(ROOT) in check.actual


def test_placeholders(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    stack = tmp_path / "infra/Pulumi.dev.yaml"
    stack.write_text("platform:repository: your-organisation/your-repository")
    (check,) = doctor.placeholders(tmp_path)
    assert check.verdict == "warning" and "infra/Pulumi.dev.yaml" in check.actual
    stack.write_text("platform:repository: team/models")
    (check,) = doctor.placeholders(tmp_path)
    assert check.verdict == "ok"


def test_programs_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their JSON, their last line of error, and that one is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.run_json(("az", "x")) == CommandResult(error="`az` is not installed")
    for script, answer in (
        ("echo '{\"a\": 1}'", CommandResult({"a": 1})),
        ("echo words", CommandResult(error="`az` printed no JSON")),
        ("echo first >&2; echo last >&2; exit 1", CommandResult(error="last")),
        ("exit 3", CommandResult(error="exit 3")),
        ("exit 0", CommandResult({})),
    ):
        (tmp_path / "az").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "az").chmod(0o755)
        assert doctor.run_json(("az", "x")) == answer


def test_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither program is installed: warnings with where to get them, exit 0; JSON is the same."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ending:
        main(["doctor"])
    assert not ending.value.code
    text = capsys.readouterr().out
    assert "✔ python             3.11." in text
    assert (
        "! github             `gh` is not installed\n" in text
        and "→ https://cli.github.com" in text
    )
    with pytest.raises(SystemExit) as ending:
        main(["doctor", "github", "--json"])
    (check,) = json.loads(capsys.readouterr().out)
    assert check["name"] == "github" and not ending.value.code
    with pytest.raises(SystemExit) as ending:
        main(["doctor", "moon"])
    assert (
        ending.value.code == 2
        and "error[no-such-check]: there is no check `moon`" in capsys.readouterr().err
    )
