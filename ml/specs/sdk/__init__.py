"""Access to azure-ai-ml: load specs, and translate its errors to Problems."""
