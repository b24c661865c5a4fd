"""checkov, offline, on every stack as a template: every failure is fixed or waived in writing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.infra.programs import own
from tests.renderers import arm, terraform

CHECKOV = ROOT / ".venv" / "checkov" / "bin" / "checkov"
WAIVED = yaml.safe_load((ROOT / "tests" / "renderers" / "waived.yml").read_text())
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHECKOV.exists(), reason="make .venv/checkov.stamp"),
]


def _judged(folder: Path, framework: str) -> dict[str, Any]:
    """checkov's answer for every file of a folder."""
    options = ["--skip-download", "--compact", "--quiet", "--output", "json"]
    done = subprocess.run(
        [CHECKOV, "--directory", folder, "--framework", framework, *options],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict), done.stderr
    return found


def _failures(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Environment, check and resource of each failure."""
    return {
        (Path(one["file_path"]).stem, one["check_id"], one["resource"])
        for one in found["results"]["failed_checks"]
    }


def test_every_failure_is_waived_in_writing(tmp_path: Path) -> None:
    """As ARM template and as Terraform: each format lets checkov see what the other cannot."""
    failed: set[tuple[str, str, str]] = set()
    for framework, least in (("arm", 60), ("terraform", 120)):
        folder = tmp_path / framework
        for stack, capture in own().items():
            (folder / stack).mkdir(parents=True)
            if framework == "arm":
                (folder / stack / f"{stack}.json").write_text(json.dumps(arm.template(capture)))
            else:
                (folder / stack / f"{stack}.tf").write_text(terraform.document(capture))
        found = _judged(folder, framework)
        assert found["summary"]["parsing_errors"] == 0
        assert found["summary"]["passed"] > least
        failed |= _failures(found)
    waived = {(stack, one["check"]) for one in WAIVED for stack in one["in"]}
    assert sorted(one for one in failed if one[:2] not in waived) == []
    assert not waived - {one[:2] for one in failed}, "waivers that nothing needs"


def test_checkov_notices_a_weak_account(tmp_path: Path) -> None:
    """Proves that the renderer gives it the judged properties."""
    weak = arm.template(own()["prod"])
    for one in weak["resources"]:
        if one["type"] == "Microsoft.Storage/storageAccounts":
            one["properties"].update(supportsHttpsTrafficOnly=False, minimumTlsVersion="TLS1_0")
        if one["type"] == "Microsoft.MachineLearningServices/workspaces":
            one["properties"]["publicNetworkAccess"] = "Enabled"
    (tmp_path / "weak.json").write_text(json.dumps(weak))
    failed = {check for _, check, _ in _failures(_judged(tmp_path, "arm"))}
    assert {"CKV_AZURE_3", "CKV_AZURE_44", "CKV2_AZURE_49"} <= failed
