"""Prices with their source and date, and what a month or a job comes to. Imports no Pulumi."""
