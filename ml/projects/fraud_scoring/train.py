"""Train one model and log its metrics on the validation rows.

python -m ml.projects.fraud_scoring.train --data DIR --model OUT_DIR [--learning-rate … …]
"""

from __future__ import annotations

from pathlib import Path

from ml.projects.fraud_scoring import model
from ml.projects.fraud_scoring.columns import ENCODING, derive
from ml.projects.fraud_scoring.history import FEATURE_SET, history
from ml.projects.fraud_scoring.metrics import METRICS
from ml.toolkit.data.feature_sets import FeatureJoin
from ml.toolkit.training.tabular import Tabular, train

# Declares the columns, the target and the splits. Start reading the project there.
SCHEMA = Path(__file__).parent / "data" / "fraud_scoring.schema.yml"
FEATURES = FeatureJoin((FEATURE_SET,), history)
PROJECT = Tabular(SCHEMA, model, derive, ENCODING, METRICS, FEATURES)

if __name__ == "__main__":
    train(PROJECT)
