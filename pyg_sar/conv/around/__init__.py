"""Functions that a conv's own forward calls outside of messages."""
