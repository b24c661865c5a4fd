"""Tests of ml/release."""
