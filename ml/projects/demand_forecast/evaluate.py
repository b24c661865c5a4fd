"""Measure a model on forecasts from later cutoffs than training's, beside seasonal naive.

python -m ml.projects.demand_forecast.evaluate --data DIR --model DIR --evaluation OUT_DIR
"""

from __future__ import annotations

from ml.projects.demand_forecast.train import SCHEMA
from ml.toolkit.training.forecasting import evaluate

if __name__ == "__main__":
    evaluate(SCHEMA, model="demand-forecast")
