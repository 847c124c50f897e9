"""Which part every node goes to."""
