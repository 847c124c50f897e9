"""Reads the parts of a rank from a partition folder."""
