"""Reports: what the page says, that it is safe, and that it needs nothing from outside."""
