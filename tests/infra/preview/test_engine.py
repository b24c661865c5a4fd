"""Running a program against the stand-in engine: the capture, and what is refused."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from infra.preview.capture import SECRET
from infra.preview.engine import plain
from infra.preview.launch import SDK
from ml.core.errors import Place, UserError
from tests.conftest import ROOT
from tests.infra.programs import capture, captures, tree

PROGRAM = """
    import pulumi
    from pulumi_azure_native import managedidentity, resources

    part = pulumi.ComponentResource("platform:test:Part", "part")
    group = resources.ResourceGroup(
        "group", resource_group_name="rg", location="westeurope",
        opts=pulumi.ResourceOptions(protect=True),
    )
    who = managedidentity.UserAssignedIdentity(
        "who", resource_group_name=group.name, location=pulumi.Output.secret("hidden"),
        opts=pulumi.ResourceOptions(parent=part),
    )
    pulumi.export("principal", who.principal_id)
"""


def test_a_program_is_captured_with_parents_dependencies_and_references(tmp_path: Path) -> None:
    found = capture("dev", root=tree(tmp_path, PROGRAM))
    assert found.problems == ()
    group, who = (
        next(one for one in found.provided if one.name == name) for name in ("group", "who")
    )
    assert group.protect and group.inputs == {"resourceGroupName": "rg", "location": "westeurope"}
    assert who.inputs["resourceGroupName"] == "${ResourceGroup:group.name}"
    assert who.uses == {"resourceGroupName": (group.urn,)}
    assert found.component(who) == "part" and found.component(group) == ""
    assert found.outputs == {"principal": "${UserAssignedIdentity:who.principalId}"}


@pytest.mark.attack("the program tells a preview by its placeholders, and deploys something else")
@pytest.mark.parametrize("test", ["'$' in id", "id.startswith('/subscriptions')", "len(id) < 40"])
def test_a_program_that_tells_an_update_by_its_values_is_a_problem(
    test: str, tmp_path: Path
) -> None:
    program = f"""
        from pulumi_azure_native import managedidentity, resources

        group = resources.ResourceGroup("group", location="westeurope")
        region = group.id.apply(lambda id: "westeurope" if {test} else "eastus")
        managedidentity.UserAssignedIdentity("who", resource_group_name=group.name, location=region)
    """
    (found,) = captures(["dev"], root=tree(tmp_path, program))
    expected = "who: an update declares it differently: location"
    assert found.problems == (expected,)
    tree(tmp_path, program.replace("eastus", "westeurope"))
    assert captures(["dev"], root=tmp_path)[0].problems == ()


def test_the_alias_shortcut_does_not_change_the_capture(tmp_path: Path) -> None:
    """The unchanged SDK, which computes a URN for each alias, declares the same."""
    root = tree(tmp_path, PROGRAM)
    assert capture("dev", root=root) == capture("dev", root=root, bare=True)


def test_the_modules_of_the_program_are_imported_before_it_runs() -> None:
    """A missing one would be imported again for each stack."""
    names = {
        alias.name
        for path in (ROOT / "infra" / "program").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module == "pulumi_azure_native"
        for alias in node.names
    }
    assert names == set(SDK)


def test_options_and_hooks_of_every_moment_are_captured(tmp_path: Path) -> None:
    """A hook is code that runs; an option may replace what holds data."""
    more = """
    hook = pulumi.ResourceHook("open", lambda args: None)
    resources.ResourceGroup(
        "other", resource_group_name="other",
        opts=pulumi.ResourceOptions(
            replace_on_changes=["tags"], plugin_download_url="https://evil.example",
            hooks=pulumi.ResourceHookBinding(after_create=[hook], before_delete=[hook]),
        ),
    )
"""
    found = capture("dev", root=tree(tmp_path, PROGRAM + more))
    by_name = {one.name: one for one in found.provided}
    assert by_name["group"].options == {} and by_name["group"].hooks == ()
    assert sorted(by_name["other"].hooks) == ["before_delete open", "open"]
    assert by_name["other"].options == {
        "replaceOnChanges": "['tags']",
        "pluginDownloadURL": "https://evil.example",
    }


def test_a_secret_is_replaced(tmp_path: Path) -> None:
    found = capture("dev", root=tree(tmp_path, PROGRAM))
    (who,) = (one for one in found.provided if one.name == "who")
    assert who.inputs["location"] == SECRET
    assert "hidden" not in str(found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('resources.ResourceGroup("group", resource_group_name="other")', "two resources have"),
        (
            'managedidentity.UserAssignedIdentity("who", resource_group_name=group.name)',
            "another resource has the same type and name",
        ),
    ],
)
def test_disorder_is_reported(line: str, said: str, tmp_path: Path) -> None:
    found = capture("dev", root=tree(tmp_path, f"{PROGRAM}\n    {line}\n"))
    assert len(found.problems) == 1 and said in found.problems[0]


def test_a_program_that_fails_is_refused_with_its_reason(tmp_path: Path) -> None:
    broken = tree(tmp_path, "raise ValueError('no such region')")
    with pytest.raises(UserError, match="no such region") as refused:
        capture("dev", root=broken)
    assert refused.value.problems[0].code == "program-failed"


@pytest.mark.parametrize(
    ("program", "said", "line"),
    [
        ("import pulumi\n\nraise ValueError('boom')", "ended with 1: ValueError: boom", 3),
        ("import pulumi\nx = (", "ended with 1: SyntaxError: '(' was never closed", 2),
        ("import pulumi\npulumi.Output.from_input(1).apply(lambda one: one / 0)", "by zero", 2),
        ("import sys\nsys.exit(3)", "ended with 3: no message", None),
        (
            "from ml.core.errors import Problem, UserError\n"
            "raise UserError(Problem('a-code', 'a found', 'an expected', 'a hint'))",
            "ended with 1: error[a-code]: a found",
            None,
        ),
    ],
)
def test_a_failed_program_is_reported_at_its_own_line(
    program: str, said: str, line: int | None, tmp_path: Path
) -> None:
    """Not the SDK's lines below it; refused settings have their own place."""
    shutil.copytree(ROOT / "ml" / "core", tmp_path / "ml" / "core")
    with pytest.raises(UserError) as refused:
        capture("dev", root=tree(tmp_path, program))
    (problem,) = refused.value.problems
    assert said in problem.actual and problem.hint
    assert problem.place == (Place("infra/__main__.py", line) if line else None)


ASKED = "account_name='st', resource_group_name='rg'"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("keyvault.Vault.get('v', '/subscriptions/s/vaults/kv').name", "kv"),
        ("keyvault.Vault.get('v', '/subscriptions/s/vaults/kv').id", "/subscriptions/s/vaults/kv"),
        ("keyvault.Vault.get('v', '/s/kv').properties.vault_uri", "${Vault:v.properties.vaultUri}"),
        (
            f"storage.get_storage_account({ASKED}).primary_endpoints.blob",
            "${getStorageAccount.primaryEndpoints.blob}",
        ),
        (f"storage.get_storage_account_output({ASKED}).id", "${getStorageAccount.id}"),
        (
            "pulumi.StackReference('us/hub/prod').get_output('x')",
            "${StackReference:us/hub/prod.id}/x",
        ),
        (
            "pulumi.StackReference('hub').require_output('x').apply(lambda text: f'of {text}')",
            "of ${StackReference:hub.id}/x",
        ),
    ],
)
def test_what_exists_already_is_answered(value: str, text: str, tmp_path: Path) -> None:
    """Resources by `get`, invokes and outputs of other stacks: unknown, and none of the stack."""
    asking = f"""
        import pulumi
        from pulumi_azure_native import keyvault, managedidentity, storage
        managedidentity.UserAssignedIdentity("it", resource_group_name="rg", location={value})
    """
    (found,) = captures(["dev"], root=tree(tmp_path, asking))
    assert [one.inputs["location"] for one in found.provided] == [text] and not found.problems
    assert "known-reads" in [breach.policy for breach in found.findings]


def test_integers_are_restored() -> None:
    """Pulumi's protocol only has floats."""
    given = {"nodes": 4.0, "share": 0.5, "list": [1.0], "flag": True}
    assert plain(given) == {"nodes": 4, "share": 0.5, "list": [1], "flag": True}
    assert isinstance(plain(given)["nodes"], int)
