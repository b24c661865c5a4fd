"""From a run to a declared version: propose it and evaluate the gates."""
