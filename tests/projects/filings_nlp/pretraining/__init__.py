"""Pretraining of filings_nlp."""
