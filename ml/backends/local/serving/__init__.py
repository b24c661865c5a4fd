"""Endpoints of this machine: their servers, their router, and what is recorded of requests."""
