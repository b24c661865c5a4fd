"""What azureml-featurestore reads of feature sets, as JSON; it runs in an environment of its own.

    python tests/specs/feature_store_sdk.py FOLDER

Each folder in FOLDER has an entity, a set, and the set's FeatureSetSpec.yaml. The answer has one
entry a folder: what the SDK read, or `rejected` with the class of its exception.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from azure.ai.ml import load_feature_set, load_feature_store_entity
from azureml.featurestore import FeatureSetSpec


def _length(length: Any) -> dict[str, int] | None:
    names = ("days", "hours", "minutes")
    return {name: getattr(length, name) for name in names} if length else None


def _columns(columns: Any) -> list[dict[str, str]]:
    return [{"name": each.name, "type": each.type.name.lower()} for each in columns]


def _read(folder: Path) -> dict[str, Any]:
    feature_set = load_feature_set(folder / "card_payments.yml")
    entity = load_feature_store_entity(folder / "card.yml")
    spec = FeatureSetSpec.from_config(str(folder / feature_set.specification.path))
    code = spec.feature_transformation_code
    return {
        "set": [feature_set.name, feature_set.version, feature_set.stage],
        "entities": feature_set.entities,
        "entity": [entity.name, entity.version],
        "entity_columns": [
            {"name": each.name, "type": str(each.type)} for each in entity.index_columns
        ],
        "source": {
            "type": spec.source.type.value,
            "path": spec.source.path,
            "timestamp_column": spec.source.timestamp_column.name,
            "source_delay": _length(spec.source.source_delay),
        },
        "features": _columns(spec.features),
        "index_columns": _columns(spec.index_columns),
        "transformer_class": code.transformer_class if code else None,
        "source_lookback": _length(spec.source_lookback),
        "temporal_join_lookback": _length(spec.temporal_join_lookback),
    }


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    answer: dict[str, Any] = {}
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        try:
            answer[folder.name] = _read(folder)
        except Exception as error:  # whatever the SDK raises is its answer
            answer[folder.name] = {"rejected": type(error).__name__}
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
