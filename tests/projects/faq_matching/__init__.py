"""Tests of the FAQ project."""
