"""Train one model and log how it does on the validation forecasts.

python -m ml.projects.demand_forecast.train --data DIR --model OUT_DIR [--learning-rate … …]
"""

from __future__ import annotations

from pathlib import Path

from ml.toolkit.training.forecasting import train

# The columns, the horizon and the season: the first file to look at.
SCHEMA = Path(__file__).parent / "data" / "demand_forecast.schema.yml"

if __name__ == "__main__":
    train(SCHEMA)
