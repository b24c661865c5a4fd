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

from ml.automl import trees
from ml.automl.trees import Growing
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

    def weights_like(self, other: Numbers) -> NDArray[np.float64] | None:
        """Weights with which each class counts as much among these rows as among the others, where
        rare ones may have been weighted, left out or made.
        """
        if self.task == "regression":
            return self.weights

        def counted(of: Numbers) -> NDArray[np.float64]:
            counts = np.bincount(of.labels.astype(np.int64), of.weights, of.classes)
            return counts.astype(np.float64)

        here = counted(self)
        share = np.divide(counted(other), here, out=np.zeros_like(here), where=here > 0)
        weights = share[self.labels.astype(np.int64)]
        return weights if self.weights is None else weights * self.weights


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
    """`names` are Azure ML's, by task. `portfolio` is tried first, each at its turn among those of
    all families.

    One that is not `usual` is tried where `allowed_training_algorithms` names it. One that takes no
    weights takes no weight column either. One that answers `in_steps` may take another neighbour of
    a row where two are as near in single precision. One that is not `seeded` is the same for every
    seed. `grow` begins boosted trees, which other rows watch by a metric (`ml.automl.trees`).
    """

    names: Mapping[str, str]
    fit: Callable[[Numbers, Settings, int], Fitted]
    space: Space
    portfolio: Mapping[int, Settings]
    usual: bool = False
    weighted: bool = True
    in_steps: bool = False
    seeded: bool = True
    grow: Callable[[Numbers, Numbers, str, Settings, int], Growing] | None = None
    of_task: Mapping[str, Space] = field(default_factory=dict)


def _log(low: float, high: float) -> tuple[Any, ...]:
    """Azure ML's loguniform has the logarithms of its bounds."""
    return ("loguniform", math.log(low), math.log(high))


def _lightgbm_rows(
    data: Numbers, settings: Settings, seed: int, metric: str
) -> tuple[dict[str, Any], Any]:
    """LightGBM's parameters, and the rows as bins."""
    objective = {"multiclass": {"objective": "multiclass", "num_class": data.classes}}
    names = trees.metric(metric, data.task)
    parameters = {
        **objective.get(data.task, {"objective": data.task}),
        **{"seed": seed, "deterministic": True, "force_row_wise": True, "bagging_freq": 1},
        **{"num_threads": threads(), "verbosity": -1},
        **({"metric": names[0]} if names else {}),
        **{name: of for name, of in settings.items() if name != "n_estimators"},
        # Of few rows most columns would be left out by the usual minimum of a bin.
        "min_data_in_bin": 1 if len(data.labels) < 200 else 3,
        "bin_construct_sample_cnt": BINNED,
    }
    rows = lightgbm().Dataset(
        data.table,
        data.labels,
        weight=data.weights,
        categorical_feature=list(data.categorical),
        params=parameters,
    )
    return parameters, rows.construct()


def _lightgbm(data: Numbers, settings: Settings, seed: int) -> Fitted:
    parameters, rows = _lightgbm_rows(data, settings, seed, "")
    del data  # LightGBM has bins now: the numbers are freed where the caller keeps none
    rounds = int(settings.get("n_estimators", trees.USUAL))
    return _Booster(lightgbm().train(parameters, rows, rounds))


def _grow_lightgbm(
    data: Numbers, watching: Numbers, metric: str, settings: Settings, seed: int
) -> Growing:
    parameters, rows = _lightgbm_rows(data, settings, seed, metric)
    weights = watching.weights_like(data)
    del data
    judged = rows.create_valid(watching.table, watching.labels, weights, params=parameters)
    booster = lightgbm().Booster(parameters, rows)
    return _GrowingBooster(booster.add_valid(judged, "judged"))


@dataclass(frozen=True)
class _GrowingBooster:
    booster: Any

    def add(self) -> float:
        self.booster.update()
        ((_, _, value, is_higher),) = self.booster.eval_valid()
        return float(value if is_higher else -value)

    def cut(self, trees: int) -> Fitted:
        self.booster.best_iteration = trees  # what it predicts and writes
        return _Booster(self.booster.free_dataset())


@dataclass(frozen=True)
class _Booster:
    """Trees of LightGBM."""

    booster: Any

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self.booster.predict(table), dtype=np.float64)

    def save(self, folder: Path) -> str:
        (folder / "model.txt").write_text(self.booster.model_to_string(), encoding="utf-8")
        return "model.txt"


def _xgboost_parameters(data: Numbers, settings: Settings, seed: int, metric: str) -> Settings:
    objectives: Mapping[str, dict[str, Any]] = {
        "binary": {"objective": "binary:logistic"},
        "multiclass": {"objective": "multi:softprob", "num_class": data.classes},
        "regression": {"objective": "reg:squarederror"},
    }
    names = trees.metric(metric, data.task)
    return {
        **objectives[data.task],
        **{"seed": seed, "nthread": threads(), "tree_method": "hist", "verbosity": 0},
        **({"eval_metric": names[1]} if names else {}),
        **{name: of for name, of in settings.items() if name != "n_estimators"},
    }


def _kinds(data: Numbers) -> list[str]:
    """A letter a column: a code, or a number."""
    return ["c" if at in {*data.categorical} else "q" for at in range(data.table.shape[1])]


def _xgboost_rows(data: Numbers, weights: NDArray[np.float64] | None) -> Any:
    import xgboost

    shared: dict[str, Any] = {"feature_types": _kinds(data), "enable_categorical": True}
    return xgboost.DMatrix(data.table, data.labels, weight=weights, **shared)


def _xgboost(data: Numbers, settings: Settings, seed: int) -> Fitted:
    import xgboost

    parameters = dict(_xgboost_parameters(data, settings, seed, ""))
    rounds = int(settings.get("n_estimators", trees.USUAL))
    booster = xgboost.train(parameters, _xgboost_rows(data, data.weights), rounds)
    return _Xgboost(booster, _kinds(data))


def _grow_xgboost(
    data: Numbers, watching: Numbers, metric: str, settings: Settings, seed: int
) -> Growing:
    import xgboost

    parameters = dict(_xgboost_parameters(data, settings, seed, metric))
    rows = _xgboost_rows(data, data.weights)
    judged = _xgboost_rows(watching, watching.weights_like(data))
    booster = xgboost.Booster(parameters, [rows, judged])
    is_higher = str(parameters.get("eval_metric", "")).startswith("auc")
    return _GrowingXgboost(booster, rows, judged, 1.0 if is_higher else -1.0, _kinds(data))


@dataclass
class _GrowingXgboost:
    booster: Any
    rows: Any
    judged: Any
    sign: float
    kinds: Sequence[str]
    _trees: int = 0

    def add(self) -> float:
        self.booster.update(self.rows, self._trees)
        self._trees += 1
        # "[0]\teval-auc:0.83712"
        return self.sign * float(self.booster.eval(self.judged).rpartition(":")[2])

    def cut(self, trees: int) -> Fitted:
        return _Xgboost(self.booster[:trees], self.kinds)


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


# Those of FLAML (flaml/automl/model.py), without what early stopping chooses or makes slow.
_TREES: Space = {
    "learning_rate": _log(0.02, 0.3),
    "colsample_bytree": ("uniform", 0.3, 1.0),
    "subsample": ("uniform", 0.6, 1.0),
    "reg_alpha": _log(0.001, 10.0),
    "reg_lambda": _log(0.001, 100.0),
}
# What says little of them; a point of the portfolio says all, else the rest is drawn.
_MILD: Settings = {
    "colsample_bytree": 1.0,
    "subsample": 1.0,
    "reg_alpha": 0.001,
    "reg_lambda": 0.001,
}
_MILD_LIGHTGBM: Settings = {
    **_MILD,
    **{"num_leaves": 31, "min_data_in_leaf": 20, "max_bin": 255, "extra_trees": False},
}
_FOREST: Space = {
    "n_estimators": ("quniform", 50, 300, 10),
    "min_samples_leaf": ("choice", 1, 2, 4, 8, 16, 32),
    "max_features": ("choice", "sqrt", 0.3, 0.5, 0.8, 1.0),
}
# See `ml.automl.sampling`.
_BALANCE: Mapping[str, Space] = {
    CLASSIFICATION: {"balance": ("choice", "none", "classes", "under", "smote")}
}


def _both(name: str) -> Mapping[str, str]:
    return {CLASSIFICATION: name, REGRESSION: name}


# Turns of the portfolio: boosted trees near to what their libraries and AutoGluon 1.x start with
# (`GBM`, `GBMXT`, `GBMLarge`), a linear model, which costs little; then what takes longer or is
# rarely best.
FAMILIES: Sequence[Family] = (
    Family(
        _both("light_gbm"),
        _lightgbm,
        {
            **_TREES,
            "num_leaves": ("qloguniform", math.log(4), math.log(256), 1),
            "min_data_in_leaf": ("qloguniform", math.log(2), math.log(128), 1),
            "max_bin": ("choice", 63, 127, 255, 511),
            "extra_trees": ("choice", False, True),
        },
        {
            0: {**_MILD_LIGHTGBM, "learning_rate": 0.1},
            2: {**_MILD_LIGHTGBM, "learning_rate": 0.1, "extra_trees": True},
            4: {
                **_MILD_LIGHTGBM,
                "learning_rate": 0.05,
                "num_leaves": 128,
                "min_data_in_leaf": 3,
                "colsample_bytree": 0.9,
            },
            6: {
                **_MILD_LIGHTGBM,
                "learning_rate": 0.06,
                "num_leaves": 10,
                "min_data_in_leaf": 10,
                "colsample_bytree": 0.6,
                "subsample": 0.8,
                "reg_lambda": 3.0,
            },
        },
        usual=True,
        grow=_grow_lightgbm,
        of_task=_BALANCE,
    ),
    Family(
        {CLASSIFICATION: "logistic_regression"},
        _estimator(_plain("linear_model", "LogisticRegression", max_iter=500), linear=True),
        {"C": _log(0.001, 100.0)},
        {1: {"C": 1.0}, 8: {"C": 0.05}},
        usual=True,
        seeded=False,
        of_task=_BALANCE,
    ),
    Family(
        {REGRESSION: "elastic_net"},
        _estimator(_plain("linear_model", "", "ElasticNet", max_iter=2000), linear=True),
        {"alpha": _log(0.0001, 10.0), "l1_ratio": ("uniform", 0.0, 1.0)},
        {1: {"alpha": 0.001, "l1_ratio": 0.5}, 8: {"alpha": 0.1, "l1_ratio": 0.5}},
        usual=True,
        seeded=False,
    ),
    Family(
        {CLASSIFICATION: "xg_boost_classifier", REGRESSION: "xg_boost_regressor"},
        _xgboost,
        {
            **_TREES,
            "max_depth": ("choice", 2, 3, 4, 5, 6, 8, 10),
            "min_child_weight": _log(0.5, 50.0),
        },
        {
            3: {
                **_MILD,
                "learning_rate": 0.1,
                "max_depth": 6,
                "min_child_weight": 1.0,
                "colsample_bytree": 0.8,
                "subsample": 0.9,
                "reg_lambda": 1.0,
            }
        },
        usual=True,
        grow=_grow_xgboost,
        of_task=_BALANCE,
    ),
    Family(
        _both("extreme_random_trees"),
        _estimator(_forest("ExtraTrees")),
        _FOREST,
        {5: {"n_estimators": 100, "min_samples_leaf": 4, "max_features": 0.5}},
        usual=True,
        of_task=_BALANCE,
    ),
    Family(
        _both("random_forest"),
        _estimator(_forest("RandomForest")),
        _FOREST,
        {7: {"n_estimators": 100, "min_samples_leaf": 4, "max_features": "sqrt"}},
        usual=True,
        of_task=_BALANCE,
    ),
    Family(
        _both("knn"),
        _estimator(_plain("neighbors", "KNeighborsClassifier", "KNeighborsRegressor"), linear=True),
        {"n_neighbors": ("quniform", 3, 100, 1), "weights": ("choice", "uniform", "distance")},
        {9: {"n_neighbors": 15, "weights": "uniform"}},
        weighted=False,
        seeded=False,
        in_steps=True,
    ),
    Family(
        {CLASSIFICATION: "svm"},
        _estimator(_plain("svm", "SVC", probability=True), linear=True),
        {"C": _log(0.01, 100.0)},
        {9: {"C": 1.0}},
        of_task=_BALANCE,
    ),
    Family(
        {CLASSIFICATION: "bernoulli_naive_bayes"},
        _estimator(_plain("naive_bayes", "BernoulliNB"), linear=True),
        {"alpha": _log(0.001, 10.0)},
        {9: {"alpha": 1.0}},
        seeded=False,
        of_task=_BALANCE,
    ),
    Family(
        _both("decision_tree"),
        _estimator(_plain("tree", "DecisionTreeClassifier", "DecisionTreeRegressor")),
        {"max_depth": ("choice", 2, 3, 4, 6, 8, 12, 16), "min_samples_leaf": ("choice", 1, 5, 20)},
        {9: {"max_depth": 6, "min_samples_leaf": 5}},
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
