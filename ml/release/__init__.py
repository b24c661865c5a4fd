"""From a finished run to a served model: evidence, registry, desired state, and apply."""
