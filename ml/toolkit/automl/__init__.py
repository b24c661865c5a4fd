"""Shared code of local AutoML trials (`ml.automl`) and of the conversion of Azure AutoML models."""
