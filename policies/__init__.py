"""Whether something may happen: rules over data, importing nothing of `ml` or `infra`."""
