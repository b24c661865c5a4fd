"""The FeatureSetSpec that Azure ML gets: materialised files, without a transformation."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from azure.ai.ml.entities._feature_set.featureset_spec_metadata import FeaturesetSpecMetadata

from ml.core.errors import UserError
from ml.specs.assets import assets, feature_sets
from ml.specs.assets.assets import AssetSpec
from tests.conftest import ROOT
from tests.features.conftest import ENTITY, write_set

STORE = "abfss://offline@account.dfs.core.windows.net"


@pytest.fixture
def feature_set(repo: Path) -> AssetSpec:
    """A feature set as the assets of its repository have it."""
    folder = repo / "ml/projects/payments/features"
    (folder.parent / "source").mkdir(parents=True)
    write_set(folder)
    (folder / "account.yml").write_text(ENTITY)
    found = assets.find("azureml:account_payments:1", "feature_set", repo)
    assert found is not None
    return found


def test_the_source_is_what_a_materialisation_writes(feature_set: AssetSpec) -> None:
    """The features, keys and lookbacks of a join are those of the definition; a source's format
    of times and what only a transformation needs are left out.
    """
    own = yaml.safe_load((feature_set.folder / "account_payments/FeatureSetSpec.yaml").read_text())
    derived = feature_sets.registered(feature_set, STORE)
    source = derived.pop("source")
    assert source.pop("path") == f"{STORE}/account_payments/1/offline/*/*.parquet"
    assert source["timestamp_column"] == {"name": own["source"]["timestamp_column"]["name"]}
    assert source["type"] == "parquet"
    assert derived == {
        name: own[name]
        for name in ("$schema", "features", "index_columns", "temporal_join_lookback")
        if name in own
    }
    assert "feature_transformation_code" in own and "source_lookback" in own


def test_the_sdk_reads_every_derived_specification(tmp_path: Path) -> None:
    """Of the repository's own sets."""
    sets = [spec for spec in assets.definitions(ROOT) if spec.kind == "feature_set"]
    for spec in sets:
        path = tmp_path / "FeatureSetSpec.yaml"
        path.write_text(yaml.safe_dump(feature_sets.registered(spec, STORE)))
        loaded = FeaturesetSpecMetadata.load(path)
        assert loaded.feature_transformation_code is None and loaded.features
    assert sets


def test_other_values_are_other_files(feature_set: AssetSpec) -> None:
    """The specification and the code decide the values; compiled modules do not count."""
    (feature_set.folder / "account_payments/transformation/__pycache__").mkdir()
    (feature_set.folder / "account_payments/transformation/__pycache__/payments.pyc").touch()
    names = [path.name for path in feature_sets.files(feature_set)]
    assert names == ["FeatureSetSpec.yaml", "payments.py"]


def test_a_set_that_is_wrong_is_refused(feature_set: AssetSpec) -> None:
    """With what `ml check` says of it."""
    (feature_set.folder / "account.yml").unlink()
    with pytest.raises(UserError, match="no entity `azureml:account:1`"):
        list(feature_sets.files(feature_set))
