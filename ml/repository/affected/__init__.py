"""Determine what a change affects: projects and their tests, and stacks in deployment order."""
