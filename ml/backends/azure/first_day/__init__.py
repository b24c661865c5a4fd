"""The first day on a real subscription: what Azure should answer, and whether it does."""
