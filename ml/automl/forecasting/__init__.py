"""Run the trials of AutoML forecasting (`task: forecasting`).

A model folder has `forecaster.json` (`ml.serving.scoring.forecasters`) and `forecasts.json`, the
rolling-origin forecasts that the model was scored by. The latter is a table as pandas writes it
(`orient="split"`), with one row for each series, origin and step. Hand-written models write the
same table as CSV.

| column | type | value |
|---|---|---|
| unique_id | string | the series: its identifiers joined by `/`, or `all` without identifiers |
| ds | timestamp | the time of the forecast value, without a time zone |
| cutoff | timestamp | the last time whose values the forecast may use |
| y | float64 | the actual value; missing if not observed |
| yhat | float64 | the forecast |
| scale | float64 | divisor of errors: mean absolute seasonal difference until the cutoff |
| lo_80, hi_80 | float64 | the 80 % prediction interval |
"""
