"""Room on the disk: what may go, what must stay, and the bound."""
