"""What the SDK does not catch offline: one small rule for each, by subject."""
