"""`ml new`: a project written from a table, and what `ml check` says of its metrics."""
