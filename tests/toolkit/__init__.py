"""Tests of what training code may import."""
