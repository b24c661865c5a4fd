"""Tests of what training uses."""
