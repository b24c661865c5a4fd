"""The real CrossGuard analyzer with our pack: what it says of a small program."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from infra.preview.run import captures
from ml.specs.problems import Refused
from tests.conftest import ROOT
from tests.infra.programs import tree

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


def _tree(folder: Path, program: str) -> Path:
    shutil.copytree(ROOT / "policies", folder / "policies")
    return tree(folder, program)


def test_findings_come_with_their_policy_level_and_resource(tmp_path: Path) -> None:
    (found,), analyzer = captures(["prod"], root=_tree(tmp_path, PROGRAM))
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
    assert analyzer and 0 < analyzer.spent.peak_mib < 300


def test_a_waiver_makes_it_advice_that_names_who_answers(tmp_path: Path) -> None:
    here = _tree(tmp_path, PROGRAM)
    (here / "policies/infra/limits.yml").write_text(
        (ROOT / "policies/infra/limits.yml").read_text()
        + "prod:\n  advice: [storage-shared-key, storage-defender]\n"
    )
    (found,), _ = captures(["prod"], root=here)
    said = {one.message: one.mandatory for one in found.findings if "advice in prod" in one.message}
    assert len(said) == 2 and not any(said.values())
    assert not {one.policy for one in found.findings} & {"storage-shared-key", "storage-defender"}


def test_a_pack_whose_files_are_wrong_does_not_start(tmp_path: Path) -> None:
    here = _tree(tmp_path, PROGRAM)
    (here / "policies/infra/waivers.yml").write_text("- rule: vault-firewall\n")
    with pytest.raises(Refused, match=r"did not start: ValueError: waivers.yml:1: a waiver has"):
        captures(["prod"], root=here)
