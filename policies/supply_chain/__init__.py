"""What may enter a release from outside: the model formats that load without running code."""
