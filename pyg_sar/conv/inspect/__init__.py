"""Finds out what a message does before it runs on the graph."""
