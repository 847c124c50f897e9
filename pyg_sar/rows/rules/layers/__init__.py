"""Products, losses, norms and layers."""
