"""Tests of ml.repository.scaffold."""
