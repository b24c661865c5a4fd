"""What this machine does of `forecasting:` of an AutoML job, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ml.specs.plan.plans import AutoMLPlan

FORECASTING = "forecasting"
# The package without which no forecaster is fitted.
EXTRA = "statsforecast"
FIELDS = frozenset({FORECASTING})
_TIME, _HORIZON, _FREQUENCY = "time_column_name", "forecast_horizon", "frequency"
_AGGREGATE = "target_aggregate_function"
# Fields that take a whole number of steps, and those of them that may be automatic.
_NUMBERS = (_HORIZON, "cv_step_size", "seasonality", "target_rolling_window_size", "target_lags")
_AUTOMATIC = frozenset(_NUMBERS[2:])
# What else the service computes of a table, and what ends a search of tables.
_OTHERS = (
    "validation_data",
    "validation_data_size",
    "cv_split_column_names",
    "weight_column_name",
    "test_data",
    "test_data_size",
)
_Refusal = tuple[str, str, str]


def refusals(plan: AutoMLPlan) -> Iterator[_Refusal]:
    """The field, what it says, and what would be right, for all that is not done here."""
    own: Mapping[str, Any] = plan.settings.get(FORECASTING) or {}
    for name in _OTHERS:
        if name in plan.inputs or plan.settings.get(name) not in (None, "auto"):
            yield name, f"`{name}` of a forecast", "n_cross_validations: rolling origins judge"
    for name in ("column_name_and_types", "blocked_transformers", "transformer_params"):
        if plan.setting("featurization", name):
            yield f"featurization.{name}", f"`{name}` of a forecast", "featurization: {mode: auto}"
    if plan.setting("training", "enable_stack_ensemble"):
        expected = "enable_vote_ensemble, the weighted mean of forecasts"
        yield "training.enable_stack_ensemble", "`enable_stack_ensemble`", expected
    for name in (_TIME, _HORIZON):
        if not own.get(name):
            yield FORECASTING, f"`{FORECASTING}` without `{name}`", f"`{name}`"
    for name in _NUMBERS:
        value = own.get(name)
        values = value if isinstance(value, list) else [value]
        is_automatic = value is None or (str(value).lower() == "auto" and name in _AUTOMATIC)
        if not is_automatic and not all(type(number) is int and number > 0 for number in values):
            expected = f"a whole number{' or auto' if name in _AUTOMATIC else ''}"
            yield f"{FORECASTING}.{name}", f"`{name}: {value}`", expected
    for name, usual in (("feature_lags", "none"), ("use_stl", "none")):
        if str(own.get(name) or usual).lower() != usual:
            yield f"{FORECASTING}.{name}", f"`{name}: {own[name]}`", f"no `{name}`"
    if str(own.get("short_series_handling_config")).lower() == "pad":
        field = f"{FORECASTING}.short_series_handling_config"
        yield field, "`short_series_handling_config: pad`", "drop, or auto: a naive forecast"
    aggregate = str(own.get(_AGGREGATE) or "none").lower()
    if aggregate != "none" and not own.get(_FREQUENCY):
        yield f"{FORECASTING}.{_AGGREGATE}", f"`{_AGGREGATE}` without `{_FREQUENCY}`", _FREQUENCY
    if country := own.get("country_or_region_for_holidays"):
        from holidays import list_supported_countries

        if str(country) not in list_supported_countries():
            field = f"{FORECASTING}.country_or_region_for_holidays"
            yield field, f"the holidays of `{country}`", "an ISO 3166 code, such as US or GB"
