"""Data, environments, components and models that the repository defines."""
