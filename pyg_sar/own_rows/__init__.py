"""Learned rows of a rank's own nodes: parts of one table over all ranks."""
