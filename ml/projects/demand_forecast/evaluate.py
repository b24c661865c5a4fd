"""Evaluate a model at cutoffs later than training's, with a seasonal naive baseline.

python -m ml.projects.demand_forecast.evaluate --data DIR --model DIR --evaluation OUT_DIR
"""

from __future__ import annotations

from ml.projects.demand_forecast.train import SCHEMA
from ml.toolkit.training.forecasting import evaluate

if __name__ == "__main__":
    evaluate(SCHEMA, model="demand-forecast")
