"""Forecast each series with FLAML, in the peers' environment.

    .venv/peers/bin/python benchmarks/forecasting_peers.py ROWS HORIZON SECONDS OUT

ROWS and OUT are Parquet files with unique_id, ds and y; the seconds are divided among the series.
This script imports nothing of the repository.
"""

from __future__ import annotations

import sys

import pandas as pd
from flaml import AutoML


def forecast(rows: pd.DataFrame, horizon: int, seconds: float) -> pd.DataFrame:
    """Return the forecasts; fit each series separately, since panels need PyTorch Forecasting."""
    parts = []
    for name, series in rows.groupby("unique_id"):
        series = series.sort_values("ds").reset_index(drop=True)
        frequency = pd.infer_freq(series["ds"])
        search = AutoML()
        search.fit(
            X_train=series[["ds"]],
            y_train=series["y"],
            task="ts_forecast",
            period=horizon,
            metric="mae",
            eval_method="holdout",
            time_budget=max(1.0, seconds / rows["unique_id"].nunique()),
            seed=0,
            verbose=0,
        )
        after = pd.date_range(series["ds"].iloc[-1], periods=horizon + 1, freq=frequency)[1:]
        values = search.predict(pd.DataFrame({"ds": after}))
        parts.append(pd.DataFrame({"unique_id": name, "ds": after, "y": list(values)}))
    return pd.concat(parts)


if __name__ == "__main__":
    source, steps, budget, target = sys.argv[1:]
    forecast(pd.read_parquet(source), int(steps), float(budget)).to_parquet(target)
