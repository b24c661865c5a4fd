"""One folder a model; the team's own, to edit, copy or delete."""
