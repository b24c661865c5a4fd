"""AutoML forecasting: what the trials of `task: forecasting` run.

A model folder has `forecaster.json` (`ml.serving.scoring.forecasters`) and, beside it,
`forecasts.json`: the rolling-origin forecasts by which the model was scored, one row for each
series, origin and step, as pandas writes it (`orient="split"`). Hand-written models write the same
table as CSV.

| column | type | value |
|---|---|---|
| unique_id | string | the series: its identifiers joined by `/`; `all` where there are none |
| ds | timestamp | the time that is forecast, without a time zone |
| cutoff | timestamp | the last time whose values the forecast may use |
| y | float64 | the actual value; missing where none was observed |
| yhat | float64 | the forecast |
| scale | float64 | what errors are divided by: the seasonal difference before the cutoff |
| lo_80, hi_80 | float64 | the prediction interval, which covers 80 % of actual values |
"""
