"""Each operator of PyTorch's own database as a step."""
