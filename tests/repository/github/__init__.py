"""Tests of ml.repository.github."""
