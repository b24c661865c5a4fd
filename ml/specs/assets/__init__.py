"""Find the data, environments, components and models that the repository defines."""
