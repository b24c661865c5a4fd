"""`ml doctor`: what it finds in this machine, Azure and GitHub, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ml.cli.app import main
from ml.repository import doctor
from ml.repository.doctor import Answer, Check, Stack
from tests.conftest import ROOT

REPOSITORY = "team/models"
# dev has no reviewers, as a starter.
STACKS = [
    Stack(
        *(name, "s", "westeurope", f"rg-{name}", f"mlw-{name}", REPOSITORY),
        {f"{name}-preview": False, f"{name}-release": name == "prod"},
    )
    for name in ("dev", "prod")
]
UNREVIEWED = {"deployment_branch_policy": {"protected_branches": True}}
REVIEWED = {
    "protection_rules": [{"type": "required_reviewers"}],
    "deployment_branch_policy": {"protected_branches": True},
}
RULES = [
    {
        "type": "pull_request",
        "parameters": {"required_approving_review_count": 1, "require_code_owner_review": True},
    },
    {
        "type": "required_status_checks",
        "parameters": {"required_status_checks": [{"context": "required"}]},
    },
]
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
    "rules/branches/main": RULES,
    "branches/main/protection": Answer(error="gh: Branch not protected (HTTP 404)"),
    **dict.fromkeys(("environments/dev-preview", "environments/dev-release"), UNREVIEWED),
    **{"environments/prod-preview": UNREVIEWED, "environments/prod-release": REVIEWED},
    "environments/bot": UNREVIEWED,
    "environments/bot/variables": {"variables": [{"name": "APP_ID"}]},
    "environments/bot/secrets": {"secrets": [{"name": "APP_PRIVATE_KEY"}]},
}


def asking(**changes: Any) -> doctor.Ask:
    answers = {**READY, **changes}

    def ask(words: Sequence[str]) -> Answer:
        asked = " ".join(words).partition("?")[0].partition(" --output")[0]
        key = max((key for key in answers if asked.endswith(key)), key=len)
        answer = answers[key]
        return answer if isinstance(answer, Answer) else Answer(answer)

    return ask


def faults(checks: Sequence[Check]) -> list[tuple[str, str]]:
    assert all(check.fix for check in checks if check.verdict != "ok")
    return [(check.name, check.verdict) for check in checks if check.verdict != "ok"]


def test_a_platform_that_is_ready() -> None:
    azure = [*doctor.azure(STACKS, asking())]
    assert faults(azure) == [] and len(azure) == 5
    assert "ann@example.org" in azure[0].found
    assert azure[2].found == "96 of 100 dedicated cores are free in westeurope"
    github = [*doctor.github(REPOSITORY, STACKS, asking())]
    assert faults(github) == [] and len(github) == 11


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("account show", Answer(error="Please run 'az login'"), [("azure sign-in", "warning")]),
        ("workspaces/mlw-prod", Answer(error="ResourceNotFound"), [("workspace prod", "warning")]),
        (
            "usages",
            {"value": [{**CORES, "currentValue": 100}]},
            [("quota dev", "warning"), ("quota prod", "warning")],
        ),
        ("usages", {"value": []}, [("quota dev", "warning"), ("quota prod", "warning")]),
        ("usages", Answer(error="denied"), [("quota dev", "warning"), ("quota prod", "warning")]),
    ],
)
def test_faults_of_azure(question: str, answer: Any, expected: list[tuple[str, str]]) -> None:
    assert faults([*doctor.azure(STACKS, asking(**{question: answer}))]) == expected


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (f"repos/{REPOSITORY}", Answer(error="HTTP 404"), ["github"]),
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
        ("permissions/workflow", Answer(error="HTTP 403"), ["workflows' token"]),
        ("rules/branches/main", [], ["required check", "review", "code owners"]),
        (
            "rules/branches/main",
            Answer(error="HTTP 403"),
            ["required check", "review", "code owners"],
        ),
        ("rules/branches/main", RULES[:1], ["required check"]),
        ("rules/branches/main", RULES[1:], ["review", "code owners"]),
        ("environments/prod-release", Answer(error="HTTP 404"), ["environment prod-release"]),
        ("environments/prod-release", UNREVIEWED, ["environment prod-release"]),
        ("environments/dev-release", {}, ["environment dev-release"]),
        (
            "environments/dev-preview",
            {"deployment_branch_policy": {"protected_branches": False}},
            ["environment dev-preview"],
        ),
        ("environments/bot", {"deployment_branch_policy": None}, ["environment bot"]),
        ("environments/bot/secrets", {"secrets": []}, ["app"]),
        ("environments/bot/variables", Answer(error="HTTP 404"), ["app"]),
    ],
)
def test_faults_of_github(question: str, answer: Any, expected: list[str]) -> None:
    checks = [*doctor.github(REPOSITORY, STACKS, asking(**{question: answer}))]
    assert [name for name, _ in faults(checks)] == expected


def test_the_older_protection_of_a_branch_counts() -> None:
    older = {
        "required_status_checks": {"contexts": ["required"]},
        "required_pull_request_reviews": {
            "require_code_owner_reviews": True,
            "required_approving_review_count": 1,
        },
    }
    ask = asking(**{"rules/branches/main": [], "branches/main/protection": older})
    assert faults([*doctor.github(REPOSITORY, STACKS, ask)]) == []


def test_packages_that_differ_from_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "requirements").mkdir()
    lock = tmp_path / "requirements/main.lock"
    lock.write_text("pyyaml==0.1 \\\n    --hash=sha256:00\nno-such-package==1.0 \\\n")
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        python, packages = doctor.machine()
    assert (python.verdict, packages.verdict, packages.fix) == ("ok", "error", "make setup")
    assert "pyyaml " in packages.found and "no-such-package missing, not 1.0" in packages.found
    assert [check.verdict for check in doctor.machine()] == ["ok", "ok"]


def test_an_environment_with_the_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an older `make setup` left it."""
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "ours.pth").write_text(f"{ROOT}\n")
    monkeypatch.setattr("sys.executable", str(tmp_path / "venv/bin/python"))
    _, check = doctor.machine()
    assert (check.verdict, check.fix) == ("error", "make setup") and str(ROOT) in check.found


def test_placeholders(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    stack = tmp_path / "infra/Pulumi.dev.yaml"
    stack.write_text("platform:repository: your-organisation/your-repository")
    (check,) = doctor.placeholders(tmp_path)
    assert check.verdict == "warning" and "infra/Pulumi.dev.yaml" in check.found
    stack.write_text("platform:repository: team/models")
    (check,) = doctor.placeholders(tmp_path)
    assert check.verdict == "ok"


def test_programs_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their JSON, their last line of error, and that one is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.ask(("az", "x")) == Answer(error="`az` is not installed")
    for script, answer in (
        ("echo '{\"a\": 1}'", Answer({"a": 1})),
        ("echo words", Answer(error="`az` printed no JSON")),
        ("echo first >&2; echo last >&2; exit 1", Answer(error="last")),
        ("exit 3", Answer(error="exit 3")),
        ("exit 0", Answer({})),
    ):
        (tmp_path / "az").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "az").chmod(0o755)
        assert doctor.ask(("az", "x")) == answer


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
    assert ending.value.code == 2 and "error[no-such-part]: moon" in capsys.readouterr().err
