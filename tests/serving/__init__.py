"""Tests of ml/serving."""
