"""Fit models, measure their latency, and log runs."""
