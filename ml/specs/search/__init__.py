"""Search spaces: distributions, constraints and hints."""
