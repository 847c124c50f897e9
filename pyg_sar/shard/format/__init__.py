"""The files of a partition folder."""
