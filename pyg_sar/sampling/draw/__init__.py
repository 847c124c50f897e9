"""Draws of edges, and numbers of nodes: pure functions of tensors."""
