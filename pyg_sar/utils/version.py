"""The version of this package; setuptools reads the file, so it imports nothing."""

__version__ = '0.1.0'
