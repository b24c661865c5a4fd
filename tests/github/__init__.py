"""The workflows: their rules, their commands in the order of an event, and what they post."""
