"""Endpoints of this machine: servers, router, and recorded requests."""
