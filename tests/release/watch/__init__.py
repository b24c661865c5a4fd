"""Tests of ml.release.watch."""
