"""Tests of the project filings_nlp."""
