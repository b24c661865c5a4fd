"""A fork's first steps: shown, carried out once, and resumed after an interruption."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.live import bootstrap
from infra.live.bootstrap import plan as steps
from infra.live.bootstrap import state
from infra.live.steps import Words, carry_out, run_command, shell
from infra.settings import loader
from infra.settings import stacks as order
from infra.settings.azure import PROVIDERS
from infra.settings.loader import load
from infra.settings.model import AssetRegistry, Settings
from infra.settings.workflows import (
    CUSTOM_ROLES,
    JOB_SUBMITTER,
    OF_THE_PROGRAM,
    ON_REGISTRY,
    PURPOSES,
    REGISTRY_PUBLISHER,
    RELEASER,
    REVIEWED,
    ROLE_MANAGERS,
    CustomRole,
    role_id,
)
from ml.core.azure import ISSUER, ROLES
from ml.core.errors import UserError
from tests.conftest import ROOT
from tests.infra.programs import ran
from tests.stand_ins.az_and_gh import Cloud

ENVIRONMENTS = [load("dev"), load("prod")]
CHANGES = {"create", "update", "set", "PUT", "put"}


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """It writes keys into copies of the stack files."""
    cloud = Cloud(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    folder = tmp_path / "infra"
    folder.mkdir()
    for stack in loader.stacks():
        shutil.copy(loader.FOLDER / f"Pulumi.{stack}.yaml", folder)
    cloud.state["folder"] = str(tmp_path)
    monkeypatch.setattr(loader, "FOLDER", folder)
    return cloud


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


def by_names(cloud: Cloud, environments: Sequence[Settings]) -> dict[str, str]:
    results = carry_out(steps(environments), cloud.run, make=True)
    return {one.step.name: one.outcome for one in results}


def pushed(cloud: Cloud) -> None:
    """The stacks are there, and a person has committed what their files hold by now."""
    for one in ENVIRONMENTS:
        if loader.encryption(one.environment, loader.FOLDER) is None:
            for step in steps([one]):
                if step.name.endswith(("-stack", "-stack-key")):
                    cloud.run(step.make, False)
    files = loader.FOLDER.glob("Pulumi.*.yaml")
    cloud.state["main"] = {f"infra/{path.name}": path.read_text() for path in files}


def provisioned(cloud: Cloud) -> None:
    """`pulumi up` has been there: it made the identities that train and release. So has the app."""
    cloud.state["things"][f"variables {ENVIRONMENTS[0].github} bot"] = {"APP_ID": "77"}
    pushed(cloud)
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
        *("actions", "operations", "signed-in", "subject"),
        *(f"{stack}-reviewer-your-organisation-ml-platform" for stack in ("dev", "prod")),
        *(f"{stack}-deleted-vault" for stack in ("dev", "prod")),
    }
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
        "dev-preview", "dev-deploy", "prod-preview", "prod-deploy"
    ]  # fmt: skip
    things = cloud.state["things"]
    variables = things[f"variables {ENVIRONMENTS[0].repository} dev-deploy"]
    assert variables["AZURE_CLIENT_ID"] == "client-id-mlplat-dev-deploy"
    assert variables["PULUMI_BACKEND_URL"].startswith(
        "azblob://pulumi?storage_account=stpumlplatdev"
    )
    role = "Role Based Access Control Administrator"
    assert (
        f"role principal-id-mlplat-dev-deploy {role} /subscriptions/{ENVIRONMENTS[0].subscription}"
        in things
    )
    assert not any(
        "password" in one or "secret" in re.sub("secrets.provider|readsecrets", "", one.lower())
        for one in commands
    )


APART = [
    replace(one, subscription=f"0000000{number}-0000-0000-0000-000000000000")
    for number, one in enumerate(ENVIRONMENTS, 1)
]


@pytest.mark.attack("the deployer of dev rewrites prod's state, or reads its secrets")
def test_state_key_and_identities_are_each_environments_own(cloud: Cloud) -> None:
    """In its own subscription: no command of one names the other's."""
    alone = [replace(one, asset_registry=AssetRegistry()) for one in APART]
    by_names(cloud, alone)
    commands = [words for words in changing(cloud.taken()) if words[0] == "az"]
    for one, other in (alone, alone[::-1]):
        own = [" ".join(words) for words in commands if one.subscription in " ".join(words)]
        assert not any(other.subscription in line for line in own)
        for kind in ("group", "storage account", "keyvault", "identity", "role assignment"):
            assert any(line.startswith(f"az {kind} create") for line in own)
    assert state(alone[0]).account != state(alone[1]).account
    things = cloud.state["things"]
    held = [key for key in things if key.startswith("role principal-")]
    for one in alone:
        whole = f"-{one.environment}-"
        mine = [key for key in held if whole in key.split()[1]]
        assert mine and all(
            one.subscription in key or f"mlplat{one.environment}" in key.split()[-1] for key in mine
        )
        for purpose in ("preview", "deploy"):
            variables = things[f"variables {one.github} {one.environment}-{purpose}"]
            assert variables["PULUMI_BACKEND_URL"] == state(one).url
            assert variables["PULUMI_SECRETS_PROVIDER"] == state(one).secrets


@pytest.mark.attack("the deployer of dev changes what else is in the registry's subscription")
def test_a_registry_elsewhere_is_read_and_granted_there_and_nothing_else(cloud: Cloud) -> None:
    """The role of releases is defined where it is granted; of others' roles the deployer assigns
    those on a registry alone.
    """
    there = "6f8d2c1e-9999-4000-8000-000000000000"
    registry = replace(ENVIRONMENTS[0].asset_registry, subscription=there)
    by_names(cloud, [replace(ENVIRONMENTS[0], asset_registry=registry)])
    things = cloud.state["things"]
    held = {name: one for name, one in things.items() if name.endswith(f" /subscriptions/{there}")}
    administrator = "Role Based Access Control Administrator"
    roles = {name.removeprefix("role principal-id-mlplat-dev-").split(" /")[0] for name in held}
    assert roles == {
        *("preview Reader", "deploy Reader", f"deploy {administrator}"),
        "deploy Azure AI Enterprise Network Connection Approver",
    }
    (condition,) = (one["condition"] for name, one in held.items() if administrator in name)
    lists = re.findall(r"GuidEquals \{([^}]*)\}", condition)
    assert [one.split(", ") for one in lists] == [
        [role_id(name, there) for name in ON_REGISTRY]
    ] * 2
    publisher = [name for name in things if REGISTRY_PUBLISHER.id(there) in name]
    assert len(publisher) == 1 and f"/subscriptions/{there}/" in publisher[0]
    defined = [name for name in things if "roleDefinitions" in name and there in name]
    assert defined == publisher


@pytest.mark.attack("a Contributor lets the state's account take keys")
def test_an_account_of_the_state_that_was_opened_is_closed(cloud: Cloud) -> None:
    """Told first, as a difference."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    account = state(ENVIRONMENTS[0]).account
    key = f"storage account  {account}"
    cloud.state["things"][key]["allowSharedKeyAccess"] = True
    assert outcomes(cloud, make=False)["dev-account"] == "differs"
    outcomes(cloud, make=True)
    assert cloud.state["things"][key]["allowSharedKeyAccess"] is False


def test_a_deleted_vault_comes_back_before_it_is_made(cloud: Cloud) -> None:
    """It holds its name for ninety days, and nobody may purge it."""
    home = state(ENVIRONMENTS[0])
    cloud.state["things"]["deleted vaults"] = [home.vault]
    assert by_names(cloud, ENVIRONMENTS[:1])["dev-vault"] == "exists"
    made = [words for words in changing(cloud.taken()) if words[1] == "keyvault"]
    assert made == [] and cloud.state["things"]["deleted vaults"] == []


def test_state_in_a_region_without_a_pair_stays_in_its_zones(cloud: Cloud) -> None:
    """Azure refuses copies in another region there."""
    for location, copies in (("italynorth", "Standard_ZRS"), ("westeurope", "Standard_GRS")):
        one = replace(ENVIRONMENTS[0], location=location, asset_registry=AssetRegistry())
        (make,) = (each.make for each in steps([one]) if each.name == "dev-account")
        assert make[make.index("--sku") + 1] == copies


def test_the_variables_name_a_workspace_that_was_adopted() -> None:
    one = load("dev")
    adopted = replace(one, workspace=replace(one.workspace, name="Team_Workspace-1"))
    (words,) = {
        step.value
        for step in steps([adopted])
        if step.name.endswith("train-AZUREML_WORKSPACE_NAME")
    }
    assert words == "Team_Workspace-1"


def with_runners(*labels: str) -> list[Settings]:
    return [
        replace(one, network=replace(one.network, runners=label))
        for one, label in zip(ENVIRONMENTS, labels, strict=True)
    ]


def test_the_label_of_runners_is_stored_once_their_network_is_there(cloud: Cloud) -> None:
    """Before, the deployment that makes the network would wait for them."""
    assert by_names(cloud, with_runners("", "ml-private"))["RUNNER"] == "missing"
    provisioned(cloud)
    assert by_names(cloud, with_runners("", "ml-private"))["RUNNER"] == "created"
    assert cloud.state["things"][f"variables {ENVIRONMENTS[0].github} "] == {"RUNNER": "ml-private"}
    assert by_names(cloud, with_runners("", "ml-private"))["RUNNER"] == "exists"
    with pytest.raises(UserError, match="runners are labelled a, b"):
        steps(with_runners("a", "b"))


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
    with pytest.raises(UserError, match="Forbidden") as refused:
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
    with pytest.raises(UserError, match="command-failed"):
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
    with pytest.raises(UserError, match="no-such-program"):
        by_process(make=False)


def test_environments_of_two_platforms_are_refused() -> None:
    """They would share one state."""
    with pytest.raises(UserError, match="cannot-bootstrap"):
        steps([ENVIRONMENTS[0], replace(ENVIRONMENTS[1], name="other")])
    with pytest.raises(UserError, match="no environment"):
        steps([])


def test_what_others_refer_to_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The order is that of `make stacks`, whatever a person types."""
    for stacks in ([], ["prod", "shared", "dev", "staging"]):
        lines = ran(capsys, "bootstrap", *stacks, "--offline")[1].splitlines()
        created = [line.split(" stack init ")[1].split()[0] for line in lines if " init " in line]
        assert created == list(order.ordered(ROOT)) == ["shared", "dev", "staging", "prod"]


def test_the_stack_of_the_registry_has_two_purposes(cloud: Cloud) -> None:
    """Nothing is trained, released or watched in it, and no program makes identities there."""
    list(carry_out(steps([load("shared")]), cloud.run, make=True))
    path = f"repos/{ENVIRONMENTS[0].github}/environments/"
    environments = [key for key in cloud.state["things"] if key.startswith(path)]
    assert {key.removeprefix(path).removesuffix(" policies") for key in environments} == {
        *("shared-preview", "shared-deploy", "bot")
    }
    assert not any("roleDefinitions" in key for key in cloud.state["things"])


def test_a_stack_is_created_with_the_key_of_its_state(cloud: Cloud) -> None:
    """Once; its file then holds the provider and the key, which a person commits."""
    results = {one.step.name: one for one in carry_out(steps(ENVIRONMENTS), cloud.run, make=True)}
    assert results["dev-stack"].outcome == "created"
    assert results["dev-stack-key"].outcome == "exists"
    provider, key = loader.encryption("dev", loader.FOLDER) or ("", "")
    assert provider == state(ENVIRONMENTS[0]).secrets and key
    assert load("dev", loader.FOLDER) == load("dev")
    assert results["dev-stack-key-on-main"].outcome == "missing"
    assert "infra/Pulumi.dev.yaml && git push" in shell(
        results["dev-stack-key-on-main"].commands[0]
    )
    text = (loader.FOLDER / "Pulumi.dev.yaml").read_text()
    outcomes(cloud, make=True)
    assert (loader.FOLDER / "Pulumi.dev.yaml").read_text() == text


@pytest.mark.parametrize("lost", ["the start was ended", "another checkout", "another provider"])
def test_a_stack_whose_file_lacks_its_key_gets_one(cloud: Cloud, lost: str) -> None:
    """By its own command: `init` refuses a stack that exists."""
    file = loader.FOLDER / "Pulumi.dev.yaml"
    if lost == "the start was ended":
        cloud.state["ended"] = "init"
        with pytest.raises(AssertionError):
            outcomes(cloud, make=True)
        del cloud.state["ended"]
    else:
        text = file.read_text()
        outcomes(cloud, make=True)
        other = "secretsprovider: azurekeyvault://other/keys/pulumi\nencryptedkey: b2xk\n"
        file.write_text(text if lost == "another checkout" else other + text)
    cloud.taken()
    assert outcomes(cloud, make=True)["dev-stack-key"] == "created"
    done = [words for words in cloud.taken() if "change-secrets-provider" in words]
    assert len(done) == 1 and loader.encryption("dev", loader.FOLDER)


@pytest.mark.attack("somebody pushes to main between the two bootstraps")
def test_main_is_closed_from_the_first_bootstrap_on(cloud: Cloud) -> None:
    """Administrators alone push the keys of the stacks to it, and from then on nobody."""
    for when in ("before", "after"):
        plan = carry_out(steps(ENVIRONMENTS), cloud.run, make=True)
        results = {one.step.name: one.outcome for one in plan}
        rulesets = cloud.state["things"]["rulesets"].values()
        (main,) = [each for each in rulesets if each["name"] == "main"]
        pass_by = [(each["actor_type"], each["actor_id"]) for each in main["bypass_actors"]]
        assert pass_by == ([("RepositoryRole", 5)] if when == "before" else [])
        assert results["ruleset-main"] == ("created" if when == "before" else "exists")
        assert results["ruleset-main-rules"] == ("differs" if when == "before" else "created")
        assert "pull_request" in [rule["type"] for rule in main["rules"]]
        pushed(cloud)
    cloud.state["main"] = {}
    found = outcomes(cloud, make=True)
    assert found["ruleset-main"] == found["ruleset-main-rules"] == "exists"


@pytest.mark.attack("main holds another key than the one that opens the state's secrets")
def test_another_key_on_main_is_not_taken_for_ours(cloud: Cloud) -> None:
    outcomes(cloud, make=True)
    pushed(cloud)
    assert outcomes(cloud, make=False)["dev-stack-key-on-main"] == "exists"
    _, key = loader.encryption("dev", loader.FOLDER) or ("", "")
    file = "infra/Pulumi.dev.yaml"
    cloud.state["main"][file] = cloud.state["main"][file].replace(key, f"{key}x")
    assert outcomes(cloud, make=False)["dev-stack-key-on-main"] == "missing"


def test_resource_providers_are_registered(cloud: Cloud) -> None:
    """In the subscription of each stack, once: Pulumi registers none."""
    outcomes(cloud, make=True)
    things = cloud.state["things"]
    assert things[f"providers {ENVIRONMENTS[0].subscription}"].keys() == {*PROVIDERS}
    registered = [words for words in cloud.taken() if words[:3] == ["az", "provider", "register"]]
    assert len(registered) == len(PROVIDERS)


@pytest.mark.parametrize(
    "error",
    [
        "gh: Upgrade to GitHub Pro or make this repository public to enable this feature.",
        "gh: Failed to create the environment protection rule. Please ensure the billing plan"
        " supports the required reviewers protection rule.",
    ],
)
def test_what_githubs_plan_lacks_is_told(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it takes, in place of GitHub's advertisement; a question is answered so too."""
    (tmp_path / "gh").write_text(f"#!/bin/sh\necho '{error} (HTTP 403)' >&2\nexit 1\n")
    (tmp_path / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for is_query in (True, False):
        with pytest.raises(UserError, match="github-plan") as refused:
            run_command(("gh", "api", "repos/acme/models/rulesets"), is_query)
        assert "GitHub Enterprise" in str(refused.value)


def test_without_pulumi_the_error_names_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """`env`, which hands it its state, is there."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (ask,) = (step.query for step in steps(ENVIRONMENTS[:1]) if step.name == "dev-stack")
    with pytest.raises(UserError, match="`pulumi` is not installed"):
        run_command(ask, True)


def test_environments_in_one_subscription_cause_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The deployer of dev could change prod."""
    for stacks, told in ((["dev", "prod"], True), (["dev"], False)):
        error = ran(capsys, "bootstrap", *stacks, "--offline")[2]
        assert ("dev, prod share a subscription" in error) is told
    separate = [ENVIRONMENTS[0], replace(ENVIRONMENTS[1], subscription="another")]
    assert list(bootstrap.shared_subscriptions(separate)) == []


def test_the_commands_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Offline every command is shown; values that only Azure knows are in angle brackets."""
    lines = ran(capsys, "bootstrap", "dev", "--offline")[1].splitlines()
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
    _, out, err = ran(capsys, "bootstrap", "dev")
    assert "missing" in out and "add --run to create them" in err
    found = json.loads(ran(capsys, "bootstrap", "dev", "--run", "--json")[1])
    assert {one["outcome"] for one in found} == {"exists", "created"}
    assert ISSUER in json.dumps(found)


@pytest.mark.usefixtures("filled")
def test_the_identities_of_the_program_wait_for_pulumi(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program creates them; all other steps run before, and their variables after."""
    cloud.programs()
    _, out, err = ran(capsys, "bootstrap", "dev", "--run")
    missing = [line for line in out.splitlines() if line.startswith("missing")]
    missing = [line for line in missing if line.split()[1].startswith("dev-")]
    waiting = [f"dev-{purpose}-identity" for purpose in OF_THE_PROGRAM]
    assert missing.pop() == "missing  dev-stack-key-on-main"
    assert missing[:3] == [f"missing  {step}" for step in waiting]
    variables = tuple(f"missing  dev-{purpose}-A" for purpose in OF_THE_PROGRAM)
    assert all(line.startswith(variables) for line in missing[3:])
    assert out.count("gh workflow run infra.yml") == len(OF_THE_PROGRAM)
    assert "run infra.yml" in err
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
    """Only main; people approve what releases and deploys, and not their own; nobody bypasses."""
    outcomes(cloud, make=True)
    things, path = cloud.state["things"], f"repos/{ENVIRONMENTS[1].github}/environments"
    purposes = {f"{stack}-{purpose}": purpose for stack in ("dev", "prod") for purpose in PURPOSES}
    for name in (*purposes, "bot"):
        environment = things[f"{path}/{name}"]
        assert environment["deployment_branch_policy"]["custom_branch_policies"]
        assert environment["can_admins_bypass"] is False
        policies = things[f"{path}/{name} policies"]
        assert [(each["type"], each["name"]) for each in policies] == [("branch", "main")]
        reviewed = [
            rule
            for rule in environment["protection_rules"]
            if rule["type"] == "required_reviewers" and rule["prevent_self_review"]
        ]
        assert bool(reviewed) is (purposes.get(name) in REVIEWED)


@pytest.mark.attack("a leftover policy lets another branch or a tag deploy")
@pytest.mark.parametrize(
    ("kind", "name"), [("branch", "*"), ("tag", "main"), ("branch", "Main"), ("branch", "main*")]
)
def test_a_leftover_policy_is_told_and_removed(cloud: Cloud, kind: str, name: str) -> None:
    """Beside main's own, which stays."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    key = f"repos/{ENVIRONMENTS[0].github}/environments/dev-release policies"
    cloud.state["things"][key].insert(0, {"id": 9000, "name": name, "type": kind})
    cloud.taken()
    results = list(carry_out(steps(ENVIRONMENTS), cloud.run, make=False))
    (found,) = [one for one in results if one.outcome != "exists"]
    assert (found.step.name, found.outcome) == ("dev-release-branches", "differs")
    assert found.differences == (f"the {kind} `{name}` may deploy",)
    assert changing(cloud.taken()) == [] and "DELETE" in found.commands[0]
    outcomes(cloud, make=True)
    assert [(each["type"], each["name"]) for each in cloud.state["things"][key]] == [
        ("branch", "main")
    ]
    assert set(outcomes(cloud, make=True).values()) == {"exists"}


def test_rulesets_hold_main_the_tags_and_the_branches_of_the_app(cloud: Cloud) -> None:
    """The app alone proposes, maintainers tag a release, nobody moves a tag or passes by main."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    rulesets = {one["name"]: one for one in cloud.state["things"]["rulesets"].values()}
    refs = {name: one["conditions"]["ref_name"]["include"] for name, one in rulesets.items()}
    assert refs == {
        "main": ["refs/heads/main"],
        "release-tags": ["refs/tags/v*"],
        "release-tags-stay": ["refs/tags/v*"],
        # A branch of the first word alone leaves no place for those below it.
        "proposals": [
            *("refs/heads/promote", "refs/heads/promote/**/*"),
            *("refs/heads/revert", "refs/heads/revert/**/*"),
        ],
    }
    passing = {
        name: [(actor["actor_type"], actor["actor_id"]) for actor in one["bypass_actors"]]
        for name, one in rulesets.items()
    }
    assert passing == {
        "main": [],
        "release-tags": [("RepositoryRole", 2), ("RepositoryRole", 5)],
        "release-tags-stay": [],
        "proposals": [("Integration", 77)],
    }
    rules = {rule["type"]: rule.get("parameters") for rule in rulesets["main"]["rules"]}
    assert rules["pull_request"]["require_last_push_approval"] is True
    assert rules["required_status_checks"]["required_status_checks"] == [
        {"context": "required", "integration_id": 15368}
    ]


def _looser(ruleset: dict[str, Any], rule: str, **parameters: object) -> None:
    (found,) = [each for each in ruleset["rules"] if each["type"] == rule]
    found["parameters"].update(parameters)


@pytest.mark.attack("a ruleset that somebody loosened")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("main", lambda one: one.update(enforcement="evaluate")),
        ("main", lambda one: one.update(target="tag")),
        ("main", lambda one: one["conditions"]["ref_name"].update(exclude=["refs/heads/main"])),
        ("main", lambda one: one["conditions"]["ref_name"].update(include=[])),
        ("main", lambda one: _looser(one, "pull_request", require_last_push_approval=False)),
        ("main", lambda one: _looser(one, "pull_request", required_approving_review_count=0)),
        (
            "main",
            lambda one: _looser(
                one, "required_status_checks", required_status_checks=[{"context": "required"}]
            ),
        ),
        ("main", lambda one: one["rules"].pop(0)),
        (
            "release-tags-stay",
            lambda one: one["bypass_actors"].append(
                {"actor_type": "RepositoryRole", "actor_id": 4}
            ),
        ),
        ("proposals", lambda one: one["bypass_actors"][0].update(actor_id=78)),
        ("proposals", lambda one: one["bypass_actors"].clear()),
        ("proposals", lambda one: one.pop("bypass_actors")),
        ("proposals", lambda one: _looser(one, "update", update_allows_fetch_and_merge=True)),
    ],
)
def test_a_loosened_ruleset_is_made_again(
    cloud: Cloud, name: str, change: Callable[[dict[str, Any]], None]
) -> None:
    """Told as a difference first; what a team asks for beyond it is none."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    rulesets = cloud.state["things"]["rulesets"].values()
    (ruleset,) = [one for one in rulesets if one["name"] == name]
    ruleset["rules"].append({"type": "required_signatures"})
    assert set(outcomes(cloud, make=False).values()) == {"exists"}
    change(ruleset)
    assert outcomes(cloud, make=False)[f"ruleset-{name}-rules"] == "differs"
    outcomes(cloud, make=True)
    assert set(outcomes(cloud, make=True).values()) == {"exists"}


def test_without_the_app_its_ruleset_waits(cloud: Cloud) -> None:
    """And nothing else does; an id that is none does not count."""
    provisioned(cloud)
    for app in ({}, {"APP_ID": "{x.y}"}, {"APP_ID": "Iv1.abc"}):
        cloud.state["things"][f"variables {ENVIRONMENTS[0].github} bot"] = app
        found = outcomes(cloud, make=True)
        missing = {name for name, outcome in found.items() if outcome == "missing"}
        assert missing == {"app", "ruleset-proposals", "ruleset-proposals-rules"}


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
        lambda environment: environment["protection_rules"][0].update(
            reviewers=[{"type": "User", "reviewer": {"id": 9, "login": "mallory"}}]
        ),
        lambda environment: environment["protection_rules"][0].update(prevent_self_review=False),
        lambda environment: environment.update(deployment_branch_policy=None),
        lambda environment: environment.update(can_admins_bypass=True),
        lambda environment: environment.update(
            deployment_branch_policy={"protected_branches": True, "custom_branch_policies": False}
        ),
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
    """A starter too."""
    for settings in ENVIRONMENTS:
        name = settings.environment
        with pytest.raises(UserError, match=f"{name} has no reviewers"):
            steps([replace(settings, reviewers=())])


def test_a_reviewer_that_github_does_not_have_ends_the_command(cloud: Cloud) -> None:
    """With GitHub's answer; nothing creates a team."""
    cloud.programs()
    plan = steps([replace(ENVIRONMENTS[1], reviewers=("acme/nobody",))])
    with pytest.raises(UserError, match=r"Not Found"):
        list(carry_out(plan, run_command, make=True))


def granted(cloud: Cloud, role: CustomRole) -> dict[str, list[str]]:
    """What Azure was told that the role grants."""
    identity = role.id(ENVIRONMENTS[0].subscription)
    (definition,) = (each for key, each in cloud.state["things"].items() if identity in key)
    (permissions,) = definition["properties"]["permissions"]
    return permissions


@pytest.mark.attack("what releases starts a job, or what trains deletes a model or opens a network")
@pytest.mark.parametrize("role", CUSTOM_ROLES)
def test_a_role_lists_what_it_allows(role: CustomRole, cloud: Cloud) -> None:
    """Without wildcards; of its list what Azure has, since Azure refuses any other action."""
    outcomes(cloud, make=True)
    permissions = granted(cloud, role)
    assert permissions["notActions"] == permissions["notDataActions"] == []
    assert permissions["dataActions"] == list(role.data_actions)
    assert not any("*" in action for kind in permissions.values() for action in kind)
    assert {*permissions["actions"]} <= {*role.actions}
    left = {action for action in role.actions if action not in permissions["actions"]}
    older = ("/metadata/codes", "/metadata/snapshots", "/datasets/", "/jobs/", "/stage/")
    assert all(any(part in action for part in older) for action in left), left


def test_what_trains_cannot_release_and_what_releases_cannot_train(cloud: Cloud) -> None:
    """Nor may either open the network, read secrets or remove what others rely on."""
    outcomes(cloud, make=True)
    prefix = "Microsoft.MachineLearningServices/workspaces/"
    trains, releases = (
        {action.removeprefix(prefix) for action in granted(cloud, role)["actions"]}
        for role in (JOB_SUBMITTER, RELEASER)
    )
    reads = {action for action in trains if action.endswith("read")}
    assert reads == {action for action in releases if action.endswith("read")}
    assert {"jobs/read", "onlineEndpoints/read", "models/versions/read"} <= reads
    assert not any("secret" in action.lower() or "connections" in action for action in reads)
    assert {"jobs/write", "jobs/cancel/action", "codes/versions/write"} <= trains
    assert {"onlineEndpoints/write", "models/versions/write"} <= releases
    starts = ("jobs/", "experiments/", "schedules/", "batchEndpoints", "pipelines", "components/")
    assert not any(action.startswith(starts) for action in releases - reads)
    others = ("onlineEndpoints", "batchEndpoints", "models", "schedules", "outboundRules")
    assert not any(action.startswith(others) for action in trains - reads)
    changes = (trains | releases) - reads
    removed = {action for action in changes if action.endswith("delete")}
    assert removed == {"onlineEndpoints/deployments/delete"}
    shared = ("write", "computes", "datastores", "connections", "outboundRules", "listKeys")
    assert not any(action.startswith(shared) for action in changes)


@pytest.mark.parametrize(
    "change",
    [
        lambda permissions: permissions[0]["actions"].append("*/delete"),
        lambda permissions: permissions[0]["dataActions"].append("*"),
        lambda permissions: permissions.append({"actions": ["*"]}),
    ],
    ids=["actions", "data", "more"],
)
def test_a_role_definition_that_grants_more_is_written_again(
    cloud: Cloud, change: Callable[[Any], None]
) -> None:
    """A later template may take something away."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    (url,) = [
        key
        for key in cloud.state["things"]
        if JOB_SUBMITTER.id(ENVIRONMENTS[0].subscription) in key
    ]
    permissions = cloud.state["things"][url]["properties"]["permissions"]
    change(permissions)
    changed = outcomes(cloud, make=True)
    assert [name for name, outcome in changed.items() if outcome == "created"] == [
        "dev-job-submitter"
    ]


def test_placeholders_are_refused(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its line, before anything is asked; --offline only prints."""
    cloud.programs()
    code, _, error = ran(capsys, "bootstrap", "prod")
    assert code == 2
    assert "Pulumi.prod.yaml:4: `azure-native:location`" not in error
    for key in ("azure-native:subscriptionId", "platform:repository", "platform:reviewers"):
        assert f"`{key}` is the template's placeholder" in error
    cloud.read()
    assert cloud.taken() == []
    assert ran(capsys, "bootstrap", "prod", "--offline")[0] == 0


@pytest.mark.attack("the deployer makes itself, or a workflow, an owner")
def test_the_deployer_assigns_the_roles_of_the_program_alone(cloud: Cloud) -> None:
    """Neither one that assigns roles itself, nor one that the program does not grant."""
    outcomes(cloud, make=True)
    held = {name: one for name, one in cloud.state["things"].items() if name.startswith("role ")}
    (condition,) = {one["condition"] for name, one in held.items() if "Access Control" in name}
    custom = [role.id(ENVIRONMENTS[0].subscription) for role in CUSTOM_ROLES]
    lists = re.findall(r"ForAnyOfAnyValues:GuidEquals \{([^}]*)\}", condition)
    assert [one.split(", ") for one in lists] == [[*ROLES.values(), *custom]] * 2
    assert not {*ROLES.values()} & {*ROLE_MANAGERS.values()}
    assert condition.count("{") == condition.count("}") == 4
    for part in ("write'})) OR (@Request[", "delete'})) OR (@Resource["):
        assert f"ActionMatches{{'Microsoft.Authorization/roleAssignments/{part}" in condition
    assert not any(one["condition"] for name, one in held.items() if "Access Control" not in name)


@pytest.mark.attack("the condition of the deployer's role is taken away by hand")
def test_a_role_with_another_condition_is_granted_anew(cloud: Cloud) -> None:
    """Without it the deployer could assign any role."""
    provisioned(cloud)
    outcomes(cloud, make=True)
    things = cloud.state["things"]
    (key,) = (key for key in things if "dev-deploy Role Based" in key)
    things[key]["condition"], condition = None, things[key]["condition"]
    results = list(carry_out(steps(ENVIRONMENTS), cloud.run, make=False))
    (found,) = [one for one in results if one.outcome != "exists"]
    assert (found.step.name, found.outcome) == ("dev-role", "differs")
    outcomes(cloud, make=True)
    assert things[key]["condition"] == condition
    assert set(outcomes(cloud, make=True).values()) == {"exists"}


def test_the_key_is_created_without_waiting_for_a_role(cloud: Cloud) -> None:
    """Through Azure Resource Manager, which requires no role on the vault's data."""
    outcomes(cloud, make=True)
    commands = [words for words in cloud.taken() if words[1] == "rest" and "/keys/" in words[5]]
    assert [words[3] for words in commands] == ["get", "put"] * len(ENVIRONMENTS)
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
        with pytest.raises(UserError, match=error):
            list(carry_out(plan, cloud.run, make=True))
        assert changing(cloud.taken()) == []
        return
    list(carry_out(plan, cloud.run, make=True))
    made = [words for words in cloud.taken() if "--subject" in words]
    subjects = [words[words.index("--subject") + 1] for words in made]
    assert subjects == [
        f"repo:{declared}:environment:{stack}-{purpose}"
        for stack in ("dev", "prod")
        for purpose in ("preview", "deploy")
    ]
    assert "variables acme/platform dev-deploy" in cloud.state["things"]
