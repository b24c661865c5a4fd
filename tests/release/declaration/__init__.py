"""Tests of ml.release.declaration."""
