"""Tools of all rooms: values of a thread, nested and plain values, private names of torch."""

__version__ = '0.1.0'  # which setuptools reads from the file
