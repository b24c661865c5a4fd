"""Evaluate a model on held-out rows, with a constant prediction as the baseline.

python -m ml.projects.fraud_scoring.evaluate --data DIR --model DIR --evaluation OUT_DIR
"""

from __future__ import annotations

from ml.projects.fraud_scoring.train import PROJECT
from ml.toolkit.training.tabular import evaluate

if __name__ == "__main__":
    evaluate(
        PROJECT,
        model="fraud-scoring",
        unit="row",  # the noun for one row in reports
        # To replace the constant baseline, pass the metrics of another model as `baseline=` and
        # describe that model in `baseline_from=`.
    )
