"""Rows that are read, chosen, written, joined, grouped and reshaped."""
