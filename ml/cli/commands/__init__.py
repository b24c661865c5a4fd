"""The commands of `ml`, one module for each noun."""
