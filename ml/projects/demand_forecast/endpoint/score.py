"""The endpoint: the history of a series in, a value and an interval per day out."""

from ml.serving.scoring.series import endpoint

init, run = endpoint()
