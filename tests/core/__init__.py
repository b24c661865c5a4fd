"""Tests of loading, checking and planning specs."""
