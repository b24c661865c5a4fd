"""Predict the event that follows a company's filing; see README.md."""
