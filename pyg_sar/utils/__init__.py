"""Tools of all rooms: values of a thread, nested values, what installed packages have, the log."""

__version__ = '0.1.0'  # which setuptools reads from the file
