"""The price list and the estimated monthly cost of an environment; imports no pulumi."""
