"""What an environment costs a month, and a job at most; imports no pulumi."""
