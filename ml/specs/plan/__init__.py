"""Plans of jobs: immutable dataclasses that are built from a checked spec."""
