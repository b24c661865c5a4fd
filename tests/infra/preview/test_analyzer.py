"""The findings of the policy pack for a small program, and the pack as Pulumi's CLI starts it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import yaml
from google.protobuf import empty_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from ml.core.errors import UserError
from policies.infra.pack import RULES, load
from tests.conftest import ROOT
from tests.infra.programs import captures, tree

pytestmark = pytest.mark.slow

PROGRAM = """
    from pulumi_azure_native import managedidentity, resources, storage

    group = resources.ResourceGroup("group", resource_group_name="rg", location="westeurope")
    who = managedidentity.UserAssignedIdentity("who", resource_group_name=group.name)
    storage.StorageAccount(
        "open", resource_group_name=group.name, location="westeurope", kind="StorageV2",
        sku=storage.SkuArgs(name="Standard_GZRS"), allow_shared_key_access=True,
        public_network_access=who.client_id,
    )
"""


HIDDEN = """
    import pulumi_azure_native as azure
    from pulumi import ResourceOptions
    from pulumi_azure_native import authorization, network, resources

    group = resources.ResourceGroup(
        "group", resource_group_name="rg", location="westeurope",
        opts=ResourceOptions(ignore_changes=["tags"]),
    )
    elsewhere = azure.Provider("elsewhere", subscription_id="00000000-0000-0000-0000-000000000001")
    network.Subnet(
        "apart", resource_group_name=group.name, virtual_network_name="vnet", subnet_name="apart",
        opts=ResourceOptions(provider=elsewhere),
    )
    resources.Deployment(
        "template", resource_group_name=group.name,
        properties=resources.DeploymentPropertiesArgs(mode="Incremental", template={}),
    )
    authorization.ManagementLockByScope("lock", scope=group.id, level="CanNotDelete")
"""


def test_findings_come_with_their_policy_level_and_resource(tmp_path: Path) -> None:
    (found,) = captures(["prod"], root=tree(tmp_path, PROGRAM))
    by_policy = {one.policy: one for one in found.findings if "open:" in one.message}
    key = by_policy["storage-shared-key"]
    assert key.mandatory and key.urn.endswith("::open")
    assert key.message == "open: `allowSharedKeyAccess` is true, must be false"
    # What is not known before the update is a no, and not dropped.
    assert by_policy["storage-public-access"].mandatory
    assert "not known before the update" in by_policy["storage-public-access"].message
    # Rules of the whole stack are asked too.
    assert by_policy["storage-defender"].mandatory and "cost-budget" in {
        one.policy for one in found.findings
    }


def test_resources_that_rules_cannot_check_are_refused(tmp_path: Path) -> None:
    """A separate subnet, made in another subscription; a template, manual changes, a lock by its
    scope.
    """
    (found,) = captures(["prod"], root=tree(tmp_path, HIDDEN))
    said = {(one.policy, one.urn.split("::")[-1]) for one in found.findings if one.mandatory}
    assert {one for one in said if one[0].startswith(("known", "lock", "own-provider"))} == {
        ("known-kind", "apart"),
        ("own-provider", "apart"),
        ("known-kind", "template"),
        ("known-changes", "group"),
        ("lock-not-on-group", "lock"),
    }


def test_the_pack_refuses_no_stack_when_run_by_the_cli() -> None:
    """Stack rules see outputs, which lack names such as `computeName`."""
    found = captures(["dev", "prod", "staging"])
    assert {one.stack: [f.message for f in one.findings if f.mandatory] for one in found} == {
        "dev": [],
        "prod": [],
        "staging": [],
    }


# What pulumi's sdk/python/dist/pulumi-analyzer-policy-python does with ENGINE, PACK and the options
# of PulumiPolicy.yaml; the CLI starts it in the pack's folder (plugin/analyzer_plugin.go).
SHIM = """
virtualenv=$PWD/${3#-virtualenv=}
PATH="$virtualenv/bin:$PATH"
exec "$virtualenv/bin/python" -u -m pulumi.policy "$1" "$2"
"""


PLUG_IN = """
from policies.infra.rule import Kind, Rules

RULES = Rules()
RULES.resource("own-rule", "Logs have tags.", "own", Kind.LOGS).must("tags.mine", "yes")
"""


def _started(folder: Path, waivers: str = "") -> subprocess.Popen[str]:
    """The pack as the CLI starts it, from a copy with a plug-in: nothing of ours is on the path."""
    pack = folder / "policies" / "infra"
    shutil.copytree(ROOT / "policies" / "infra", pack)
    shutil.copy(ROOT / "policies" / "waivers.py", folder / "policies")
    shutil.copytree(ROOT / "ml" / "core", folder / "ml" / "core")
    (folder / "policies/own").mkdir()
    (folder / "policies/own/logs.py").write_text(PLUG_IN)
    table = "[tool.azureml-gitops-starter.plug-ins]"
    (folder / "pyproject.toml").write_text(f'{table}\ninfrastructure-rules = ["logs"]\n')
    if waivers:
        (pack / "waivers.yml").write_text(waivers)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    runtime = yaml.safe_load((pack / "PulumiPolicy.yaml").read_text())["runtime"]
    assert runtime["name"] == "python" and list(runtime["options"]) == ["virtualenv"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {
        "PULUMI_CONFIG": json.dumps({"platform:name": "mlplat", "platform:clusters": "[]"}),
        "PULUMI_ORGANIZATION": "organization",
        "PULUMI_PROJECT": "platform",
        "PULUMI_STACK": "prod",
        "PULUMI_DRY_RUN": "true",
    }
    option = f"-virtualenv={runtime['options']['virtualenv']}"
    return subprocess.Popen(
        ["sh", "-c", SHIM, "pulumi-analyzer-policy-python", "127.0.0.1:1", ".", option],
        cwd=pack,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if waivers else None,
        text=True,
    )


def _resource(kind: str, name: str) -> analyzer_pb2.AnalyzeRequest:
    return analyzer_pb2.AnalyzeRequest(
        type=kind, urn=f"urn:pulumi:prod::platform::{kind}::{name}", name=name
    )


def test_the_pack_starts_by_the_clis_protocol_and_changes_no_resource(tmp_path: Path) -> None:
    """The CLI's calls in the CLI's order, as in its step generator."""
    process = _started(tmp_path)
    try:
        assert process.stdout
        port = process.stdout.readline().strip()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            pack = analyzer_pb2_grpc.AnalyzerStub(channel)
            with pytest.raises(grpc.RpcError) as unknown:
                pack.Handshake(analyzer_pb2.AnalyzerHandshakeRequest(engine_address="127.0.0.1:1"))
            # The CLI goes on without.
            assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
            pack.ConfigureStack(
                analyzer_pb2.AnalyzerStackConfigureRequest(
                    stack="prod", project="platform", organization="organization", dry_run=True
                )
            )
            info = pack.GetAnalyzerInfo(empty_pb2.Empty())
            levels = {one.name: one.enforcementLevel for one in info.policies}
            assert {name for name, level in levels.items() if level == analyzer_pb2.ADVISORY} == {
                *("set-aside", "set-aside-whole")
            }
            assert info.name == "platform" and len(levels) == len(RULES) + 3
            assert levels["own-rule"] == analyzer_pb2.MANDATORY
            # `all` is the CLI's own word in a policy configuration; nothing here takes any.
            assert "all" not in levels and info.supportsConfig
            assert not any(one.configSchema.properties for one in info.policies)
            assert re.fullmatch(r"\d+\.\d+\.\d+", pack.GetPluginInfo(empty_pb2.Empty()).version)
            configured = analyzer_pb2.ConfigureAnalyzerRequest()
            for name, level in levels.items():
                configured.policyConfig[name].enforcementLevel = level
            pack.Configure(configured)
            said = {}
            for asked in (
                _resource("pulumi:pulumi:Stack", "platform-prod"),
                _resource("pulumi:providers:azure-native", "default_3_29_0"),
                _resource("platform:vault:Vault", "vault"),
                _resource("azure-native:keyvault:Vault", "open"),
            ):
                assert not pack.Remediate(asked).remediations
                said[asked.name] = {one.policyName for one in pack.Analyze(asked).diagnostics}
            assert "vault-firewall" in said.pop("open") and not any(said.values())
            whole = analyzer_pb2.AnalyzeStackRequest()
            vault = _resource("azure-native:keyvault:Vault", "open")
            whole.resources.add(type=vault.type, urn=vault.urn, name=vault.name)
            refused = {one.policyName for one in pack.AnalyzeStack(whole).diagnostics}
            assert {"private-endpoints", "data-kept"} <= refused
    finally:
        process.kill()
        process.communicate()


def test_a_waived_finding_is_advice_with_its_owner(tmp_path: Path) -> None:
    rules = ("storage-shared-key", "storage-defender")
    limited = {
        name: replace(limit, advice=rules) if name == "prod" else limit
        for name, limit in load().limits.items()
    }
    here = tree(tmp_path, PROGRAM)
    (found,) = captures(["prod"], root=here, context=replace(load(), limits=limited))
    said = {one.message: one.mandatory for one in found.findings if "advice in prod" in one.message}
    assert len(said) == 2 and not any(said.values())
    assert not {one.policy for one in found.findings} & {*rules}


def test_a_pack_with_invalid_files_does_not_start(tmp_path: Path) -> None:
    process = _started(tmp_path, "- rule: vault-firewall\n")
    _, errors = process.communicate()
    assert process.returncode
    assert re.search(
        r"waivers.yml:1: no `\[0\].owner`; expected: who answers for it", errors.splitlines()[-1]
    )


def test_a_rule_that_fails_is_reported_at_its_own_line(tmp_path: Path) -> None:
    """Not at a line of the program, nor with a traceback."""
    with pytest.raises(UserError) as refused:
        captures(["prod"], root=tree(tmp_path, PROGRAM), context=replace(load(), limits={}))
    (problem,) = refused.value.problems
    assert problem.code == "rule-failed" and problem.hint
    assert problem.place and problem.place.path == "policies/infra/limits.py"
    assert "ValueError: " in problem.actual
