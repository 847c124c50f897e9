"""Computes activations again in backward instead of keeping them."""
