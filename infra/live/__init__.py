"""Commands that read or change what exists in Azure and GitHub."""
