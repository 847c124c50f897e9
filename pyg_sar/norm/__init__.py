"""Norms of batches. On rows of the whole graph a norm is torch's or PyG's own."""
