"""Create a fork of the template, update it, and build the wheel of a thin fork."""
