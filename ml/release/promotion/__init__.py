"""From a run to a declared version: propose and ask the gates."""
