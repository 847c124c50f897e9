"""Graphs in memory, in files and drawn, as arrays that partitioning reads."""
