"""What training code may import; it knows nothing of where it runs."""
