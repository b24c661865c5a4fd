"""Watch live models: whether requests and predictions still match the evaluation data."""
