"""Feature sets as azureml-featurestore reads them: the golden file, which that SDK wrote.

`make feature-store-golden` writes it. Here it is compared with what `ml check` and `ml assets
apply` make of the same files; the last test reads them with the SDK, where it is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.specs.assets import assets, feature_sets
from ml.specs.check.feature_sets import SPEC, feature_set_problems
from tests.conftest import ROOT

FEATURES = Path("ml/projects/fraud_scoring/features")
GOLDEN = Path(__file__).with_suffix(".json")
READER = Path(__file__).with_name("feature_store_sdk.py")
PYTHON = ROOT / ".venv/featurestore/bin/python"
STORE = "abfss://features@account.dfs.core.windows.net"

# Case → what is changed in the repository's FeatureSetSpec.yaml.
WRONG = {
    "local-source": ("abfss://features@youraccount.dfs.core.windows.net/card_payments", "./data"),
    "no-timestamp": ("  timestamp_column:\n    name: paid_at\n", ""),
    "source-type": ("type: parquet", "type: excel"),
    "feature-type": ("type: double", "type: decimal"),
    "no-features": ("features:\n", "feature_list:\n"),
    "no-index-columns": ("index_columns:\n", "keys:\n"),
    "length-unit": ("days: 90", "weeks: 13"),
    "length-text": ("days: 90", "days: ninety"),
    "no-source": ("source:\n", "origin:\n"),
    "class-without-module": ("payments.CardPayments", "CardPayments"),
    "feature-twice": ("name: sum_1h", "name: count_1h"),
}


def write_cases(folder: Path) -> dict[str, Path]:
    """Write a project for each case; the folder of features of each."""
    cases = {}
    for case in ("repository", "registered", *WRONG):
        root = folder / case / "root"
        cases[case] = root / FEATURES
        shutil.copytree(ROOT / FEATURES, cases[case], ignore=shutil.ignore_patterns("__pycache__"))
        (cases[case].parent / "data/card_payments").mkdir(parents=True)
        (root / "pyproject.toml").touch()
        spec = cases[case] / "card_payments" / SPEC
        if case in WRONG:
            before, after = WRONG[case]
            assert before in spec.read_text()
            spec.write_text(spec.read_text().replace(before, after))
    found = assets.find("azureml:card_payments:1", "feature_set", ROOT)
    assert found is not None
    spec = cases["registered"] / "card_payments" / SPEC
    spec.write_text(yaml.safe_dump(feature_sets.registered(found, STORE), sort_keys=False))
    return cases


def read_with_sdk(folder: Path) -> dict[str, Any]:
    """What the SDK reads of every case; of a wrong one, whether it rejects it."""
    flat = folder / "flat"
    for case, features in write_cases(folder).items():
        shutil.copytree(features, flat / case)
    command = [str(PYTHON), "-P", str(READER), str(flat)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    read: dict[str, Any] = json.loads(answer.stdout)
    return {
        case: {"rejected": each.get("rejected")} if case in WRONG else each
        for case, each in read.items()
    }


@pytest.fixture
def cases(tmp_path: Path) -> dict[str, Path]:
    return write_cases(tmp_path)


def _golden() -> dict[str, Any]:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    return golden


@pytest.mark.parametrize("case", ["repository", "registered"])
def test_the_sdk_reads_what_the_files_say(case: str, cases: dict[str, Path]) -> None:
    """Both the repository's specification and the one that is registered."""
    golden, folder = _golden()[case], cases[case]
    entity, feature_set, spec = (
        yaml.safe_load((folder / name).read_text())
        for name in ("card.yml", "card_payments.yml", f"card_payments/{SPEC}")
    )
    assert golden["set"] == [feature_set[name] for name in ("name", "version", "stage")]
    assert golden["entities"] == feature_set["entities"]
    assert golden["entity"] == [entity["name"], entity["version"]]
    assert golden["entity_columns"] == golden["index_columns"] == entity["index_columns"]
    assert golden["features"] == spec["features"]
    timestamp = spec["source"].pop("timestamp_column")["name"]
    assert golden["source"] == {**spec["source"], "timestamp_column": timestamp}
    assert golden["temporal_join_lookback"] == spec["temporal_join_lookback"]
    assert golden["source_lookback"] == spec.get("source_lookback")
    code = spec.get("feature_transformation_code", {})
    assert golden["transformer_class"] == code.get("transformer_class")


def test_a_registered_set_has_no_transformation() -> None:
    """And the features of the repository's."""
    golden = _golden()
    registered, own = golden["registered"], golden["repository"]
    assert registered["transformer_class"] is None is not own["transformer_class"]
    assert registered["features"] == own["features"]
    assert registered["source"]["path"] == f"{STORE}/card_payments/1/offline/*/*.parquet"


@pytest.mark.parametrize("case", WRONG)
def test_what_the_sdk_rejects_is_a_problem_of_ml_check(case: str, cases: dict[str, Path]) -> None:
    """`ml check` rejects every case, also what the SDK takes."""
    assert _golden().keys() == cases.keys()
    assert feature_set_problems(cases[case] / "card_payments.yml")


def test_the_repositorys_set_is_accepted_by_both(cases: dict[str, Path]) -> None:
    assert feature_set_problems(cases["repository"] / "card_payments.yml") == []
    rejected = [case for case, read in _golden().items() if read.get("rejected")]
    assert set(rejected) < set(WRONG) and len(rejected) >= 5


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make feature-store-golden installs the SDK")
def test_the_golden_file_is_what_the_sdk_says(tmp_path: Path) -> None:
    assert read_with_sdk(tmp_path) == _golden()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(read_with_sdk(Path(folder)), indent=1) + "\n")
