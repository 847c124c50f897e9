"""Functions over the nodes of all ranks: rows by id, and random pairs."""
