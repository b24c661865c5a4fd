"""Tests of ml.repository.affected."""
