"""Which seeds each batch has: nodes, or the ends of links."""
