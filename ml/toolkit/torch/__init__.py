"""Parts of a PyTorch training loop; projects may write their own loop."""
