"""Forecast the daily sales of many products in many stores."""
