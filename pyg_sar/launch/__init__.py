"""Starts the processes of a training, and joins them under every launcher."""
