"""Attention of every row to all rows of all ranks."""
