"""Example projects, one folder per model. A team edits, copies or deletes them."""
