"""Tests of ml.release.promotion."""
