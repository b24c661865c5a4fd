"""The endpoint: takes the history of a series; returns a value and an interval per day."""

from ml.serving.scoring.series import endpoint

init, run = endpoint()
