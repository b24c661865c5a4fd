"""Tests of ml.release.evidence."""
