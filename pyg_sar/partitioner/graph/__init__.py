"""What a graph holds: its types, their attributes, and the checks of both."""
