"""The families of models that a search tries: their spaces, what is tried first, and their fits.

A family fits numbers: (rows, columns) in single precision, a category as its code, NaN for what is
missing (the encoding `codes` of `ml.serving.scoring.columns`). What scikit-learn's estimators need
besides (imputation, scaling, a column for each category) is a part of the estimator, so that it is
fitted inside each fold and travels with the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.measures.tasks import Task
from ml.toolkit.training.boosting import lightgbm, threads

Settings = Mapping[str, Any]
# A distribution by Azure ML's name, with its arguments: ("quniform", 20, 300, 1).
Space = Mapping[str, tuple[Any, ...]]
# Rows that LightGBM's bins are made of (its own default is 200,000, in double precision).
BINNED = 50_000
CLASSIFICATION, REGRESSION = "classification", "regression"
BOTH = frozenset({CLASSIFICATION, REGRESSION})


@dataclass(frozen=True)
class Numbers:
    """The rows that a family fits: `labels` are the numbers of the classes, or numbers.

    `categorical` are the columns that are codes; `featurized` is false where the table is taken as
    it stands.
    """

    table: NDArray[np.float32]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None
    task: Task
    classes: int
    categorical: Sequence[int] = ()
    featurized: bool = True


class Fitted(Protocol):
    """A model that was fitted."""

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        """For each row the probability of 1 (binary), one a class (multiclass), or a number."""
        ...

    def save(self, folder: Path) -> str:
        """Write the model's file in a format that runs no code; its name."""
        ...


@dataclass(frozen=True)
class Family:
    """`names` are Azure ML's, by task. `portfolio` is tried first, in this order.

    One that is not `usual` is tried where `allowed_training_algorithms` names it. One that takes no
    weights takes no weight column either. One that answers `in_steps` may take another neighbour of
    a row where two are as near in single precision.
    """

    names: Mapping[str, str]
    fit: Callable[[Numbers, Settings, int], Fitted]
    space: Space
    portfolio: Sequence[Settings]
    usual: bool = False
    weighted: bool = True
    in_steps: bool = False
    of_task: Mapping[str, Space] = field(default_factory=dict)


def _log(low: float, high: float) -> tuple[Any, ...]:
    """Azure ML's loguniform has the logarithms of its bounds."""
    return ("loguniform", math.log(low), math.log(high))


def _lightgbm(data: Numbers, settings: Settings, seed: int) -> Fitted:
    lgb = lightgbm()
    settings = dict(settings)
    rounds = int(settings.pop("n_estimators"))
    objective = {"multiclass": {"objective": "multiclass", "num_class": data.classes}}
    parameters = {
        **objective.get(data.task, {"objective": data.task}),
        **{"seed": seed, "deterministic": True, "force_row_wise": True, "bagging_freq": 1},
        **{"num_threads": threads(), "verbosity": -1},
        **settings,
    }
    # Of few rows most columns would be left out by the usual minimum of a bin.
    rows = lgb.Dataset(
        data.table,
        data.labels,
        weight=data.weights,
        categorical_feature=list(data.categorical),
        params={
            **parameters,
            "min_data_in_bin": 1 if len(data.labels) < 200 else 3,
            "bin_construct_sample_cnt": BINNED,
        },
    ).construct()
    del data  # LightGBM has bins now: the numbers are freed where the caller keeps none
    return _Booster(lgb.train(parameters, rows, rounds))


@dataclass(frozen=True)
class _Booster:
    """Trees of LightGBM."""

    booster: Any

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self.booster.predict(table), dtype=np.float64)

    def save(self, folder: Path) -> str:
        (folder / "model.txt").write_text(self.booster.model_to_string(), encoding="utf-8")
        return "model.txt"


def _xgboost(data: Numbers, settings: Settings, seed: int) -> Fitted:
    import xgboost

    settings = dict(settings)
    rounds = int(settings.pop("n_estimators"))
    kinds = ["c" if at in {*data.categorical} else "q" for at in range(data.table.shape[1])]
    objectives: Mapping[str, dict[str, Any]] = {
        "binary": {"objective": "binary:logistic"},
        "multiclass": {"objective": "multi:softprob", "num_class": data.classes},
        "regression": {"objective": "reg:squarederror"},
    }
    parameters = {
        **objectives[data.task],
        **{"seed": seed, "nthread": threads(), "tree_method": "hist", "verbosity": 0},
        **settings,
    }
    rows = xgboost.DMatrix(
        data.table,
        data.labels,
        weight=data.weights,
        feature_types=kinds,
        enable_categorical=True,
    )
    return _Xgboost(xgboost.train(parameters, rows, rounds), kinds)


@dataclass(frozen=True)
class _Xgboost:
    """Trees of XGBoost."""

    booster: Any
    kinds: Sequence[str]

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        import xgboost

        rows = xgboost.DMatrix(table, feature_types=self.kinds, enable_categorical=True)
        return np.asarray(self.booster.predict(rows), dtype=np.float64)

    def save(self, folder: Path) -> str:
        self.booster.save_model(folder / "model.json")
        return "model.json"


def _estimator(
    of_task: Callable[[str, dict[str, Any], int], Any], *, linear: bool = False
) -> Callable[[Numbers, Settings, int], Fitted]:
    """The fit of an estimator of scikit-learn, behind what it needs of featurization."""

    def fit(data: Numbers, settings: Settings, seed: int) -> Fitted:
        from sklearn.pipeline import make_pipeline

        task = REGRESSION if data.task == "regression" else CLASSIFICATION
        last = of_task(task, dict(settings), seed)
        estimator = make_pipeline(_prepared(data, linear), last) if data.featurized else last
        where = f"{estimator.steps[-1][0]}__sample_weight" if data.featurized else "sample_weight"
        given = {} if data.weights is None else {where: data.weights}
        labels = data.labels if data.task == "regression" else data.labels.astype(np.int64)
        return _Estimator(estimator.fit(data.table, labels, **given), data.task, data.classes)

    return fit


def _prepared(data: Numbers, linear: bool) -> Any:
    """Missing numbers become the median; for what adds up its inputs numbers are scaled, and each
    category has a column.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    categorical = list(data.categorical)
    numeric = [at for at in range(data.table.shape[1]) if at not in {*categorical}]
    numbers: Any = SimpleImputer(strategy="median", keep_empty_features=True)
    # No code is negative.
    codes: Any = SimpleImputer(strategy="constant", fill_value=-1.0, keep_empty_features=True)
    if linear:
        numbers = make_pipeline(numbers, StandardScaler())
        codes = make_pipeline(codes, OneHotEncoder(handle_unknown="ignore", dtype=np.float32))
    parts = [("numbers", numbers, numeric), ("categories", codes, categorical)]
    return ColumnTransformer([part for part in parts if part[2]])


@dataclass(frozen=True)
class _Estimator:
    """An estimator of scikit-learn, saved as ONNX."""

    estimator: Any
    task: Task
    classes: int

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        if self.task == "regression":
            return np.asarray(self.estimator.predict(table), dtype=np.float64)
        # A fold may lack a class.
        probabilities = np.zeros((len(table), self.classes))
        probabilities[:, self.estimator.classes_] = self.estimator.predict_proba(table)
        return probabilities[:, 1] if self.task == "binary" else probabilities

    def save(self, folder: Path) -> str:
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType

        columns = self.estimator.n_features_in_
        options = {} if self.task == "regression" else {"zipmap": False}
        model = to_onnx(
            self.estimator,
            initial_types=[("table", FloatTensorType([None, columns]))],
            options={id(self.estimator): options} if options else None,
            target_opset={"": 18, "ai.onnx.ml": 3},
        )
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return "model.onnx"


def _forest(name: str) -> Callable[[str, dict[str, Any], int], Any]:
    def make(task: str, settings: dict[str, Any], seed: int) -> Any:
        from sklearn import ensemble

        kind = "Regressor" if task == REGRESSION else "Classifier"
        settings = {
            name: int(of) if isinstance(of, float) and of >= 1 and name != "max_features" else of
            for name, of in settings.items()
        }
        return getattr(ensemble, f"{name}{kind}")(**settings, n_jobs=threads(), random_state=seed)

    return make


def _plain(module: str, classifier: str, regressor: str = "", **always: Any) -> Any:
    """An estimator by its name, whose settings are its arguments."""

    def make(task: str, settings: dict[str, Any], seed: int) -> Any:
        from importlib import import_module

        estimator = getattr(
            import_module(f"sklearn.{module}"), regressor if task == REGRESSION else classifier
        )
        seeded = {"random_state": seed} if "random_state" in estimator().get_params() else {}
        return estimator(**{**always, **settings, **seeded})

    return make


_TREES: Space = {
    "n_estimators": ("quniform", 50, 600, 10),
    "learning_rate": _log(0.01, 0.3),
    "colsample_bytree": ("uniform", 0.4, 1.0),
    "subsample": ("uniform", 0.5, 1.0),
    "reg_lambda": _log(0.001, 10.0),
}
_FOREST: Space = {
    "n_estimators": ("quniform", 50, 400, 10),
    "min_samples_leaf": ("choice", 1, 2, 4, 8, 16, 32),
    "max_features": ("choice", "sqrt", 0.3, 0.5, 0.8, 1.0),
}
# See `ml.automl.sampling`.
_BALANCE: Mapping[str, Space] = {
    CLASSIFICATION: {"balance": ("choice", "none", "classes", "under", "smote")}
}


def _both(name: str) -> Mapping[str, str]:
    return {CLASSIFICATION: name, REGRESSION: name}


# In the order of the portfolio: the first of each is tried before the second of any.
FAMILIES: Sequence[Family] = (
    Family(
        _both("light_gbm"),
        _lightgbm,
        {
            **_TREES,
            "num_leaves": ("quniform", 4, 128, 1),
            "min_data_in_leaf": ("choice", 5, 10, 20, 50, 100),
        },
        (
            {
                "n_estimators": 150,
                "learning_rate": 0.06,
                "num_leaves": 20,
                "min_data_in_leaf": 20,
                "colsample_bytree": 0.8,
                "subsample": 0.9,
                "reg_lambda": 1.0,
            },
            {
                "n_estimators": 400,
                "learning_rate": 0.03,
                "num_leaves": 10,
                "min_data_in_leaf": 10,
                "colsample_bytree": 0.6,
                "subsample": 0.8,
                "reg_lambda": 3.0,
            },
        ),
        usual=True,
        of_task=_BALANCE,
    ),
    Family(
        {CLASSIFICATION: "logistic_regression"},
        _estimator(_plain("linear_model", "LogisticRegression", max_iter=500), linear=True),
        {"C": _log(0.001, 100.0)},
        ({"C": 1.0}, {"C": 0.05}),
        usual=True,
        of_task=_BALANCE,
    ),
    Family(
        {REGRESSION: "elastic_net"},
        _estimator(_plain("linear_model", "", "ElasticNet", max_iter=2000), linear=True),
        {"alpha": _log(0.0001, 10.0), "l1_ratio": ("uniform", 0.0, 1.0)},
        ({"alpha": 0.001, "l1_ratio": 0.5}, {"alpha": 0.1, "l1_ratio": 0.5}),
        usual=True,
    ),
    Family(
        _both("random_forest"),
        _estimator(_forest("RandomForest")),
        _FOREST,
        ({"n_estimators": 150, "min_samples_leaf": 4, "max_features": "sqrt"},),
        usual=True,
        of_task=_BALANCE,
    ),
    Family(
        {CLASSIFICATION: "xg_boost_classifier", REGRESSION: "xg_boost_regressor"},
        _xgboost,
        {
            **_TREES,
            "max_depth": ("choice", 2, 3, 4, 5, 6, 8, 10),
            "min_child_weight": _log(0.5, 50.0),
        },
        (
            {
                "n_estimators": 150,
                "learning_rate": 0.08,
                "max_depth": 4,
                "min_child_weight": 2.0,
                "colsample_bytree": 0.8,
                "subsample": 0.9,
                "reg_lambda": 1.0,
            },
        ),
        usual=True,
        of_task=_BALANCE,
    ),
    Family(
        _both("extreme_random_trees"),
        _estimator(_forest("ExtraTrees")),
        _FOREST,
        ({"n_estimators": 150, "min_samples_leaf": 4, "max_features": 0.5},),
        usual=True,
        of_task=_BALANCE,
    ),
    Family(
        _both("knn"),
        _estimator(_plain("neighbors", "KNeighborsClassifier", "KNeighborsRegressor"), linear=True),
        {"n_neighbors": ("quniform", 3, 100, 1), "weights": ("choice", "uniform", "distance")},
        ({"n_neighbors": 15, "weights": "uniform"},),
        weighted=False,
        in_steps=True,
    ),
    Family(
        {CLASSIFICATION: "svm"},
        _estimator(_plain("svm", "SVC", probability=True), linear=True),
        {"C": _log(0.01, 100.0)},
        ({"C": 1.0},),
        of_task=_BALANCE,
    ),
    Family(
        {CLASSIFICATION: "bernoulli_naive_bayes"},
        _estimator(_plain("naive_bayes", "BernoulliNB"), linear=True),
        {"alpha": _log(0.001, 10.0)},
        ({"alpha": 1.0},),
        of_task=_BALANCE,
    ),
    Family(
        _both("decision_tree"),
        _estimator(_plain("tree", "DecisionTreeClassifier", "DecisionTreeRegressor")),
        {"max_depth": ("choice", 2, 3, 4, 6, 8, 12, 16), "min_samples_leaf": ("choice", 1, 5, 20)},
        ({"max_depth": 6, "min_samples_leaf": 5},),
        of_task=_BALANCE,
    ),
)


# What a stack's meta model may be, by Azure ML's names (`stack_meta_learner_type`), and its usual
# arguments. "Default meta-learners are LogisticRegression for classification tasks (or
# LogisticRegressionCV if cross-validation is enabled) and ElasticNet for regression … (or
# ElasticNetCV …)": a meta model here is always fitted to answers across folds.
_LOGISTIC: Mapping[str, Any] = {
    "scoring": "neg_log_loss",
    "use_legacy_attributes": False,
    "l1_ratios": (0.0,),
}
_META: Mapping[str, Callable[..., Callable[[Numbers, Settings, int], Fitted]]] = {
    "logistic_regression": lambda: _estimator(
        _plain("linear_model", "LogisticRegression", max_iter=500)
    ),
    "logistic_regression_cv": lambda: _estimator(
        _plain("linear_model", "LogisticRegressionCV", **_LOGISTIC, cv=3, max_iter=500)
    ),
    "elastic_net": lambda: _estimator(_plain("linear_model", "", "ElasticNet")),
    "elastic_net_cv": lambda: _estimator(_plain("linear_model", "", "ElasticNetCV", cv=3)),
    "linear_regression": lambda: _estimator(_plain("linear_model", "", "LinearRegression")),
    "light_gbm_classifier": lambda: _lightgbm,
    "light_gbm_regressor": lambda: _lightgbm,
}
_USUAL_META = {CLASSIFICATION: "logistic_regression_cv", REGRESSION: "elastic_net_cv"}
_META_TREES = {"n_estimators": 50, "num_leaves": 7, "min_data_in_leaf": 20}


def meta_learners(task: str) -> list[str]:
    """The kinds of meta models of a task."""
    others = {
        CLASSIFICATION: ("elastic", "linear", "light_gbm_regressor"),
        REGRESSION: ("logistic", "light_gbm_classifier"),
    }
    return [name for name in _META if not name.startswith(others[task])]


def fit_meta(kind: str, numbers: Numbers, seed: int) -> Fitted:
    """A meta model of members' answers; "none" is the usual one of the task. Raises ValueError for
    rows that it cannot fit.
    """
    task = REGRESSION if numbers.task == "regression" else CLASSIFICATION
    kind = _USUAL_META[task] if kind == "none" else kind
    usual = _META_TREES if kind.startswith("light_gbm") else {}
    return _META[kind]()(numbers, usual, seed)


def of_task(task: str) -> Mapping[str, Family]:
    """The families of a task by Azure ML's names, in the order of the portfolio."""
    return {family.names[task]: family for family in FAMILIES if task in family.names}
