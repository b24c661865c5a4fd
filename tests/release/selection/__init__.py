"""Tests of ml.release.selection."""
