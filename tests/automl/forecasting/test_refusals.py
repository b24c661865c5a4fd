"""Each field of ForecastingSettings is honoured, or refused with its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ml.automl.forecasting.families import FAMILIES
from ml.backends.local import automl_sweep
from ml.backends.local.backend import LocalBackend
from ml.specs.plan.plans import AutoMLPlan, SweepPlan
from tests.automl.conftest import (
    people,
    plan,  # noqa: F401
    write,
)

Plans = Callable[..., AutoMLPlan]
METRIC = "normalized_mean_absolute_error"


@pytest.fixture(autouse=True)
def _table(tmp_path: Path) -> None:
    """The table of the plan, with days."""
    rows = [{"day": f"2026-01-{number:02}", **row} for number, row in enumerate(people(30), 1)]
    write(tmp_path / "table", rows)


def _plan(make: Plans, fields: str, more: str = "") -> AutoMLPlan:
    written = f"{more}\nforecasting:\n  time_column_name: day\n  {fields}"
    return make(written, "forecasting", METRIC, "spent")


@pytest.mark.parametrize(
    "fields",
    [
        "forecast_horizon: 3\n  target_lags: [1, 7]\n  target_rolling_window_size: 7",
        "forecast_horizon: 3\n  target_lags: auto\n  seasonality: auto\n  feature_lags: none",
        "forecast_horizon: 3\n  time_series_id_column_names: [city]\n  cv_step_size: 2",
        "forecast_horizon: 3\n  frequency: W-THU\n  target_aggregate_function: sum",
        "forecast_horizon: 3\n  country_or_region_for_holidays: DE\n  seasonality: 7",
        "forecast_horizon: 3\n  short_series_handling_config: drop\n  use_stl: none",
        "forecast_horizon: 3\n  features_unknown_at_forecast_time: [age]",
    ],
)
def test_what_is_honoured(plan: Plans, fields: str) -> None:  # noqa: F811
    """It reaches the trials as it is written."""
    given = _plan(plan, fields)
    assert LocalBackend().refusals(given) == ()
    sweep = automl_sweep.compile_plan(given)
    assert isinstance(sweep, SweepPlan) and (sweep.primary_metric, sweep.goal) == (
        METRIC,
        "minimize",
    )
    document = json.loads(sweep.trial.environment_variables["AUTOML_JOB"])
    assert document["forecasting"]["forecast_horizon"] == 3
    assert "ml.automl.forecasting.trial" in sweep.trial.command


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("forecast_horizon: auto", "`forecast_horizon: auto`"),
        ("forecast_horizon: 3\n  use_stl: season", "`use_stl: season`"),
        ("forecast_horizon: 3\n  feature_lags: auto", "`feature_lags: auto`"),
        ("forecast_horizon: 3\n  short_series_handling_config: pad", "pad"),
        ("forecast_horizon: 3\n  target_lags: [0, 1]", "`target_lags: [0, 1]`"),
        ("forecast_horizon: 3\n  country_or_region_for_holidays: XX", "`XX`"),
        ("forecast_horizon: 3\n  target_aggregate_function: sum", "without `frequency`"),
        ("cv_step_size: 2", "without `forecast_horizon`"),
    ],
)
def test_what_is_refused(plan: Plans, fields: str, says: str) -> None:  # noqa: F811
    """With the line of the field, or of `forecasting`."""
    (problem,) = LocalBackend().refusals(_plan(plan, fields))
    assert problem.code == "unsupported-automl" and says in problem.actual
    assert problem.place is not None and problem.place.line >= 9


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("validation_data_size: 0.2", "`validation_data_size`"),
        ("test_data_size: 0.2", "`test_data_size`"),
        ("weight_column_name: age", "`weight_column_name`"),
        ("training: {enable_stack_ensemble: true}", "`enable_stack_ensemble`"),
        ("training: {allowed_training_algorithms: [Prophet]}", "`prophet`"),
        ("featurization: {mode: custom, blocked_transformers: [TfIdf]}", "`blocked_transformers`"),
    ],
)
def test_what_a_forecast_does_not_take(plan: Plans, more: str, says: str) -> None:  # noqa: F811
    """Fields of other tasks, and Azure's other algorithms."""
    problems = LocalBackend().refusals(_plan(plan, "forecast_horizon: 3", more))
    assert [of.code for of in problems] == ["unsupported-automl"] and says in problems[0].actual
    assert problems[0].place is not None and problems[0].place.line == 8


def test_naive_forecasts_are_always_tried(plan: Plans) -> None:  # noqa: F811
    """Theta, which Azure ML does not have, where the spec names no algorithm."""
    assert {*automl_sweep.families(_plan(plan, "forecast_horizon: 3"))} == {*FAMILIES}
    allowed = "training: {allowed_training_algorithms: [LightGBM]}"
    tried = automl_sweep.families(_plan(plan, "forecast_horizon: 3", allowed))
    assert {*tried} == {"naive", "seasonal_naive", "light_gbm"}
