"""Run Feast's `get_historical_features` on the benchmark's tables, in Feast's environment.

    .venv/feast/bin/python benchmarks/features_feast.py FOLDER

FOLDER has `labels.parquet` and `rows.parquet`. The script writes `joined.parquet` there and prints
the seconds. It imports nothing of the repository.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow.parquet as parquet
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.types import Float64


def main(folder: Path) -> None:
    """Join by event time with a TTL of 7 days; for equal event times, the last write wins."""
    names = [name for name in parquet.read_schema(folder / "rows.parquet").names if name[0] == "f"]
    config = RepoConfig(
        project="bench",
        registry=str(folder / "registry.db"),
        provider="local",
        online_store={"type": "sqlite", "path": str(folder / "online.db")},
        entity_key_serialization_version=3,
    )
    store = FeatureStore(config=config)
    entity = Entity(name="entity", join_keys=["entity"], value_type=ValueType.INT64)
    view = FeatureView(
        name="rows",
        entities=[entity],
        ttl=timedelta(days=7),
        schema=[Field(name=name, dtype=Float64) for name in names],
        source=FileSource(
            path=str(folder / "rows.parquet"),
            timestamp_field="event",
            created_timestamp_column="arrival",
        ),
    )
    store.apply([entity, view])
    labels = pd.read_parquet(folder / "labels.parquet")
    labels = labels.rename(columns={"time": "event_timestamp"})
    start = time.perf_counter()
    features = [f"rows:{name}" for name in names]
    joined = store.get_historical_features(entity_df=labels, features=features).to_df()
    print(time.perf_counter() - start)
    joined.sort_values("number")[["number", *names]].to_parquet(folder / "joined.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
