"""SARConv: reads the conv it wraps and picks a path for its messages."""
