"""Which edges are drawn, and which numbers nodes get: pure functions of tensors."""
