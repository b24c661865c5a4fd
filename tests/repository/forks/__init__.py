"""Tests of ml.repository.forks."""
