"""Checks for the first day on a real subscription: expected and actual responses of Azure."""
