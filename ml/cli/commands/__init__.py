"""The commands of `ml`, one module for each command or group of commands."""
