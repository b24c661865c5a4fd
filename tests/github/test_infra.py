"""infra.yml and drift.yml as events start them: who signs in, what runs, which issue there is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import pytest

from tests.conftest import ROOT
from tests.github.events import Repository
from tests.github.test_check import team, template

__all__ = ["team", "template"]
DEV, PROD, SHARED, STAGING = (
    f"infra/Pulumi.{stack}.yaml" for stack in ("dev", "prod", "shared", "staging")
)
ENVIRONMENTS = ["dev", "staging", "prod"]
STACKS = ["shared", *ENVIRONMENTS]
PULUMI = "--refresh --non-interactive --policy-pack ../policies/infra --stack {} --cwd infra"


@pytest.fixture(autouse=True)
def programs(team: Repository) -> None:
    """Pulumi is one that writes down how it was called, and ends with 0. All is deployed."""
    team.working = ("pulumi",)
    team.fake = ("doctor",)
    team.deployed()


def edited(*names: str) -> dict[str, str | None]:
    return {name: f"{(ROOT / name).read_text()}# edited\n" for name in names}


def pulumi(team: Repository) -> list[str]:
    return [command for command in team.commands() if command.startswith("pulumi")]


def test_a_merge_deploys_the_stacks_that_it_touches_in_order(team: Repository) -> None:
    """Every stack is planned with rights to read before one is changed."""
    jobs = team.push(edited(PROD, STAGING, DEV, SHARED))
    assert {job.result for job in jobs.values()} == {"success"}
    previews = [f"pulumi preview --diff {PULUMI.format(stack)}" for stack in STACKS]
    updates = [f"pulumi up --yes {PULUMI.format(stack)}" for stack in STACKS]
    assert pulumi(team) == [*previews, *updates]
    assert team.signed_in == [
        *(f"{stack}-preview" for stack in STACKS),
        *(f"{stack}-deploy" for stack in STACKS),
    ]


def test_a_change_of_one_stack_signs_in_for_that_one(team: Repository) -> None:
    team.push(edited(STAGING))
    assert team.signed_in == ["staging-preview", "staging-deploy"]


@pytest.mark.parametrize(
    "changes",
    [
        {"README.md": "# words\n"},
        {"ml/projects/other/train.py": "print()\n"},
        # Somebody destroys it by hand: a stack without a file has no program.
        {"infra/Pulumi.staging.yaml": None},
    ],
    ids=["documents", "a project", "a removed stack"],
)
def test_other_changes_sign_in_nowhere(changes: Mapping[str, str | None], team: Repository) -> None:
    jobs = team.push(changes)
    assert jobs["plan"].result == jobs["deploy"].result == "skipped"
    assert team.signed_in == pulumi(team) == []


def test_after_a_failure_no_further_stack_is_changed(team: Repository) -> None:
    """A plan that fails, too: then none is."""
    team.working = ()
    assert team.push(edited(DEV, PROD))["deploy"].result == "skipped"
    assert team.signed_in == ["dev-preview", "prod-preview"]


def changed(team: Repository) -> list[str]:
    """The stacks that were changed, in order."""
    return [name.removesuffix("-deploy") for name in team.signed_in if name.endswith("deploy")]


def test_a_failed_stack_stops_what_refers_to_it_and_nothing_else(team: Repository) -> None:
    """Here dev does without the registry; staging and prod use it."""
    text = (ROOT / DEV).read_text()
    alone = re.sub(r"  platform:asset_registry:\n(    .*\n)+", "", text)
    team.rejected = ("shared-deploy",)
    jobs = team.push({**edited(PROD, STAGING, SHARED), DEV: alone})
    assert jobs["deploy"].result == "failure" and changed(team) == ["dev"]
    team.rejected = ("staging-deploy",)
    assert team.pushed("infra")["deploy"].result == "failure"
    assert changed(team) == ["dev", "shared", "prod"]


def test_a_stack_whose_reference_is_not_deployed_now_stays_as_it_is(team: Repository) -> None:
    """It was deployed by an earlier run; another workflow's job by that name tells nothing."""
    team.state.jobs[team.runs + 1] = [{"name": "deploy (shared)", "conclusion": "failure"}]
    assert team.push(edited(DEV))["deploy"].result == "success"


def test_what_azure_would_refuse_is_not_deployed(team: Repository) -> None:
    """The doctor comes first, with the rights of the deployment."""
    team.failing = ("doctor",)
    assert team.push(edited(SHARED))["deploy"].result == "failure"
    commands = team.commands()
    assert "make doctor" in commands and changed(team) == ["shared"]
    assert not any(command.startswith("pulumi up") for command in commands)


def test_a_person_starts_the_first_deployment(team: Repository) -> None:
    """GitHub answers 422 where a workflow has no `workflow_dispatch`; all stacks are deployed."""
    team.state.runs.clear()
    jobs = team.scheduled("infra", "workflow_dispatch")
    assert {job.result for job in jobs.values()} == {"success"} and changed(team) == STACKS
    team.signed_in.clear()
    team.push(edited(STAGING))
    assert changed(team) == ["staging"]


def test_what_was_not_deployed_is_deployed_by_the_next_run(team: Repository) -> None:
    """A rejected stack waits for nobody's edit; a merge that touches none deploys it too."""
    team.rejected = ("prod-deploy",)
    team.push(edited(DEV, PROD))
    team.rejected = ()
    team.signed_in.clear()
    team.push({"README.md": "# words\n"})
    assert team.signed_in == ["prod-preview", "prod-deploy"]
    team.signed_in.clear()
    team.push({"README.md": "# more words\n"})
    assert team.signed_in == []


def test_what_was_taken_back_is_deployed_too(team: Repository) -> None:
    """dev has the change, which nothing differs from main by any more."""
    team.rejected = ("prod-deploy",)
    team.push(edited(DEV, PROD))
    team.rejected = ()
    team.signed_in.clear()
    team.push({name: (ROOT / name).read_text() for name in (DEV, PROD)})
    assert team.signed_in == ["dev-preview", "prod-preview", "dev-deploy", "prod-deploy"]


def test_the_first_run_deploys_every_stack(team: Repository) -> None:
    team.state.runs.clear()
    team.push({"README.md": "# words\n"})
    assert changed(team) == STACKS


def test_a_plan_is_a_block_of_the_summary(team: Repository) -> None:
    """Markdown would join the lines of Pulumi's output."""
    summary = team.push(edited(DEV))["plan"].summary
    assert summary.startswith("```diff\n") and summary.endswith("```\n")


def drifted(
    team: Repository,
    *differences: Mapping[str, object],
    watched: Sequence[Mapping[str, object]] = (),
) -> None:
    """`make infra-drift` finds these in every stack, `make release-drift` those of projects."""
    found = {
        "infra-drift": bool(differences),
        "release-drift": any(each["differences"] for each in watched),
    }
    team.fake = ("infra-drift", "release-drift", "advisories", "released")
    team.failing = tuple(target for target, is_found in found.items() if is_found)
    team.writes = {
        "infra-drift": {".local/check/drift.json": json.dumps(differences)},
        "release-drift": {".local/check/watch.json": json.dumps(watched)},
    }


CHANGED = {"kind": "changed", "resource": "lake", "id": "/x", "path": "sku", "actual": "@all <b>"}


def test_drift_has_one_issue_a_stack_until_it_is_gone(team: Repository) -> None:
    """Opened, left alone while nothing is new, updated, closed."""
    drifted(team, CHANGED)
    jobs = team.scheduled("drift", "workflow_dispatch")
    assert jobs["drift"].result == "failure"
    assert team.signed_in == [
        *(f"{name}-preview" for name in STACKS),
        *(f"{name}-watch" for name in ENVIRONMENTS * 2),
    ]
    assert [issue["title"] for issue in team.state.issues] == [
        f"Drift: 1 difference between {stack} and Azure" for stack in STACKS
    ]
    body = team.state.issues[0]["body"]
    assert "`lake`" in body and "@all" not in body and "<b>" not in body
    team.scheduled("drift", "workflow_dispatch")
    assert team.state.changes == [("POST", "issues")] * 4
    drifted(team, CHANGED, {**CHANGED, "path": "tags"})
    team.scheduled("drift", "workflow_dispatch")
    assert team.state.issues[3]["title"] == "Drift: 2 differences between prod and Azure"
    drifted(team)
    assert team.scheduled("drift", "workflow_dispatch")["drift"].result == "success"
    assert {issue["state"] for issue in team.state.issues} == {"closed"}
    assert len(team.state.issues) == 4


def differs(about: str, *rows: tuple[str, str, str], unknown: bool = False) -> dict[str, object]:
    """What `ml release drift` prints of one project; the driver fills in the environment."""
    differences = [dict(zip(("what", "expected", "actual"), row, strict=True)) for row in rows]
    words = "version 2 is declared @all <b>"
    fields = {"about": about, "project": "words", "environment": "{stack}", "words": words}
    fields["model"] = "words-model"
    return {**fields, "differences": differences, "unknown": unknown}


def test_what_serves_and_what_is_asked_have_issues_of_their_own(team: Repository) -> None:
    """For each project and environment; what cannot be judged leaves its issue open."""
    serving, column = ("serving version", "2", "1 <b>"), ("amount", "PSI below 0.2", "PSI 0.9 @me")
    drifted(team, watched=[differs("release", serving), differs("model", column)])
    for _ in "twice":
        assert team.scheduled("drift", "workflow_dispatch")["watch"].result == "failure"
    assert team.state.changes == [("POST", "issues")] * 6
    titles = [issue["title"] for issue in team.state.issues[:2]]
    assert titles == [
        "Drift: 1 difference between what words in dev declares and what serves",
        "Drift: 1 difference between the requests of words in dev and its evaluation",
    ]
    for issue in team.state.issues:
        assert "@all" not in issue["body"] and "<b>" not in issue["body"]
    assert "`ml watch words-model --env dev --on azure`" in team.state.issues[1]["body"]
    drifted(team, watched=[differs("release"), differs("model", unknown=True)])
    assert team.scheduled("drift", "workflow_dispatch")["watch"].result == "success"
    assert [issue["state"] for issue in team.state.issues] == ["closed", "open"] * 3


def test_a_comparison_that_did_not_end_changes_no_issue(team: Repository) -> None:
    """Without a sign-in there is no list: the run fails, and the issue stays as it is."""
    drifted(team, CHANGED)
    team.scheduled("drift", "workflow_dispatch")
    team.state.changes.clear()
    team.writes = {
        target: {f".local/check/{name}.json": ""}
        for target, name in (("infra-drift", "drift"), ("release-drift", "watch"))
    }
    jobs = team.scheduled("drift", "workflow_dispatch")
    assert jobs["drift"].result == jobs["watch"].result == "failure"
    assert team.state.changes == []


@pytest.mark.parametrize(("variables", "result"), [({}, "skipped"), ({"DRIFT": "true"}, "success")])
def test_the_schedule_waits_for_a_deployment(
    variables: dict[str, str], result: str, team: Repository
) -> None:
    drifted(team)
    team.variables = variables
    assert team.scheduled("drift")["drift"].result == result


POLICY = "policies/promotion/gates.yml"


def test_a_changed_gate_policy_evaluates_what_serves(team: Repository) -> None:
    """By the identity that reads, in each environment; nothing is compared, trained or released."""
    team.variables, team.fake = {"DRIFT": "true"}, ("advisories", "released")
    jobs = team.push(edited(POLICY), "drift")
    assert {key: job.result for key, job in jobs.items()} == {
        **{"stacks": "success", "gates": "success"},
        **{"drift": "skipped", "watch": "skipped"},
    }
    assert team.signed_in == [f"{name}-watch" for name in ENVIRONMENTS]
    assert team.commands() == ["make stacks", *["make advisories", "make released"] * 3]
    assert team.state.changes == []


def test_any_other_merge_evaluates_nothing(team: Repository) -> None:
    """Nor does the daily run, nor a policy before there is a deployment."""
    team.fake = ("advisories", "released", "infra-drift", "release-drift")
    assert team.push(edited("policies/infra/limits.yml"), "drift") == {}
    assert team.push(edited(POLICY), "drift")["gates"].result == "skipped"
    team.variables = {"DRIFT": "true"}
    drifted(team)
    assert team.scheduled("drift")["gates"].result == "skipped"
