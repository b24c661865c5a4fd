"""Modules for score.py. They are uploaded with a deployment, so they import no other `ml` code."""
