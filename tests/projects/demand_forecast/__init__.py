"""Tests of the project fraud_scoring."""
