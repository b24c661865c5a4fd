"""Tests of ml.release.canary."""
