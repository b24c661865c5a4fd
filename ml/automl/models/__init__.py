"""Fit the models of a search: model families, their estimators, and class balancing."""
