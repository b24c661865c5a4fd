"""What a run came to, as one page of HTML that opens without a network."""
