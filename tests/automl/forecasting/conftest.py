"""Helpers: generated series, and the job that forecasts them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ml.automl.forecasting import origins, panel
from ml.automl.forecasting.settings import Settings
from ml.automl.forecasting.trial import ForecastProblem


def job(**fields: Any) -> dict[str, Any]:
    """Return the content of AUTOML_JOB; `fields` are fields of ForecastingSettings."""
    usual = {
        "time_column_name": "day",
        "time_series_id_column_names": ["shop"],
        "forecast_horizon": 3,
    }
    return {
        **{"task": "forecasting", "target": "sold", "seed": 0},
        **{"metric": "normalized_mean_absolute_error", "forecasting": usual | fields},
    }


def sales(series: int = 2, days: int = 60, seed: int = 0) -> pd.DataFrame:
    """Return daily sales of shops a, b …, with a weekly season and a price."""
    draw, times = np.random.default_rng(seed), pd.date_range("2024-01-01", periods=days)
    parts = [
        pd.DataFrame(
            {
                "day": times.strftime("%Y-%m-%d"),
                "shop": chr(ord("a") + number),
                "price": draw.integers(1, 4, days).astype(float),
                "sold": 50.0 + 10 * number + 8 * (times.dayofweek > 4) + draw.normal(0, 2, days),
            }
        )
        for number in range(series)
    ]
    return pd.concat(parts, ignore_index=True)


def of_frame(frame: pd.DataFrame, **fields: Any) -> panel.Panel:
    """Return the panel of a table's rows."""
    return panel.of_frame(frame, Settings.parse(job(**fields)))


def problem(frame: pd.DataFrame, holidays: Any = (), **fields: Any) -> ForecastProblem:
    """Return the problem that the trials of a search of these rows share."""
    settings = Settings.parse(job(**fields))
    of = panel.of_frame(frame, settings)
    metric = "normalized_mean_absolute_error"
    return ForecastProblem(settings, metric, 0, of, origins.origins(of, settings), list(holidays))


def table(folder: Path, frame: pd.DataFrame) -> Path:
    """Write an MLTable with these rows; return its folder."""
    folder.mkdir(parents=True)
    frame.to_csv(folder / "rows.csv", index=False)
    (folder / "MLTable").write_text(
        "paths: [{file: ./rows.csv}]\ntransformations: [{read_delimited: {delimiter: ','}}]\n"
    )
    return folder


SMALL_TREES: Mapping[str, Any] = {"relative": True, "n_estimators": 5, "min_data_in_leaf": 3}
