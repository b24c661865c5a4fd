"""A feature set as Azure ML registers it: materialised Parquet files, without a transformation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml.core import documents
from ml.core.errors import UserError
from ml.specs.assets.assets import AssetSpec
from ml.specs.check.feature_sets import SPEC, feature_set_problems

# The files that `ml.features.materialize` writes below STORE/NAME/VERSION.
_FILES = "offline/*/*.parquet"


def files(feature_set: AssetSpec) -> Iterator[Path]:
    """Yield FeatureSetSpec.yaml and the transformation's modules, which determine the values.

    Raises UserError for a feature set that `ml check` rejects.
    """
    if problems := feature_set_problems(feature_set.file):
        raise UserError(*problems)
    spec = _specification(feature_set)
    yield spec
    code = spec.parent / documents.read(spec).data["feature_transformation_code"]["path"]
    yield from sorted(code.rglob("*.py"))


def registered(feature_set: AssetSpec, store: str) -> dict[str, Any]:
    """Return the FeatureSetSpec whose source is the Parquet files materialised to the URL `store`.

    The files have the event time, the keys and the features. Azure ML has no field for the arrival
    time: its point-in-time joins use `source_delay` only.
    """
    spec = documents.read(_specification(feature_set)).data
    source = {
        "type": "parquet",
        "path": f"{store}/{feature_set.name}/{feature_set.version}/{_FILES}",
        # Materialised timestamps are typed, so the source's `format` is dropped.
        "timestamp_column": {"name": spec["source"]["timestamp_column"]["name"]},
    }
    if "source_delay" in spec["source"]:
        source["source_delay"] = spec["source"]["source_delay"]
    fields = ("$schema", "features", "index_columns", "temporal_join_lookback")
    return {"source": source, **{name: spec[name] for name in fields if name in spec}}


def _specification(feature_set: AssetSpec) -> Path:
    return feature_set.folder / str(feature_set.get("specification", "path")) / SPEC
