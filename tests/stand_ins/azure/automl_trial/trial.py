"""A trial of the stand-in's AutoML: `trial.py TABLE TASK METRIC TARGET ALGORITHM [MODEL]`."""

import sys
from pathlib import Path

import mlflow
import pandas as pd
import yaml
from sklearn import ensemble, linear_model, metrics, tree
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

CLASSIFIERS = {
    "logistic_regression": lambda: linear_model.LogisticRegression(max_iter=200),
    "decision_tree": lambda: tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    "random_forest": lambda: ensemble.RandomForestClassifier(20, random_state=0),
}
REGRESSORS = {
    "elastic_net": lambda: linear_model.ElasticNet(alpha=0.01),
    "decision_tree": lambda: tree.DecisionTreeRegressor(max_depth=4, random_state=0),
    "random_forest": lambda: ensemble.RandomForestRegressor(20, random_state=0),
}


def read(folder: Path) -> pd.DataFrame:
    """Read the rows of a table of delimited files."""
    table = yaml.safe_load((folder / "MLTable").read_text())
    options = next((step["read_delimited"] for step in table["transformations"]), None) or {}
    files = [folder / entry["file"] for entry in table["paths"]]
    return pd.concat([pd.read_csv(file, sep=options.get("delimiter", ",")) for file in files])


def features(rows: pd.DataFrame) -> pd.DataFrame:
    """Return numeric features: numbers unchanged, other columns as codes of sorted categories."""
    numbers = rows.select_dtypes(["number", "bool"])
    others = rows.drop(columns=numbers.columns)
    return numbers.join(others.apply(lambda column: column.astype("category").cat.codes))


def scores(task: str, model, x, y) -> dict[str, float]:
    """Return some of the metrics that AutoML logs for the task."""
    predicted = model.predict(x)
    if task == "classification":
        chances = model.predict_proba(x)
        several = chances if chances.shape[1] > 2 else chances[:, 1]
        return {
            "accuracy": metrics.accuracy_score(y, predicted),
            "AUC_weighted": metrics.roc_auc_score(
                y, several, average="weighted", multi_class="ovr"
            ),
            "precision_score_weighted": metrics.precision_score(
                y, predicted, average="weighted", zero_division=0
            ),
        }
    width = y.max() - y.min()
    return {
        "r2_score": metrics.r2_score(y, predicted),
        "normalized_root_mean_squared_error": metrics.root_mean_squared_error(y, predicted) / width,
        "normalized_mean_absolute_error": metrics.mean_absolute_error(y, predicted) / width,
    }


def main(table: str, task: str, metric: str, target: str, algorithm: str, out: str = "") -> None:
    """Fit one model on three quarters of the rows, log its scores on the rest, save it."""
    rows = read(Path(table))
    x, y = features(rows.drop(columns=target)), rows[target]
    # Validate a forecast on the latest rows.
    kept = {"shuffle": False} if task == "forecasting" else {"random_state": 0}
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, **kept)
    known = CLASSIFIERS if task == "classification" else REGRESSORS
    model = make_pipeline(StandardScaler(), known[algorithm]()).fit(x_train, y_train)
    found = scores(task, model, x_test, y_test)
    if metric not in found:
        raise SystemExit(f"the stand-in does not compute {metric}")
    mlflow.log_metrics(found)
    if out:
        # Save a pickle, as Azure's AutoML does.
        mlflow.sklearn.save_model(
            model, out, serialization_format="cloudpickle", pip_requirements=[]
        )


main(*sys.argv[1:])
