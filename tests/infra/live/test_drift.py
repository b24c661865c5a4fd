"""Drift: changed, missing and undeclared resources, but not values that Azure fills in."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.live.arm import Arm
from infra.live.drift import Difference, drift, read_ignored
from ml.core.errors import UserError
from tests.infra.live.declared import (
    GROUP,
    IDENTITY,
    STORAGE,
    SUBSCRIPTION,
    VAULT,
    WORKSPACE,
    resource,
    resources,
)
from tests.infra.live.nulls import with_a_null
from tests.stand_ins.arm_server import SignedIn, State

KNOWN = read_ignored()


def found(arm: Arm, *more: Any) -> list[Difference]:
    return list(drift([*resources(), *more], arm, KNOWN))


def test_a_resource_as_declared_has_no_drift(arm: Arm, state: State) -> None:
    """In another case, unit, order and nesting, with everything that Azure adds."""
    assert found(arm) == []
    assert ("GET", f"{WORKSPACE}/computes/cpu-cluster", "2025-12-01") in state.asked


@pytest.mark.parametrize(
    ("id", "path", "value", "said"),
    [
        (STORAGE, "properties.allowSharedKeyAccess", True, "allowSharedKeyAccess"),
        (
            STORAGE,
            "properties.networkAcls.defaultAction",
            "Allow",
            "networkRuleSet.defaultAction",
        ),
        (STORAGE, "sku.name", "Standard_LRS", "sku.name"),
        (VAULT, "properties.enablePurgeProtection", None, "properties.enablePurgeProtection"),
        (WORKSPACE, "properties.publicNetworkAccess", "Enabled", "publicNetworkAccess"),
        (WORKSPACE, "properties.storageAccount", f"{STORAGE}other", "storageAccount"),
        (WORKSPACE, "identity.userAssignedIdentities", {}, "identity.userAssignedIdentities"),
        (
            f"{WORKSPACE}/computes/cpu-cluster",
            "properties.properties.scaleSettings.minNodeCount",
            1,
            "properties.properties.scaleSettings.minNodeCount",
        ),
        (
            f"{WORKSPACE}/computes/cpu-cluster",
            "properties.properties.scaleSettings.nodeIdleTimeBeforeScaleDown",
            "PT30M",
            "properties.properties.scaleSettings.nodeIdleTimeBeforeScaleDown",
        ),
        (GROUP, "tags.environment", "prod", "tags.environment"),
        (GROUP, "location", "North Europe", "location"),
    ],
)
def test_one_changed_property_is_one_difference(
    arm: Arm, state: State, id: str, path: str, value: object, said: str
) -> None:
    """Somebody clicked in the portal."""
    at = state.resources[id]
    *way, last = path.split(".")
    for name in way:
        at = at[name]
    at[last] = value
    (one,) = found(arm)
    assert (one.kind, one.id, one.path, one.actual) == (
        "changed", id, said, [] if value == {} else value
    )  # fmt: skip


def test_an_absent_property_is_a_change(arm: Arm, state: State) -> None:
    """Absent is not the same as false."""
    del state.resources[STORAGE]["properties"]["allowSharedKeyAccess"]
    (one,) = found(arm)
    assert (one.path, one.declared, one.actual) == ("allowSharedKeyAccess", False, None)


def test_a_deleted_resource_is_missing(arm: Arm, state: State) -> None:
    """By its id."""
    del state.resources[IDENTITY]
    assert [(one.kind, one.id) for one in found(arm)] == [("missing", IDENTITY)]
    container = Difference("missing", "raw", f"{STORAGE}/blobServices/default/containers/raw")
    assert "pulumi state delete" in str(container)


def test_an_undeclared_resource_is_named_unless_azure_creates_it(arm: Arm, state: State) -> None:
    """A VM that somebody started, but not the network interface of a private endpoint."""
    group = state.lists[f"{GROUP}/resources"]
    network = f"{GROUP}/providers/Microsoft.Network/networkInterfaces"
    group.append({"id": f"{network}/pe-lake.nic.1b2c3d4e-0000"})
    group.append({"id": f"{network}/mine"})
    assert [(one.kind, one.resource) for one in found(arm)] == [("undeclared", "mine")]


def test_an_undeclared_outbound_rule_is_named(arm: Arm, state: State) -> None:
    """A host that somebody approved, or that left the stack file; not Azure's required rules."""
    pypi = {"type": "FQDN", "category": "UserDefined", "destination": "pypi.org"}
    system = {"type": "PrivateEndpoint", "category": "Required"}
    rules: dict[str, object] = {"host-pypi-org": pypi, "__SYS_PE_blob": system, "odd": None}
    state.resources[WORKSPACE]["properties"]["managedNetwork"] = {"outboundRules": rules}
    (one,) = found(arm)
    assert (one.kind, one.resource, one.actual) == ("undeclared", "workspace", "pypi.org")
    assert one.path == "managedNetwork.outboundRules.host-pypi-org" and one.path in str(one)
    declared = resources()
    (workspace,) = (each for each in declared if each.name == "workspace")
    network = {"outboundRules": {"host-pypi-org": pypi}}
    same = replace(workspace, inputs={**workspace.inputs, "managedNetwork": network})
    assert list(drift([same if each is workspace else each for each in declared], arm, KNOWN)) == []


def test_a_list_is_compared_without_its_order(arm: Arm, state: State) -> None:
    """The item that differs is reported."""
    id = f"{GROUP}/providers/Microsoft.Network/networkSecurityGroups/nsg"
    rules = [{"name": "a", "priority": 100.0}, {"name": "b", "priority": 200.0}]
    group = resource(
        "network:NetworkSecurityGroup", "nsg", networkSecurityGroupName="nsg",
        resourceGroupName="rg-mlplat-dev", securityRules=rules,
    )  # fmt: skip
    there = [{"name": "b", "properties": {"priority": 200}}]
    there.append({"name": "a", "properties": {"priority": 100}})
    state.resources[id] = {"id": id, "properties": {"securityRules": there}}
    assert found(arm, group) == []
    there[0]["properties"] = {"priority": 300}
    assert [one.path for one in found(arm, group)] == ["securityRules[1].priority"]
    there.append({"name": "c", "properties": {"priority": 1}})
    assert [one.path for one in found(arm, group)] == ["securityRules"]


def test_secrets_and_listed_noise_are_not_compared(arm: Arm, state: State) -> None:
    """Azure does not return secrets."""
    id = f"{WORKSPACE}/datastores/raw"
    store = resource(
        "machinelearningservices:Datastore", "store", name="raw",
        workspaceName="${Workspace:workspace.name}", resourceGroupName="rg-mlplat-dev",
        properties={"datastoreType": "AzureBlob", "credentials": {"sasToken": "[secret]"}},
    )  # fmt: skip
    state.resources[id] = {"id": id, "properties": {"datastoreType": "AzureBlob"}}
    assert found(arm, store) == []
    state.resources[id]["properties"]["datastoreType"] = "AzureFile"
    assert [one.path for one in found(arm, store)] == ["properties.datastoreType"]


def test_a_refused_answer_is_not_comparable(arm: Arm, state: State) -> None:
    """Neither missing nor without drift."""
    state.denied.add(VAULT)
    (one,) = found(arm)
    assert (one.kind, one.resource, one.path) == ("not-comparable", "vault", "AuthorizationFailed")


def test_a_kind_without_an_address_is_not_comparable(arm: Arm) -> None:
    """A new kind in the program, until addresses.py has it."""
    (one,) = found(arm, resource("search:Service", "search"))
    assert (one.kind, one.path) == ("not-comparable", "search:Service")


def test_an_unreachable_azure_is_a_readable_error(arm: Arm) -> None:
    """Exit 1; nothing is reported missing."""
    gone = Arm(SignedIn(), SUBSCRIPTION, "https://127.0.0.1:9")
    gone._client._config.retry_policy.total_retries = 0
    with pytest.raises(UserError, match="arm-request-failed"):
        found(gone)


def test_noise_without_a_reason_is_refused(tmp_path: Path) -> None:
    """People read the list."""
    path = tmp_path / "drift_ignore.yml"
    path.write_text("inputs: [{kind: '*', input: tags}]\nresources: []\n")
    with pytest.raises(ValueError, match="no reason"):
        read_ignored(path)


def test_a_null_in_an_answer_causes_no_traceback(direct: Arm, state: State) -> None:
    """It is a difference, or a readable error."""
    tried = 0
    for kept in (state.resources, state.lists):
        for path, answer in list(kept.items()):
            for one in with_a_null(answer):
                kept[path] = one
                with suppress(UserError):
                    found(direct)
                tried += 1
            kept[path] = answer
    assert tried > 50
