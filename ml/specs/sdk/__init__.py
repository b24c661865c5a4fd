"""azure-ai-ml: its loaders, and its errors in the form of this repository."""
