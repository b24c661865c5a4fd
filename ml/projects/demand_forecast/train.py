"""Train one model and log its metrics on the validation forecasts.

python -m ml.projects.demand_forecast.train --data DIR --model OUT_DIR [--learning-rate … …]
"""

from __future__ import annotations

from pathlib import Path

from ml.toolkit.training.forecasting import train

# Declares the columns, the horizon and the season length. Start reading the project there.
SCHEMA = Path(__file__).parent / "data" / "demand_forecast.schema.yml"

if __name__ == "__main__":
    train(SCHEMA)
