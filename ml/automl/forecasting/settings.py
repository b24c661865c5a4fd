"""Parse the `ForecastingSettings` of an AutoML job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Azure ML's names of aggregations, which pandas has, too.
AGGREGATIONS = frozenset({"sum", "max", "min", "mean"})
_UNSET = ("auto", "none")


@dataclass(frozen=True)
class Settings:
    """The supported fields of ForecastingSettings; None means automatic."""

    time: str
    ids: Sequence[str]  # columns that identify a series
    target: str
    horizon: int  # steps of the frequency
    frequency: str | None  # a pandas offset alias
    aggregation: str | None  # how to aggregate several values of a step; None: there is only one
    season: int | None  # steps; 1 for no season
    lags: Sequence[int] | None  # lags of the target in steps, for trees
    window: int | None  # steps of the rolling mean, for trees
    country: str | None  # ISO 3166 code for holidays
    unknown: frozenset[str]  # columns whose future values are unknown
    drops_short: bool  # whether too short series are dropped
    folds: int | None
    step: int | None  # steps between the origins of consecutive folds

    @classmethod
    def parse(cls, job: Mapping[str, Any]) -> Settings:
        """Parse the settings from the content of the environment variable AUTOML_JOB."""
        section: Mapping[str, Any] = job["forecasting"]

        def number(name: str) -> int | None:
            value = section.get(name)
            return None if value is None or _word(value) in _UNSET else int(value)

        aggregation = _word(section.get("target_aggregate_function"))
        folds = job.get("n_cross_validations")
        return cls(
            time=str(section["time_column_name"]),
            ids=_names(section.get("time_series_id_column_names")),
            target=str(job["target"]),
            horizon=number("forecast_horizon") or 1,
            frequency=section.get("frequency") or None,
            aggregation=str(aggregation) if aggregation in AGGREGATIONS else None,
            # "If set to None, the time series is assumed non-seasonal".
            season=1
            if "seasonality" in section and section["seasonality"] is None
            else number("seasonality"),
            lags=_lags(section.get("target_lags")),
            window=number("target_rolling_window_size"),
            country=section.get("country_or_region_for_holidays") or None,
            unknown=frozenset(_names(section.get("features_unknown_at_forecast_time"))),
            drops_short=_word(section.get("short_series_handling_config")) == "drop",
            folds=folds if isinstance(folds, int) else None,
            step=number("cv_step_size"),
        )


def _lags(value: Any) -> list[int] | None:
    if value is None or _word(value) in _UNSET:
        return None
    return sorted({int(number) for number in (value if isinstance(value, list) else [value])})


def _word(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _names(value: object) -> list[str]:
    return [str(key) for key in value] if isinstance(value, list) else [str(value)] if value else []
