"""What exists in Azure: the only part of `infra` that talks to it."""
