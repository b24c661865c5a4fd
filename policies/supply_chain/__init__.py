"""Checks of what a release contains: model formats, licences, and known vulnerabilities."""
