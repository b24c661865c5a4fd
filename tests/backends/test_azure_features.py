"""Entities and feature sets on Azure: the unmodified SDK against the stand-in."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

import pytest
from azure.ai.ml._utils._feature_store_utils import read_remote_feature_set_spec_metadata

from ml.backends.azure.workspace import FEATURE_STORE, configured
from ml.cli.app import main
from tests.conftest import ROOT
from tests.stand_ins.azure.running import StandIn

FEATURES = Path("ml/projects/fraud_scoring/features")
SET = FEATURES / "card_payments.yml"


@pytest.fixture
def project(tmp_path: Path, idle: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A repository with the entity and the feature set of fraud_scoring, and a feature store."""
    (tmp_path / "pyproject.toml").touch()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / FEATURES, tmp_path / FEATURES, ignore=ignored)
    (tmp_path / FEATURES.parent / "data/card_payments").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    idle.requests()
    monkeypatch.setenv(FEATURE_STORE, f"fs-{uuid.uuid4().hex[:8]}")
    return idle


def assets(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run `ml assets …` in this process: exit code, stdout, stderr."""
    capsys.readouterr()
    try:
        main(["assets", *words])
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.slow
def test_a_feature_set_is_registered_once(
    project: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the feature store, not in the workspace: the entity, then the set, whose specification
    reads the materialised files. The second time, nothing is sent.
    """
    code, _, err = assets(capsys, "apply")
    assert code == 0, err
    assert re.findall(r"registered (\S+)", err) == ["azureml:card:1", "azureml:card_payments:1"]
    workspace = configured()
    put = [line for line in project.requests() if line.startswith("PUT ") and "/feature" in line]
    assert [line.split("/workspaces/")[1] for line in put] == [
        f"{workspace.feature_store}/featurestoreEntities/card/versions/1",
        f"{workspace.feature_store}/featuresets/card_payments/versions/1",
    ]
    kept = workspace.features.feature_sets.get("card_payments", "1")
    assert kept.entities == ["azureml:card:1"] and kept.stage == "Development"
    assert kept.materialization_settings is None
    specification = read_remote_feature_set_spec_metadata(
        base_uri=kept.specification.path, datastore_operations=workspace.features.datastores
    )
    assert specification["source"]["path"] == (
        "abfss://offline-store@standin.dfs.core.localhost/card_payments/1/offline/*/*.parquet"
    )
    assert "feature_transformation_code" not in specification
    code, _, err = assets(capsys, "apply")
    assert (code, "nothing to register" in err) == (0, True), err
    assert not [line for line in project.requests() if line.startswith("PUT ")]
    assert not list(FEATURES.rglob(".amlignore"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "before", "after", "named"),
    [
        ("card.yml", "A payment card.", "A card.", "azureml:card:1"),
        ("card_payments/FeatureSetSpec.yaml", "days: 90", "days: 91", "azureml:card_payments:1"),
        ("card_payments/transformation/payments.py", "hours=1", "hours=2", "card_payments:1"),
    ],
)
def test_other_content_needs_another_version(
    project: StandIn,
    capsys: pytest.CaptureFixture[str],
    file: str,
    before: str,
    after: str,
    named: str,
) -> None:
    """Also other code of the transformation: what is materialised would change."""
    assert assets(capsys, "apply")[0] == 0
    path = FEATURES / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    code, _, err = assets(capsys, "apply")
    assert code == 2 and "error[asset-changed]" in err and f"{named} is registered" in err
    assert "increment `version:`" in err
    SET.write_text(SET.read_text().replace('version: "1"', 'version: "2"').replace(":1", ":2"))
    entity = FEATURES / "card.yml"
    entity.write_text(entity.read_text().replace('version: "1"', 'version: "2"'))
    assert assets(capsys, "apply")[0] == 0


@pytest.mark.slow
def test_without_a_feature_store_the_rest_is_registered(
    project: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets are skipped, and a line says so."""
    monkeypatch.delenv(FEATURE_STORE)
    code, _, err = assets(capsys, "apply")
    assert code == 0 and "skipped azureml:card_payments:1: AZUREML_FEATURE_STORE_NAME" in err
    code, out, _ = assets(capsys, "plan")
    assert code == 0 and out.count("no-feature-store") == 2
    assert not [line for line in project.requests() if "/feature" in line]


@pytest.mark.slow
def test_a_workspace_that_is_no_feature_store(
    project: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is registered there, and `plan` says so as well."""
    monkeypatch.setenv(FEATURE_STORE, "mlw-other")
    assert assets(capsys, "plan")[0] == 2
    code, _, err = assets(capsys, "apply")
    assert not [line for line in project.requests() if line.startswith("PUT ")]
    assert code == 2 and "error[no-offline-store]" in err and "mlw-other" in err
    assert "Traceback" not in err and "make deploy" in err


@pytest.mark.slow
def test_a_feature_store_that_does_not_exist(
    project: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Azure's answer, as an error with a next command."""
    missing = {"status": 404, "code": "ResourceNotFound", "message": "fs-x was not found"}
    project.fail({"pattern": "GET .*/workspaces/fs-[^/]+$", **missing})
    code, _, err = assets(capsys, "plan")
    assert code == 2 and "error[no-offline-store]" in err and "Traceback" not in err
    assert project.faults_left() == 0


@pytest.mark.slow
def test_a_feature_set_that_is_wrong_is_not_registered(
    project: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `ml check` reports it, with its line."""
    file = FEATURES / "card_payments/FeatureSetSpec.yaml"
    file.write_text(file.read_text().replace("type: parquet", "type: excel"))
    code, _, err = assets(capsys, "plan")
    assert code == 2 and "error[wrong-value]" in err
    assert "FeatureSetSpec.yaml:3" in err
