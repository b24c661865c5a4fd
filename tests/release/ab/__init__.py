"""Tests of ml.release.ab."""
