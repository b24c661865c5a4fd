"""Tests of what reads data."""
