"""Which changes a review lists as weakenings, and which it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.preview import report
from infra.preview.capture import ABSENT, Property, Resource, ResourceChange, changes
from infra.preview.report import budgeted
from infra.preview.weakenings import LIMITS, PROGRAM, ROLE, WAIVERS, edits, weakenings
from ml.core.azure import ROLES
from tests.infra.preview.test_changes import ROOT_URN, _capture, _report
from tests.policies.test_infra_mutation import CONTEXT

STACK = "infra/Pulumi.prod.yaml"
VAULT, ACCOUNT, HOLDS = "keyvault:Vault", "storage:StorageAccount", "another setting"
LOGS, COMPUTE = "operationalinsights:Workspace", "machinelearningservices:Compute"
NIC, DEFENDER = "network:NetworkInterface", "security:DefenderForStorage"


@pytest.mark.parametrize(
    ("kind", "path", "before", "after", "words"),
    [
        (VAULT, "(protect)", "True", "False", "no longer protects"),
        (VAULT, "(protect)", "False", "True", None),
        (VAULT, "properties.softDeleteRetentionInDays", 90, 7, "for less"),
        (VAULT, "properties.softDeleteRetentionInDays", 7, 90, None),
        (VAULT, "properties.tenantId", "a", "b", "trusts"),
        (VAULT, "tags.costCenter", "a", "b", None),
        (ACCOUNT, "allowSharedKeyAccess", False, True, "a protection ends"),
        (ACCOUNT, "allowSharedKeyAccess", True, False, None),
        (ACCOUNT, "requireInfrastructureEncryption", True, ABSENT, "a protection ends"),
        (ACCOUNT, "allowedCopyScope", "AAD", ABSENT, "another setting"),
        (ACCOUNT, "routingPreference.publishInternetEndpoints", ABSENT, True, "another setting"),
        ("network:VirtualNetwork", "dhcpOptions.dnsServers[8.8.8.8]", ABSENT, "8.8.8.8", "trusts"),
        (VAULT, "(retainOnDelete)", ABSENT, "True", "in another way"),
        (ROLE, "(hooks)", "rights-count", ABSENT, "no longer waits"),
        (ROLE, "(hooks)", "rights-count", "rights-count, before_create evil", "code runs"),
        (VAULT, "(replaceOnChanges)", ABSENT, "['tags']", "in another way"),
        ("monitor:MetricAlert", "severity", 2, 4, "later"),
        ("monitor:MetricAlert", "severity", 2, 1, None),
        (STACK, "secretsprovider", "azurekeyvault://a", "azurekeyvault://b", "another key"),
        (STACK, "encryptedkey", "AAAA", "BBBB", "another key"),
        (STACK, "environment[0]", ABSENT, "evil", "settings of others"),
        (PROGRAM, "program: os.system", ABSENT, "site.py", "more than it declares"),
        (PROGRAM, "program: os.system", "site.py", ABSENT, None),
        ("pulumi:outputs", "password", ABSENT, "${Registry:images.password}", "others may read"),
        ("pulumi:outputs", "cluster:cpu", ABSENT, "${Compute:cpu.name}", None),
        ("consumption:Budget", "filter.tags.name", ABSENT, "x", "others hear"),
        ("consumption:Budget", "amount", 500, 5000, "later"),
        ("consumption:Budget", "amount", 5000, 500, None),
        (ROLE, "roleDefinitionId", "x/1", "x/2", "other rights"),
        (ROLE, "roleDefinitionId", f"x/{ROLES['Reader']}", f"y/{ROLES['Reader']}", None),
        (ROLE, "description", "a", "b", None),
        (LIMITS, "prod.max_nodes", 8, 9, "loosened"),
        (LIMITS, "prod.max_nodes", 9, 8, None),
        (LIMITS, "prod.max_nodes", 2, ABSENT, "loosened"),
        (LIMITS, "prod.min_log_days", 90, 30, "loosened"),
        (LIMITS, "prod.given[0]", ABSENT, "/subscriptions/a", "loosened"),
        (LIMITS, "prod.given[0]", "/subscriptions/a", ABSENT, None),
        (LIMITS, "default.tags[0]", "owner", ABSENT, "required tags"),
        (WAIVERS, "waived[0].rule", ABSENT, "storage-tls", "waived"),
        (WAIVERS, "waived[0].rule", "storage-tls", ABSENT, None),
        (STACK, "platform:reviewers[0]", "org/team", ABSENT, "approve"),
        (STACK, "platform:training.nodes", 4, 40, "may take more"),
        (STACK, "platform:training.nodes", 40, 4, None),
        (STACK, "platform:network.allowed_hosts[2]", ABSENT, "evil.example", "another host"),
        (STACK, "platform:cost_center", "ml", "x", None),
        (VAULT, "properties.enabledForTemplateDeployment", ABSENT, True, "on or off"),
        (NIC, "enableIPForwarding", ABSENT, True, "on or off"),
        (NIC, "dnsSettings.dnsServers[8.8.8.8]", ABSENT, "8.8.8.8", HOLDS),
        (DEFENDER, "properties.malwareScanning.onUpload.isEnabled", True, ABSENT, "on or off"),
        ("monitor:DiagnosticSetting", "logs[0].categoryGroup", "allLogs", "audit", HOLDS),
        (LOGS, "features.enableDataExport", ABSENT, True, "on or off"),
        (LOGS, "features.disableLocalAuth", True, ABSENT, "on or off"),
        ("privatedns:VirtualNetworkLink", "resolutionPolicy", ABSENT, "NxDomainRedirect", HOLDS),
        ("storage:FileShare", "rootSquash", "RootSquash", "AllSquash", HOLDS),
        (COMPUTE, "properties.properties.osType", ABSENT, "Windows", HOLDS),
        (COMPUTE, "properties.properties.scaleSettings.maxNodeCount", 8, 4, None),
    ],
)
def test_a_change_weakens_or_not(
    kind: str, path: str, before: Any, after: Any, words: str | None
) -> None:
    change = ResourceChange("changed", kind, "it", "urn", (Property(path, before, after),))
    lines = [*weakenings([change])]
    assert [words in line for line in lines if words] == [True] * bool(words), lines
    assert len(lines) == bool(words)


def test_what_a_principal_gets_is_one_line_with_roles_by_name() -> None:
    def granted(name: str, role: str, scope: str) -> Resource:
        inputs = {"principalId": "${UserAssignedIdentity:train.principalId}", "scope": scope}
        inputs["roleDefinitionId"] = f"/subscriptions/s/{ROLES[role]}"
        return Resource(f"urn::{name}", f"azure-native:{ROLE}", name, ROOT_URN, inputs)

    added = (
        granted("a", "Reader", "${StorageAccount:lake.id}"),
        granted("b", "AcrPush", "${Registry:images.id}"),
    )
    found = [*weakenings(changes(_capture(), _capture(*added)))]
    assert found == ["train gets Reader on lake, AcrPush on images"]


def test_a_lost_dependency_is_named_only_while_the_other_is_made() -> None:
    def waits(*urns: str) -> Resource:
        return Resource("urn::it", f"azure-native:{VAULT}", "it", ROOT_URN, {}, dependencies=urns)

    role = Resource("urn::role", f"azure-native:{ROLE}", "role", ROOT_URN, {})
    before = _capture(waits(role.urn), role)
    assert [*weakenings(changes(before, _capture(waits(), role)))] == [
        "it: it no longer waits for others: (dependsOn) role → (not set)"
    ]
    assert "dependsOn" not in str(changes(before, _capture(waits())))


def test_a_plug_in_that_is_no_longer_named_is_a_weakening(tmp_path: Path) -> None:
    """One that is added is not."""
    trees = tmp_path / "before", tmp_path / "after"
    for tree, named in zip(trees, ('["log_cap", "size"]', '["size", "tags"]'), strict=True):
        tree.mkdir()
        table = "[tool.azureml-gitops-starter.plug-ins]"
        (tree / "pyproject.toml").write_text(f"{table}\ninfrastructure-rules = {named}\n")
    (line,) = weakenings(edits("prod", *trees))
    assert "other plug-ins judge" in line and "log_cap" in line and "tags" not in line


def test_files_that_a_stack_is_made_from_are_compared(tmp_path: Path) -> None:
    """Its settings, limits, waivers, and the code of the rules."""
    trees = tmp_path / "before", tmp_path / "after"
    for tree, nodes in zip(trees, (4, 8), strict=True):
        (tree / "policies/infra").mkdir(parents=True)
        (tree / LIMITS).write_text(f"prod: {{max_nodes: {nodes}}}\n")
        (tree / WAIVERS).write_text("# none\n" if nodes == 4 else "- {rule: storage-tls}\n")
        (tree / "policies/infra/cost.py").write_text("x" * nodes)
    found = edits("prod", *trees)
    assert [change.kind for change in found] == [LIMITS, WAIVERS, "policies/infra/cost.py"]
    assert edits("prod", trees[0], trees[0]) == ()
    text = _report(_capture(), base="main", edits=found).verdict
    assert text == "nothing rejected by policy, 3 weakenings to approve"


@pytest.mark.attack("code that no resource shows asks less of a review, or of GitHub")
@pytest.mark.parametrize(
    "name",
    [
        *("infra/settings/github.py", "infra/live/github.py", "infra/live/drift_ignore.yml"),
        *("infra/cost/prices.json", "infra/live/sas.py", "infra/settings/model.py"),
        *("infra/program/access.py", "infra/cli.py", "ml/core/git.py", "Makefile", "framework.mk"),
    ],
)
def test_a_change_of_code_is_named(name: str, tmp_path: Path) -> None:
    """Branches that may deploy, self-review, drift that is ignored, prices, lifetimes, waits."""
    trees = tmp_path / "before", tmp_path / "after"
    for tree, code in zip(trees, ("a = 1", "a = 0"), strict=True):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(code)
    (line,) = weakenings(edits("prod", *trees))
    assert line.startswith(f"{Path(name).name}: the code of rules, roles, checks or the program")
    assert name.partition("/")[0] in report.PATHS  # what a comparison takes of a revision


@pytest.mark.attack("the program opens what it declares closed, by a command or in Azure alone")
@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("import subprocess; subprocess.run(['az'])", "subprocess.run"),
        ("from os import system as show; show('az')", "os.system"),
        ("import asyncio; asyncio.create_subprocess_exec('az')", "asyncio.create_subprocess_exec"),
        ("is_open = pulumi.get_organization() != 'organization'", "pulumi.get_organization"),
        ("import os; is_open = 'ARM_USE_OIDC' in os.environ", "os.environ"),
        ("__import__('o' 's').system('az')", "__import__"),
        ("pulumi.export('more', 1)", None),
        ("no code (", None),
        ("from pulumi_azure_native import network; network.RouteTable('more')", None),
    ],
)
def test_what_the_program_does_beside_declaring_is_named(
    line: str, named: str | None, tmp_path: Path
) -> None:
    trees = tmp_path / "before", tmp_path / "after"
    for tree, code in zip(trees, ("", line), strict=True):
        (tree / "infra/program").mkdir(parents=True)
        text = f"import asyncio\nimport pulumi\npulumi.export('a', asyncio.sleep(1))\n{code}\n"
        (tree / "infra/program/site.py").write_text(text)
    lines = [each for each in weakenings(edits("prod", *trees)) if "than it declares" in each]
    assert bool(lines) == bool(named)
    assert all(f"program: {named} " in each for each in lines)


def test_the_key_of_the_secrets_of_a_stack_is_compared(tmp_path: Path) -> None:
    trees = tmp_path / "before", tmp_path / "after"
    for tree, vault in zip(trees, ("ours", "theirs"), strict=True):
        (tree / "infra").mkdir(parents=True)
        text = f"secretsprovider: azurekeyvault://{vault}\nconfig: {{a: b}}\n"
        (tree / STACK).write_text(text)
    (line,) = weakenings(edits("prod", *trees))
    assert "another key" in line and "theirs" in line


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (0.5, "worst-of-budget budget-warns"),
        (1.5, "worst-of-budget"),
        (9.9, ""),
        (10.5, "budget-of-typical"),
        (None, ""),
    ],
)
def test_a_budget_is_compared_with_the_cost_of_a_month(part: float | None, words: str) -> None:
    """Of the typical month of dev, whose worst one is ten times as much."""
    cost = _report(_capture()).cost
    inputs = {"amount": int(part * cost.total.typical)} if part else {}
    kind = "consumption:Budget"
    budget = Resource("urn::b", f"azure-native:{kind}", "budget", ROOT_URN, inputs)
    found = [*budgeted(_capture(budget), cost, CONTEXT.limits["dev"])]
    assert " ".join(breach.policy for breach in found) == words
    assert all(breach.mandatory == (breach.policy != "budget-warns") for breach in found)
    loose = replace(CONTEXT.limits["dev"], max_budget_of_typical=100, max_worst_of_budget=100)
    assert not [each for each in budgeted(_capture(budget), cost, loose) if each.mandatory]
