"""Loops over edges, rows and numbers that numba compiles on the user's machine.

torch gathers, multiplies and adds in passes of their own. Here one loop does it all while a row is
in the cache, and asks for the rows of the next edges meanwhile. Nothing depends on it: without
numba the same results come from torch's operations. Arrays in, arrays out: no tensors here.
"""
