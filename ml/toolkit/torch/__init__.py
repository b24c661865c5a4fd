"""Parts of a training loop by PyTorch; the loop itself stays the project's own."""
