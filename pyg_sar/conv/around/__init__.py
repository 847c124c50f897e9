"""What a conv's own forward does beside messages."""
