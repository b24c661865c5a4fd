"""Tests of ml.repository."""
