"""A fork's first steps: shown, carried out once, and resumed after an interruption."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra import cli
from infra.live import bootstrap
from infra.live.bootstrap import plan as steps
from infra.live.bootstrap import state
from infra.live.steps import Words, carry_out, run_command, shell
from infra.settings import loader
from infra.settings.loader import load
from infra.settings.model import AssetRegistry
from infra.settings.workflows import (
    CUSTOM_ROLES,
    JOB_SUBMITTER,
    OF_THE_PROGRAM,
    PURPOSES,
    REVIEWED,
    CustomRole,
)
from ml.core.errors import Refused
from tests.stand_ins.az_and_gh import Cloud

ENVIRONMENTS = [load("dev"), load("prod")]
CHANGES = {"create", "update", "set", "PUT", "put"}


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return made


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack files of the template pass for filled in."""
    monkeypatch.setattr(loader, "placeholders", lambda stack: iter(()))


def outcomes(cloud: Cloud, *, make: bool) -> dict[str, str]:
    plan = steps(ENVIRONMENTS)
    return {one.step.name: one.outcome for one in carry_out(plan, cloud.run, make=make)}


def by_process(*, make: bool = True) -> dict[str, str]:
    plan = steps(ENVIRONMENTS[:1])
    return {one.step.name: one.outcome for one in carry_out(plan, run_command, make=make)}


def provisioned(cloud: Cloud) -> None:
    """`pulumi up` has been there: it made the identities that train and release."""
    for one in ENVIRONMENTS:
        for purpose in OF_THE_PROGRAM:
            name = one.names.local("id", purpose)
            cloud.state["things"][f"identity  {name}"] = {"clientId": f"client-{name}"}


def changing(commands: list[list[str]]) -> list[list[str]]:
    return [words for words in commands if CHANGES & set(words)]


def test_missing_steps_are_shown_and_nothing_is_changed(cloud: Cloud) -> None:
    """In a new subscription."""
    found = outcomes(cloud, make=False)
    assert {name for name, outcome in found.items() if outcome == "exists"} == {
        "prod-reviewer-your-organisation-ml-platform", "signed-in", "subject"
    }  # fmt: skip
    assert changing(cloud.taken()) == []


def test_every_step_runs_once(cloud: Cloud) -> None:
    """A second run only asks."""
    provisioned(cloud)
    first = outcomes(cloud, make=True)
    assert set(first.values()) == {"exists", "created"}
    assert changing(cloud.taken())
    assert set(outcomes(cloud, make=True).values()) == {"exists"}
    assert changing(cloud.taken()) == []


def test_the_steps_create_state_and_an_identity_for_each_environment(cloud: Cloud) -> None:
    """No shared keys, a protected vault, an environment as each subject, ids in the variables."""
    outcomes(cloud, make=True)
    commands = [" ".join(words) for words in cloud.taken()]
    account = next(one for one in commands if "storage account create" in one)
    assert "--allow-shared-key-access false" in account
    vault = next(one for one in commands if "keyvault create" in one)
    assert "--enable-purge-protection true" in vault
    subjects = [one for one in commands if "--subject repo:" in one]
    assert [one.partition("environment:")[2].split()[0] for one in subjects] == [
        "prod-preview", "prod-deploy", "dev-preview", "dev-deploy"
    ]  # fmt: skip
    things = cloud.state["things"]
    variables = things[f"variables {ENVIRONMENTS[0].repository} dev-deploy"]
    assert variables["AZURE_CLIENT_ID"] == "client-id-mlplat-dev-deploy"
    assert variables["PULUMI_BACKEND_URL"].startswith(
        "azblob://pulumi?storage_account=stmlplatstate"
    )
    role = "Role Based Access Control Administrator"
    assert (
        f"role principal-id-mlplat-dev-deploy {role} /subscriptions/{ENVIRONMENTS[0].subscription}"
        in things
    )
    assert not any(
        "password" in one or "secret" in one.lower().replace("secrets_provider", "")
        for one in commands
    )


def test_the_deployer_may_set_declared_locks(cloud: Cloud) -> None:
    """Neither a Contributor nor a role administrator may; dev has no locks."""
    outcomes(cloud, make=True)
    held = [name for name in cloud.state["things"] if "Locks Contributor" in name]
    assert held == [
        "role principal-id-mlplat-prod-deploy Locks Contributor"
        f" /subscriptions/{ENVIRONMENTS[1].subscription}"
    ]


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_an_interrupted_run_is_resumed(cloud: Cloud, cut: int) -> None:
    """After any number of commands: nothing is created twice."""

    class Stopped(Exception):
        pass

    def some(words: Words, asking: bool) -> object:
        if len(cloud.state["commands"]) >= cut:
            raise Stopped
        return cloud.run(words, asking)

    with pytest.raises(Stopped):
        list(carry_out(steps(ENVIRONMENTS), some, make=True))
    provisioned(cloud)
    before = [tuple(words) for words in changing(cloud.taken())]
    outcomes(cloud, make=True)
    after = [tuple(words) for words in changing(cloud.taken())]
    assert not set(before) & set(after)
    assert set(outcomes(cloud, make=False).values()) == {"exists"}


def test_a_failed_command_is_a_readable_error_and_can_be_repeated(cloud: Cloud) -> None:
    """Such as a role that is not effective yet; these are real processes."""
    cloud.state["fail"] = "az rest --method put"
    provisioned(cloud)
    cloud.programs()
    with pytest.raises(Refused, match="Forbidden") as refused:
        by_process()
    assert refused.value.exit_code == 1
    cloud.read()
    cloud.state["fail"] = ""
    cloud.programs()
    assert set(by_process().values()) == {"exists", "created"}


@pytest.mark.parametrize(
    "error",
    [
        "ERROR: (Forbidden) not yet",
        "ERROR: (SubscriptionNotFound) The subscription 'x' could not be found.",
    ],
)
def test_a_failed_question_creates_nothing(cloud: Cloud, error: str) -> None:
    """A refusal, or an invisible subscription, does not mean that a resource is absent."""
    cloud.state.update(fail="az group show", error=error)
    cloud.programs()
    with pytest.raises(Refused, match="command-failed"):
        by_process()
    cloud.read()
    assert changing(cloud.taken()) == []


def test_a_variable_with_another_value_is_updated(cloud: Cloud) -> None:
    """Only that one."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    cloud.taken()
    moved = [replace(one, tenant="11111111-0000-0000-0000-000000000000") for one in ENVIRONMENTS]
    list(carry_out(steps(moved), cloud.run, make=True))
    assert [words[3] for words in changing(cloud.taken())] == ["AZURE_TENANT_ID"] * 10


def test_without_az_or_gh_the_error_names_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2, no traceback."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="no-such-program"):
        by_process(make=False)


def test_environments_of_two_platforms_are_refused() -> None:
    """They would share one state."""
    with pytest.raises(Refused, match="cannot-bootstrap"):
        steps([ENVIRONMENTS[0], replace(ENVIRONMENTS[1], name="other")])
    with pytest.raises(Refused, match="no environment"):
        steps([])


@pytest.mark.parametrize("apart", [{"subscription": "another"}, {"location": "westus3"}])
def test_a_registry_of_another_subscription_or_region_is_refused(apart: dict[str, str]) -> None:
    """It is looked up in the environment's subscription, and serves its own region."""
    dev, prod = load("dev"), load("prod")
    with pytest.raises(Refused, match="dev uses the asset registry mlplat-shared of prod"):
        steps([replace(dev, **apart), prod])
    alone = replace(dev, asset_registry=AssetRegistry(), **apart)
    assert steps([alone, prod]) and steps([dev, prod])


def test_the_creator_of_the_shared_registry_is_deployed_first() -> None:
    """The others assign roles on it and create endpoints to it."""
    stages = [load(stack) for stack in ("dev", "staging", "prod")]
    plan = [one.name for one in steps(stages) if "up" in one.make]
    assert plan[::3] == [f"{stack}-train-identity" for stack in ("prod", "dev", "staging")]
    alone = [replace(one, asset_registry=AssetRegistry()) for one in stages]
    plan = [one.name for one in steps(alone) if "up" in one.make]
    assert plan[::3] == [f"{stack}-train-identity" for stack in ("dev", "staging", "prod")]


def test_environments_in_one_subscription_cause_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The deployer of dev could change prod."""
    for stacks, told in ((["dev", "prod"], True), (["dev"], False)):
        with pytest.raises(SystemExit):
            cli.main(["bootstrap", *stacks, "--offline"])
        assert ("dev, prod share a subscription" in capsys.readouterr().err) is told
    apart = [ENVIRONMENTS[0], replace(ENVIRONMENTS[1], subscription="another")]
    assert list(bootstrap.shared_subscriptions(apart)) == []


def test_the_commands_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Offline every command is shown; values that only Azure knows are in angle brackets."""
    with pytest.raises(SystemExit):
        cli.main(["bootstrap", "dev", "--offline"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(steps(ENVIRONMENTS[:1]))
    role = shell(next(one.make for one in steps(ENVIRONMENTS[:1]) if one.name == "dev-contributor"))
    assert role in lines
    assert "--assignee-object-id '<dev-deploy-identity.principalId>'" in role
    assert shell(("a", "it's", "{x.id}")) == """a 'it'"'"'s' '<x.id>'"""


@pytest.mark.usefixtures("filled")
def test_the_command_line(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows the steps, and runs them with --run."""
    provisioned(cloud)
    cloud.programs()
    with pytest.raises(SystemExit):
        cli.main(["bootstrap", "dev"])
    captured = capsys.readouterr()
    assert "missing" in captured.out
    assert "--run makes them" in captured.err
    with pytest.raises(SystemExit):
        cli.main(["bootstrap", "dev", "--run", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {one["outcome"] for one in found} == {"exists", "created"}
    assert bootstrap.ISSUER in json.dumps(found)


@pytest.mark.usefixtures("filled")
def test_the_identities_of_the_program_wait_for_pulumi(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program creates them; all other steps run before, and their variables after."""
    cloud.programs()
    with pytest.raises(SystemExit):
        cli.main(["bootstrap", "dev", "--run"])
    captured = capsys.readouterr()
    missing = [line for line in captured.out.splitlines() if line.startswith("missing")]
    waiting = [f"dev-{purpose}-identity" for purpose in OF_THE_PROGRAM]
    assert missing[:4] == [f"missing  {step}" for step in ("dev-stack", *waiting)]
    variables = tuple(f"missing  dev-{purpose}-A" for purpose in OF_THE_PROGRAM)
    assert all(line.startswith(variables) for line in missing[4:])
    by_hand = [line for line in captured.out.splitlines() if " pulumi " in line]
    assert [line.rpartition(" pulumi ")[2] for line in by_hand[:2]] == [
        "stack select --create --secrets-provider"
        f" {state(ENVIRONMENTS[0]).secrets} --stack dev --cwd infra",
        "up --policy-pack ../policies/infra --stack dev --cwd infra",
    ]
    assert all("PULUMI_BACKEND_URL=azblob://pulumi?" in line for line in by_hand)
    assert "after `pulumi up`" in captured.err
    cloud.read()
    provisioned(cloud)
    cloud.programs()
    assert by_process()["dev-train-AZURE_CLIENT_ID"] == "created"
    cloud.read()
    github = ENVIRONMENTS[0].github
    clients = {
        purpose: cloud.state["things"][f"variables {github} dev-{purpose}"]["AZURE_CLIENT_ID"]
        for purpose in PURPOSES
    }
    assert clients == {purpose: f"client-id-mlplat-dev-{purpose}" for purpose in PURPOSES}


def test_each_purpose_has_a_protected_environment_of_its_own(cloud: Cloud) -> None:
    """Only protected branches; people approve what releases and deploys, and not their own."""
    outcomes(cloud, make=True)
    github = ENVIRONMENTS[1].github
    environments = {
        purpose: cloud.state["things"][f"repos/{github}/environments/prod-{purpose}"]
        for purpose in PURPOSES
    }
    for purpose, environment in environments.items():
        assert environment["deployment_branch_policy"]["protected_branches"]
        reviewed = [
            rule
            for rule in environment["protection_rules"]
            if rule["type"] == "required_reviewers" and rule["prevent_self_review"]
        ]
        assert bool(reviewed) is (purpose in REVIEWED)
    bot = cloud.state["things"][f"repos/{github}/environments/bot"]
    assert bot["deployment_branch_policy"]["protected_branches"]


def test_what_trains_and_releases_knows_the_shared_registry(cloud: Cloud) -> None:
    """By the variable that `ml` reads."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    for settings in ENVIRONMENTS:
        where = f"variables {settings.github} {settings.environment}-release"
        name = cloud.state["things"][where].get("AZUREML_REGISTRY_NAME")
        assert name == (settings.asset_registry.name or None)


@pytest.mark.parametrize(
    "change",
    [
        lambda environment: environment["protection_rules"][0].update(reviewers=[]),
        lambda environment: environment["protection_rules"][0].update(prevent_self_review=False),
        lambda environment: environment.update(deployment_branch_policy=None),
    ],
)
def test_a_loosened_environment_is_protected_again(
    cloud: Cloud, change: Callable[[dict[str, Any]], None]
) -> None:
    """Somebody took the reviewers away; only that environment is changed."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    cloud.taken()
    github = ENVIRONMENTS[1].github
    change(cloud.state["things"][f"repos/{github}/environments/prod-release"])
    changed = outcomes(cloud, make=True)
    assert [name for name, outcome in changed.items() if outcome == "created"] == [
        "prod-release-environment"
    ]
    assert set(outcomes(cloud, make=True).values()) == {"exists"}


def test_an_environment_without_reviewers_is_refused() -> None:
    """Unless it is a starter, as dev is."""
    dev, prod = ENVIRONMENTS
    assert steps([replace(dev, reviewers=())])
    with pytest.raises(Refused, match="nobody approves releases and deployments of prod"):
        steps([replace(prod, reviewers=())])


def test_a_reviewer_that_github_does_not_have_ends_the_command(cloud: Cloud) -> None:
    """With GitHub's answer; nothing creates a team."""
    cloud.programs()
    plan = steps([replace(ENVIRONMENTS[1], reviewers=("acme/nobody",))])
    with pytest.raises(Refused, match=r"Not Found"):
        list(carry_out(plan, run_command, make=True))


@pytest.mark.parametrize("role", CUSTOM_ROLES)
def test_what_trains_cannot_change_endpoints_and_what_releases_cannot_train(
    role: CustomRole,
) -> None:
    """By Azure's own rule: an operation that `actions` match and `notActions` do not."""
    prefix = "Microsoft.MachineLearningServices/workspaces"

    def allows(operation: str) -> bool:
        def matches(patterns: list[str]) -> bool:
            return any(fnmatch.fnmatchcase(f"{prefix}/{operation}", one) for one in patterns)

        return matches(role.permissions["actions"]) and not matches(role.permissions["notActions"])

    trains = role is JOB_SUBMITTER
    for operation in ("jobs/write", "jobs/cancel/action", "jobs/delete"):
        assert allows(operation) is trains
    for operation in ("onlineEndpoints/write", "onlineEndpoints/deployments/write"):
        assert allows(operation) is not trains
    for operation in ("jobs/read", "onlineEndpoints/read", "models/versions/write"):
        assert allows(operation)
    assert not allows("computes/cpu-cluster/write") and not allows("write")


def test_a_role_definition_that_grants_more_is_written_again(cloud: Cloud) -> None:
    """A later template may take something away."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    (url,) = [
        key
        for key in cloud.state["things"]
        if JOB_SUBMITTER.id(ENVIRONMENTS[0].subscription) in key
    ]
    cloud.state["things"][url]["properties"]["permissions"][0]["notActions"] = []
    changed = outcomes(cloud, make=True)
    assert [name for name, outcome in changed.items() if outcome == "created"] == [
        "prod-job-submitter"
    ]


def test_placeholders_are_refused(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its line, before anything is asked; --offline only prints."""
    cloud.programs()
    with pytest.raises(SystemExit) as ended:
        cli.main(["bootstrap", "prod"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "Pulumi.prod.yaml:4: `azure-native:location`" not in error
    for key in ("azure-native:subscriptionId", "platform:repository", "platform:reviewers"):
        assert f"`{key}` is the template's placeholder" in error
    cloud.read()
    assert cloud.taken() == []
    with pytest.raises(SystemExit) as ended:
        cli.main(["bootstrap", "prod", "--offline"])
    assert not ended.value.code


def test_the_deployer_cannot_assign_administrator_roles(cloud: Cloud) -> None:
    """Owner, User Access Administrator and Role Based Access Control Administrator are excluded."""
    outcomes(cloud, make=True)
    held = {name: one for name, one in cloud.state["things"].items() if name.startswith("role ")}
    (condition,) = {one["condition"] for name, one in held.items() if "Access Control" in name}
    for role in ("8e3af657", "18d7d88d", "f58310d9"):
        assert condition.count(role) == 2
    assert condition.count("{") == condition.count("}") == 4
    assert "@Request[Microsoft.Authorization/roleAssignments:RoleDefinitionId]" in condition
    assert not any(one["condition"] for name, one in held.items() if "Access Control" not in name)


def test_the_key_is_created_without_waiting_for_a_role(cloud: Cloud) -> None:
    """Through Azure Resource Manager, which requires no role on the vault's data."""
    outcomes(cloud, make=True)
    commands = [words for words in cloud.taken() if words[1] == "rest" and "/keys/" in words[5]]
    assert [words[3] for words in commands] == ["get", "put"]
    body = json.loads(commands[1][commands[1].index("--body") + 1])
    assert body["properties"]["keyOps"] == ["encrypt", "decrypt"]
    assert not any("Crypto Officer" in name for name in cloud.state["things"])


IDS = "acme@1/platform@2"


@pytest.mark.parametrize(
    ("told", "declared", "error"),
    [
        ({"use_default": True, "sub_claim_prefix": f"repo:{IDS}"}, "acme/platform", f"repo:{IDS}"),
        (
            {"use_default": True, "sub_claim_prefix": "repo:acme/platform"},
            IDS,
            "repo:acme/platform",
        ),
        ({"use_default": True, "sub_claim_prefix": "repo:Acme/platform"}, "acme/platform", "Acme"),
        ({"use_default": False, "include_claim_keys": ["job_workflow_ref"]}, IDS, "job_workflow"),
        ({"use_default": True, "sub_claim_prefix": f"repo:{IDS}"}, IDS, None),
        ({"use_default": True, "sub_claim_prefix": None}, "acme/platform", None),
        ({"use_default": False, "include_claim_keys": ["repo", "context"]}, "acme/platform", None),
    ],
)
def test_credentials_match_githubs_subject(
    cloud: Cloud, told: dict[str, object], declared: str, error: str | None
) -> None:
    """With the ids of owner and repository, if its tokens contain them."""
    cloud.state["things"]["subject"] = told
    plan = steps([replace(one, repository=declared) for one in ENVIRONMENTS])
    if error:
        with pytest.raises(Refused, match=error):
            list(carry_out(plan, cloud.run, make=True))
        assert changing(cloud.taken()) == []
        return
    list(carry_out(plan, cloud.run, make=True))
    made = [words for words in cloud.taken() if "--subject" in words]
    subjects = [words[words.index("--subject") + 1] for words in made]
    assert subjects == [
        f"repo:{declared}:environment:{stack}-{purpose}"
        for stack in ("prod", "dev")
        for purpose in ("preview", "deploy")
    ]
    assert "variables acme/platform dev-deploy" in cloud.state["things"]
