"""Profiles the time, the rows and the memory of an epoch, layer by layer."""
