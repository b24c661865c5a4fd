"""What is really there: the only part of `infra` that talks to Azure."""
