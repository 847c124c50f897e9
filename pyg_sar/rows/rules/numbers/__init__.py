"""Functions of numbers, along a dimension and over the rows."""
