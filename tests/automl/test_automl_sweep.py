"""An AutoML plan becomes a sweep; what is not done here is refused with its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from ml.automl.models.families import of_task
from ml.backends.local import automl_sweep
from ml.backends.local.backend import LocalBackend
from ml.specs.plan.plans import AutoMLPlan, SweepPlan, sweeps

Plans = Callable[..., AutoMLPlan]

THREE = "training: {allowed_training_algorithms: [light_gbm, RandomForest, logistic_regression]}"


def families(plan: AutoMLPlan) -> list[str]:
    (space,) = automl_sweep.compile_plan(plan).search_space.values()  # type: ignore[union-attr]
    return [branch["family"] for branch in space.args]  # type: ignore[index]


def test_the_sweep_of_a_search(plan: Plans) -> None:
    """Its limits are the sweep's; the portfolio is tried first."""
    limits = (
        "limits: {max_trials: 9, max_concurrent_trials: 2, timeout_minutes: 5, exit_score: 0.9}"
    )
    sweep = automl_sweep.compile_plan(plan(f"{THREE}\n{limits}"))
    assert isinstance(sweep, SweepPlan) and [*sweeps(sweep)] == [sweep]
    assert (sweep.primary_metric, sweep.goal) == ("AUC_weighted", "maximize")
    assert (sweep.max_total_trials, sweep.max_concurrent_trials, sweep.timeout_s) == (9, 2, 300)
    assert sweep.ending is not None and sweep.ending.exit_score == 0.9
    assert all("portfolio" in point.because for point in sweep.hints.points)


@pytest.mark.parametrize(
    ("task", "written", "metric", "goal"),
    [
        ("classification", "AUCWeighted", "AUC_weighted", "maximize"),
        ("classification", "NormMacroRecall", "norm_macro_recall", "maximize"),
        ("classification", "accuracy", "accuracy", "maximize"),
        ("regression", "R2Score", "r2_score", "maximize"),
        (
            "regression",
            "NormalizedRootMeanSquaredError",
            "normalized_root_mean_squared_error",
            "minimize",
        ),
    ],
)
def test_a_metric_in_either_spelling_is_what_trials_log(
    plan: Plans, task: str, written: str, metric: str, goal: str
) -> None:
    sweep = automl_sweep.compile_plan(plan(task=task, metric=written, target="spent"))
    assert isinstance(sweep, SweepPlan) and (sweep.primary_metric, sweep.goal) == (metric, goal)
    assert json.loads(sweep.trial.environment_variables["AUTOML_JOB"])["metric"] == metric


def test_a_score_in_quotes_is_a_number(plan: Plans) -> None:
    sweep = automl_sweep.compile_plan(plan("limits: {exit_score: '0.9'}"))
    assert isinstance(sweep, SweepPlan) and sweep.ending is not None
    assert sweep.ending.exit_score == 0.9


def test_what_costs_little_comes_first(plan: Plans) -> None:
    """Boosted trees and a linear model; forests after them, whatever families are allowed."""
    for more in ("", THREE):
        sweep = automl_sweep.compile_plan(plan(more))
        assert isinstance(sweep, SweepPlan)
        points = [point.values["model"]["family"] for point in sweep.hints.points]  # type: ignore[index]
        assert points[:3] == ["light_gbm", "logistic_regression", "light_gbm"]
        boosted = [at for at, of in enumerate(points) if of.startswith(("light", "xg"))]
        assert len(boosted) >= 4 and points.index("random_forest") > boosted[2]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_point_of_the_portfolio_leaves_nothing_to_chance(task: str) -> None:
    """What it does not say would be drawn, and be as good as what is drawn."""
    for name, family in of_task(task).items():
        for settings in family.portfolio.values():
            assert {*settings} == {*family.space}, name


def test_trials_know_the_time_of_the_search(plan: Plans) -> None:
    """Of which their trees take a part; without a limit they take what they need."""
    for limits, seconds in (("limits: {max_trials: 9, timeout_minutes: 5}", 300.0), ("", None)):
        given = replace(plan(limits), timeout_s=seconds)
        sweep = automl_sweep.compile_plan(given)
        assert isinstance(sweep, SweepPlan)
        job = json.loads(sweep.trial.environment_variables["AUTOML_JOB"])
        assert job.get("seconds") == seconds


def test_which_families_are_tried(plan: Plans) -> None:
    """Those that are allowed, else the usual ones; never those that are blocked."""
    usual = families(plan())
    assert {"light_gbm", "xg_boost_classifier", "extreme_random_trees"} <= {*usual}
    assert "knn" not in usual and "elastic_net" not in usual
    assert families(plan(THREE)) == ["light_gbm", "logistic_regression", "random_forest"]
    assert families(plan("training: {allowed_training_algorithms: [KNN]}")) == ["knn"]
    blocked = families(plan("training: {blocked_training_algorithms: [LightGBM]}"))
    assert blocked == [name for name in usual if name != "light_gbm"]
    regression = plan(task="regression", metric="r2_score", target="spent")
    assert {"elastic_net", "xg_boost_regressor"} <= {*families(regression)}


def test_ensembles_come_last_where_there_is_room(plan: Plans) -> None:
    """Unless the spec says otherwise, or the trials are too few to combine."""

    def ensembles(more: str) -> tuple[str, ...]:
        sweep = automl_sweep.compile_plan(plan(more))
        assert isinstance(sweep, SweepPlan) and sweep.ending
        return sweep.ending.ensembles

    assert ensembles("limits: {max_trials: 9}") == ("voting_ensemble",)
    assert ensembles("limits: {max_trials: 3}") == ()
    off = "training: {enable_vote_ensemble: false}"
    assert ensembles(f"limits: {{max_trials: 9}}\n{off}") == ()
    both = ("voting_ensemble", "stack_ensemble")
    assert ensembles("limits: {max_trials: 11}") == both
    asked = "training: {enable_stack_ensemble: true}"
    assert ensembles(f"limits: {{max_trials: 5}}\n{asked}") == both
    assert ensembles("limits: {max_trials: 99}\ntraining: {enable_stack_ensemble: false}") == (
        "voting_ensemble",
    )


def test_transformers_reach_the_trials_by_one_name(plan: Plans) -> None:
    """Azure ML takes them in two."""
    featurization = (
        "featurization: {mode: custom, blocked_transformers: [TfIdf], "
        "transformer_params: {Imputer: [{fields: [age], parameters: {strategy: median}}]}}"
    )
    sweep = automl_sweep.compile_plan(plan(featurization))
    assert isinstance(sweep, SweepPlan)
    job = json.loads(sweep.trial.environment_variables["AUTOML_JOB"])["featurization"]
    assert job["blocked_transformers"] == ["tf_idf"] and [*job["transformer_params"]] == ["imputer"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("training: {enable_dnn_training: true}", "training.enable_dnn_training"),
        (
            "training: {stack_ensemble_settings: {stack_meta_learner_type: ElasticNet}}",
            "`elastic_net` as the meta model",
        ),
        (
            "training: {stack_ensemble_settings: "
            "{stack_meta_learner_type: none, stack_meta_learner_train_percentage: 0.3}}",
            "stack_meta_learner_train_percentage",
        ),
        ("training: {training_mode: distributed}", "training.training_mode"),
        ("training: {allowed_training_algorithms: [linear_svm]}", "linear_svm"),
        ("featurization: {mode: custom, blocked_transformers: [OneHotEncoder]}", "blocked"),
        (
            "featurization: {transformer_params: {tf_idf: [{fields: [city], parameters: {}}]}}",
            "`tf_idf` with parameters",
        ),
        (
            "featurization: {transformer_params: "
            "{imputer: [{fields: [age], parameters: {strategy: ffill}}]}}",
            "`strategy: ffill` of imputer",
        ),
        ("featurization: {mode: auto, enable_dnn_featurization: true}", "enable_dnn"),
        ("limits: {max_trials: 2, max_nodes: 4}", "limits.max_nodes"),
        ("n_cross_validations: 3\nvalidation_data_size: 0.2", "n_cross_validations"),
        ("environment_variables: {A: b}", "environment_variables"),
    ],
)
def test_what_is_not_done_here_is_refused_with_its_line(plan: Plans, more: str, field: str) -> None:
    """Never ignored: Azure runs it."""
    problems = LocalBackend().refusals(plan(more))
    assert [problem.code for problem in problems] == ["unsupported-automl"]
    (problem,) = problems
    assert field in problem.actual and "--on azure" in problem.hint
    assert problem.place is not None and problem.place.line == 8


@pytest.mark.parametrize(
    "more",
    [
        "training: {enable_dnn_training: false, enable_model_explainability: true}",
        "featurization: {mode: 'off'}",
        "limits: {max_trials: 2, max_nodes: 1, enable_early_termination: false}",
        "n_cross_validations: auto\nvalidation_data_size: 0.2",
        "training: {enable_stack_ensemble: true, stack_ensemble_settings: "
        "{stack_meta_learner_type: LogisticRegressionCV}}",
        "featurization: {mode: custom, blocked_transformers: [TfIdf, cat_target_encoder], "
        "transformer_params: {imputer: [{fields: [age], parameters: {strategy: median}}]}}",
        "tags: {team: a}\nproperties: {b: c}",
        "training: {blocked_training_algorithms: [linear_svm]}",
    ],
)
def test_what_is_honoured_or_says_nothing_is_not_refused(plan: Plans, more: str) -> None:
    assert LocalBackend().refusals(plan(more)) == ()


def test_other_tasks_are_azures(plan: Plans) -> None:
    """With the line of the task."""
    given = replace(plan(), task="text_classification")
    (problem,) = LocalBackend().refusals(given)
    assert problem.actual.startswith("`task: text_classification`") and problem.place
    assert problem.place.line == 4


def test_without_its_packages_it_says_what_to_type(
    plan: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automl_sweep, "find_spec", lambda name: None)
    (problem,) = LocalBackend().refusals(plan())
    assert (problem.code, problem.hint) == ("automl-packages", "make automl")


def test_a_column_that_takes_no_weights_is_refused(plan: Plans) -> None:
    """kNN would ignore them."""
    knn = "training: {allowed_training_algorithms: [knn]}\nweight_column_name: age"
    (problem,) = LocalBackend().refusals(plan(knn))
    assert "knn" in problem.actual and problem.place and problem.place.line == 9
