"""Sparse matrices between rows of a cut graph, as ``adj_t``."""
