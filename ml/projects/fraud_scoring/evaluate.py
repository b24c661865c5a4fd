"""Measure a model on rows that it was not trained on, beside a constant prediction.

python -m ml.projects.fraud_scoring.evaluate --data DIR --model DIR --evaluation OUT_DIR
"""

from __future__ import annotations

from ml.projects.fraud_scoring.train import PROJECT
from ml.toolkit.training.tabular import evaluate

if __name__ == "__main__":
    evaluate(
        PROJECT,
        model="fraud-scoring",
        unit="row",  # what one row is about, as reports call it
        # `baseline=` takes the metrics of a model that a first one has to beat instead of a
        # constant, and `baseline_from=` says how that model was made.
    )
