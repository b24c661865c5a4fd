"""The canary: traffic steps, statistics and the decision to go on or roll back."""
