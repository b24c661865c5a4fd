"""Train one model and log how it does on the validation rows.

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

# The columns, the target and the splits: the first file to look at.
SCHEMA = Path(__file__).parent / "data" / "fraud_scoring.schema.yml"
FEATURES = FeatureJoin((FEATURE_SET,), history)
PROJECT = Tabular(SCHEMA, model, derive, ENCODING, METRICS, FEATURES)

if __name__ == "__main__":
    train(PROJECT)
