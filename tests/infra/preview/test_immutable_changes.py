"""Changes that existing resources do not accept: which are noted, and which are not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from infra.preview.capture import (
    ABSENT,
    IMMUTABLE,
    REMOVED,
    Capture,
    ImmutableRule,
    Property,
    ResourceChange,
    changes,
    immutable_changes,
)
from tests.infra.programs import changed, own

ML = "machinelearningservices:"
TARGET = "privateLinkServiceConnections[assets-blob].privateLinkServiceId"
RANGE = "subnets[compute].addressPrefix"
KEY = "osProfile.linuxConfiguration.ssh.publicKeys[0].keyData"
QUEUES = "encryption.services.queue.keyType"
DAYS = "properties.softDeleteRetentionInDays"
IDLE = "properties.properties.idleTimeBeforeShutdown"
TOLD: tuple[tuple[str, str, object, object, str], ...] = (
    ("resources:ResourceGroup", "location", "westeurope", "northeurope", "another stack file"),
    ("authorization:RoleAssignment", "principalId", "ada", "bob", "`locks: false`"),
    (f"{ML}Registry", "registryName", "shared", "common", "replaces it"),
    (f"{ML}Workspace", "managedNetwork.isolationMode", "Disabled", "A", "are deleted"),
    (f"{ML}Workspace", "managedNetwork.isolationMode", "A", "B", "stays A"),
    (f"{ML}Compute", "properties.properties.vmSize", "small", "large", "az ml compute delete"),
    (f"{ML}Compute", "tags.costCenter", "ml", "ml-2", "az ml compute delete"),
    (f"{ML}Compute", IDLE, "PT60M", "PT30M", "az ml compute delete"),
    ("storage:StorageAccount", "sku.name", "Standard_LRS", "Standard_ZRS", "migration start"),
    ("storage:StorageAccount", "sku.name", "Standard_GZRS", "Standard_RAGRS", "migration start"),
    ("storage:StorageAccount", QUEUES, ABSENT, "Account", "cannot be changed"),
    ("keyvault:Vault", DAYS, 90, 30, "unchanged"),
    ("containerregistry:Registry", "zoneRedundancy", "Disabled", "Enabled", "unchanged"),
    ("network:VirtualNetwork", RANGE, "10.1.0.0/18", "10.2.0.0/18", "rejects a new range"),
    ("network:PrivateEndpoint", TARGET, "one", "other", "pulumi up --refresh"),
    ("compute:VirtualMachine", KEY, "ssh-ed25519 A", "ssh-ed25519 B", "az vm user update"),
)
IN_PLACE: tuple[tuple[str, str, object, object], ...] = (
    ("resources:ResourceGroup", "tags.owner", "a@example.com", "b@example.com"),
    ("authorization:RoleAssignment", "description", "one", "other"),
    (f"{ML}Workspace", "managedNetwork.firewallSku", "Basic", "Standard"),
    (f"{ML}Workspace", "publicNetworkAccess", "Enabled", "Disabled"),
    (f"{ML}Compute", "properties.properties.scaleSettings.maxNodeCount", 2, 4),
    ("storage:StorageAccount", "sku.name", "Standard_LRS", "Standard_GRS"),
    ("storage:StorageAccount", "sku.name", "Standard_GZRS", "Standard_ZRS"),
    ("storage:StorageAccount", "encryption.keySource", "Microsoft.Storage", "Microsoft.Keyvault"),
    ("keyvault:Vault", "properties.publicNetworkAccess", "Enabled", "Disabled"),
    ("containerregistry:Registry", "policies.retentionPolicy.days", 30, 60),
    ("network:VirtualNetwork", "subnets[compute].natGateway.id", ABSENT, "gateway"),
    ("compute:VirtualMachine", "hardwareProfile.vmSize", "small", "large"),
    ("operationalinsights:Workspace", "location", "westeurope", "northeurope"),
)


def _change(kind: str, path: str, before: object, after: object) -> ResourceChange:
    return ResourceChange("changed", kind, "x", "urn:x", (Property(path, before, after),))


@pytest.mark.parametrize(("kind", "path", "before", "after", "text"), TOLD)
def test_a_change_that_is_impossible_in_place_is_noted(
    kind: str, path: str, before: object, after: object, text: str
) -> None:
    (line,) = immutable_changes([_change(kind, path, before, after)])
    assert line.startswith("x: if it already exists, ") and text in line and len(line) < 250


@pytest.mark.parametrize(("kind", "path", "before", "after"), IN_PLACE)
def test_a_change_that_is_possible_in_place_is_not_noted(
    kind: str, path: str, before: object, after: object
) -> None:
    assert not [*immutable_changes([_change(kind, path, before, after)])]


def test_removals_of_data_are_noted_and_additions_are_not() -> None:
    added = ResourceChange("added", "storage:BlobContainer", "container-raw", "urn:a")
    gone = ResourceChange("removed", "storage:BlobContainer", "container-raw", "urn:a")
    harmless = ResourceChange("removed", "monitor:MetricAlert", "alert-failed-runs", "urn:b")
    (line,) = immutable_changes([added, gone, harmless])
    assert "`locks: false` in an update before this" in line and "unprotect" in line
    (line,) = immutable_changes(
        [ResourceChange("removed", "network:PrivateEndpoint", "lake-blob", "urn:d")]
    )
    assert "`locks: false`" in line, "its connection is a part of what is locked"
    (line,) = immutable_changes([ResourceChange("removed", f"{ML}Compute", "cpu", "urn:c")])
    assert line.startswith("cpu: ") and "az ml compute delete" in line
    assert "--refresh" in line, "what Azure ML asks of a deletion it may ask of one of nothing too"


def test_resources_with_the_same_note_share_a_line() -> None:
    """A customer-managed key for two accounts changes queues and tables of both: one note."""
    table = QUEUES.replace("queue", "table")
    changes = [
        ResourceChange("changed", "storage:StorageAccount", name, name, (first, second))
        for name in ("lake", "workspace-storage")
        for first, second in [(Property(QUEUES, ABSENT, "A"), Property(table, ABSENT, "A"))]
    ]
    (line,) = immutable_changes(changes)
    assert line.startswith("lake, workspace-storage: ")


def _paths(found: Capture) -> list[tuple[str, str]]:
    """Every property that is declared, with the kind of what it is of."""
    bare = replace(found, resources=tuple(replace(one, inputs={}) for one in found.resources))
    return [
        (one.kind, path)
        for one in changes(bare, found)
        for path in (REMOVED, *(each.path for each in one.properties))
    ]


def test_each_rule_has_a_source_and_matches_the_program(tmp_path: Path) -> None:
    """A rule for an undeclared property would never apply."""
    machine = {"kind": "data-science-vm", "ssh_key": "ssh-ed25519 A", "name": "bob"}
    person = {"person": "6f8d2c1e-0000-4000-8000-000000000002"}
    own_key = {"customer_managed_key": True}
    found = changed(tmp_path, workstations=[{**machine, **person}], workspace=own_key)
    declared = [*_paths(own()["prod"]), *_paths(found)]

    def met(row: ImmutableRule) -> bool:
        return any(re.fullmatch(row.kind, a) and re.fullmatch(row.path, b) for a, b in declared)

    assert [row for row in IMMUTABLE if not met(row) or not row.source] == []
