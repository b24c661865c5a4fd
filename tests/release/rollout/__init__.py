"""Tests of ml.release.rollout."""
