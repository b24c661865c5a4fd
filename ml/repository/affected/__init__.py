"""What a change affects: projects and their tests, stacks in the order of a deployment."""
