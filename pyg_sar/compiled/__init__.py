"""Loops over edges, rows and numbers that numba compiles on the user's machine.

torch gathers, multiplies and adds in passes of their own. Here one loop does it all while a row is
in the cache, and prefetches the rows of the next edges. Without numba torch's operations give the
same results. The loops take arrays, not tensors.
"""
