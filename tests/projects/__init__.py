"""Tests of the projects."""
