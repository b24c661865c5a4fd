"""Tests of what measures a model."""
