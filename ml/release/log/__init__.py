"""The audit log of decisions and rollouts."""
